//! Text from outside, made harmless: nothing of it moves the cursor, turns the direction of writing or hides.

use orchctl_printers::terminal::visible;

/// Most characters of a cell.
const CELL_LEN_MAX: usize = 1024;
/// Most characters of a line of a log or a page.
pub const LINE_LEN_MAX: usize = 4096;
/// Columns between stops of tabs.
const TAB: usize = 8;

/// A cell: one line.
pub fn cell(text: &str) -> String {
    let text: String = text.trim().chars().take(CELL_LEN_MAX).collect();
    let words: Vec<&str> = text.split(['\n', '\t']).filter(|part| !part.is_empty()).collect();
    escape_text(&words.join(" "))
}

/// A line of a log or a page, with tabs as spaces.
pub fn line(text: &str) -> String {
    let text: String = text.chars().take(LINE_LEN_MAX).filter(|c| *c != '\r').collect();
    let mut out = String::with_capacity(text.len());
    let mut column = 0_usize;
    for c in escape_text(&text).chars() {
        if c == '\t' {
            let spaces = TAB.saturating_sub(column % TAB);
            out.extend(std::iter::repeat_n(' ', spaces));
            column = column.saturating_add(spaces);
        } else {
            out.push(c);
            column = column.saturating_add(1);
        }
    }
    out
}

fn escape_text(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in visible(text).chars() {
        if is_misleading(c) { out.extend(c.escape_unicode()) } else { out.push(c) }
    }
    out
}

/// Invisible characters, and those that change how other characters are displayed.
fn is_misleading(c: char) -> bool {
    matches!(
        c,
        '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}'
            | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e0fff}'
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_acts_on_the_terminal() {
        assert_eq!(cell(" a\u{1b}]0;x\u{7}\n\n\tb\u{202e}c "), "a^[]0;x\\u{7} b\\u{202e}c");
        assert_eq!(line("a\tb\u{9b}2J\r"), "a       b\\u{9b}2J");
        assert_eq!(line("äöü\t|"), "äöü     |");
    }

    #[test]
    fn texts_have_a_bound() {
        assert_eq!(cell(&"ä".repeat(CELL_LEN_MAX * 2)).chars().count(), CELL_LEN_MAX);
        assert_eq!(line(&"x".repeat(LINE_LEN_MAX * 2)).chars().count(), LINE_LEN_MAX);
    }
}
