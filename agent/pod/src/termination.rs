//! Termination messages of containers.

/// Most bytes of a termination message, as in Kubernetes.
pub const MESSAGE_BYTES: usize = 4096;
/// Most bytes of a message taken from the log.
const LOG_BYTES: usize = 2048;
/// Most lines of a message taken from the log.
const LOG_LINES: usize = 80;
/// Bytes at the end of a log file that always contain the message, including what the log format adds to each line.
pub const LOG_TAIL_BYTES: u64 = 64 << 10;

/// `terminationMessagePolicy` that uses the end of the log if a failed container left no message.
pub const FALLBACK_TO_LOGS: &str = "FallbackToLogsOnError";

/// The message from the end of a log file: the last 80 lines, at most their last 2048 bytes. Lines have the CRI format `<time>
/// <stream> <P or F> <text>`, where `P` marks a line continued in the next entry. `begins_within`: `tail` may start inside a
/// line.
pub fn message_from_log(tail: &[u8], begins_within: bool) -> String {
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

/// Tag and text of a log line; `None` if it is incomplete.
fn parse(line: &str) -> Option<(&str, &str)> {
    let mut parts = line.splitn(4, ' ');
    let (_time, _stream, tags) = (parts.next()?, parts.next()?, parts.next()?);
    Some((tags.split(':').next().unwrap_or(tags), parts.next().unwrap_or_default()))
}

/// The last `limit` bytes of a text at most, cut at a character boundary.
fn last_bytes(text: &str, limit: usize) -> &str {
    let from = text.ceil_char_boundary(text.len().saturating_sub(limit));
    text.get(from..).unwrap_or_default()
}

/// The first `limit` bytes of a text at most, cut at a character boundary.
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
        assert_eq!(
            message_from_log(&log(&[("F", "one"), ("F", "two words")]), false),
            "one\ntwo words\n"
        );
        assert_eq!(message_from_log(&log(&[("P", "in "), ("F", "parts")]), false), "in parts\n");
        assert_eq!(message_from_log(&log(&[("F", "a"), ("P", "no end")]), false), "a\nno end");
        assert_eq!(message_from_log(b"", false), "");
        assert_eq!(message_from_log(b"garbage\n", false), "");
        let mut cut = log(&[("F", "half"), ("F", "whole")]);
        cut.drain(..10);
        assert_eq!(message_from_log(&cut, true), "whole\n");
    }

    #[test]
    fn the_message_is_bounded_in_lines_and_bytes() {
        let many: Vec<String> = (0..100).map(|n| n.to_string()).collect();
        let lines: Vec<(&str, &str)> = many.iter().map(|text| ("F", text.as_str())).collect();
        let message = message_from_log(&log(&lines), false);
        assert_eq!(message.lines().count(), 80);
        assert!(message.starts_with("20\n") && message.ends_with("99\n"));
        let long = "ü".repeat(3000);
        let message = message_from_log(&log(&[("F", &long)]), false);
        assert!(message.len() <= 2048 && message.len() > 2040 && message.ends_with("ü\n"));
        assert_eq!(first_bytes("aü", 2), "a");
    }
}
