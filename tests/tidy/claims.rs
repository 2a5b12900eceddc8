//! What documents and files claim is checked: an invariant names a test, a link leads to a file and a heading, and a file of a pure crate or one that
//! calls itself pure reaches neither clock nor IO.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Component, Path, PathBuf};
use std::process::Command;

use crate::{check, is_test, packages, production, root, sources};

/// Documents with invariants, and the sections in which each item names its tests.
const INVARIANTS: &[(&str, &[&str])] = &[
    ("proto/README.md", &["## Invariants", "### Invariants of `client` and `daemon`"]),
    ("agent/README.md", &["## Invariants"]),
    ("agent/volume/README.md", &["## Invariants"]),
    ("proxy/README.md", &["## Invariants"]),
    ("apiserver-lite/README.md", &["## Invariants", "## Rules of the store"]),
];

/// The lines of a section, without its heading.
fn section<'a>(text: &'a str, heading: &str) -> Vec<&'a str> {
    let mut lines = text.lines().skip_while(|line| *line != heading);
    lines.next();
    lines.take_while(|line| !line.starts_with('#')).collect()
}

/// The items of a list, or the rows of a table without its head; lines that are indented belong to the item before.
fn items(lines: &[&str]) -> Vec<String> {
    let mut items: Vec<String> = Vec::new();
    let is_numbered = |line: &str| {
        line.split_once(". ").is_some_and(|(n, _)| n.chars().all(|c| c.is_ascii_digit()))
    };
    for line in lines {
        if line.starts_with("- ") || line.starts_with("| ") || is_numbered(line) {
            items.push((*line).to_owned());
        } else if line.starts_with(' ')
            && let Some(item) = items.last_mut()
        {
            item.push_str(line);
        } else if line.starts_with("|--") {
            items.pop();
        }
    }
    items
}

fn in_backquotes(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// Names of functions that a test runner calls: with an attribute that says so, and the cases of end-to-end tests.
fn test_names(sources: &[(String, String)]) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for (path, source) in sources {
        let mut is_attributed = path.starts_with("tests/e2e/");
        for line in source.lines() {
            let line = line.trim_start();
            if line.starts_with("#[") && line.contains("test") {
                is_attributed = true;
            } else if let Some((_, rest)) = line.split_once("fn ") {
                let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_');
                let name = &rest[..end.unwrap_or(rest.len())];
                if is_attributed && !line.starts_with("//") {
                    names.insert(name.to_owned());
                }
                is_attributed = path.starts_with("tests/e2e/");
            }
        }
    }
    names
}

#[test]
fn invariants_name_their_tests() {
    let names = test_names(&sources());
    let mut offenders = Vec::new();
    for (document, headings) in INVARIANTS {
        let text = fs::read_to_string(root().join(document)).expect("a document");
        for heading in *headings {
            let items = items(&section(&text, heading));
            if items.len() < 2 {
                offenders.push(format!("{document}: no list below {heading:?}"));
            }
            let untested = |item: &&String| !in_backquotes(item).any(|name| names.contains(name));
            let untested = items.iter().filter(untested);
            offenders.extend(untested.map(|item| format!("{document}: {item}")));
        }
    }
    check("an invariant names a test that holds it", offenders);
}

#[test]
fn items_and_tests_are_read() {
    let text = "## A\n\nText.\n\n- one,\n  more (`t`)\n- two\n\n| head |\n|---|\n| row |\n\n12. last\n## B\n- no\n";
    assert_eq!(
        items(&section(text, "## A")),
        ["- one,  more (`t`)", "- two", "| row |", "12. last"]
    );
    let source = "#[tokio::test(start_paused = true)]\nasync fn a() {}\nfn b() {}\n#[test]\n#[cfg(unix)]\nfn c() {}";
    let files = [("x/src/y.rs", source), ("tests/e2e/z.rs", "pub async fn d() {}")];
    let files = files.map(|(path, source)| (path.to_owned(), source.to_owned()));
    assert_eq!(Vec::from_iter(test_names(&files)), ["a", "c", "d"]);
}

/// The anchor that a heading gets: lower case, without signs, blanks as hyphens.
fn anchor(heading: &str) -> String {
    let kept = |c: &char| c.is_alphanumeric() || " -_".contains(*c);
    heading
        .trim()
        .to_lowercase()
        .chars()
        .filter(kept)
        .map(|c| if c == ' ' { '-' } else { c })
        .collect()
}

/// A document without the lines of its code.
fn prose(text: &str) -> Vec<&str> {
    let mut is_code = false;
    let is_prose = |line: &&str| {
        let fence = line.trim_start().starts_with("```");
        is_code ^= fence;
        !is_code && !fence
    };
    text.lines().filter(is_prose).collect()
}

fn anchors(text: &str) -> BTreeSet<String> {
    let lines = prose(text).into_iter().filter(|line| line.starts_with('#'));
    lines.map(|line| anchor(line.trim_start_matches('#'))).collect()
}

/// The targets of links, of pictures too, but those to other hosts.
fn links(text: &str) -> Vec<String> {
    let prose = prose(text).join("\n");
    let targets = prose.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    targets.filter(|target| !target.contains("://")).map(str::to_owned).collect()
}

/// A path from the root, without `..` in it.
fn normalized(path: &Path) -> PathBuf {
    let mut found = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => drop(found.pop()),
            part => found.push(part),
        }
    }
    found
}

#[test]
fn links_of_documents_lead_somewhere() {
    let output = Command::new("git")
        .args(["ls-files", "--cached", "--others", "--exclude-standard", "*.md"])
        .current_dir(root())
        .output()
        .expect("git ls-files");
    let list = String::from_utf8(output.stdout).expect("paths in UTF-8");
    // A page that a test makes has its pictures nowhere.
    let documents: Vec<&str> = list.lines().filter(|path| !path.contains("/fixture/")).collect();
    let mut offenders = Vec::new();
    for document in &documents {
        let Ok(text) = fs::read_to_string(root().join(document)) else { continue };
        for link in links(&text) {
            let (path, heading) = link.split_once('#').unwrap_or((&link, ""));
            let beside = Path::new(document).parent().unwrap_or(Path::new(""));
            let to = match path {
                "" => PathBuf::from(document),
                path => normalized(&beside.join(path)),
            };
            let there = fs::read_to_string(root().join(&to)).unwrap_or_default();
            let is_there = root().join(&to).exists();
            if !is_there || !heading.is_empty() && !anchors(&there).contains(heading) {
                offenders.push(format!("{document}: {link}"));
            }
        }
    }
    assert!(documents.len() > 20, "{documents:?}");
    check("a link leads to a file and to a heading in it", offenders);
}

#[test]
fn links_and_anchors_are_read() {
    let text = "# At 3 a.m.\n[a](b.md#c) ![d](e.svg) [f](https://g/h)\n```\n# no [i](j)\n```\n## `K` and l\n";
    assert_eq!(links(text), ["b.md#c", "e.svg"]);
    assert_eq!(Vec::from_iter(anchors(text)), ["at-3-am", "k-and-l"]);
    assert_eq!(normalized(Path::new("a/b/../c.md")), Path::new("a/c.md"));
}

/// What a file says of itself if its code only decides.
const PURE: &[&str] =
    &["Pure.", "Pure:", "Pure;", "Pure,", "Pure except", "//! pure:", ": pure.", "pure functions"];

/// Ways to a clock, to IO and to a runtime.
const WAYS_OUT: &[&str] = &[
    "tokio::",
    "async fn ",
    ".await",
    "fs::",
    "File::open",
    "TcpStream",
    "UdpSocket",
    "Instant::now",
    "SystemTime::now",
    "std::thread",
    "std::process",
    "std::env::",
    "rand::",
    "rustix::",
    "nix::",
];

/// A value, not a clock: the instants of tokio's time, which tests move.
const VALUES: &[&str] = &["tokio::time::Instant"];

fn is_called_pure(source: &str) -> bool {
    let opening = source.lines().take_while(|line| line.starts_with("//!"));
    let opening = opening.collect::<Vec<_>>().join("\n");
    PURE.iter().any(|word| opening.contains(word))
}

/// Whether `code` has `way` as whole words.
fn has_words(code: &str, way: &str) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    code.match_indices(way).any(|(at, _)| {
        let before = code[..at].chars().next_back();
        let after = code[at + way.len()..].chars().next();
        !(way.starts_with(is_part) && before.is_some_and(is_part)
            || way.ends_with(is_part) && after.is_some_and(is_part))
    })
}

/// Modules that only tests have, by their declarations: paths without `.rs`.
fn modules_of_tests(sources: &[(String, String)]) -> BTreeSet<String> {
    let mut modules = BTreeSet::new();
    for (path, source) in sources {
        let module = path.strip_suffix(".rs").unwrap_or(path);
        let is_root = module.ends_with("/lib") || module.ends_with("/main");
        let folder = if is_root { module.rsplit_once('/').map_or("", |(f, _)| f) } else { module };
        let mut is_of_tests = false;
        for line in source.lines() {
            let declared = line.strip_suffix(';').and_then(|line| line.split_once("mod "));
            if let Some((_, name)) = declared.filter(|_| is_of_tests) {
                modules.insert(format!("{folder}/{name}"));
            }
            is_of_tests = line.starts_with("#[cfg(") && line.contains("test");
        }
    }
    modules
}

#[test]
fn pure_files_only_decide() {
    let sources = sources();
    let of_tests = modules_of_tests(&sources);
    let is_of_tests = |path: &str| {
        let below = |module: &String| path.strip_prefix(module.as_str());
        let is_below = |rest: &str| rest == ".rs" || rest.starts_with('/');
        is_test(path) || of_tests.iter().filter_map(below).any(is_below)
    };
    let pure = packages().into_iter().filter(|package| package.kind == "pure");
    let pure: Vec<String> = pure.map(|package| format!("{}/src/", package.dir)).collect();
    let mut offenders = Vec::new();
    let mut count = 0;
    for (path, source) in &sources {
        let is_pure = is_called_pure(source) || pure.iter().any(|src| path.starts_with(src));
        if !is_pure || is_of_tests(path) {
            continue;
        }
        count += 1;
        for (number, line) in production(source).lines().enumerate() {
            let code = line.split("//").next().unwrap_or_default();
            let code = VALUES.iter().fold(code.to_owned(), |code, value| code.replace(value, ""));
            let way = WAYS_OUT.iter().find(|way| has_words(&code, way));
            offenders.extend(way.map(|way| format!("{path}:{}: {way}", number + 1)));
        }
    }
    assert!(count > 500, "{count} pure files");
    check("a pure file reaches neither clock nor IO", offenders);
}

#[test]
fn pure_files_and_ways_out_are_found() {
    assert!(
        is_called_pure("//! Plans. Pure: the time is an argument.\n")
            && !is_called_pure("//! io: x\n")
    );
    for code in ["fs::read(x)", "let now = Instant::now();", "map(Instant::now)", "ask(x).await?"] {
        assert!(WAYS_OUT.iter().any(|way| has_words(code, way)), "{code}");
    }
    for code in ["pod.awaits_hook()", "operand::X", "cgroupfs::parse(x)"] {
        assert!(!WAYS_OUT.iter().any(|way| has_words(code, way)), "{code}");
    }
    let root =
        "mod a;\n#[cfg(test)]\nmod b;\n#[cfg(any(test, feature = \"t\"))]\npub mod c;\nmod d;\n";
    let module = "#[cfg(test)]\nmod e;\n";
    let sources = [("x/src/lib.rs", root), ("x/src/a.rs", module)];
    let sources = sources.map(|(path, source)| (path.to_owned(), source.to_owned()));
    let found = Vec::from_iter(modules_of_tests(&sources));
    assert_eq!(found, ["x/src/a/e", "x/src/b", "x/src/c"]);
}
