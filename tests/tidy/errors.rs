//! Errors are types: a caller decides by variants, and people read their text. A text as the error of a function says neither what it may do nor
//! what may go wrong; neither does another name of the text's type.

use std::collections::BTreeSet;

use crate::{check, is_generated, is_test, sources};

/// Files with such a signature, each with how many there are and the reason.
const TEXTS: &[(&str, usize, &str)] = &[];

const TEXT_TYPES: [&str; 8] = [
    "String",
    "Box<str>",
    "Arc<str>",
    "Rc<str>",
    "&str",
    "&'static str",
    "Cow<'static, str>",
    "Cow<'_, str>",
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

/// The code before the test module, without lines of comments.
pub(super) fn code(source: &str) -> String {
    let mut lines = source.lines().filter(|line| !line.trim_start().starts_with("//")).peekable();
    let mut code = String::new();
    while let Some(line) = lines.next() {
        let is_test = line == "#[cfg(test)]";
        if is_test && lines.peek().is_some_and(|next| next.contains("mod ")) {
            break;
        }
        code.extend([line, "\n"]);
    }
    code
}

/// A type without the paths of its parts.
fn without_paths(text: &str) -> String {
    let parts = text.split_inclusive(['<', ' ', '&', ',']);
    parts.map(|part| part.rsplit("::").next().unwrap_or(part)).collect()
}

fn is_text(error: &str, aliases: &BTreeSet<String>) -> bool {
    let error = without_paths(error);
    TEXT_TYPES.contains(&error.as_str()) || aliases.contains(&error)
}

/// Other names that a source gives to types of texts, each with whether other files may use it.
fn aliases(code: &str) -> Vec<(String, bool)> {
    let read = |line: &str| {
        let (visibility, rest) = line.trim().strip_suffix(';')?.split_once("type ")?;
        let is_public = visibility.starts_with("pub");
        if !visibility.is_empty() && !is_public {
            return None;
        }
        let (name, of) = rest.split_once(" = ")?;
        let name = name.split('<').next().unwrap_or(name).to_owned();
        is_text(of, &BTreeSet::new()).then_some((name, is_public))
    };
    code.lines().filter_map(read).collect()
}

/// How many results of code have a text as their error. `public` are other names of such types, of the other sources.
fn texts_as_errors(code: &str, public: &BTreeSet<String>) -> usize {
    let own = aliases(code);
    // `FromStr` and `TryFrom` have their errors by these names.
    let associated = own.iter().filter(|(name, _)| name == "Err" || name == "Error").count();
    let aliases = own.into_iter().map(|(name, _)| name).chain(public.iter().cloned()).collect();
    let results = code.match_indices("Result<");
    let has_text =
        |rest: &str| matches!(arguments(rest)[..], [_, error] if is_text(error, &aliases));
    results.filter(|(at, name)| has_text(&code[at + name.len()..])).count() + associated
}

#[test]
fn errors_are_types() {
    let sources = sources().into_iter().filter(|(path, _)| !is_test(path) && !is_generated(path));
    let sources: Vec<_> = sources.map(|(path, source)| (path, code(&source))).collect();
    let public = sources.iter().flat_map(|(_, code)| aliases(code));
    let public = public.filter(|(_, is_public)| *is_public).map(|(name, _)| name).collect();
    let mut offenders = Vec::new();
    let mut seen = 0;
    for (path, code) in &sources {
        let listed = TEXTS.iter().find(|(file, ..)| file == path);
        seen += usize::from(listed.is_some());
        let (found, allowed) =
            (texts_as_errors(code, &public), listed.map_or(0, |(_, count, _)| *count));
        if found != allowed {
            offenders.push(format!("{path}: {found} texts as errors, {allowed} are listed"));
        }
    }
    if seen != TEXTS.len() {
        offenders.push("a file of the list is gone".to_owned());
    }
    check("the error of a function is a type", offenders);
}

#[test]
fn errors_as_texts_are_found() {
    for (source, count) in [
        ("fn f() -> Result<(), String> {", 1),
        ("fn f() -> Result<Vec<Arc<X>>, String> {", 1),
        ("fn f(\n) -> Result<\n    BTreeMap<String, (u8, u8)>,\n    String,\n> {", 1),
        ("type F = Box<dyn Fn() -> Result<(), String> + Send>;", 1),
        ("fn f() -> BoxFuture<'a, Option<Result<(), String>>>;", 1),
        ("fn f(x: Result<Box<dyn Fn() -> u8>, String>) {", 1),
        ("fn f() -> Result<(), Box<str>> {", 1),
        ("fn f() -> Result<(), std::sync::Arc<str>> {", 1),
        ("fn f() -> Result<u8, &'static str> {", 1),
        ("type Line = String;\nfn f() -> Result<(), Line> {", 1),
        ("fn f() -> Result<(), other::Shared> {", 1),
        ("pub type Outcome<T> = std::result::Result<T, String>;", 1),
        ("impl FromStr for X {\n    type Err = String;\n}", 1),
        ("impl Visitor for X {\n    type Value = String;\n}", 0),
        ("type Line = String;\nfn f() -> Result<Line, Error> {", 0),
        ("fn f() -> Result<String, Error> {", 0),
        ("fn f() -> Result<BTreeMap<u8, String>, Error> {", 0),
        ("fn f() -> io::Result<String> {", 0),
        ("// fn f() -> Result<(), String> {", 0),
        ("#[cfg(test)]\nmod tests { fn f() -> Result<(), String> {} }", 0),
        ("#[cfg(test)]\npub(crate) mod tests { fn f() -> Result<(), String> {} }", 0),
        ("#[cfg(test)]\nuse x::X;\nfn f() -> Result<(), String> {", 1),
    ] {
        let public = BTreeSet::from(["Shared".to_owned()]);
        assert_eq!(texts_as_errors(&code(source), &public), count, "{source}");
    }
}
