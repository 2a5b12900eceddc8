//! Files, tests and judges that documents name exist.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use crate::{check, root, sources};

/// The documents. What stands in backquotes there as `path.rs` is a file, as `path.rs::name` a function in it.
const DOCUMENTS: &[&str] = &["agent/INVARIANTS.md", "agent/PAINS.md", "agent/FEATURES.md"];

#[test]
fn files_and_tests_named_in_documents_exist() {
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

/// Documents that name files by the end of their path, without `src`: `workers/shown_status.rs`.
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
    assert!(ends_with("agent/workers/src/shown_status.rs", "workers/shown_status.rs"));
    assert!(!ends_with("agent/workers/src/shown_status.rs", "own.rs"));
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

/// The document whose tables name tests, in columns with this heading.
const TESTS_NAMED_IN: &str = "tests/results/security.md";
const TESTS_COLUMN: &str = "test";

/// The cells of a row of a table, if the line is one.
fn cells(line: &str) -> Option<Vec<String>> {
    let row = line.trim().strip_prefix('|')?.strip_suffix('|')?;
    // A bar in a cell is escaped.
    let row = row.replace("\\|", "\u{0}");
    Some(row.split('|').map(|cell| cell.trim().to_owned()).collect())
}

/// What stands in backquotes in the columns of tests, with the number of its line.
fn tests_named(text: &str) -> Vec<(usize, String)> {
    let mut named = Vec::new();
    let mut column = None;
    let mut is_heading = true;
    for (number, line) in text.lines().enumerate() {
        let Some(cells) = cells(line) else {
            is_heading = true;
            continue;
        };
        if is_heading {
            column = cells.iter().position(|cell| cell == TESTS_COLUMN);
            is_heading = false;
        } else if let Some(cell) = column.and_then(|column| cells.get(column)) {
            let names = cell.split('`').skip(1).step_by(2);
            named.extend(names.map(|name| (number + 1, name.to_owned())));
        }
    }
    named
}

/// Names of functions and modules.
fn functions_and_modules(sources: &[(String, String)]) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for (path, source) in sources {
        names.extend(Path::new(path).file_stem().map(|stem| stem.to_string_lossy().into_owned()));
        for after in source.split("fn ").skip(1) {
            let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
            let end = after.find(|c| !is_name(c)).unwrap_or(after.len());
            names.insert(after[..end].to_owned());
        }
    }
    names
}

/// Whether `module::name` is there, or a name that starts so if it is cut off with `...`.
fn is_test_there(names: &BTreeSet<String>, named: &str) -> bool {
    let name = named.rsplit("::").next().unwrap_or(named);
    let start = name.strip_suffix("...").or_else(|| name.strip_suffix('…'));
    match start {
        Some(start) => names
            .range(start.to_owned()..)
            .next()
            .is_some_and(|first| !start.is_empty() && first.starts_with(start)),
        None => names.contains(name),
    }
}

#[test]
fn tests_that_findings_name_are_there() {
    let names = functions_and_modules(&sources());
    let text = fs::read_to_string(root().join(TESTS_NAMED_IN)).expect("the document");
    let named = tests_named(&text);
    assert!(named.len() > 100, "{TESTS_NAMED_IN} names {} tests", named.len());
    // Files are checked with those of all documents.
    let tests = named.iter().filter(|(_, name)| !name.ends_with(".rs"));
    let missing = tests.filter(|(_, name)| !is_test_there(&names, name));
    let missing = missing.map(|(line, name)| format!("{TESTS_NAMED_IN}:{line}: {name}")).collect();
    check("a test that a finding names is there", missing);
}

#[test]
fn a_finding_that_names_a_missing_test_is_reported() {
    let table = "`before`\n\n| finding | test | fix |\n|---|---|---|\n\
        | `a` \\| b | *seen* `kept`, `m::cut_off_...` | `f` |\n| c | none | |\n\n\
        | kind | files |\n|---|---|\n| d | `e` |\n";
    let named = tests_named(table);
    assert_eq!(named, [(5, "kept".to_owned()), (5, "m::cut_off_...".to_owned())]);
    let source = "fn kept() {}\nasync fn cut_off_here<T>() {}\n".to_owned();
    let names = functions_and_modules(&[("a/src/module.rs".to_owned(), source)]);
    for there in ["kept", "m::kept", "module", "m::cut_off_...", "cut_off_…"] {
        assert!(is_test_there(&names, there), "{there}");
    }
    for gone in ["kep", "cut_off_", "cut_on_...", "...", "kept::gone"] {
        assert!(!is_test_there(&names, gone), "{gone}");
    }
}
