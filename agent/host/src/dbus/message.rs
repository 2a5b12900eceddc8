//! Encoding of D-Bus messages, as far as a client with few calls needs it. Pure.
//!
//! A message consists of a fixed header, an array of header fields, padding to eight bytes, and a body with the arguments. Every
//! value is aligned to its size, relative to the start of the message. Messages are written in little-endian order.

use super::BusError;

/// Longest message that is decoded; those used here have a few hundred bytes.
pub const LEN_MAX: usize = 1 << 20;
/// Longest message by the D-Bus specification.
const LEN_ALLOWED: usize = 1 << 27;
/// Number of bytes from which the length of a message follows.
pub const PREFIX_LEN: usize = 16;

/// The type field in the header of a D-Bus message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MessageKind {
    /// Method call.
    #[default]
    Call,
    /// Reply.
    Return,
    /// Error reply.
    Error,
    Signal,
}

/// One D-Bus message as it is sent or was received.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Message {
    /// Type.
    pub kind: MessageKind,
    /// Serial number set by the sender.
    pub serial: u32,
    /// Serial number of the call that this replies to.
    pub reply_to: u32,
    /// Object path.
    pub path: String,
    pub interface: String,
    /// Method or signal.
    pub member: String,
    /// Error name.
    pub error: String,
    /// Destination of a call.
    pub destination: String,
    /// Sender according to the bus.
    pub sender: String,
    /// Signature of the arguments.
    pub signature: String,
    /// Encoded arguments.
    pub body: Vec<u8>,
    /// Number of file descriptors.
    pub descriptors: u32,
}

/// An argument of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Argument<'a> {
    /// A string.
    Text(&'a str),
    /// A signed 32-bit number.
    Int(i32),
    /// A boolean.
    Truth(bool),
    /// An array of properties.
    Properties(&'a [(&'a str, Value<'a>)]),
    /// An empty array of named property arrays (`a(sa(sv))`).
    NoLists,
}

/// Value of a property.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value<'a> {
    /// A string.
    Text(&'a str),
    /// A boolean.
    Truth(bool),
    /// An unsigned 64-bit number.
    Long(u64),
}

impl Argument<'_> {
    fn signature(&self) -> &'static str {
        match self {
            Self::Text(_) => "s",
            Self::Int(_) => "i",
            Self::Truth(_) => "b",
            Self::Properties(_) => "a(sv)",
            Self::NoLists => "a(sa(sv))",
        }
    }
}

impl Message {
    /// Creates a method call.
    pub fn call(
        destination: &str,
        path: &str,
        method: (&str, &str),
        args: &[Argument<'_>],
    ) -> Self {
        let mut body = Writer::default();
        let mut signature = String::new();
        for argument in args {
            signature.push_str(argument.signature());
            match argument {
                Argument::Text(text) => body.text(text),
                Argument::Int(number) => body.number(u32::from_le_bytes(number.to_le_bytes())),
                Argument::Truth(truth) => body.number((*truth).into()),
                Argument::Properties(properties) => body.properties(properties),
                Argument::NoLists => body.properties(&[]),
            }
        }
        Self {
            path: path.to_owned(),
            interface: method.0.to_owned(),
            member: method.1.to_owned(),
            destination: destination.to_owned(),
            signature,
            body: body.0,
            ..Self::default()
        }
    }

    /// Encodes the message.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Writer::default();
        let kind = match self.kind {
            MessageKind::Call => 1,
            MessageKind::Return => 2,
            MessageKind::Error => 3,
            MessageKind::Signal => 4,
        };
        out.0.extend([b'l', kind, 0, 1]);
        out.number(length(self.body.len()));
        out.number(self.serial);
        let fields = self.fields();
        out.number(length(fields.len()));
        out.0.extend(fields);
        out.align(8);
        out.0.extend(&self.body);
        out.0
    }

    /// The array of header fields. It starts at offset 16, so its own offsets are aligned.
    fn fields(&self) -> Vec<u8> {
        let mut out = Writer::default();
        let texts = [
            (1, "o", &self.path),
            (2, "s", &self.interface),
            (3, "s", &self.member),
            (4, "s", &self.error),
            (6, "s", &self.destination),
        ];
        for (code, kind, text) in texts.into_iter().filter(|(_, _, text)| !text.is_empty()) {
            out.align(8);
            out.0.push(code);
            out.signature(kind);
            out.text(text);
        }
        for (code, number) in [(5, self.reply_to), (9, self.descriptors)] {
            if number != 0 {
                out.align(8);
                out.0.push(code);
                out.signature("u");
                out.number(number);
            }
        }
        if !self.signature.is_empty() {
            out.align(8);
            out.0.push(8);
            out.signature("g");
            out.signature(&self.signature);
        }
        out.0
    }

    /// Length of the message that starts with these bytes, at least [`PREFIX_LEN`] of them.
    ///
    /// # Errors
    /// The bytes are not a message, or it is too long.
    pub fn len_of(prefix: &[u8]) -> Result<usize, BusError> {
        let mut reader = Reader::new(prefix)?;
        reader.at = 4;
        let body = reader.number()? as usize;
        reader.at = 12;
        let fields = reader.number()? as usize;
        let header = PREFIX_LEN.saturating_add(fields).saturating_add(7) / 8 * 8;
        let whole = header.saturating_add(body);
        if whole > LEN_ALLOWED {
            Err(BusError::Malformed("a message is too long"))
        } else {
            Ok(whole)
        }
    }

    /// Decodes a whole message; one in foreign byte order without its arguments.
    ///
    /// # Errors
    /// The bytes violate the format.
    pub fn decode(bytes: &[u8]) -> Result<Self, BusError> {
        let mut reader = Reader::new(bytes)?;
        let kind = match bytes.get(1) {
            Some(1) => MessageKind::Call,
            Some(2) => MessageKind::Return,
            Some(3) => MessageKind::Error,
            Some(4) => MessageKind::Signal,
            _ => return Err(BusError::Malformed("a message of unknown kind")),
        };
        reader.at = 4;
        let body_len = reader.number()? as usize;
        let mut message = Self { kind, serial: reader.number()?, ..Self::default() };
        let end = reader.number()? as usize + PREFIX_LEN;
        while reader.at < end {
            reader.align(8);
            let code = reader.byte()?;
            let kind = reader.signature()?;
            match (code, kind.as_str()) {
                (1, "o") => message.path = reader.text()?,
                (2, "s") => message.interface = reader.text()?,
                (3, "s") => message.member = reader.text()?,
                (4, "s") => message.error = reader.text()?,
                (5, "u") => message.reply_to = reader.number()?,
                (6, "s") => message.destination = reader.text()?,
                (7, "s") => message.sender = reader.text()?,
                (8, "g") => message.signature = reader.signature()?,
                (9, "u") => message.descriptors = reader.number()?,
                (_, "s" | "o") => drop(reader.text()?),
                (_, "u") => drop(reader.number()?),
                (_, "g") => drop(reader.signature()?),
                _ => return Err(BusError::Malformed("a header field of unknown type")),
            }
        }
        reader.align(8);
        let body = bytes.get(reader.at..reader.at.saturating_add(body_len));
        message.body = body.ok_or(BusError::Malformed("the message is incomplete"))?.to_vec();
        if bytes.first() == Some(&b'B') {
            // No service on the same machine uses this byte order, and the numbers in the body would be misread. Any process may: the connection goes on.
            message.signature.clear();
            message.body.clear();
        }
        Ok(message)
    }

    /// The first argument as a string.
    pub fn text(&self) -> Option<String> {
        self.signature.starts_with('s').then(|| Reader::of_body(&self.body).text().ok()).flatten()
    }

    /// The only argument as a boolean.
    pub fn truth(&self) -> Option<bool> {
        let number = || Reader::of_body(&self.body).number().ok();
        (self.signature == "b").then(number).flatten().map(|number| number != 0)
    }

    /// The only argument as an index into the file descriptors.
    pub fn descriptor(&self) -> Option<usize> {
        let number = || Reader::of_body(&self.body).number().ok();
        (self.signature == "h").then(number).flatten().map(|number| number as usize)
    }

    /// The only argument as a variant with an unsigned 64-bit number.
    pub fn long_in_variant(&self) -> Option<u64> {
        let mut reader = Reader::of_body(&self.body);
        if self.signature != "v" || reader.signature().ok()? != "t" {
            return None;
        }
        reader.align(8);
        let bytes = self.body.get(reader.at..reader.at + 8)?;
        Some(u64::from_le_bytes(bytes.try_into().ok()?))
    }
}

fn length(len: usize) -> u32 {
    u32::try_from(len).unwrap_or(u32::MAX)
}

#[derive(Default)]
struct Writer(Vec<u8>);

impl Writer {
    fn align(&mut self, to: usize) {
        self.0.resize(self.0.len().next_multiple_of(to), 0);
    }

    fn number(&mut self, number: u32) {
        self.align(4);
        self.0.extend(number.to_le_bytes());
    }

    fn text(&mut self, text: &str) {
        self.number(length(text.len()));
        self.0.extend(text.as_bytes());
        self.0.push(0);
    }

    /// An array of structures: its length excludes the padding before the first one.
    fn properties(&mut self, properties: &[(&str, Value<'_>)]) {
        self.number(0);
        let before = self.0.len();
        self.align(8);
        let begin = self.0.len();
        for (name, value) in properties {
            self.align(8);
            self.text(name);
            match value {
                Value::Text(text) => {
                    self.signature("s");
                    self.text(text);
                }
                Value::Truth(truth) => {
                    self.signature("b");
                    self.number((*truth).into());
                }
                Value::Long(number) => {
                    self.signature("t");
                    self.align(8);
                    self.0.extend(number.to_le_bytes());
                }
            }
        }
        let len = length(self.0.len() - begin).to_le_bytes();
        if let Some(place) = self.0.get_mut(before - len.len()..before) {
            place.copy_from_slice(&len);
        }
    }

    fn signature(&mut self, text: &str) {
        self.0.push(u8::try_from(text.len()).unwrap_or(u8::MAX));
        self.0.extend(text.as_bytes());
        self.0.push(0);
    }
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
    big: bool,
}

impl<'a> Reader<'a> {
    fn new(bytes: &'a [u8]) -> Result<Self, BusError> {
        let big = match bytes.first() {
            Some(b'l') => false,
            Some(b'B') => true,
            _ => return Err(BusError::Malformed("bytes that are not the start of a message")),
        };
        Ok(Self { bytes, at: 0, big })
    }

    fn of_body(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0, big: false }
    }

    fn align(&mut self, to: usize) {
        self.at = self.at.next_multiple_of(to);
    }

    fn take(&mut self, len: usize) -> Result<&'a [u8], BusError> {
        let taken = self.at.checked_add(len).and_then(|end| self.bytes.get(self.at..end));
        let taken = taken.ok_or(BusError::Malformed("the message is incomplete"))?;
        self.at += len;
        Ok(taken)
    }

    fn byte(&mut self) -> Result<u8, BusError> {
        Ok(self.take(1)?.first().copied().unwrap_or_default())
    }

    fn number(&mut self) -> Result<u32, BusError> {
        self.align(4);
        let bytes = self.take(4)?.try_into().unwrap_or_default();
        Ok(if self.big { u32::from_be_bytes(bytes) } else { u32::from_le_bytes(bytes) })
    }

    fn string(&mut self, len: usize) -> Result<String, BusError> {
        let bytes = self.take(len)?.to_vec();
        self.take(1)?;
        String::from_utf8(bytes).map_err(|_| BusError::Malformed("a string is not valid UTF-8"))
    }

    fn text(&mut self) -> Result<String, BusError> {
        let len = self.number()? as usize;
        self.string(len)
    }

    fn signature(&mut self) -> Result<String, BusError> {
        let len = self.byte()?.into();
        self.string(len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hello() -> Message {
        let bus = "org.freedesktop.DBus";
        Message { serial: 1, ..Message::call(bus, "/org/freedesktop/DBus", (bus, "Hello"), &[]) }
    }

    #[test]
    fn bytes_of_a_call() {
        let bytes = hello().encode();
        let mut expect = vec![b'l', 1, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 109, 0, 0, 0];
        expect.extend(b"\x01\x01o\0\x15\0\0\0/org/freedesktop/DBus\0\0\0");
        expect.extend(b"\x02\x01s\0\x14\0\0\0org.freedesktop.DBus\0\0\0\0");
        expect.extend(b"\x03\x01s\0\x05\0\0\0Hello\0\0\0");
        expect.extend(b"\x06\x01s\0\x14\0\0\0org.freedesktop.DBus\0\0\0\0");
        assert_eq!(bytes, expect);
        assert_eq!(Message::len_of(&bytes[..PREFIX_LEN]), Ok(bytes.len()));
        assert_eq!(Message::decode(&bytes), Ok(hello()));
    }

    #[test]
    fn arguments() {
        let args = [Argument::Text("a"), Argument::Text("longer"), Argument::Int(-1)];
        let call = Message { serial: 7, ..Message::call("d", "/p", ("i", "m"), &args) };
        let read = Message::decode(&call.encode()).expect("message");
        assert_eq!(read.signature, "ssi");
        assert_eq!(read.text().as_deref(), Some("a"));
        assert_eq!(read.body, b"\x01\0\0\0a\0\0\0\x06\0\0\0longer\0\0\xff\xff\xff\xff");
        let of = |signature: &str, body: &[u8]| Message {
            signature: signature.into(),
            body: body.into(),
            ..Message::default()
        };
        assert_eq!(of("b", &[1, 0, 0, 0]).truth(), Some(true));
        assert_eq!(of("b", &[]).truth(), None);
        assert_eq!(of("h", &[0, 0, 0, 0]).descriptor(), Some(0));
        assert_eq!(of("v", b"\x01t\0\0\0\0\0\0\x05\0\0\0\0\0\0\0").long_in_variant(), Some(5));
        assert_eq!(of("v", b"\x01u\0\0\x05\0\0\0").long_in_variant(), None);
    }

    #[test]
    fn lists_of_properties() {
        let all = [("a", Value::Truth(true)), ("bc", Value::Long(5)), ("d", Value::Text("e"))];
        let args = [Argument::Truth(false), Argument::Properties(&all), Argument::NoLists];
        let call = Message::call("d", "/p", ("i", "m"), &args);
        assert_eq!(call.signature, "ba(sv)a(sa(sv))");
        // Each property is aligned to eight bytes, as is a 64-bit value.
        let mut expect = b"\0\0\0\0\x3a\0\0\0".to_vec();
        expect.extend(b"\x01\0\0\0a\0\x01b\0\0\0\0\x01\0\0\0");
        expect.extend(b"\x02\0\0\0bc\0\x01t\0\0\0\0\0\0\0\x05\0\0\0\0\0\0\0");
        expect.extend(b"\x01\0\0\0d\0\x01s\0\0\0\0\x01\0\0\0e\0");
        // The empty array has length 0, but padding as if it had members.
        expect.extend(b"\0\0\0\0\0\0");
        assert_eq!(call.body, expect);
    }

    #[test]
    fn arguments_in_foreign_byte_order_are_not_read() {
        // A signal with a body of four bytes.
        let signal = [b'B', 4, 0, 1, 0, 0, 0, 4, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1];
        assert_eq!(Message::len_of(&signal), Ok(signal.len()));
        let message = Message::decode(&signal).expect("a message");
        let expected = Message { kind: MessageKind::Signal, serial: 1, ..Message::default() };
        assert_eq!(message, expected);
    }

    #[test]
    fn nonsense_is_refused() {
        let bytes = hello().encode();
        for cut in 0..bytes.len() {
            assert!(Message::decode(&bytes[..cut]).is_err(), "{cut}");
        }
        // Each byte changed in turn: an error or another message, never a panic.
        for at in 0..bytes.len() {
            for value in [0, 0x7f, 0xff] {
                let mut changed = bytes.clone();
                changed[at] = value;
                let _ = Message::len_of(&changed[..PREFIX_LEN]);
                let _ = Message::decode(&changed);
            }
        }
        let long = [b'l', 1, 0, 1, 0xff, 0xff, 0xff, 0xff, 1, 0, 0, 0, 0xff, 0xff, 0xff, 0xff];
        assert!(Message::len_of(&long).is_err());
    }
}
