//! Last words: what a container leaves to be read when it has ended.

/// Most bytes of one termination message.
pub const MESSAGE_BYTES: usize = 4096;
/// Most bytes that a message taken from the log has.
const LOG_BYTES: usize = 2048;
/// Most lines that a message taken from the log has.
const LOG_LINES: usize = 80;
/// How much of the end of a log file holds the message in any case: its content, and what the log format adds to each line.
pub const LOG_TAIL_BYTES: u64 = 64 << 10;

/// The policy that takes the end of the log for a container that failed and left no message.
pub const FALLBACK_TO_LOGS: &str = "FallbackToLogsOnError";

/// The message in the end of a log file: its last 80 lines, at most 2048 bytes of them. `tail` may begin within a line; lines are
/// as runtimes write them, `<time> <stream> <P or F> <text>`, where `P` tells that the line goes on in the next.
pub fn of_log(tail: &[u8], begins_within: bool) -> String {
    let text = String::from_utf8_lossy(tail);
    let mut lines: Vec<String> = Vec::new();
    let mut goes_on = false;
    for raw in text.lines().skip(usize::from(begins_within)) {
        let Some((tag, content)) = parse(raw) else { continue };
        match lines.last_mut().filter(|_| goes_on) {
            Some(line) => line.push_str(content),
            None => lines.push(content.to_owned()),
        }
        goes_on = tag == "P";
    }
    let last = lines.len().saturating_sub(LOG_LINES);
    let mut message = String::new();
    for line in lines.get(last..).unwrap_or_default() {
        message.push_str(line);
        message.push('\n');
    }
    if goes_on {
        message.pop();
    }
    last_bytes(&message, LOG_BYTES).to_owned()
}

/// Tag and text of a line of a log; `None` for one that is not whole.
fn parse(line: &str) -> Option<(&str, &str)> {
    let mut parts = line.splitn(4, ' ');
    let (_time, _stream, tags) = (parts.next()?, parts.next()?, parts.next()?);
    Some((tags.split(':').next().unwrap_or(tags), parts.next().unwrap_or_default()))
}

/// At most the last `limit` bytes of a text, whole characters.
fn last_bytes(text: &str, limit: usize) -> &str {
    let from = text.ceil_char_boundary(text.len().saturating_sub(limit));
    text.get(from..).unwrap_or_default()
}

/// At most the first `limit` bytes of a text, whole characters.
pub(crate) fn first_bytes(text: &str, limit: usize) -> &str {
    let to = text.floor_char_boundary(limit);
    text.get(..to).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(lines: &[(&str, &str)]) -> Vec<u8> {
        let line = |(tag, text): &(&str, &str)| {
            format!("2026-01-01T00:00:00.000000001Z stderr {tag} {text}\n")
        };
        lines.iter().map(line).collect::<String>().into_bytes()
    }

    #[test]
    fn the_message_is_the_text_of_the_last_lines() {
        assert_eq!(of_log(&log(&[("F", "one"), ("F", "two words")]), false), "one\ntwo words\n");
        assert_eq!(of_log(&log(&[("P", "in "), ("F", "parts")]), false), "in parts\n");
        assert_eq!(of_log(&log(&[("F", "a"), ("P", "no end")]), false), "a\nno end");
        assert_eq!(of_log(b"", false), "");
        assert_eq!(of_log(b"garbage\n", false), "");
        let mut cut = log(&[("F", "half"), ("F", "whole")]);
        cut.drain(..10);
        assert_eq!(of_log(&cut, true), "whole\n");
    }

    #[test]
    fn the_message_is_bounded_in_lines_and_bytes() {
        let many: Vec<String> = (0..100).map(|n| n.to_string()).collect();
        let lines: Vec<(&str, &str)> = many.iter().map(|text| ("F", text.as_str())).collect();
        let message = of_log(&log(&lines), false);
        assert_eq!(message.lines().count(), 80);
        assert!(message.starts_with("20\n") && message.ends_with("99\n"));
        let long = "ü".repeat(3000);
        let message = of_log(&log(&[("F", &long)]), false);
        assert!(message.len() <= 2048 && message.len() > 2040 && message.ends_with("ü\n"));
        assert_eq!(first_bytes("aü", 2), "a");
    }
}
