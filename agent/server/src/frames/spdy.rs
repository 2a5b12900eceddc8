//! SPDY/3.1 frames (draft section 2.2) of the types that the runtime's library reads.

use super::headers::Headers;
use super::{BadFrame, Head, pass_payload};

/// Length of a frame header.
const HEAD_LEN: usize = 8;
/// Longest control frame without its header: a compressed block of the few headers of a stream.
const CONTROL_LEN_MAX: u64 = 64 << 10;

const SYN_STREAM: u16 = 1;
const SYN_REPLY: u16 = 2;
const RST_STREAM: u16 = 3;
const SETTINGS: u16 = 4;
const PING: u16 = 6;
const GOAWAY: u16 = 7;
const HEADERS: u16 = 8;
const WINDOW_UPDATE: u16 = 9;

/// Checks the frames of a SPDY/3.1 connection from a client.
#[derive(Debug, Default)]
pub struct Spdy {
    head: Head,
    /// Bytes left of the current data frame.
    payload_left: u64,
    headers: Headers,
}

impl Spdy {
    pub(super) fn pass(&mut self, bytes: &[u8], passed: &mut Vec<u8>) -> Result<(), BadFrame> {
        let mut rest = bytes;
        while !rest.is_empty() {
            if self.payload_left > 0 {
                pass_payload(&mut rest, &mut self.payload_left, passed);
                continue;
            }
            if !self.head.fill(&mut rest, HEAD_LEN) {
                return Ok(());
            }
            let len = self.head.number(5..8);
            if self.head.byte(0) & 0x80 == 0 {
                self.payload_left = len;
                self.head.move_to(passed);
                continue;
            }
            let kind = kind(&self.head)?;
            check_len(kind, len)?;
            if !self
                .head
                .fill(&mut rest, HEAD_LEN.saturating_add(usize::try_from(len).unwrap_or(0)))
            {
                return Ok(());
            }
            self.check_control(kind, len)?;
            self.head.move_to(passed);
        }
        Ok(())
    }

    fn check_control(&mut self, kind: u16, len: u64) -> Result<(), BadFrame> {
        let block = |skipped: usize| {
            self.head.0.get(HEAD_LEN.saturating_add(skipped)..).unwrap_or_default()
        };
        match kind {
            SYN_STREAM => self.headers.check(block(10)),
            SYN_REPLY | HEADERS => self.headers.check(block(4)),
            SETTINGS => {
                let entries = u32::try_from(self.head.number(8..12)).unwrap_or(u32::MAX);
                let fits = u64::from(entries).checked_mul(8).and_then(|room| room.checked_add(4));
                if fits == Some(len) { Ok(()) } else { Err(BadFrame::Settings { len, entries }) }
            }
            _ => Ok(()),
        }
    }
}

/// The type of a control frame.
fn kind(head: &Head) -> Result<u16, BadFrame> {
    let version = u16::try_from(head.number(0..2) & 0x7fff).unwrap_or_default();
    if version != 3 {
        return Err(BadFrame::Version(version));
    }
    Ok(u16::try_from(head.number(2..4)).unwrap_or_default())
}

fn check_len(kind: u16, len: u64) -> Result<(), BadFrame> {
    let expected = match kind {
        SYN_STREAM => 10..CONTROL_LEN_MAX,
        SYN_REPLY | HEADERS | SETTINGS => 4..CONTROL_LEN_MAX,
        RST_STREAM | GOAWAY | WINDOW_UPDATE => 8..9,
        PING => 4..5,
        _ => return Err(BadFrame::Type(kind)),
    };
    if expected.contains(&len) { Ok(()) } else { Err(BadFrame::Length { kind, len, expected }) }
}
