//! Names of properties in rules: those that are no CEL names are escaped.

/// CEL's own words, which cannot name properties as they are.
const KEYWORDS: [&str; 21] = [
    "true",
    "false",
    "null",
    "in",
    "as",
    "break",
    "const",
    "continue",
    "else",
    "for",
    "function",
    "if",
    "import",
    "let",
    "loop",
    "package",
    "namespace",
    "return",
    "var",
    "void",
    "while",
];

const ESCAPES: [(&str, &str); 4] =
    [("__", "__underscores__"), (".", "__dot__"), ("-", "__dash__"), ("/", "__slash__")];

/// Whether a word is one of CEL's own.
pub(crate) fn is_keyword(word: &str) -> bool {
    KEYWORDS.contains(&word)
}

/// The name of a property in rules; `None` if it has none.
pub(crate) fn escape(name: &str) -> Option<String> {
    if name.is_empty() {
        return None;
    }
    if is_keyword(name) {
        return Some(format!("__{name}__"));
    }
    let mut out = String::with_capacity(name.len());
    let mut rest = name;
    while let Some(c) = rest.chars().next() {
        let found = ESCAPES.iter().find(|(plain, _)| rest.starts_with(plain));
        match found {
            Some((plain, escaped)) => {
                out.push_str(escaped);
                rest = rest.get(plain.len()..).unwrap_or_default();
            }
            None if c.is_ascii_alphanumeric() || c == '_' => {
                out.push(c);
                rest = rest.get(1..).unwrap_or_default();
            }
            None => return None,
        }
    }
    (!out.starts_with(|c: char| c.is_ascii_digit())).then_some(out)
}

/// The property that an escaped name means.
pub(crate) fn unescape(name: &str) -> String {
    let word = name.strip_prefix("__").and_then(|rest| rest.strip_suffix("__"));
    if let Some(word) = word.filter(|word| is_keyword(word)) {
        return word.to_owned();
    }
    let mut out = String::with_capacity(name.len());
    let mut rest = name;
    while let Some(c) = rest.chars().next() {
        let found = ESCAPES.iter().find(|(_, escaped)| rest.starts_with(escaped));
        let (text, length) = match found {
            Some((plain, escaped)) => ((*plain).to_owned(), escaped.len()),
            None => (c.to_string(), c.len_utf8()),
        };
        out.push_str(&text);
        rest = rest.get(length..).unwrap_or_default();
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_escaped_and_come_back() {
        let cases = [
            ("a.b", "a__dot__b"),
            ("a-b", "a__dash__b"),
            ("a/b", "a__slash__b"),
            ("a__b", "a__underscores__b"),
            ("namespace", "__namespace__"),
            ("true", "__true__"),
            ("plain", "plain"),
            ("_a", "_a"),
        ];
        for (name, escaped) in cases {
            assert_eq!(escape(name).as_deref(), Some(escaped));
            assert_eq!(unescape(escaped), name);
        }
        for name in ["", "a b", "é", "1a", "$x"] {
            assert_eq!(escape(name), None, "{name}");
        }
    }
}
