//! The language of the tree: Kubernetes' words, no retired names, a glossary that names what exists, and reasons for excuses.

use std::fs;

use crate::{check, is_generated, is_test, production, root, sources};

/// Longest comment line, in characters: documents and sources share it.
const COMMENT_WIDTH_MAX: usize = 160;

/// Phrases that no source may contain, with the words to use instead.
const PHRASES: &[(&str, &str)] =
    &[(concat!("eco", "system"), "Kubernetes"), (concat!("last ", "words"), "termination message")];

/// Words of no technical language, which production code has neither in comments nor in texts nor in names.
const VAGUE_WORDS: &[&str] = &[
    concat!("to", "ld"),
    concat!("tel", "ls"),
    concat!("no", "body"),
    concat!("some", "body"),
    concat!("any", "body"),
    concat!("every", "body"),
    concat!("an", "ew"),
    concat!("who", "ever"),
    concat!("stran", "gers"),
    concat!("ow", "ed"),
    concat!("ow", "es"),
    concat!("he", "ars"),
    concat!("over", "taken"),
];

/// Names of types that were replaced by Kubernetes', containerd's or Rust's words.
const RETIRED_TYPES: &[&str] = &[
    "Gathering",
    "Said",
    "Happened",
    "Doom",
    "Trouble",
    "Strain",
    "Sentence",
    "Ticket",
    "Teller",
    "Desk",
    "Outfit",
    "Holdings",
    "Driven",
    "InPod",
    "Following",
    "KeptApart",
    "Heard",
    "Standing",
    "Reached",
    "Draw",
    "Stem",
    "Lead",
    "Guest",
    "Flight",
    "Landed",
    "Deed",
    "Fate",
    "Miss",
    "Company",
    "Neighbours",
    "Shelves",
    "Life",
    "Mint",
    "Site",
    "Around",
    "Keepers",
    "DeleteWish",
    "Distrust",
    "Ruling",
    "Ages",
    "Scribe",
    "Spoken",
    "Wish",
    "PodWant",
    "PodSeen",
    "ContainerWant",
    "ContainerSeen",
    "SandboxSeen",
    "ImageSeen",
    "VolumesSeen",
    "ContainerMemory",
    "ToldExits",
    "Abridged",
    "Earlier",
    "TakenOver",
    "Announce",
    "Abilities",
    "NoPlace",
    "NotASet",
    "StopWhy",
    "ProbeWant",
];

/// Names of files that were replaced.
const RETIRED_FILES: &[&str] = &[
    "vigil",
    "turns",
    "late",
    "words",
    "choose",
    "abilities",
    "notices",
    "freshness",
    "own_node",
    "running",
    "holders",
    "sweeper",
    "trap",
    "gathering",
    "resident",
    "away",
    "between",
    "exhausted",
    "hung",
    "alone",
    "direct",
    "seams",
    "let_go",
    "last_words",
    "standstill",
    "logins",
    "abridged",
    "placed",
    "arrivals",
    "predecessor",
    "remembered",
    "crowd",
    "upkeep",
    "growth",
    "company",
    "facts",
    "lasting",
    "rotating",
];

#[test]
fn sources_use_kubernetes_words() {
    let mut offenders = Vec::new();
    for (path, source) in sources() {
        if is_generated(&path) {
            continue;
        }
        for (number, line) in source.lines().enumerate() {
            let line = line.to_lowercase();
            let found = PHRASES.iter().filter(|(phrase, _)| line.contains(phrase));
            offenders.extend(found.map(|(phrase, instead)| {
                format!("{path}:{}: {phrase:?}, write {instead:?}", number + 1)
            }));
        }
    }
    check("sources use Kubernetes' words", offenders);
}

/// The words of a line, in lower case; names are taken apart.
fn words(line: &str) -> Vec<String> {
    let mut spaced = String::new();
    let mut before = ' ';
    for char in line.chars() {
        if char.is_ascii_uppercase() && before.is_ascii_lowercase() {
            spaced.push(' ');
        }
        spaced.push(if char.is_ascii_alphanumeric() { char.to_ascii_lowercase() } else { ' ' });
        before = char;
    }
    spaced.split_whitespace().map(str::to_owned).collect()
}

#[test]
fn production_code_has_plain_words() {
    let mut offenders = Vec::new();
    for (path, source) in sources() {
        if is_test(&path) || is_generated(&path) {
            continue;
        }
        for (number, line) in production(&source).lines().enumerate() {
            let found = words(line).into_iter().filter(|w| VAGUE_WORDS.contains(&w.as_str()));
            offenders.extend(found.map(|word| format!("{path}:{}: {word:?}", number + 1)));
        }
    }
    check("production code names things and programs, and says what they do", offenders);
}

#[test]
fn words_of_names_are_found() {
    assert_eq!(words("fn isHeld_byPods(x1)"), ["fn", "is", "held", "by", "pods", "x1"]);
}

#[test]
fn retired_names_are_not_used() {
    let mut offenders = Vec::new();
    for (path, source) in sources() {
        let stem = path.rsplit('/').next().and_then(|file| file.strip_suffix(".rs"));
        if stem.is_some_and(|stem| RETIRED_FILES.contains(&stem)) {
            offenders.push(format!("{path}: a retired file name"));
        }
        for (number, line) in source.lines().enumerate() {
            if let Some(name) = defined_type(line).filter(|name| RETIRED_TYPES.contains(name)) {
                offenders.push(format!("{path}:{}: {name}", number + 1));
            }
        }
    }
    check("names that were replaced are not used again", offenders);
}

/// The name of the type that a line defines.
fn defined_type(line: &str) -> Option<&str> {
    let mut words =
        line.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|w| !w.is_empty());
    let keyword = words.by_ref().find(|word| !matches!(*word, "pub" | "crate" | "super"))?;
    matches!(keyword, "struct" | "enum" | "trait" | "type").then(|| words.next()).flatten()
}

/// Names that say nothing without a type before them, as in `PodInfo::from_pod(pod)`.
const BARE_NAMES: &[&str] = &[
    "of",
    "take",
    concat!("to", "ld"),
    "gone",
    "said",
    "kept",
    "found",
    "made",
    "seen",
    "known",
    "shown",
    "wanted",
    "asked",
    "rest",
    "look",
];

/// Those that say nothing with a type before them either.
const BARE_METHODS: &[&str] = &[
    "of",
    concat!("to", "ld"),
    "gone",
    "said",
    "found",
    "made",
    "seen",
    "known",
    "shown",
    "lost",
    "held",
    "served",
    "written",
];

/// The name of the function of a module that a line defines: methods are indented.
fn free_function(line: &str) -> Option<&str> {
    defined_function(line).filter(|_| !line.starts_with(' '))
}

/// The name of the function or method that a line defines.
fn defined_function(line: &str) -> Option<&str> {
    let (before, rest) = line.split_once("fn ")?;
    let is_definition = before.split_whitespace().all(|word| {
        word.starts_with("pub")
            || matches!(word, "async" | "const" | "unsafe" | "super)" | "crate)")
    });
    let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_')?;
    is_definition.then_some(&rest[..end])
}

#[test]
fn functions_of_modules_have_an_object() {
    let mut offenders = Vec::new();
    for (path, source) in sources() {
        if is_test(&path) || is_generated(&path) {
            continue;
        }
        for (number, line) in source.lines().enumerate() {
            let bare = free_function(line).filter(|name| BARE_NAMES.contains(name));
            offenders.extend(bare.map(|name| format!("{path}:{}: {name}", number + 1)));
        }
        for (number, line) in production(&source).lines().enumerate() {
            let bare = defined_function(line).filter(|name| BARE_METHODS.contains(name));
            offenders.extend(bare.map(|name| format!("{path}:{}: {name}", number + 1)));
        }
    }
    check("a function is a verb with an object; a method may have its type for it", offenders);
    assert_eq!(defined_function("    pub(super) fn of(&self) {"), Some("of"));
    assert_eq!(free_function("pub(super) async fn of<T>(x: T) {"), Some("of"));
    assert_eq!(free_function("    fn of(&self) {"), None);
    assert_eq!(free_function("let f = || of(\"fn x(\");"), None);
}

#[test]
fn glossary_terms_exist_in_the_code() {
    let glossary = fs::read_to_string(root().join("GLOSSARY.md")).unwrap_or_default();
    let files = sources();
    let code: Vec<String> = files
        .iter()
        .filter(|(path, _)| !path.starts_with("tests/tidy/"))
        .map(|(_, source)| letters(source))
        .collect();
    let rows = glossary.lines().filter_map(|line| line.strip_prefix("| ")?.split_once(" | "));
    let rows: Vec<(&str, &str)> = rows.filter(|(term, _)| *term != "term").collect();
    let mut offenders = Vec::new();
    for (terms, meaning) in &rows {
        for term in terms.split(',') {
            let name = letters(term.split('(').next().unwrap_or(term));
            if name.is_empty() || !code.iter().any(|source| source.contains(&name)) {
                offenders.push(format!("{}: in no source", term.trim()));
            }
        }
        let named = meaning.split('`').skip(1).step_by(2).filter(|n| n.ends_with(".rs"));
        let absent = named.filter(|name| !files.iter().any(|(path, _)| path == name));
        offenders.extend(absent.map(|name| format!("{name}: no such file")));
    }
    if rows.is_empty() {
        offenders.push("the glossary has no terms".to_owned());
    }
    check("what the glossary defines is in the code", offenders);
}

/// Letters and digits in lower case, so that `TableSwap`, `table_swap` and "table swap" are one.
fn letters(text: &str) -> String {
    text.chars().filter(char::is_ascii_alphanumeric).map(|c| c.to_ascii_lowercase()).collect()
}

#[test]
fn comments_are_not_too_wide() {
    let mut offenders = Vec::new();
    for (path, source) in sources().into_iter().filter(|(path, _)| !is_generated(path)) {
        let wide = source.lines().enumerate().filter(|(_, line)| {
            line.trim_start().starts_with("//") && line.chars().count() > COMMENT_WIDTH_MAX
        });
        offenders.extend(wide.map(|(number, _)| format!("{path}:{}", number + 1)));
    }
    check("a comment line has at most 160 characters", offenders);
}

/// Words that mark unfinished work.
const UNFINISHED: &[&str] = &[concat!("TO", "DO"), concat!("FIX", "ME"), concat!("XX", "X:")];

#[test]
fn lint_exemptions_have_reasons() {
    let mut offenders = Vec::new();
    for (path, source) in sources().into_iter().filter(|(path, _)| !is_generated(path)) {
        let starts = ["#[allow(", "#![allow(", "#[expect(", "#![expect("];
        for start in starts {
            for (at, _) in source.match_indices(start) {
                let line_start = source.get(..at).and_then(|s| s.rsplit('\n').next());
                let is_code = line_start.is_some_and(|before| before.trim().is_empty());
                let attribute = source.get(at..).and_then(|s| s.split(")]").next());
                if is_code && attribute.is_some_and(|text| !text.contains("reason =")) {
                    let number = source.get(..at).map_or(0, |s| s.lines().count());
                    offenders.push(format!("{path}:{}: no reason", number + 1));
                }
            }
        }
        for (number, line) in source.lines().enumerate() {
            let comment = line.split_once("//").map_or("", |(_, comment)| comment);
            if UNFINISHED.iter().any(|word| comment.contains(word)) {
                offenders.push(format!("{path}:{}: unfinished", number + 1));
            }
        }
    }
    check("an excuse has a reason and work is finished", offenders);
}

#[test]
fn language_the_readme_is_short() {
    let readme = fs::read_to_string(root().join("README.md")).expect("README.md");
    let lines = readme.lines().count();
    let long = (lines > 70).then(|| format!("README.md has {lines} lines"));
    check("README.md has at most 70 lines: more belongs into a guide", long.into_iter().collect());
}
