//! Paths with `*`, `?` and `[a-z]` that a shell has left as they are, because they were quoted or it has no such files.

use std::io;
use std::path::{Path, PathBuf};

/// A part of a pattern of names.
#[derive(Debug, PartialEq)]
enum Token {
    /// `*`: any text.
    Any,
    /// `?`: one character.
    One,
    /// `[...]`: one of the ranges, or with `^` none of them.
    Class {
        negated: bool,
        ranges: Vec<(char, char)>,
    },
    Char(char),
}

impl Token {
    fn takes(&self, c: char) -> bool {
        match self {
            Self::Any | Self::One => true,
            Self::Class { negated, ranges } => {
                ranges.iter().any(|(first, last)| (*first..=*last).contains(&c)) != *negated
            }
            Self::Char(own) => *own == c,
        }
    }
}

/// Whether a path has characters that stand for others.
pub fn is_pattern(path: &str) -> bool {
    path.contains(['*', '?', '['])
}

/// The paths that match, in their order, at most `count_max`.
///
/// # Errors
/// A pattern that does not close its `[`, more paths than `count_max`, and errors of reading directories that exist.
pub fn expand(pattern: &str, count_max: usize) -> io::Result<Vec<PathBuf>> {
    let (root, parts) = match pattern.strip_prefix('/') {
        Some(rest) => (PathBuf::from("/"), rest),
        None => (PathBuf::new(), pattern),
    };
    let mut found = vec![root];
    for part in parts.split('/').filter(|part| !part.is_empty()) {
        let mut next = Vec::new();
        if is_pattern(part) {
            let tokens = parse(part)?;
            for directory in &found {
                next.extend(children(directory, &tokens)?);
                if next.len() > count_max {
                    return Err(io::Error::other(format!("more than {count_max} files match")));
                }
            }
        } else {
            next.extend(found.iter().map(|path| path.join(part)).filter(|path| path.exists()));
        }
        found = next;
    }
    found.sort();
    Ok(found)
}

/// The entries of a directory whose names match; none of what is no directory.
fn children(directory: &Path, tokens: &[Token]) -> io::Result<Vec<PathBuf>> {
    let listed = if directory.as_os_str().is_empty() { Path::new(".") } else { directory };
    if !listed.is_dir() {
        return Ok(Vec::new());
    }
    let mut found = Vec::new();
    for entry in std::fs::read_dir(listed)? {
        let name = entry?.file_name();
        if name.to_str().is_some_and(|name| is_match(tokens, name)) {
            found.push(directory.join(name));
        }
    }
    Ok(found)
}

fn parse(part: &str) -> io::Result<Vec<Token>> {
    let open = || io::Error::other(format!("{part:?} has a [ without its ]"));
    let mut tokens = Vec::new();
    let mut chars = part.chars();
    while let Some(c) = chars.next() {
        tokens.push(match c {
            '*' => Token::Any,
            '?' => Token::One,
            '\\' => Token::Char(chars.next().unwrap_or('\\')),
            '[' => parse_class(&mut chars).ok_or_else(open)?,
            c => Token::Char(c),
        });
    }
    Ok(tokens)
}

/// What follows a `[`, with its `]`.
fn parse_class(chars: &mut std::str::Chars<'_>) -> Option<Token> {
    let negated = chars.as_str().starts_with('^');
    if negated {
        chars.next();
    }
    let mut ranges = Vec::new();
    loop {
        let mut take = || match chars.next()? {
            '\\' => chars.next().map(|c| (c, true)),
            c => Some((c, false)),
        };
        let first = match take()? {
            (']', false) if !ranges.is_empty() => return Some(Token::Class { negated, ranges }),
            (first, _) => first,
        };
        let mut rest = chars.clone();
        match (rest.next(), rest.next()) {
            (Some('-'), Some(last)) if last != ']' => {
                *chars = rest;
                ranges.push((first, last));
            }
            _ => ranges.push((first, first)),
        }
    }
}

/// Whether a whole name matches: after each `*` the shortest text is tried first.
fn is_match(tokens: &[Token], name: &str) -> bool {
    let (mut tokens, mut rest) = (tokens, name);
    // Where to go on after the last `*` if what follows it does not match: one character further.
    let mut resume: Option<(&[Token], &str)> = None;
    loop {
        let next = rest.chars().next();
        match (tokens.split_first(), next) {
            (Some((Token::Any, after)), _) => {
                tokens = after;
                resume = Some((after, rest));
                continue;
            }
            (Some((token, after)), Some(c)) if token.takes(c) => {
                tokens = after;
                rest = rest.get(c.len_utf8()..).unwrap_or_default();
                continue;
            }
            (None, None) => return true,
            _ => {}
        }
        let Some((after, from)) = resume else { return false };
        let Some(c) = from.chars().next() else { return false };
        rest = from.get(c.len_utf8()..).unwrap_or_default();
        tokens = after;
        resume = Some((after, rest));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_match_patterns() {
        for (pattern, name, wanted) in [
            ("*.yaml", "a.yaml", true),
            ("*.yaml", ".yaml", true),
            ("*.yaml", "a.yaml.bak", false),
            ("a*b*c", "a-b-b-c", true),
            ("a*b*c", "a-c-b", false),
            ("?.json", "ä.json", true),
            ("?.json", ".json", false),
            ("[a-c]x", "bx", true),
            ("[^a-c]x", "bx", false),
            ("[]x]", "]", true),
            ("[a-]", "-", true),
            ("\\*", "*", true),
            ("\\*", "a", false),
            ("*", "", true),
        ] {
            let tokens = parse(pattern).expect("a pattern");
            assert_eq!(is_match(&tokens, name), wanted, "{pattern} {name}");
        }
        for open in ["[", "a[b", "[]", "[^"] {
            assert!(parse(open).is_err(), "{open}");
        }
    }

    #[test]
    fn patterns_name_files_in_directories() {
        let directory = tempfile::tempdir().expect("directory");
        for sub in ["a", "b"] {
            std::fs::create_dir(directory.path().join(sub)).expect("directory");
        }
        for name in ["b/two.json", "a/one.json", "a/three.txt", "top.json"] {
            std::fs::write(directory.path().join(name), "").expect("file");
        }
        let names = |pattern: &str, max| {
            let full = format!("{}/{pattern}", directory.path().display());
            let found = expand(&full, max).map_err(|error| error.to_string())?;
            let relative = |path: &PathBuf| {
                let path = path.strip_prefix(directory.path()).expect("inside");
                path.display().to_string()
            };
            Ok::<_, String>(found.iter().map(relative).collect::<Vec<_>>())
        };
        let wanted = |names: &[&str]| Ok(names.iter().map(|name| (*name).to_owned()).collect());
        assert_eq!(names("*/*.json", 9), wanted(&["a/one.json", "b/two.json"]));
        assert_eq!(names("[a]/one.json", 9), wanted(&["a/one.json"]));
        assert_eq!(names("*.json", 9), wanted(&["top.json"]));
        assert_eq!(names("top.json/*", 9), wanted(&[]));
        assert_eq!(names("*.yaml", 9), wanted(&[]));
        assert!(names("*/*", 2).expect_err("three match").contains("more than 2 files match"));
    }
}
