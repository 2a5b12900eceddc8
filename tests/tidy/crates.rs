//! The size of each crate and the arrows between its modules. Programs wire and crates decide: a program crate is small, no module of a
//! crate needs one that needs it, and the root of a library, which may name all modules, has no code of its own.
//!
//! `cargo test -p orch-tests --test tidy crates -- --nocapture` prints the map.

use std::collections::{BTreeMap, BTreeSet};

use crate::{check, is_generated, is_test, packages, production, sources};

/// Production lines that a program crate may have: neither blank, nor a comment, nor of tests.
const PROGRAM_LINES_MAX: usize = 3000;

/// Roots of libraries that have code of their own still.
const ROOTS_WITH_CODE: &[&str] = &["apiserver-lite/garbage/src/lib.rs"];

/// What the items of a library's root begin with: it declares, exports again and documents.
const DECLARATIONS: &[&str] = &[
    "//",
    "#",
    "mod ",
    "pub mod ",
    "pub(crate) mod ",
    "use ",
    "pub use ",
    "pub(crate) use ",
    "extern crate ",
    // Of modules, as proto/api has them.
    "macro_rules! groups",
    "groups! {",
];

/// Top-level modules of a crate, each with those of the same crate that it names.
type Arrows = BTreeMap<String, BTreeSet<String>>;

struct CrateMap {
    name: String,
    kind: String,
    lines: usize,
    arrows: Arrows,
}

impl CrateMap {
    /// Modules that can be reached from themselves.
    fn in_cycles(&self) -> Vec<&str> {
        self.arrows
            .keys()
            .filter(|module| self.reaches(module, module))
            .map(String::as_str)
            .collect()
    }

    fn reaches(&self, from: &str, to: &str) -> bool {
        let mut seen = BTreeSet::new();
        let mut next = vec![from];
        while let Some(module) = next.pop() {
            for needed in self.arrows.get(module).into_iter().flatten() {
                if needed == to {
                    return true;
                }
                if seen.insert(needed) {
                    next.push(needed);
                }
            }
        }
        false
    }
}

fn is_code(line: &&str) -> bool {
    let line = line.trim_start();
    !line.is_empty() && !line.starts_with("//")
}

/// First segments of the paths below the root of the crate in a source, those in braces as well.
/// `depth` is that of the source's module: so many `super::` lead to the root too.
fn crate_paths(source: &str, depth: usize) -> BTreeSet<String> {
    let supers = "super::".repeat(depth);
    let mut found = BTreeSet::new();
    for root in ["crate::", &supers] {
        for (at, _) in source.match_indices(root) {
            let before = source[..at].chars().next_back();
            if before.is_some_and(|c| c == ':' || c == '_' || c.is_alphanumeric()) {
                continue;
            }
            let rest = &source[at + root.len()..];
            match rest.strip_prefix('{') {
                Some(group) => found.extend(group_heads(group)),
                None => found.extend(head(rest)),
            }
        }
    }
    found.remove("super");
    found
}

/// First segments of a group of imports, up to its closing brace.
fn group_heads(group: &str) -> Vec<String> {
    let (mut depth, mut begin, mut found) = (0_usize, 0, Vec::new());
    for (at, char) in group.char_indices() {
        match char {
            '{' => depth += 1,
            '}' if depth == 0 => {
                found.extend(head(&group[begin..at]));
                break;
            }
            '}' => depth -= 1,
            ',' if depth == 0 => {
                found.extend(head(&group[begin..at]));
                begin = at + 1;
            }
            _ => {}
        }
    }
    found
}

fn head(path: &str) -> Option<String> {
    let word: String =
        path.trim_start().chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
    word.starts_with(char::is_lowercase).then_some(word)
}

/// The top-level module of a file below `src`; `None` for a root, which wires.
fn top_module(below_src: &str) -> Option<&str> {
    let first = below_src.split('/').next()?;
    let name = first.strip_suffix(".rs").unwrap_or(first);
    (!matches!(name, "lib" | "main")).then_some(name)
}

fn maps() -> Vec<CrateMap> {
    let sources = sources();
    let map = |package: crate::Package| {
        let src = format!("{}/src/", package.dir);
        let (mut lines, mut arrows) = (0, Arrows::new());
        for (path, source) in &sources {
            let Some(below) = path.strip_prefix(&src) else { continue };
            if is_test(path) || is_generated(path) {
                continue;
            }
            let source = production(source);
            lines += source.lines().filter(is_code).count();
            if let Some(module) = top_module(below) {
                // Links in comments need nothing.
                let code: Vec<&str> = source.lines().filter(is_code).collect();
                let paths = crate_paths(&code.join("\n"), below.split('/').count());
                let needed = paths.into_iter().filter(|needed| needed != module);
                arrows.entry(module.to_owned()).or_default().extend(needed);
            }
        }
        CrateMap { name: package.name, kind: package.kind, lines, arrows }
    };
    let mut maps: Vec<CrateMap> = packages().into_iter().map(map).collect();
    maps.sort_by_key(|map| std::cmp::Reverse(map.lines));
    maps
}

#[test]
fn crates_programs_only_wire() {
    let maps = maps();
    println!("| crate | kind | production lines | modules in a cycle |\n|---|---|---|---|");
    for map in maps.iter().filter(|map| map.lines > 0) {
        println!("| {} | {} | {} | {} |", map.name, map.kind, map.lines, map.in_cycles().join(" "));
    }
    let too_large = |map: &&CrateMap| map.kind == "bin" && map.lines > PROGRAM_LINES_MAX;
    let too_large = maps.iter().filter(too_large);
    check(
        "a program crate only wires",
        too_large.map(|map| format!("{}: {} lines", map.name, map.lines)).collect(),
    );
}

#[test]
fn crates_have_no_cycle_of_modules() {
    let entangled = |map: &CrateMap| {
        let found = map.in_cycles();
        (!found.is_empty()).then(|| format!("{}: {}", map.name, found.join(" ")))
    };
    check("modules of a crate form layers", maps().iter().filter_map(entangled).collect());
}

/// The first item of a library's root that is none of [`DECLARATIONS`]. Every item begins in the first column: the format is checked.
fn code_of_root(source: &str) -> Option<&str> {
    let begins_an_item =
        |line: &&str| line.starts_with(|c: char| !c.is_whitespace() && !"})]".contains(c));
    let is_declaration = |line: &str| DECLARATIONS.iter().any(|start| line.starts_with(start));
    production(source).lines().filter(begins_an_item).find(|line| !is_declaration(line))
}

#[test]
fn crates_roots_only_declare() {
    let mut with_code = BTreeMap::new();
    for (path, source) in sources() {
        if path.ends_with("/src/lib.rs")
            && !is_test(&path)
            && let Some(code) = code_of_root(&source)
        {
            with_code.insert(path, code.to_owned());
        }
    }
    let listed = |path: &String| ROOTS_WITH_CODE.contains(&path.as_str());
    let new = with_code.iter().filter(|(path, _)| !listed(path));
    let mut offenders: Vec<String> =
        new.map(|(path, code)| format!("{path} has code: {code}")).collect();
    let moved = ROOTS_WITH_CODE.iter().filter(|path| !with_code.contains_key(**path));
    offenders.extend(moved.map(|path| format!("{path} has no code, and is listed")));
    check("the root of a library declares, exports again and documents", offenders);
}

#[test]
fn crates_code_in_a_root_is_found() {
    let root =
        "//! A library.\n\nmod a;\npub use a::{\n    B,\n};\n#[cfg(test)]\nmod tests;\nfn f() {}\n";
    assert_eq!(code_of_root(root), None);
    for item in ["pub struct A;", "impl A {\n}", "const A: u8 = 1;", "async fn f() {", "other! {"] {
        let found = code_of_root(&format!("mod a;\n\n{item}\n")).map(str::to_owned);
        assert_eq!(found.as_deref(), item.lines().next());
    }
}

#[test]
fn crates_imports_are_read() {
    let source = "use crate::{a::B, c::{d, E}, F};\nfn f() { crate::g::h(); crate::X; }";
    let heads: Vec<String> = crate_paths(source, 1).into_iter().collect();
    assert_eq!(heads, ["a", "c", "g"]);
    let source = "use super::super::{a::B, C};\nuse super::d;\nuse super::super::e::F;";
    assert_eq!(Vec::from_iter(crate_paths(source, 2)), ["a", "e"]);
    assert_eq!(Vec::from_iter(crate_paths("use super::{a, B};", 1)), ["a"]);
    let arrows = [("a", "b"), ("b", "c"), ("c", "a"), ("d", "a")];
    let arrows = arrows.map(|(from, to)| (from.to_owned(), BTreeSet::from([to.to_owned()])));
    let map =
        CrateMap { name: String::new(), kind: String::new(), lines: 0, arrows: arrows.into() };
    assert_eq!(map.in_cycles(), ["a", "b", "c"]);
}
