//! Text of a server on a terminal.

use std::borrow::Cow;

/// The text, with what would move a terminal's cursor or change its colours shown instead. Lines and tabs stay.
pub fn visible(text: &str) -> Cow<'_, str> {
    let acts = |c: char| c.is_control() && !matches!(c, '\n' | '\t');
    if !text.contains(acts) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\u{1b}' => shown.push_str("^["),
            c if acts(c) => shown.extend(c.escape_default()),
            c => shown.push(c),
        }
    }
    Cow::Owned(shown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terminal_control_characters_are_shown_escaped() {
        assert_eq!(visible("a\tb\nü"), "a\tb\nü");
        assert_eq!(visible("\u{1b}[1m\r\u{9b}2J\u{7}"), "^[[1m\\r\\u{9b}2J\\u{7}");
    }
}
