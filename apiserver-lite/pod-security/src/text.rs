//! Parts of messages: names in quotes, singular and plural, texts as Go's `%q` writes them.

/// `"a", "b"`, without escapes; empty for no text.
pub(crate) fn join_quoted<'a>(texts: impl IntoIterator<Item = &'a str>) -> String {
    let quoted: Vec<String> = texts.into_iter().map(|text| format!("\"{text}\"")).collect();
    quoted.join(", ")
}

/// `one` for a count of one, else `many`.
pub(crate) fn pluralize(count: usize, one: &'static str, many: &'static str) -> &'static str {
    if count == 1 { one } else { many }
}

/// `container "a"`, or `containers "a", "b"`.
pub(crate) fn name_containers(names: &[&str]) -> String {
    let word = pluralize(names.len(), "container", "containers");
    format!("{word} {}", join_quoted(names.iter().copied()))
}

/// A text in quotes, with Go's escapes.
pub(crate) fn quote(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len().saturating_add(2));
    quoted.push('"');
    for char in text.chars() {
        match char {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            '\u{7}' => quoted.push_str("\\a"),
            '\u{8}' => quoted.push_str("\\b"),
            '\t' => quoted.push_str("\\t"),
            '\n' => quoted.push_str("\\n"),
            '\u{b}' => quoted.push_str("\\v"),
            '\u{c}' => quoted.push_str("\\f"),
            '\r' => quoted.push_str("\\r"),
            ' '..='~' => quoted.push(char),
            '\0'..='\u{7f}' => quoted.push_str(&format!("\\x{:02x}", u32::from(char))),
            _ if is_printable(char) => quoted.push(char),
            '\u{80}'..='\u{ffff}' => quoted.push_str(&format!("\\u{:04x}", u32::from(char))),
            _ => quoted.push_str(&format!("\\U{:08x}", u32::from(char))),
        }
    }
    quoted.push('"');
    quoted
}

/// Whether a character that is not ASCII is shown as it is. A mark that joins the character before it is not.
fn is_printable(char: char) -> bool {
    char.escape_debug().count() == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_quoted_without_escapes() {
        for (names, joined, named) in [
            (vec![], "", "containers "),
            (vec!["a"], "\"a\"", "container \"a\""),
            (vec!["a", "b"], "\"a\", \"b\"", "containers \"a\", \"b\""),
            (vec!["", "a\"b\n"], "\"\", \"a\"b\n\"", "containers \"\", \"a\"b\n\""),
        ] {
            assert_eq!(join_quoted(names.iter().copied()), joined);
            assert_eq!(name_containers(&names), named);
        }
    }

    #[test]
    fn only_one_is_singular() {
        let words = [0, 1, 2, usize::MAX].map(|count| pluralize(count, "type", "types"));
        assert_eq!(words, ["types", "type", "types", "types"]);
    }

    #[test]
    fn texts_are_quoted_as_go_quotes_them() {
        for (text, quoted) in [
            ("", r#""""#),
            ("runtime/default", r#""runtime/default""#),
            ("it's \"so\" \\", r#""it's \"so\" \\""#),
            ("\u{7}\u{8}\u{c}\n\r\t\u{b}", r#""\a\b\f\n\r\t\v""#),
            ("\0\u{1b}\u{7f}", r#""\x00\x1b\x7f""#),
            ("äß漢😀", r#""äß漢😀""#),
            ("\u{a0}\u{200b}\u{feff}", r#""\u00a0\u200b\ufeff""#),
            ("\u{10ffff}", r#""\U0010ffff""#),
        ] {
            assert_eq!(quote(text), quoted, "{text:?}");
        }
    }
}
