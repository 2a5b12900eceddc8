//! What a client's bytes to the runtime's streaming server must look like. The runtime takes lengths and counts of frames
//! at their word and ends with a wrong one (spdystream makes room for as many entries as SETTINGS claims), so every frame's
//! head is looked at as it passes; what data frames carry passes untouched. Pure.

mod headers;
mod spdy;
mod websocket;

use std::ops::Range;

pub use spdy::Spdy;
pub use websocket::WebSocket;

/// Why bytes are not passed on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadFrame {
    /// It is no frame of SPDY/3.1.
    #[error("SPDY version {0}, expected 3")]
    Version(u16),
    /// A frame that no client sends.
    #[error("unknown frame type {0}")]
    Type(u16),
    /// The length is not one that frames of the type have.
    #[error("frame type {kind} with {len} bytes, expected {expected:?}")]
    Length {
        /// SPDY's type, or WebSocket's opcode.
        kind: u16,
        /// What the frame says.
        len: u64,
        /// What it may say.
        expected: Range<u64>,
    },
    /// The frame claims another number of entries than it has room for.
    #[error("SETTINGS of {len} bytes with {entries} entries")]
    Settings {
        /// Bytes of the frame.
        len: u64,
        /// What it claims.
        entries: u32,
    },
    /// A header block that cannot be read.
    #[error("header block: {0}")]
    Headers(&'static str),
    /// Bits that must not be set, or must be.
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
    /// For a protocol as the header `Upgrade` names it.
    pub fn of(protocol: &str) -> Option<Self> {
        if protocol.eq_ignore_ascii_case("SPDY/3.1") {
            return Some(Self::Spdy(Box::default()));
        }
        protocol.eq_ignore_ascii_case("websocket").then(|| Self::WebSocket(WebSocket::default()))
    }

    /// Appends to `passed` what may be passed on; a frame's head is kept back until it is complete.
    ///
    /// # Errors
    /// `BadFrame`; what was appended is good, nothing else may be passed on from then on.
    pub fn pass(&mut self, bytes: &[u8], passed: &mut Vec<u8>) -> Result<(), BadFrame> {
        match self {
            Self::Spdy(spdy) => spdy.pass(bytes, passed),
            Self::WebSocket(websocket) => websocket.pass(bytes, passed),
        }
    }
}

/// The beginning of a frame, gathered up to the length that is needed to judge it.
#[derive(Debug, Default)]
struct Head(Vec<u8>);

impl Head {
    /// Takes from `rest` until there are `needed` bytes; whether there are.
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

    /// Big-endian number of the bytes in `range`.
    fn number(&self, range: Range<usize>) -> u64 {
        let bytes = self.0.get(range).unwrap_or_default();
        bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
    }

    fn move_to(&mut self, passed: &mut Vec<u8>) {
        passed.append(&mut self.0);
    }
}

/// Passes on up to `left` bytes of a payload.
fn pass_payload(rest: &mut &[u8], left: &mut u64, passed: &mut Vec<u8>) {
    let len = usize::try_from(*left).unwrap_or(usize::MAX).min(rest.len());
    let (payload, after) = rest.split_at(len);
    passed.extend_from_slice(payload);
    *left = left.saturating_sub(len as u64);
    *rest = after;
}

#[cfg(test)]
mod tests;
