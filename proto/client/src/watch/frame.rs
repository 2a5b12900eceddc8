//! The events of a watch's body. Pure.
//!
//! JSON: one object a line, `{"type": "ADDED", "object": {...}}`. Protobuf: four bytes of length,
//! most significant first, then the message `WatchEvent {1: type, 2: RawExtension {1: bytes}}`
//! without an envelope; the bytes inside are an object in its envelope.

use bytes::{Buf, Bytes, BytesMut};
use prost::Message;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::content::Encoding;
use crate::error::DecodeError;

/// Longest event; objects that a server stores are smaller.
const EVENT_LEN_MAX: usize = 16 << 20;

/// `type` of a watch event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventType {
    /// The object was created.
    Added,
    /// The object has changed.
    Modified,
    /// The object was deleted; this is its last state.
    Deleted,
    /// Only the version counts: all events up to it have been sent.
    Bookmark,
    /// The object is a `Status`, and the watch ends.
    Error,
}

/// Collects bytes and returns events.
#[derive(Debug)]
pub struct FrameReader {
    encoding: Encoding,
    buffer: BytesMut,
    /// Number of bytes without a line end.
    searched: usize,
}

impl FrameReader {
    pub(crate) fn new(encoding: Encoding) -> Self {
        Self { encoding, buffer: BytesMut::new(), searched: 0 }
    }

    /// Adds received bytes. Call [`FrameReader::event`] until it returns `None`, so that the buffer stays below one event and one read.
    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// The next complete event: its type and its object as bytes.
    pub fn event(&mut self) -> Result<Option<(EventType, Bytes)>, DecodeError> {
        match self.encoding {
            Encoding::Json => self.next_line(),
            Encoding::Protobuf => self.next_message(),
        }
    }

    fn next_line(&mut self) -> Result<Option<(EventType, Bytes)>, DecodeError> {
        loop {
            let rest = self.buffer.get(self.searched..).unwrap_or_default();
            let Some(end) = rest.iter().position(|byte| *byte == b'\n') else {
                self.searched = self.buffer.len();
                return if self.searched > EVENT_LEN_MAX { Err(too_long()) } else { Ok(None) };
            };
            let line = self.buffer.split_to(self.searched + end).freeze();
            self.buffer.advance(1);
            self.searched = 0;
            if !line.trim_ascii().is_empty() {
                return parse_line(&line).map(Some);
            }
        }
    }

    fn next_message(&mut self) -> Result<Option<(EventType, Bytes)>, DecodeError> {
        let Some(head) = self.buffer.first_chunk::<4>() else { return Ok(None) };
        let len = usize::try_from(u32::from_be_bytes(*head)).unwrap_or(usize::MAX);
        if len > EVENT_LEN_MAX {
            return Err(too_long());
        }
        if self.buffer.len() < 4 + len {
            return Ok(None);
        }
        self.buffer.advance(4);
        let event = WatchEvent::decode(self.buffer.split_to(len).freeze())?;
        Ok(Some((event_type(&event.event_type)?, event.object.raw)))
    }
}

fn too_long() -> DecodeError {
    DecodeError::WatchEventTooLong(EVENT_LEN_MAX)
}

#[derive(Deserialize)]
struct Line<'a> {
    #[serde(rename = "type")]
    event_type: String,
    #[serde(borrow)]
    object: &'a RawValue,
}

fn parse_line(line: &Bytes) -> Result<(EventType, Bytes), DecodeError> {
    let parsed: Line<'_> = serde_json::from_slice(line)?;
    // A slice of the line: the object is not copied.
    Ok((event_type(&parsed.event_type)?, line.slice_ref(parsed.object.get().as_bytes())))
}

fn event_type(text: &str) -> Result<EventType, DecodeError> {
    Ok(match text {
        "ADDED" => EventType::Added,
        "MODIFIED" => EventType::Modified,
        "DELETED" => EventType::Deleted,
        "BOOKMARK" => EventType::Bookmark,
        "ERROR" => EventType::Error,
        other => return Err(DecodeError::WatchEvent(other.to_owned())),
    })
}

#[derive(Clone, PartialEq, prost::Message)]
struct WatchEvent {
    #[prost(string, tag = "1")]
    event_type: String,
    #[prost(message, required, tag = "2")]
    object: RawExtension,
}

#[derive(Clone, PartialEq, prost::Message)]
struct RawExtension {
    #[prost(bytes = "bytes", tag = "1")]
    raw: Bytes,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn message(event_type: &str, object: &[u8]) -> Vec<u8> {
        let object = RawExtension { raw: Bytes::copy_from_slice(object) };
        let body = WatchEvent { event_type: event_type.into(), object }.encode_to_vec();
        let mut frame = u32::try_from(body.len()).expect("short").to_be_bytes().to_vec();
        frame.extend(body);
        frame
    }

    /// The same events whatever the pieces in which they come.
    fn read(
        encoding: Encoding,
        bytes: &[u8],
        piece: usize,
    ) -> Result<Vec<(EventType, Bytes)>, DecodeError> {
        let mut reader = FrameReader::new(encoding);
        let mut events = Vec::new();
        for piece in bytes.chunks(piece.max(1)) {
            reader.push(piece);
            while let Some(event) = reader.event()? {
                events.push(event);
            }
        }
        Ok(events)
    }

    #[test]
    fn protobuf_frames_byte_by_byte() {
        let bytes = [
            0, 0, 0, 14, // length of what follows
            0x0a, 5, b'A', b'D', b'D', b'E', b'D', // 1: type
            0x12, 5, 0x0a, 3, b'k', b'8', b's', // 2: RawExtension { 1: bytes }
        ];
        assert_eq!(bytes.to_vec(), message("ADDED", b"k8s"));
        let events = read(Encoding::Protobuf, &bytes, 1).expect("valid");
        assert_eq!(events, [(EventType::Added, Bytes::from_static(b"k8s"))]);
    }

    #[test]
    fn json_lines_in_pieces() {
        let text = "{\"type\":\"MODIFIED\",\"object\":{\"a\":\"}\\n\"}}\n\n {\"object\": {} ,\"type\":\"BOOKMARK\"}\r\n{\"ty";
        for piece in 1..text.len() {
            let events = read(Encoding::Json, text.as_bytes(), piece).expect("valid");
            let objects: Vec<_> =
                events.iter().map(|(kind, object)| (*kind, &object[..])).collect();
            let expected: [(EventType, &[u8]); 2] =
                [(EventType::Modified, b"{\"a\":\"}\\n\"}"), (EventType::Bookmark, b"{}")];
            assert_eq!(objects, expected);
        }
    }

    #[test]
    fn malformed_watch_events_are_refused() {
        assert!(matches!(
            read(Encoding::Json, b"{\"type\":\"X\",\"object\":1}\n", 99),
            Err(DecodeError::WatchEvent(_))
        ));
        assert!(matches!(
            read(Encoding::Json, b"{\"type\":\"ADDED\"}\n", 99),
            Err(DecodeError::Json(_))
        ));
        let endless = [0x7f, 0xff, 0xff, 0xff];
        assert!(matches!(
            read(Encoding::Protobuf, &endless, 99),
            Err(DecodeError::WatchEventTooLong(_))
        ));
    }

    proptest! {
        #[test]
        fn any_bytes_are_answered(bytes in prop::collection::vec(any::<u8>(), 0..200), piece in 1..50_usize) {
            let _ = read(Encoding::Json, &bytes, piece);
            let _ = read(Encoding::Protobuf, &bytes, piece);
        }

        #[test]
        fn events_are_read_from_pieces_of_any_length(objects in prop::collection::vec("[a-z]{0,30}", 0..5), piece in 1..20_usize) {
            let bytes: Vec<u8> = objects.iter().flat_map(|object| message("DELETED", object.as_bytes())).collect();
            let read = read(Encoding::Protobuf, &bytes, piece).expect("valid");
            let seen: Vec<_> = read.iter().map(|(_, object)| String::from_utf8_lossy(object).into_owned()).collect();
            prop_assert_eq!(seen, objects);
        }
    }
}
