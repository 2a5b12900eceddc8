//! The last lines of a log, from parts as they arrive.

use std::collections::VecDeque;

use crate::text;

/// Most lines that are kept.
pub const LINES_MAX: usize = 2000;
/// Most bytes of a line that are kept.
const LINE_BYTES_MAX: usize = 4 * text::LINE_LEN_MAX;

/// The last lines of a log.
#[derive(Debug, Default)]
pub struct LogLines {
    lines: VecDeque<String>,
    /// The begin of a line whose end has not come.
    open: Vec<u8>,
    /// Lines that were dropped.
    dropped: usize,
}

impl LogLines {
    /// Takes in a part. How many lines it ended.
    pub fn push(&mut self, part: &[u8]) -> usize {
        let mut ended = 0_usize;
        for piece in part.split_inclusive(|byte| *byte == b'\n') {
            let is_whole = piece.ends_with(b"\n");
            let text = piece.strip_suffix(b"\n").unwrap_or(piece);
            let room = LINE_BYTES_MAX.saturating_sub(self.open.len()).min(text.len());
            self.open.extend_from_slice(text.get(..room).unwrap_or_default());
            if is_whole {
                self.end_line();
                ended = ended.saturating_add(1);
            }
        }
        ended
    }

    /// The log has ended; its last line may have no end.
    pub fn end(&mut self) {
        if !self.open.is_empty() {
            self.end_line();
        }
    }

    fn end_line(&mut self) {
        let line = text::line(&String::from_utf8_lossy(&self.open));
        self.open.clear();
        if self.lines.len() >= LINES_MAX {
            self.lines.pop_front();
            self.dropped = self.dropped.saturating_add(1);
        }
        self.lines.push_back(line);
    }

    /// The lines that are kept, the oldest first.
    pub fn lines(&self) -> &VecDeque<String> {
        &self.lines
    }

    /// How many older lines were dropped.
    pub fn dropped(&self) -> usize {
        self.dropped
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_in_parts() {
        let mut log = LogLines::default();
        assert_eq!(log.push(b"a\nb"), 1);
        assert_eq!(log.push(b"c\n\xff\x1b[1m"), 1);
        log.end();
        assert_eq!(log.lines(), &["a", "bc", "\u{fffd}^[[1m"]);
    }

    #[test]
    fn memory_is_bounded() {
        let mut log = LogLines::default();
        for at in 0..LINES_MAX + 3 {
            log.push(format!("{at}\n").as_bytes());
        }
        assert_eq!((log.lines().len(), log.dropped()), (LINES_MAX, 3));
        assert_eq!(log.lines().front().map(String::as_str), Some("3"));
        for _ in 0..100 {
            log.push(&[b'x'; 4096]);
        }
        assert!(log.open.len() <= LINE_BYTES_MAX, "{}", log.open.len());
    }
}
