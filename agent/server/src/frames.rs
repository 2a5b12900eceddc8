//! Validates the frames that a client sends to the runtime's streaming server. The server trusts
//! lengths and counts of frames and crashes on wrong ones (spdystream allocates as many entries as
//! SETTINGS claims), so every frame's header is checked; payloads of data frames pass unchanged.
//! Pure.

mod headers;
mod spdy;
mod websocket;

use std::ops::Range;

pub use spdy::Spdy;
pub use websocket::WebSocket;

/// Why a frame is rejected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadFrame {
    /// Not a SPDY/3.1 frame.
    #[error("SPDY version {0}, expected 3")]
    Version(u16),
    /// A frame type that clients do not send.
    #[error("unknown frame type {0}")]
    Type(u16),
    /// A length that is not valid for the frame type.
    #[error("frame type {kind} with {len} bytes, expected {expected:?}")]
    Length {
        /// SPDY's type, or WebSocket's opcode.
        kind: u16,
        /// The frame's length.
        len: u64,
        /// The valid lengths.
        expected: Range<u64>,
    },
    /// The entry count does not match the frame's length.
    #[error("SETTINGS of {len} bytes with {entries} entries")]
    Settings {
        /// Length of the frame.
        len: u64,
        /// The claimed count.
        entries: u32,
    },
    /// An invalid header block.
    #[error("header block: {0}")]
    Headers(&'static str),
    /// Flag bits that are wrongly set or missing.
    #[error("{0}")]
    Bits(&'static str),
}

/// Checks one direction of an upgraded connection.
#[derive(Debug)]
pub enum Checker {
    /// SPDY/3.1.
    Spdy(Box<Spdy>),
    /// WebSocket (RFC 6455), from a client.
    WebSocket(WebSocket),
}

impl Checker {
    /// The checker for a protocol named in the `Upgrade` header.
    pub fn for_protocol(protocol: &str) -> Option<Self> {
        if protocol.eq_ignore_ascii_case("SPDY/3.1") {
            return Some(Self::Spdy(Box::default()));
        }
        protocol.eq_ignore_ascii_case("websocket").then(|| Self::WebSocket(WebSocket::default()))
    }

    /// Appends checked bytes to `passed`; a frame's header is held back until it is complete.
    ///
    /// # Errors
    /// A frame is invalid. The bytes appended so far are valid; nothing further may be passed on.
    pub fn pass(&mut self, bytes: &[u8], passed: &mut Vec<u8>) -> Result<(), BadFrame> {
        match self {
            Self::Spdy(spdy) => spdy.pass(bytes, passed),
            Self::WebSocket(websocket) => websocket.pass(bytes, passed),
        }
    }
}

/// The beginning of a frame, collected until it can be checked.
#[derive(Debug, Default)]
struct Head(Vec<u8>);

impl Head {
    /// Moves bytes from `rest` until there are `needed`. Returns whether there are.
    fn fill(&mut self, rest: &mut &[u8], needed: usize) -> bool {
        let missing = needed.saturating_sub(self.0.len()).min(rest.len());
        let (taken, left) = rest.split_at(missing);
        self.0.extend_from_slice(taken);
        *rest = left;
        self.0.len() >= needed
    }

    fn byte(&self, at: usize) -> u8 {
        self.0.get(at).copied().unwrap_or_default()
    }

    /// The bytes in `range` as a big-endian number.
    fn number(&self, range: Range<usize>) -> u64 {
        let bytes = self.0.get(range).unwrap_or_default();
        bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
    }

    fn move_to(&mut self, passed: &mut Vec<u8>) {
        passed.append(&mut self.0);
    }
}

/// Passes up to `left` bytes of a payload.
fn pass_payload(rest: &mut &[u8], left: &mut u64, passed: &mut Vec<u8>) {
    let len = usize::try_from(*left).unwrap_or(usize::MAX).min(rest.len());
    let (payload, after) = rest.split_at(len);
    passed.extend_from_slice(payload);
    *left = left.saturating_sub(len as u64);
    *rest = after;
}

#[cfg(test)]
mod tests;
