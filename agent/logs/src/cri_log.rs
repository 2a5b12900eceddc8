//! The CRI log format, one entry per line, and its conversion for clients. Pure.
//!
//! ```text
//! 2024-01-02T15:04:05.123456789Z stdout F a whole line
//! 2024-01-02T15:04:05.123456789Z stdout P the beginning of a long line, to be continued
//! ```

/// Longer entries are passed on in pieces; runtimes split lines at 16 KiB. Lines that are not
/// entries are left out, as in Kubernetes: a file that a pod has put there is not shown.
pub const ENTRY_LEN_MAX: usize = 256 << 10;

/// Converts log entries for a client, chunk by chunk.
#[derive(Debug)]
pub struct Cutter {
    timestamps: bool,
    /// Entries before this time are left out; RFC 3339 text, which sorts by time.
    since: Option<String>,
    /// Bytes left of the client's limit.
    left: Option<u64>,
    /// The beginning of an incomplete entry.
    rest: Vec<u8>,
    /// The overlong entry of which a piece was passed on or left out.
    within: Option<Within>,
    /// Whether the next entry starts a line.
    at_line_start: bool,
    /// Bytes that were ignored since [`Cutter::take_ignored`].
    ignored: u64,
}

#[derive(Clone, Copy, Debug)]
struct Within {
    is_shown: bool,
    is_whole: bool,
}

impl Cutter {
    /// `since` is RFC 3339 in UTC (`Z`), as in the entries.
    pub fn new(timestamps: bool, since: Option<String>, limit_bytes: Option<u64>) -> Self {
        Self {
            timestamps,
            since,
            left: limit_bytes,
            rest: Vec::new(),
            within: None,
            at_line_start: true,
            ignored: 0,
        }
    }

    /// Whether the client's limit is reached.
    pub fn is_done(&self) -> bool {
        self.left == Some(0)
    }

    /// Bytes since the last call that are not entries of a runtime, or belong to overlong entries
    /// that are left out. A runtime's log has next to none; a sparse file consists of them.
    pub fn take_ignored(&mut self) -> u64 {
        std::mem::take(&mut self.ignored)
    }

    /// Converts the next chunk of the file.
    pub fn push(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(bytes.len());
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            self.rest.extend_from_slice(piece);
            let ends = piece.ends_with(b"\n");
            if ends || self.rest.len() > ENTRY_LEN_MAX {
                let part = std::mem::take(&mut self.rest);
                self.part(&part, ends, &mut out);
                // Keeps the allocation for the next entry.
                self.rest = part;
                self.rest.clear();
            }
        }
        if let Some(left) = &mut self.left {
            out.truncate(usize::try_from(*left).unwrap_or(usize::MAX));
            *left = left.saturating_sub(out.len() as u64);
        }
        out
    }

    /// Converts the rest of a file that ends within an entry.
    pub fn finish(&mut self) -> Vec<u8> {
        if self.rest.is_empty() && self.within.is_none() { Vec::new() } else { self.push(b"\n") }
    }

    /// Converts an entry, or a part of an overlong one.
    fn part(&mut self, part: &[u8], ends: bool, out: &mut Vec<u8>) {
        let len = part.len() as u64;
        let part = part.strip_suffix(b"\n").unwrap_or(part);
        let within = match self.within.take() {
            Some(within) if within.is_shown => {
                out.extend_from_slice(part);
                within
            }
            Some(within) => {
                self.ignored = self.ignored.saturating_add(len);
                within
            }
            None => match Entry::parse(part) {
                Some(entry) => self.begin(&entry, out),
                None => {
                    self.ignored = self.ignored.saturating_add(len);
                    Within { is_shown: false, is_whole: self.at_line_start }
                }
            },
        };
        if !ends {
            self.within = Some(within);
            return;
        }
        if within.is_shown && within.is_whole {
            out.push(b'\n');
        }
        self.at_line_start = within.is_whole;
    }

    fn begin(&self, entry: &Entry<'_>, out: &mut Vec<u8>) -> Within {
        let Entry { time, is_whole, text } = *entry;
        let is_early = self.since.as_deref().is_some_and(|since| is_before(time, since));
        if !is_early {
            if self.timestamps && self.at_line_start {
                out.extend_from_slice(time.as_bytes());
                out.push(b' ');
            }
            out.extend_from_slice(text);
        }
        Within { is_shown: !is_early, is_whole }
    }
}

struct Entry<'a> {
    time: &'a str,
    is_whole: bool,
    text: &'a [u8],
}

impl<'a> Entry<'a> {
    fn parse(line: &'a [u8]) -> Option<Self> {
        let mut fields = line.splitn(4, |byte| *byte == b' ');
        let time = std::str::from_utf8(fields.next()?).ok()?;
        let stream = fields.next()?;
        let tags = fields.next()?;
        if !is_time(time) || !matches!(stream, b"stdout" | b"stderr") {
            return None;
        }
        // Tags are separated by colons; the first is `P` for a partial line.
        let is_whole = !tags.starts_with(b"P");
        Some(Self { time, is_whole, text: fields.next().unwrap_or_default() })
    }
}

/// Whether a text is an RFC 3339 time, with which an entry starts.
fn is_time(text: &str) -> bool {
    let shape = |text: &[u8], shape: &[u8]| {
        let fits = |(byte, wanted): (&u8, &u8)| match wanted {
            b'0' => byte.is_ascii_digit(),
            wanted => byte == wanted,
        };
        text.len() == shape.len() && text.iter().zip(shape).all(fits)
    };
    let Some((seconds, rest)) = text.as_bytes().split_at_checked(19) else { return false };
    let zone = match rest.strip_prefix(b".") {
        Some(fraction) => {
            let digits = fraction.iter().take_while(|byte| byte.is_ascii_digit()).count();
            if digits == 0 {
                return false;
            }
            fraction.get(digits..).unwrap_or_default()
        }
        None => rest,
    };
    let is_zone = zone == b"Z" || shape(zone, b"+00:00") || shape(zone, b"-00:00");
    shape(seconds, b"0000-00-00T00:00:00") && is_zone
}

/// Compares times as text. Entries in another time zone than UTC are kept.
fn is_before(time: &str, since: &str) -> bool {
    let (Some(time), Some(since)) = (time.strip_suffix('Z'), since.strip_suffix('Z')) else {
        return false;
    };
    time < since
}

/// The offset of the last `lines` lines in `bytes`; `None` if there are fewer.
pub fn tail_start(bytes: &[u8], lines: u64) -> Option<usize> {
    let mut seen: u64 = 0;
    // A line feed at the end belongs to the last line.
    let body = bytes.strip_suffix(b"\n").unwrap_or(bytes);
    for (at, byte) in body.iter().enumerate().rev() {
        if *byte == b'\n' {
            seen = seen.saturating_add(1);
            if seen == lines {
                return Some(at.saturating_add(1));
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
            assert_eq!(cut(Cutter::new(false, None, None), piece), "one\ntwo\n\nfour  x\n");
        }
    }

    #[test]
    fn time_size_and_moment_are_kept_to() {
        let stamped = cut(Cutter::new(true, Some("2024-01-01T00:00:02Z".into()), None), 9);
        assert_eq!(
            stamped,
            "2024-01-01T00:00:02Z two\n2024-01-01T00:00:03.000000001Z \n2024-01-01T00:00:04Z four  x\n"
        );
        assert_eq!(cut(Cutter::new(false, None, Some(5)), 3), "one\nt");
        let mut none = Cutter::new(false, None, Some(4));
        none.push(LOG.as_bytes());
        assert!(none.is_done());
    }

    #[test]
    fn lines_that_are_not_log_entries_are_left_out() {
        let shadow = "root:$6$x:1:0:99999:7:::\nT stdout F guessed\n2024 stdout F x\n\
            2024-01-01T00:00:00 stdout F no zone\n2024-01-01T00:00:00.Z stdout F x\n";
        let long = format!("{}\n", "key".repeat(ENTRY_LEN_MAX));
        for text in [shadow, &long] {
            let mut cutter = Cutter::new(false, None, None);
            let mut out = cutter.push(text.as_bytes());
            out.extend(cutter.finish());
            assert_eq!(String::from_utf8_lossy(&out), "");
        }
        for zone in ["Z", "+02:00", "-11:30"] {
            let entry = format!("2024-01-01T00:00:00.1{zone} stderr F x\n");
            assert_eq!(Cutter::new(false, None, None).push(entry.as_bytes()), b"x\n");
        }
    }

    #[test]
    fn an_entry_that_is_too_long_is_whole_all_the_same() {
        let text = "x".repeat(3 * ENTRY_LEN_MAX);
        for (since, expected) in
            [(None, format!("{text}\nnext\n")), (Some("2025-01-01T00:00:00Z"), String::new())]
        {
            let log = format!(
                "2024-01-01T00:00:01Z stdout F {text}\n2024-01-01T00:00:02Z stdout F next\n"
            );
            let mut cutter = Cutter::new(false, since.map(str::to_owned), None);
            let mut out = Vec::new();
            log.as_bytes().chunks(10_000).for_each(|piece| out.extend(cutter.push(piece)));
            assert!(out == expected.as_bytes());
        }
    }

    #[test]
    fn bytes_without_entries_are_counted() {
        let hole = vec![0; 3 * ENTRY_LEN_MAX];
        let long = format!("2024-01-01T00:00:01Z stdout F {}", "x".repeat(3 * ENTRY_LEN_MAX));
        let since = Some("2025-01-01T00:00:00Z".to_owned());
        let ignored = |since: Option<String>, bytes: &[u8]| {
            let mut cutter = Cutter::new(false, since, None);
            bytes.chunks(1000).for_each(|piece| drop(cutter.push(piece)));
            cutter.finish();
            (cutter.take_ignored(), cutter.take_ignored())
        };
        assert_eq!(ignored(None, LOG.as_bytes()), ("not from a runtime\n".len() as u64, 0));
        assert_eq!(ignored(since.clone(), b"\n\n"), (2, 0));
        assert_eq!(ignored(None, &hole), (3 * ENTRY_LEN_MAX as u64 + 1, 0));
        assert_eq!(ignored(None, long.as_bytes()), (0, 0), "all of it is shown");
        let (left_out, _) = ignored(since, long.as_bytes());
        assert!(left_out > ENTRY_LEN_MAX as u64, "{left_out}");
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
