//! Dependencies: their licences are among those of deny.toml, all come from one registry, none of the workspace's is unused, and no program is built with what
//! is for tests.

use std::collections::BTreeSet;
use std::process::Command;

use serde_json::{Value, json};

use super::{fs, root};

/// A target whose dependencies are checked.
const TARGET: &str = "x86_64-unknown-linux-gnu";

/// The licences that deny.toml allows.
fn allowed() -> BTreeSet<String> {
    let text = fs::read_to_string(root().join("deny.toml")).expect("deny.toml");
    let (_, list) = text.split_once("allow = [").expect("a list of licences");
    let (list, _) = list.split_once("\n]").expect("the end of the list");
    let names = list.lines().filter_map(|line| line.split('"').nth(1));
    names.map(str::to_owned).collect()
}

/// Whether an SPDX expression can be met with the allowed licences alone. `/` is the older way to write `OR`.
fn is_met(expression: &str, allowed: &BTreeSet<String>) -> bool {
    let spaced = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let mut words = spaced.split_whitespace().peekable();
    let met = alternatives(&mut words, allowed);
    met && words.next().is_none()
}

type Words<'a> = std::iter::Peekable<std::str::SplitWhitespace<'a>>;

fn alternatives(words: &mut Words<'_>, allowed: &BTreeSet<String>) -> bool {
    let mut met = all_of(words, allowed);
    while words.next_if_eq(&"OR").is_some() {
        met |= all_of(words, allowed);
    }
    met
}

fn all_of(words: &mut Words<'_>, allowed: &BTreeSet<String>) -> bool {
    let mut met = licence(words, allowed);
    while words.next_if_eq(&"AND").is_some() {
        met &= licence(words, allowed);
    }
    met
}

fn licence(words: &mut Words<'_>, allowed: &BTreeSet<String>) -> bool {
    match words.next() {
        Some("(") => {
            let met = alternatives(words, allowed);
            met && words.next() == Some(")")
        }
        Some(name) => {
            // An exception is part of the licence's name.
            match words.next_if_eq(&"WITH").and_then(|_| words.next()) {
                Some(exception) => allowed.contains(&format!("{name} WITH {exception}")),
                None => allowed.contains(name),
            }
        }
        None => false,
    }
}

#[test]
fn licences_are_permissive() {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--locked", "--offline", "--format-version=1", "--filter-platform"])
        .arg(TARGET)
        .current_dir(root())
        .output()
        .expect("cargo metadata");
    let metadata: Value = serde_json::from_slice(&output.stdout).expect("cargo's JSON");
    let allowed = allowed();
    let packages = metadata["packages"].as_array().expect("a list");
    let refused: Vec<String> = packages
        .iter()
        .filter(|package| !is_met(package["license"].as_str().unwrap_or_default(), &allowed))
        .map(|package| {
            format!("{} {}: {}", package["name"], package["version"], package["license"])
        })
        .collect();
    assert!(refused.is_empty(), "licences that deny.toml does not allow: {refused:#?}");
    assert!(packages.len() > 100, "{} packages", packages.len());
}

#[test]
fn dependencies_come_from_one_registry() {
    for lock in ["Cargo.lock", "tests/fuzz/Cargo.lock", "tests/clients/rust/Cargo.lock"] {
        let text = fs::read_to_string(root().join(lock)).expect("a lock file");
        let sources: BTreeSet<&str> =
            text.lines().filter_map(|line| line.strip_prefix("source = ")).collect();
        assert!(sources.len() == 1, "{lock} has several sources: {sources:?}");
        assert!(sources.iter().all(|source| source.starts_with("\"registry+")), "{sources:?}");
    }
}

/// Dependencies on a registry's package in any version.
fn wildcards(package: &Value) -> Vec<String> {
    let dependencies = package["dependencies"].as_array().into_iter().flatten();
    let any = dependencies.filter(|d| d["req"] == "*" && d["source"].is_string());
    any.map(|dependency| format!("{}: {}", package["name"], dependency["name"])).collect()
}

#[test]
fn dependencies_have_versions() {
    let packages = super::metadata();
    let packages = packages["packages"].as_array().expect("a list");
    super::check(
        "a dependency on a registry's package says its version",
        packages.iter().flat_map(wildcards).collect(),
    );
    let of = |req: &str, source: Value| {
        wildcards(
            &json!({"name": "a", "dependencies": [{"name": "b", "req": req, "source": source}]}),
        )
    };
    assert_eq!(of("*", json!("registry+x")).len(), 1);
    assert!(of("*", Value::Null).is_empty() && of("^1", json!("registry+x")).is_empty());
}

#[test]
fn every_workspace_dependency_has_a_user() {
    let manifest = fs::read_to_string(root().join("Cargo.toml")).expect("Cargo.toml");
    let (_, list) = manifest.split_once("[workspace.dependencies]").expect("dependencies");
    let (list, _) = list.split_once("\n[").expect("another table");
    let names = list.lines().filter_map(|line| line.split_once(" = ")).map(|(name, _)| name);
    let used: BTreeSet<String> =
        super::packages().into_iter().flat_map(|package| package.all_dependencies).collect();
    let unused: Vec<&str> =
        names.filter(|name| !name.starts_with('#') && !used.contains(*name)).collect();
    assert!(unused.is_empty(), "in the workspace's dependencies, used by no crate: {unused:?}");
}

/// Dependencies that a crate's own files do not name: generated code does, or `tests/bench/figures.rs`, which its examples share.
const NAMED_ELSEWHERE: &[(&str, &str)] = &[
    ("apiserver-flow-control", "serde"),
    ("apiserver-store", "serde"),
    ("apiserver-store", "serde_json"),
    ("proto-grpc", "prost"),
    ("proto-grpc", "prost-types"),
    ("proto-grpc", "tonic-prost"),
];

/// Whether a source has a crate's name as a word.
fn names(source: &str, name: &str) -> bool {
    let is_part = |c: char| c == '_' || c.is_alphanumeric();
    source.match_indices(name).any(|(at, _)| {
        !source[..at].ends_with(is_part) && !source[at + name.len()..].starts_with(is_part)
    })
}

#[test]
fn every_dependency_of_a_crate_is_named_by_it() {
    let sources = super::sources();
    let mut unused = Vec::new();
    for package in super::packages() {
        let dir = format!("{}/", package.dir);
        let own: Vec<&str> =
            sources.iter().filter(|s| s.0.starts_with(&dir)).map(|s| s.1.as_str()).collect();
        for dependency in &package.all_dependencies {
            let name = dependency.replace('-', "_");
            let listed = NAMED_ELSEWHERE.contains(&(&package.name, dependency));
            if !listed && !own.iter().any(|source| names(source, &name)) {
                unused.push(format!("{}: {dependency}", package.name));
            }
        }
    }
    super::check("a crate uses its dependencies", unused);
    assert!(names("use serde::x;", "serde") && !names("use serde_json::x;", "serde"));
}

/// The feature that builds what is for tests of other crates.
const TESTING: &str = "testing";

/// Features that a build has unless it is told otherwise.
fn default_features(package: &Value) -> BTreeSet<&str> {
    let (mut enabled, mut next) = (BTreeSet::new(), vec!["default"]);
    while let Some(feature) = next.pop() {
        if enabled.insert(feature) {
            let needed = package["features"][feature].as_array().into_iter().flatten();
            next.extend(needed.filter_map(Value::as_str));
        }
    }
    enabled
}

/// What of a package brings code for tests into programs.
fn testing_in_programs(package: &Value) -> Vec<String> {
    let name = &package["name"];
    let is_testing = |feature: &&str| *feature == TESTING || feature.ends_with("/testing");
    let mut found: Vec<String> = Vec::new();
    if let Some(feature) = default_features(package).into_iter().find(is_testing) {
        found.push(format!("{name}: its default features have {feature}"));
    }
    for dependency in package["dependencies"].as_array().into_iter().flatten() {
        let features = || dependency["features"].as_array().into_iter().flatten();
        if dependency["kind"].as_str() != Some("dev")
            && features().filter_map(Value::as_str).any(|feature| is_testing(&feature))
        {
            found.push(format!("{name}: its dependency {} has {TESTING}", dependency["name"]));
        }
    }
    found
}

#[test]
fn programs_are_built_without_what_is_for_tests() {
    let packages = super::metadata();
    let packages = packages["packages"].as_array().expect("a list");
    super::check(
        "the feature `testing` is enabled by [dev-dependencies] alone",
        packages.iter().flat_map(testing_in_programs).collect(),
    );
    let dependency = |kind: Value, features: &[&str]| {
        testing_in_programs(&json!({
            "name": "a", "dependencies": [{"name": "b", "kind": kind, "features": features}],
        }))
    };
    assert!(dependency(json!("dev"), &[TESTING]).is_empty());
    assert!(dependency(Value::Null, &["std"]).is_empty());
    assert_eq!(dependency(Value::Null, &[TESTING]).len(), 1);
    assert_eq!(dependency(json!("build"), &[TESTING]).len(), 1);
    let features = |default: &str| {
        let features = json!({"default": [default], "more": ["b/testing"], TESTING: []});
        testing_in_programs(&json!({"name": "a", "features": features})).len()
    };
    assert_eq!((features("std"), features("more"), features(TESTING)), (0, 1, 1));
}

#[test]
fn licence_expressions_are_read() {
    let allowed = BTreeSet::from(["MIT".to_owned(), "Apache-2.0".to_owned(), "ISC".to_owned()]);
    let check = |expression: &str, expected: bool| {
        assert_eq!(is_met(expression, &allowed), expected, "{expression}");
    };
    check("MIT", true);
    check("Unlicense/MIT", true);
    check("GPL-3.0-only", false);
    check("LGPL-2.1 OR Apache-2.0", true);
    check("Apache-2.0 AND ISC", true);
    check("(MIT OR Apache-2.0) AND Unicode-3.0", false);
    check("(MIT OR GPL-3.0-only) AND ISC", true);
    check("Apache-2.0 WITH LLVM-exception", false);
    check("Apache-2.0 WITH LLVM-exception OR MIT", true);
    check("", false);
    check("MIT ISC", false);
}
