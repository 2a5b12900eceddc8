//! WebSocket frames of a client (RFC 6455 section 5.2).

use std::ops::Range;

use super::{BadFrame, Head, pass_payload};

/// Longest frame that the runtime's library accepts.
const FRAME_LEN_MAX: u64 = 32 << 20;
/// Longest control frame (section 5.5).
const CONTROL_LEN_MAX: u64 = 125;

/// Checks the frames of a WebSocket connection from a client (RFC 6455).
#[derive(Debug, Default)]
pub struct WebSocket {
    head: Head,
    payload_left: u64,
}

impl WebSocket {
    pub(super) fn pass(&mut self, bytes: &[u8], passed: &mut Vec<u8>) -> Result<(), BadFrame> {
        let mut rest = bytes;
        while !rest.is_empty() {
            if self.payload_left > 0 {
                pass_payload(&mut rest, &mut self.payload_left, passed);
                continue;
            }
            if !self.head.fill(&mut rest, 2) {
                return Ok(());
            }
            let (first, second) = (self.head.byte(0), self.head.byte(1));
            check_bits(first, second)?;
            // The header's length with the mask, and the position of the payload length.
            let (head_len, len_at): (usize, Range<usize>) = match second & 0x7f {
                126 => (8, 2..4),
                127 => (14, 2..10),
                _ => (6, 1..2),
            };
            if !self.head.fill(&mut rest, head_len) {
                return Ok(());
            }
            let len = self.head.number(len_at);
            let len = if head_len == 6 { len & 0x7f } else { len };
            let kind = u16::from(first & 0x0f);
            let max = if kind >= 8 { CONTROL_LEN_MAX } else { FRAME_LEN_MAX };
            if len > max {
                return Err(BadFrame::Length { kind, len, expected: 0..max.saturating_add(1) });
            }
            self.payload_left = len;
            self.head.move_to(passed);
        }
        Ok(())
    }
}

fn check_bits(first: u8, second: u8) -> Result<(), BadFrame> {
    let kind = first & 0x0f;
    if !matches!(kind, 0..=2 | 8..=10) {
        return Err(BadFrame::Type(kind.into()));
    }
    if first & 0x70 != 0 {
        return Err(BadFrame::Bits("reserved bits of a WebSocket frame must be zero"));
    }
    if second & 0x80 == 0 {
        return Err(BadFrame::Bits("a WebSocket frame of a client must be masked"));
    }
    if kind >= 8 && (first & 0x80 == 0 || second & 0x7f > 125) {
        return Err(BadFrame::Bits("a WebSocket control frame is fragmented or too long"));
    }
    Ok(())
}
