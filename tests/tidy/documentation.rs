//! Documentation comments: types of libraries have one, and none only repeats the name of what it stands at.

use crate::{check, is_generated, is_test, production, sources};

/// Words that say nothing about an item.
const FILLERS: &[&str] = &[
    "the", "a", "an", "of", "this", "that", "its", "it", "in", "on", "at", "to", "for", "by", "is",
    "are", "and", "or", "as", "with", "from", "which", "one", "has",
];

/// Words before the name of an item in its definition.
const QUALIFIERS: &[&str] = &["const", "async", "unsafe", "default", "static", "mut"];
const KEYWORDS: &[&str] = &["fn", "struct", "enum", "trait", "type", "union", "mod"];

/// Files whose comments may repeat names: functions of the fuzzer are named after its targets.
const MAY_REPEAT: &str = "tests/fuzz/";

/// A documented definition.
struct Item<'a> {
    line: usize,
    /// Empty for a field, variant or constant.
    keyword: &'a str,
    name: &'a str,
    comment: String,
}

/// The words of a comment or name, in lower case and without their endings.
fn stems(text: &str) -> Vec<String> {
    let mut spaced = String::new();
    let mut before = ' ';
    for char in text.chars() {
        if char.is_ascii_uppercase() && (before.is_ascii_lowercase() || before.is_ascii_digit()) {
            spaced.push(' ');
        }
        spaced.push(if char.is_ascii_alphanumeric() { char } else { ' ' });
        before = char;
    }
    spaced.to_lowercase().split_whitespace().map(stem).collect()
}

fn stem(word: &str) -> String {
    let cut = ["ies", "es", "s", "ed", "ing"].iter().find_map(|end| {
        let rest = word.strip_suffix(end)?;
        (rest.len() > 2).then_some(rest)
    });
    cut.unwrap_or(word).trim_end_matches('e').to_owned()
}

/// The keyword and name that a line defines.
fn definition(line: &str) -> Option<(&str, &str)> {
    let rest = line.trim_start();
    let rest = match rest.strip_prefix("pub") {
        Some(rest) if rest.starts_with('(') => rest.split_once(')')?.1,
        Some(rest) if rest.starts_with(' ') => rest,
        _ => rest,
    };
    let mut words =
        rest.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|w| !w.is_empty());
    let first = words.find(|word| !QUALIFIERS.contains(word))?;
    if KEYWORDS.contains(&first) { Some((first, words.next()?)) } else { Some(("", first)) }
}

/// The definitions with a comment of one line.
fn documented(source: &str) -> Vec<Item<'_>> {
    let lines: Vec<&str> = source.lines().collect();
    let comment = |at: usize| lines.get(at).and_then(|line| line.trim_start().strip_prefix("///"));
    let mut found = Vec::new();
    for (at, _) in lines.iter().enumerate() {
        let Some(text) = comment(at) else { continue };
        if at.checked_sub(1).and_then(comment).is_some() || comment(at + 1).is_some() {
            continue;
        }
        let is_attribute = |line: &&&str| {
            let line = line.trim_start();
            line.starts_with("#[")
                || line.ends_with(")]")
                || line.ends_with(',') && line.contains(" = ")
        };
        let item = lines.iter().skip(at + 1).find(|line| !is_attribute(line));
        if let Some((keyword, name)) = item.and_then(|line| definition(line)) {
            found.push(Item { line: at + 1, keyword, name, comment: text.to_owned() });
        }
    }
    found
}

/// Whether a comment has no word that the name does not have.
fn repeats(name: &str, comment: &str) -> bool {
    let (name, fillers) = (stems(name), FILLERS.iter().map(|word| stem(word)).collect::<Vec<_>>());
    let words: Vec<String> = stems(comment).into_iter().filter(|w| !fillers.contains(w)).collect();
    !words.is_empty() && words.iter().all(|word| name.contains(word))
}

/// Comments in these files are the help of a command line, which needs one for each flag.
fn has_flags(source: &str) -> bool {
    source.contains("clap::") || source.contains("#[arg(")
}

#[test]
fn comments_say_more_than_names() {
    let mut offenders = Vec::new();
    for (path, source) in sources() {
        if is_generated(&path) || has_flags(&source) || path.starts_with(MAY_REPEAT) {
            continue;
        }
        let repeated = documented(&source).into_iter().filter(|i| repeats(i.name, &i.comment));
        offenders.extend(repeated.map(|item| {
            let Item { line, keyword, name, comment } = item;
            format!("{path}:{line}: {keyword} {name}:{comment}")
        }));
    }
    check("a comment says what the name does not say", offenders);
}

#[test]
fn public_types_have_comments() {
    let mut offenders = Vec::new();
    for (path, source) in sources() {
        if is_generated(&path) || is_test(&path) || path.contains("/build/") {
            continue;
        }
        let lines: Vec<&str> = production(&source).lines().collect();
        for (at, line) in lines.iter().enumerate() {
            let starts = ["pub struct ", "pub enum ", "pub trait ", "pub type ", "pub union "];
            if !starts.iter().any(|start| line.starts_with(start)) {
                continue;
            }
            let before = lines.iter().take(at).rev();
            let paragraph: Vec<_> = before.take_while(|line| !line.trim().is_empty()).collect();
            if !paragraph.iter().any(|line| line.starts_with("///") || line.starts_with("#[doc")) {
                offenders.push(format!("{path}:{}", at + 1));
            }
        }
    }
    check("a public type has a comment", offenders);
}

#[test]
fn repetitions_are_found() {
    for (name, comment, expected) in [
        ("name", " Its name.", true),
        ("AllocatedPorts", " The ports that are allocated.", true),
        ("ports", " Ports of the node.", false),
        ("entries", " Most entries.", false),
        ("wait", "", false),
    ] {
        assert_eq!(repeats(name, comment), expected, "{name}: {comment}");
    }
    let source =
        "/// Its name.\n#[serde(default)]\npub name: String,\n/// Two\n/// lines.\nfn two() {}";
    let items = documented(source);
    assert_eq!(items.iter().map(|i| (i.line, i.name)).collect::<Vec<_>>(), [(1, "name")]);
    assert_eq!(definition("    pub(crate) const fn of(x: u8)"), Some(("fn", "of")));
    assert_eq!(definition("pub const LIMIT: u8 = 1;"), Some(("", "LIMIT")));
}
