//! Errors are types: a caller decides by variants, and people read their text. A `String` as the error of a function says neither what it may do nor
//! what may go wrong.

use crate::{check, is_generated, is_test, production, sources};

/// Where the rule holds.
const COMPONENTS: [&str; 2] = ["agent/", "proto/"];

/// Files with such a signature, each with how many there are and the reason.
const TEXTS: &[(&str, usize, &str)] = &[
    (
        "agent/orchlet/src/app/runtime.rs",
        1,
        "the version of the runtime at the start, whose error is logged and retried",
    ),
    (
        "proto/daemon/src/health.rs",
        2,
        "the reason of a failed check, which is logged; programs read the status code",
    ),
];

/// The arguments of a generic type, whose `<` stands before `rest`.
fn arguments(rest: &str) -> Vec<&str> {
    let (mut depth, mut begin, mut found) = (0_usize, 0, Vec::new());
    let mut before = ' ';
    for (at, char) in rest.char_indices() {
        match char {
            '<' | '(' | '[' => depth += 1,
            '>' if before == '-' => {}
            '>' | ')' | ']' if depth == 0 => {
                found.push(rest[begin..at].trim());
                break;
            }
            '>' | ')' | ']' => depth -= 1,
            ',' if depth == 0 => {
                found.push(rest[begin..at].trim());
                begin = at + 1;
            }
            // No type goes on here.
            '{' | '}' | ';' => break,
            _ => {}
        }
        before = char;
    }
    found.retain(|argument| !argument.is_empty());
    found
}

/// How many results of a source have a text as their error.
fn texts_as_errors(source: &str) -> usize {
    let is_code = |line: &&str| !line.trim_start().starts_with("//");
    let code: Vec<&str> = production(source).lines().filter(is_code).collect();
    let code = code.join("\n");
    let results = code.match_indices("Result<");
    let is_text = |rest: &str| matches!(arguments(rest)[..], [_, "String"]);
    results.filter(|(at, name)| is_text(&code[at + name.len()..])).count()
}

#[test]
fn errors_are_types() {
    let mut offenders = Vec::new();
    let mut seen = 0;
    for (path, source) in sources() {
        if !COMPONENTS.iter().any(|component| path.starts_with(component))
            || is_test(&path)
            || is_generated(&path)
        {
            continue;
        }
        let listed = TEXTS.iter().find(|(file, ..)| *file == path);
        seen += usize::from(listed.is_some());
        let (found, allowed) = (texts_as_errors(&source), listed.map_or(0, |(_, count, _)| *count));
        if found != allowed {
            offenders.push(format!("{path}: {found} of `Result<_, String>`, {allowed} are listed"));
        }
    }
    if seen != TEXTS.len() {
        offenders.push("a file of the list is gone".to_owned());
    }
    check("the error of a function is a type", offenders);
}

#[test]
fn errors_as_texts_are_found() {
    for (code, count) in [
        ("fn f() -> Result<(), String> {", 1),
        ("fn f() -> Result<Vec<Arc<X>>, String> {", 1),
        ("fn f(\n) -> Result<\n    BTreeMap<String, (u8, u8)>,\n    String,\n> {", 1),
        ("type F = Box<dyn Fn() -> Result<(), String> + Send>;", 1),
        ("fn f() -> BoxFuture<'a, Option<Result<(), String>>>;", 1),
        ("fn f(x: Result<Box<dyn Fn() -> u8>, String>) {", 1),
        ("fn f() -> Result<String, Error> {", 0),
        ("fn f() -> Result<BTreeMap<u8, String>, Error> {", 0),
        ("fn f() -> io::Result<String> {", 0),
        ("// fn f() -> Result<(), String> {", 0),
        ("#[cfg(test)]\nmod tests { fn f() -> Result<(), String> {} }", 0),
    ] {
        assert_eq!(texts_as_errors(code), count, "{code}");
    }
}
