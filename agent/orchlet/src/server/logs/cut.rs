//! The runtime's log format, one entry a line, and what of it a client gets. Pure.
//!
//! ```text
//! 2024-01-02T15:04:05.123456789Z stdout F a whole line
//! 2024-01-02T15:04:05.123456789Z stdout P the beginning of a long line, to be continued
//! ```

/// An entry longer than this is passed on in pieces: runtimes cut at 16 KiB.
const ENTRY_LEN_MAX: usize = 256 << 10;

/// Makes what a client gets out of what the runtime wrote, piece by piece.
#[derive(Debug)]
pub struct Cutter {
    timestamps: bool,
    /// Entries before this time, as text that sorts like the time it says, are left out.
    since: Option<String>,
    /// Bytes that may still be given out.
    left: Option<u64>,
    /// The beginning of an entry whose end has not come.
    rest: Vec<u8>,
    /// Whether the next entry begins a line.
    at_line_start: bool,
}

impl Cutter {
    /// `since` is RFC 3339 with a `Z`, as the entries have it.
    pub fn new(timestamps: bool, since: Option<String>, limit_bytes: Option<u64>) -> Self {
        Self { timestamps, since, left: limit_bytes, rest: Vec::new(), at_line_start: true }
    }

    /// Whether nothing more will be given out, whatever comes.
    pub fn is_done(&self) -> bool {
        self.left == Some(0)
    }

    /// Takes in what the file holds next.
    pub fn push(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(bytes.len());
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            self.rest.extend_from_slice(piece);
            if piece.ends_with(b"\n") || self.rest.len() > ENTRY_LEN_MAX {
                let entry = std::mem::take(&mut self.rest);
                self.entry(&entry, &mut out);
                // Keeps the allocation for the next entry.
                self.rest = entry;
                self.rest.clear();
            }
        }
        if let Some(left) = &mut self.left {
            out.truncate(usize::try_from(*left).unwrap_or(usize::MAX));
            *left -= out.len() as u64;
        }
        out
    }

    /// What remains when the file has ended in the middle of an entry.
    pub fn finish(&mut self) -> Vec<u8> {
        if self.rest.is_empty() { Vec::new() } else { self.push(b"\n") }
    }

    fn entry(&mut self, entry: &[u8], out: &mut Vec<u8>) {
        let Some(Entry { time, is_whole, text }) = Entry::parse(entry) else {
            // Not the runtime's format: somebody else wrote it. Better shown as it is than lost.
            out.extend_from_slice(entry);
            self.at_line_start = true;
            return;
        };
        let early = self.since.as_deref().is_some_and(|since| is_before(time, since));
        if !early {
            if self.timestamps && self.at_line_start {
                out.extend_from_slice(time.as_bytes());
                out.push(b' ');
            }
            out.extend_from_slice(text);
            if is_whole {
                out.push(b'\n');
            }
        }
        self.at_line_start = is_whole;
    }
}

struct Entry<'a> {
    time: &'a str,
    is_whole: bool,
    text: &'a [u8],
}

impl<'a> Entry<'a> {
    fn parse(line: &'a [u8]) -> Option<Self> {
        let line = line.strip_suffix(b"\n").unwrap_or(line);
        let mut fields = line.splitn(4, |byte| *byte == b' ');
        let time = std::str::from_utf8(fields.next()?).ok()?;
        let stream = fields.next()?;
        let tags = fields.next()?;
        if !time.contains('T') || !matches!(stream, b"stdout" | b"stderr") {
            return None;
        }
        // Tags are separated by colons; the first says whether the line is whole.
        let is_whole = !tags.starts_with(b"P");
        Some(Self { time, is_whole, text: fields.next().unwrap_or_default() })
    }
}

/// Compares times as text. Entries in another zone than UTC cannot be compared so and are kept.
fn is_before(time: &str, since: &str) -> bool {
    let (Some(time), Some(since)) = (time.strip_suffix('Z'), since.strip_suffix('Z')) else {
        return false;
    };
    time < since
}

/// Where the last `lines` lines of `bytes` begin; `None` when there are not so many.
pub fn tail_start(bytes: &[u8], lines: u64) -> Option<usize> {
    let mut seen = 0;
    // A line end at the very end belongs to the last line.
    let body = bytes.strip_suffix(b"\n").unwrap_or(bytes);
    for (at, byte) in body.iter().enumerate().rev() {
        if *byte == b'\n' {
            seen += 1;
            if seen == lines {
                return Some(at + 1);
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LOG: &str = "2024-01-01T00:00:01.5Z stdout F one\n\
        2024-01-01T00:00:02Z stderr P tw\n\
        2024-01-01T00:00:02.1Z stderr F o\n\
        2024-01-01T00:00:03.000000001Z stdout F \n\
        not from a runtime\n\
        2024-01-01T00:00:04Z stdout F:x four  x\n";

    fn cut(mut cutter: Cutter, piece: usize) -> String {
        let mut out = Vec::new();
        for piece in LOG.as_bytes().chunks(piece) {
            out.extend(cutter.push(piece));
        }
        out.extend(cutter.finish());
        String::from_utf8(out).expect("text")
    }

    #[test]
    fn entries_become_lines_again() {
        for piece in [1, 7, 4096] {
            assert_eq!(
                cut(Cutter::new(false, None, None), piece),
                "one\ntwo\n\nnot from a runtime\nfour  x\n"
            );
        }
    }

    #[test]
    fn time_size_and_moment_are_kept_to() {
        let stamped = cut(Cutter::new(true, Some("2024-01-01T00:00:02Z".into()), None), 9);
        assert_eq!(
            stamped,
            "2024-01-01T00:00:02Z two\n2024-01-01T00:00:03.000000001Z \nnot from a runtime\n2024-01-01T00:00:04Z four  x\n"
        );
        assert_eq!(cut(Cutter::new(false, None, Some(5)), 3), "one\nt");
        let mut none = Cutter::new(false, None, Some(4));
        none.push(LOG.as_bytes());
        assert!(none.is_done());
    }

    #[test]
    fn an_entry_that_has_no_end_yet_is_shown_at_the_end() {
        let mut cutter = Cutter::new(false, None, None);
        assert_eq!(cutter.push(b"2024-01-01T00:00:01Z stdout F ha"), b"");
        assert_eq!(cutter.finish(), b"ha\n");
        assert_eq!(cutter.finish(), b"");
    }

    #[test]
    fn the_last_lines_begin_after_a_line_end() {
        assert_eq!(tail_start(b"a\nb\nc\n", 1), Some(4));
        assert_eq!(tail_start(b"a\nb\nc", 2), Some(2));
        assert_eq!(tail_start(b"a\nb\n", 2), None);
        assert_eq!(tail_start(b"", 1), None);
    }

    proptest! {
        #[test]
        fn pieces_do_not_matter_and_nothing_grows(bytes in prop::collection::vec(any::<u8>(), 0..300), piece in 1..40_usize, limit in prop::option::of(1..200_u64)) {
            let mut whole = Cutter::new(true, None, limit);
            let mut all = whole.push(&bytes);
            all.extend(whole.finish());
            let mut pieces = Cutter::new(true, None, limit);
            let mut joined = Vec::new();
            for piece in bytes.chunks(piece) {
                joined.extend(pieces.push(piece));
            }
            joined.extend(pieces.finish());
            prop_assert_eq!(&joined, &all);
            prop_assert!(limit.is_none_or(|limit| all.len() as u64 <= limit));
        }

        #[test]
        fn a_tail_has_so_many_lines(lines in prop::collection::vec("[a-z]{0,5}", 1..20), wanted in 1..25_usize) {
            let text = lines.iter().map(|line| format!("{line}\n")).collect::<String>();
            let start = tail_start(text.as_bytes(), wanted as u64).unwrap_or(0);
            prop_assert_eq!(text[start..].lines().count(), wanted.min(lines.len()));
        }
    }
}
