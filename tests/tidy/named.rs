//! Tests and judges that documents name exist.

use std::collections::BTreeMap;
use std::fs;

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
