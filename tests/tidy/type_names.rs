//! One word, one meaning: a component has one public type of a name. Who reads the name knows the type, whatever the module.

use std::collections::{BTreeMap, BTreeSet};

use crate::errors::code;
use crate::{check, is_generated, is_test, sources};

/// Folders whose crates share their words.
const COMPONENTS: &[&str] = &["agent", "proxy", "apiserver-lite", "proto"];

/// Types that may have a name twice: where they are defined, the name (each, if it is empty) and the reason.
const REPEATED: &[(&str, &str, &str)] = &[
    (
        "apiserver-lite/orchctl-changes/src/",
        "Args",
        "clap's convention: the arguments of a subcommand, which has a module of its own",
    ),
    (
        "apiserver-lite/orchctl-commands/src/",
        "Args",
        "clap's convention: the arguments of a subcommand, which has a module of its own",
    ),
    (
        "apiserver-lite/orch-apiserver/src/tls.rs",
        "ChainAndKey",
        "the same type as apiserver-lite/http's: what the files of a client certificate give",
    ),
    (
        "apiserver-lite/custom-resources/src/scale.rs",
        "ScalePaths",
        "the same value as apiserver-lite/schema's, into which core copies it",
    ),
    (
        "proto/api/build/schema.rs",
        "",
        "the build script's reading of the tables that become proto/api/src/schema.rs",
    ),
];

/// The name of the public type that a line defines. What is visible in its crate only is no public type.
fn public_type(line: &str) -> Option<&str> {
    let item = line.trim_start().strip_prefix("pub ")?;
    let item = item.strip_prefix(concat!("unsa", "fe ")).unwrap_or(item);
    let keywords = ["struct ", "enum ", "trait ", "type ", "union "];
    let rest = keywords.iter().find_map(|keyword| item.strip_prefix(keyword))?;
    let name = rest.split(|c: char| !c.is_alphanumeric() && c != '_').next()?;
    // A macro's `$name` is no name.
    (!name.is_empty()).then_some(name)
}

/// Names that several types of a component have, each with the files of those that `repeated` does not list, and the listed that stand alone.
fn repeated_names(
    files: &[(String, String)],
    repeated: &[(&str, &str, &str)],
) -> (Vec<String>, Vec<String>) {
    let mut all: BTreeMap<(&str, &str), Vec<&str>> = BTreeMap::new();
    let codes: Vec<(&str, String)> = files
        .iter()
        .filter(|(path, _)| !is_test(path) && !is_generated(path))
        .map(|(path, source)| (path.as_str(), code(source)))
        .collect();
    for (path, code) in &codes {
        let component = path.split('/').next().unwrap_or_default();
        if COMPONENTS.contains(&component) {
            for name in code.lines().filter_map(public_type) {
                all.entry((component, name)).or_default().push(path);
            }
        }
    }
    let mut offenders = Vec::new();
    let mut used = BTreeSet::new();
    for ((component, name), paths) in all.iter().filter(|(_, paths)| paths.len() > 1) {
        let listed = |path: &&&str| {
            let lists = |(of, listed, _): &(&str, &str, &str)| {
                path.starts_with(of) && (listed.is_empty() || listed == name)
            };
            repeated.iter().position(lists)
        };
        used.extend(paths.iter().filter_map(|path| listed(&path)));
        let others: Vec<&str> =
            paths.iter().filter(|path| listed(path).is_none()).copied().collect();
        if others.len() > 1 {
            offenders.push(format!("{component}: {name}: {}", others.join(", ")));
        }
    }
    let unused = repeated.iter().enumerate().filter(|(at, _)| !used.contains(at));
    (offenders, unused.map(|(_, (of, name, _))| format!("{of}: {name}")).collect())
}

#[test]
fn public_types_of_a_component_have_names_of_their_own() {
    let (offenders, unused) = repeated_names(&sources(), REPEATED);
    check("no public type name stands twice in a component", offenders);
    check("a type that is listed because its name stands twice has such a name", unused);
}

#[test]
fn repeated_type_names_are_found() {
    let file = |path: &str, source: &str| (path.to_owned(), source.to_owned());
    let files = [
        file("agent/a/src/lib.rs", "pub struct Plan {\n}\n/// pub enum Args {}\n"),
        file("agent/b/src/lib.rs", "    pub enum Plan {\n    }\npub(crate) struct Args;\n"),
        // Another component, a test, a test module and a name that goes on.
        file("proxy/a/src/lib.rs", "pub type Plan = u8;\npub trait Args: Send {\n}\n"),
        file("agent/c/tests/plan.rs", "pub struct Plan;\n"),
        file(
            "agent/d/src/lib.rs",
            "pub struct Planned;\n#[cfg(test)]\nmod t {\n    pub struct Plan;\n}\n",
        ),
        file(
            "proxy/b/src/lib.rs",
            "pub union Args<T> {\n}\n        pub struct $name;\n        pub enum $name {\n",
        ),
    ];
    let (found, unused) = repeated_names(&files, &[]);
    let plan = "agent: Plan: agent/a/src/lib.rs, agent/b/src/lib.rs";
    let args = "proxy: Args: proxy/a/src/lib.rs, proxy/b/src/lib.rs";
    assert_eq!(found, [plan, args]);
    assert_eq!(unused, [""; 0]);
    let listed = [("proxy/b/", "Args", "a reason"), ("agent/", "Args", "none stands twice")];
    assert_eq!(
        repeated_names(&files, &listed),
        (vec![plan.to_owned()], vec!["agent/: Args".to_owned()])
    );
    let each = [("agent/b/", "", "a reason"), ("proxy/b/", "Args", "a reason")];
    assert_eq!(repeated_names(&files, &each), (Vec::new(), Vec::new()));
}
