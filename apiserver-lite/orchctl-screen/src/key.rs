//! What the user types: bytes of a terminal as keys.

/// A key press, decoded from the bytes of a terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyPress {
    /// A character.
    Char(char),
    /// Return.
    Enter,
    Escape,
    /// Tabulator.
    Tab,
    /// Tabulator with shift.
    BackTab,
    Backspace,
    /// Arrow up.
    Up,
    /// Arrow down.
    Down,
    /// Arrow left.
    Left,
    /// Arrow right.
    Right,
    PageUp,
    PageDown,
    Home,
    End,
    /// Control with C.
    Interrupt,
}

/// Longest sequence that begins with the byte of escape.
const SEQUENCE_LEN_MAX: usize = 16;

/// Reads keys from bytes, which may come in parts.
#[derive(Debug, Default)]
pub struct KeyReader {
    /// The begin of a key.
    pending: Vec<u8>,
}

/// What stands at the front of the bytes.
enum Front {
    /// So many bytes are a key, or mean nothing.
    Key(usize, Option<KeyPress>),
    /// More have to come.
    Part,
}

impl KeyReader {
    /// Keys of these bytes and those before.
    pub fn read(&mut self, bytes: &[u8]) -> Vec<KeyPress> {
        let mut keys = Vec::new();
        for byte in bytes {
            self.pending.push(*byte);
            self.take(&mut keys);
        }
        keys
    }

    /// Whether a pause would end a key: escape alone is one, too.
    pub fn is_waiting(&self) -> bool {
        !self.pending.is_empty()
    }

    /// After a pause: what came is all.
    pub fn pause(&mut self) -> Option<KeyPress> {
        let pending = std::mem::take(&mut self.pending);
        (pending == [ESCAPE]).then_some(KeyPress::Escape)
    }

    fn take(&mut self, keys: &mut Vec<KeyPress>) {
        while !self.pending.is_empty() {
            let Front::Key(len, key) = front(&self.pending) else { return };
            self.pending.drain(..len.min(self.pending.len()));
            keys.extend(key);
        }
    }
}

const ESCAPE: u8 = 0x1b;

fn front(bytes: &[u8]) -> Front {
    match bytes {
        [ESCAPE] => Front::Part,
        [ESCAPE, b'[', rest @ ..] => sequence(rest),
        [ESCAPE, b'O'] => Front::Part,
        [ESCAPE, b'O', last, ..] => Front::Key(3, final_key(*last)),
        [ESCAPE, ..] => Front::Key(1, Some(KeyPress::Escape)),
        [b'\r' | b'\n', ..] => Front::Key(1, Some(KeyPress::Enter)),
        [b'\t', ..] => Front::Key(1, Some(KeyPress::Tab)),
        [0x7f | 0x08, ..] => Front::Key(1, Some(KeyPress::Backspace)),
        [0x03, ..] => Front::Key(1, Some(KeyPress::Interrupt)),
        [byte, ..] if byte.is_ascii_control() => Front::Key(1, None),
        _ => character(bytes),
    }
}

/// After escape and bracket: parameters, then a byte that says what it is.
fn sequence(rest: &[u8]) -> Front {
    let Some(end) = rest.iter().position(|byte| (0x40..=0x7e).contains(byte)) else {
        let is_long = rest.len() >= SEQUENCE_LEN_MAX;
        return if is_long { Front::Key(rest.len().saturating_add(2), None) } else { Front::Part };
    };
    let (parameters, last) = rest.split_at(end);
    let number = parameters.split(|byte| *byte == b';').next().unwrap_or_default();
    let key = match (last.first(), number) {
        (Some(b'~'), b"1" | b"7") => Some(KeyPress::Home),
        (Some(b'~'), b"4" | b"8") => Some(KeyPress::End),
        (Some(b'~'), b"5") => Some(KeyPress::PageUp),
        (Some(b'~'), b"6") => Some(KeyPress::PageDown),
        (Some(last), _) => final_key(*last),
        (None, _) => None,
    };
    Front::Key(end.saturating_add(3), key)
}

fn final_key(last: u8) -> Option<KeyPress> {
    Some(match last {
        b'A' => KeyPress::Up,
        b'B' => KeyPress::Down,
        b'C' => KeyPress::Right,
        b'D' => KeyPress::Left,
        b'H' => KeyPress::Home,
        b'F' => KeyPress::End,
        b'Z' => KeyPress::BackTab,
        _ => return None,
    })
}

/// A character in UTF-8; bytes that are none are dropped one by one.
fn character(bytes: &[u8]) -> Front {
    let len = match bytes.first() {
        Some(0xc2..=0xdf) => 2,
        Some(0xe0..=0xef) => 3,
        Some(0xf0..=0xf4) => 4,
        _ => 1,
    };
    let Some(whole) = bytes.get(..len) else { return Front::Part };
    match std::str::from_utf8(whole).ok().and_then(|text| text.chars().next()) {
        Some(c) if !c.is_control() => Front::Key(len, Some(KeyPress::Char(c))),
        Some(_) => Front::Key(len, None),
        None => Front::Key(1, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(bytes: &[u8]) -> Vec<KeyPress> {
        let mut reader = KeyReader::default();
        let keys = reader.read(bytes);
        assert!(!reader.is_waiting(), "{bytes:?} leaves something");
        keys
    }

    #[test]
    fn sequences_are_keys() {
        use KeyPress::*;
        assert_eq!(keys(b"\x1b[A\x1b[B\x1bOC\x1b[D"), [Up, Down, Right, Left]);
        assert_eq!(
            keys(b"\x1b[5~\x1b[6~\x1b[1~\x1b[4~\x1b[H"),
            [PageUp, PageDown, Home, End, Home]
        );
        assert_eq!(keys(b"\x1b[Z\t\r\x7f\x03"), [BackTab, Tab, Enter, Backspace, Interrupt]);
        assert_eq!(keys(b"\x1b[1;5A\x1b[200~\x1b[?25h"), [Up]);
        assert_eq!(keys("qä€😀".as_bytes()), [Char('q'), Char('ä'), Char('€'), Char('😀')]);
    }

    #[test]
    fn keys_come_in_parts() {
        let mut reader = KeyReader::default();
        assert_eq!(reader.read(b"\x1b"), []);
        assert_eq!(reader.read(b"["), []);
        assert_eq!(reader.read(b"Ax"), [KeyPress::Up, KeyPress::Char('x')]);
        assert_eq!(reader.read(b"\x1b"), []);
        assert!(reader.is_waiting());
        assert_eq!(reader.pause(), Some(KeyPress::Escape));
        assert_eq!(reader.pause(), None);
        assert_eq!(reader.read(b"\x1bq"), [KeyPress::Escape, KeyPress::Char('q')]);
    }

    #[test]
    fn byte_sequences_that_are_not_keys_are_dropped() {
        assert_eq!(
            keys(b"\xffa\xc3(b\x01"),
            [KeyPress::Char('a'), KeyPress::Char('('), KeyPress::Char('b')]
        );
        let mut reader = KeyReader::default();
        let mut bytes = b"\x1b[".to_vec();
        bytes.extend(std::iter::repeat_n(b'1', 1000));
        let count = reader.read(&bytes).len();
        assert!(count <= 1000 && reader.pending.len() <= SEQUENCE_LEN_MAX + 2, "{count}");
    }
}
