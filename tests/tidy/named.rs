//! Files, tests and judges that documents name exist.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use crate::{check, root, sources};

/// The documents. What stands in backquotes there as `path.rs` is a file, as `path.rs::name` a function in it.
const DOCUMENTS: &[&str] = &["agent/INVARIANTS.md", "agent/PAINS.md", "agent/FEATURES.md"];

#[test]
fn what_documents_name_is_there() {
    let sources: BTreeMap<String, String> = sources().into_iter().collect();
    let mut missing = Vec::new();
    for document in DOCUMENTS {
        let text = fs::read_to_string(root().join(document)).unwrap_or_default();
        let named: Vec<&str> = text.split('`').skip(1).step_by(2).filter(|n| is_named(n)).collect();
        if named.is_empty() {
            missing.push(format!("{document} names nothing"));
        }
        let absent = named.iter().filter(|name| !is_there(&sources, name));
        missing.extend(absent.map(|name| format!("{document}: {name}")));
    }
    check("what a document names as a test is there", missing);
}

/// Documents that name files by the end of their path, without `src`: `workers/shown.rs`.
const BRIEF_DOCUMENTS: &[&str] = &[
    "ARCHITECTURE.md",
    "README.md",
    "SECURITY.md",
    "apiserver-lite/README.md",
    "proto/README.md",
    "proxy/README.md",
    "tests/results",
];

/// The brief documents, those of a directory one by one.
fn brief_documents() -> Vec<PathBuf> {
    let mut documents = Vec::new();
    for path in BRIEF_DOCUMENTS.iter().map(|path| root().join(path)) {
        match fs::read_dir(&path) {
            Ok(entries) => documents.extend(entries.map(|entry| entry.expect("an entry").path())),
            Err(_) => documents.push(path),
        }
    }
    documents.retain(|path| path.extension().is_some_and(|extension| extension == "md"));
    documents
}

/// The names that a path with one `{a,b}` stands for.
fn alternatives(path: &str) -> Vec<String> {
    let parts = path.split_once('{').and_then(|(start, rest)| Some((start, rest.split_once('}')?)));
    let Some((start, (names, end))) = parts else { return vec![path.to_owned()] };
    names.split(',').map(|name| format!("{start}{name}{end}")).collect()
}

/// The files that a text in backquotes names, if it names any.
fn files_named(text: &str) -> Vec<String> {
    let path = text.split("::").next().unwrap_or_default();
    let is_path = |c: char| c.is_alphanumeric() || "/_-.{},".contains(c);
    let is_file = path.ends_with(".rs") && path.len() > 3 && path.chars().all(is_path);
    if is_file { alternatives(path) } else { Vec::new() }
}

/// Whether a file's path ends with a name, with `src` in it or without.
fn ends_with(path: &str, name: &str) -> bool {
    let ends = |path: &str| {
        path.strip_suffix(name).is_some_and(|rest| rest.is_empty() || rest.ends_with('/'))
    };
    ends(path) || ends(&path.replace("/src/", "/"))
}

#[test]
fn files_that_documents_name_are_there() {
    let paths: Vec<String> = sources().into_iter().map(|(path, _)| path).collect();
    let mut missing = Vec::new();
    for document in brief_documents() {
        let text = fs::read_to_string(&document).expect("a document");
        for name in text.split('`').skip(1).step_by(2).flat_map(files_named) {
            if !paths.iter().any(|path| ends_with(path, &name)) {
                missing.push(format!("{}: {name}", document.display()));
            }
        }
    }
    check("a file that a document names is there", missing);
    assert_eq!(files_named("dns/{cache,zone}.rs::x"), ["dns/cache.rs", "dns/zone.rs"]);
    assert_eq!(files_named("cargo test x.rs"), Vec::<String>::new());
    assert!(ends_with("agent/workers/src/shown.rs", "workers/shown.rs"));
    assert!(!ends_with("agent/workers/src/shown.rs", "own.rs"));
}

/// A path below the root, with a function or without.
fn is_named(text: &str) -> bool {
    let path = text.split("::").next().unwrap_or_default();
    path.ends_with(".rs") && path.contains('/')
}

fn is_there(sources: &BTreeMap<String, String>, named: &str) -> bool {
    let Some((path, name)) = named.split_once("::") else { return sources.contains_key(named) };
    let function = format!("fn {name}");
    let begins = |rest: &str| rest.starts_with(['(', '<']);
    sources.get(path).is_some_and(|source| {
        let mut found = source.match_indices(&function);
        found.any(|(at, found)| source.get(at + found.len()..).is_some_and(begins))
    })
}
