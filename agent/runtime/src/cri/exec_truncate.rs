//! Truncates the response of an exec call while it is received.
//!
//! CRI puts all output of a command into one message, and a gRPC client buffers a message before it decodes it, so the output of
//! a container would fill the agent's memory. This body is parsed as it arrives: the first bytes of both streams are kept, the
//! rest is discarded, and the client gets a short message.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{BufMut as _, Bytes, BytesMut};
use http_body::{Body, Frame};
use prost::Message as _;
use proto_grpc::cri::v1::ExecSyncResponse;

/// gRPC message prefix: compression flag and length.
const PREFIX_LEN: usize = 5;

/// A body with one [`ExecSyncResponse`], truncated.
pub(super) struct TruncatedBody<B> {
    body: B,
    reader: MessageReader,
    /// A frame that followed the message, returned after it.
    after: Option<Frame<Bytes>>,
}

impl<B> TruncatedBody<B> {
    /// Keeps the first `keep` bytes of each stream.
    pub(super) fn new(body: B, keep: usize) -> Self {
        Self { body, reader: MessageReader::new(keep), after: None }
    }
}

impl<B: Body<Data = Bytes> + Unpin> Body for TruncatedBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        if let Some(frame) = self.after.take() {
            return Poll::Ready(Some(Ok(frame)));
        }
        let after = loop {
            let frame = match ready!(Pin::new(&mut self.body).poll_frame(context)) {
                Some(Ok(frame)) => frame,
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                None => break None,
            };
            match frame.into_data() {
                Ok(data) => self.reader.read(&data),
                Err(trailers) => break Some(trailers),
            }
        };
        let Some(message) = self.reader.take_message() else { return Poll::Ready(after.map(Ok)) };
        self.after = after;
        Poll::Ready(Some(Ok(Frame::data(message))))
    }
}

/// An incremental parser of the message. Pure.
#[derive(Debug)]
struct MessageReader {
    /// Number of bytes kept of each stream.
    keep: usize,
    next: ParseState,
    /// Remaining bytes of the message.
    left: u64,
    number: Varint,
    read: ExecSyncResponse,
}

/// State of the parser.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ParseState {
    Prefix {
        seen: usize,
    },
    Key,
    Number {
        field: u64,
    },
    Length {
        field: u64,
    },
    Bytes {
        field: u64,
        left: u64,
    },
    End,
    /// The message was returned, or is invalid; in that case nothing is returned, and the client reports a missing response.
    Nothing,
}

impl MessageReader {
    fn new(keep: usize) -> Self {
        let (next, number) = (ParseState::Prefix { seen: 0 }, Varint::default());
        Self { keep, next, left: 0, number, read: ExecSyncResponse::default() }
    }

    fn read(&mut self, mut data: &[u8]) {
        while let Some((first, rest)) = data.split_first() {
            if let ParseState::Bytes { field, left } = self.next {
                let len = usize::try_from(left).map_or(data.len(), |left| left.min(data.len()));
                let (bytes, rest) = data.split_at(len);
                self.keep(field, bytes);
                let read = len as u64;
                self.left = self.left.saturating_sub(read);
                self.next = match left.saturating_sub(read) {
                    0 => ParseState::Key,
                    left => ParseState::Bytes { field, left },
                };
                data = rest;
            } else {
                self.next = self.step(*first);
                data = rest;
            }
            if self.left == 0 && !matches!(self.next, ParseState::Prefix { .. } | ParseState::End) {
                let whole = self.next == ParseState::Key && self.number.is_new();
                self.next = if whole { ParseState::End } else { ParseState::Nothing };
            }
        }
    }

    /// The kept part of the message with its prefix, once all of it was parsed.
    fn take_message(&mut self) -> Option<Bytes> {
        if self.next != ParseState::End {
            return None;
        }
        self.next = ParseState::Nothing;
        let message = std::mem::take(&mut self.read).encode_to_vec();
        let mut framed = BytesMut::with_capacity(message.len().saturating_add(PREFIX_LEN));
        framed.put_u8(0);
        framed.put_u32(u32::try_from(message.len()).ok()?);
        framed.put_slice(&message);
        Some(framed.freeze())
    }

    /// Parses a byte that is not part of a stream; returns the next state.
    fn step(&mut self, byte: u8) -> ParseState {
        if let ParseState::Prefix { seen } = self.next {
            return self.prefix(seen, byte);
        }
        // A unary call has one message: nothing may follow it.
        let Some(left) = self.left.checked_sub(1) else { return ParseState::Nothing };
        self.left = left;
        let value = match self.number.push(byte) {
            Ok(Some(value)) => value,
            Ok(None) => return self.next,
            Err(TooLong) => return ParseState::Nothing,
        };
        match self.next {
            ParseState::Key => after_key(value),
            ParseState::Number { field } => {
                if field == 3 {
                    // A negative `int32` is sent as 64 bits; only the lower half counts.
                    let low = u32::try_from(value & u64::from(u32::MAX)).unwrap_or_default();
                    self.read.exit_code = low.cast_signed();
                }
                ParseState::Key
            }
            ParseState::Length { field } if value <= left => self.begin_stream(field, value),
            _ => ParseState::Nothing,
        }
    }

    fn prefix(&mut self, seen: usize, byte: u8) -> ParseState {
        match seen {
            0 if byte == 0 => ParseState::Prefix { seen: 1 },
            // Compression was not offered.
            0 => ParseState::Nothing,
            _ => {
                self.left = self.left << 8 | u64::from(byte);
                match seen.saturating_add(1) {
                    PREFIX_LEN if self.left == 0 => ParseState::End,
                    PREFIX_LEN => ParseState::Key,
                    seen => ParseState::Prefix { seen },
                }
            }
        }
    }

    /// Starts a stream field; of repeated fields the last one counts.
    fn begin_stream(&mut self, field: u64, left: u64) -> ParseState {
        if let Some(stream) = self.stream(field) {
            stream.clear();
        }
        if left == 0 { ParseState::Key } else { ParseState::Bytes { field, left } }
    }

    fn keep(&mut self, field: u64, bytes: &[u8]) {
        let keep = self.keep;
        if let Some(stream) = self.stream(field) {
            let room = keep.saturating_sub(stream.len());
            stream.extend(bytes.iter().take(room));
        }
    }

    fn stream(&mut self, field: u64) -> Option<&mut Vec<u8>> {
        match field {
            1 => Some(&mut self.read.stdout),
            2 => Some(&mut self.read.stderr),
            _ => None,
        }
    }
}

fn after_key(key: u64) -> ParseState {
    let field = key >> 3;
    match key & 7 {
        0 => ParseState::Number { field },
        1 => ParseState::Bytes { field: 0, left: 8 },
        2 => ParseState::Length { field },
        5 => ParseState::Bytes { field: 0, left: 4 },
        _ => ParseState::Nothing,
    }
}

/// A partly received varint.
#[derive(Debug, Default)]
struct Varint {
    value: u64,
    shift: u32,
}

/// A varint of more than 64 bits.
struct TooLong;

impl Varint {
    /// Adds a byte; returns the number after its last byte.
    fn push(&mut self, byte: u8) -> Result<Option<u64>, TooLong> {
        let bits = u64::from(byte & 0x7f).checked_shl(self.shift).ok_or(TooLong)?;
        self.value |= bits;
        self.shift = self.shift.saturating_add(7);
        if byte & 0x80 != 0 {
            return Ok(None);
        }
        Ok(Some(std::mem::take(self).value))
    }

    fn is_new(&self) -> bool {
        self.shift == 0
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use futures_util::StreamExt as _;
    use http_body_util::{BodyExt as _, StreamBody};
    use proptest::prelude::*;

    use super::*;

    fn framed(message: &[u8]) -> Vec<u8> {
        let mut framed = vec![0];
        framed.put_u32(u32::try_from(message.len()).unwrap());
        framed.extend(message);
        framed
    }

    fn unframed(framed: &[u8]) -> ExecSyncResponse {
        let (prefix, message) = framed.split_at(PREFIX_LEN);
        assert_eq!(prefix, &self::framed(message)[..PREFIX_LEN]);
        ExecSyncResponse::decode(message).unwrap()
    }

    fn read(keep: usize, bytes: &[u8], pieces: usize) -> Option<ExecSyncResponse> {
        let mut reader = MessageReader::new(keep);
        for piece in bytes.chunks(pieces) {
            reader.read(piece);
        }
        let taken = reader.take_message();
        assert_eq!(reader.take_message(), None, "handed on once");
        taken.map(|framed| unframed(&framed))
    }

    #[test]
    fn malformed_exec_responses_are_not_decoded() {
        let key = |field: u8, kind: u8| field << 3 | kind;
        let table: &[(&str, &[u8], Option<i32>)] = &[
            ("nothing", &[], Some(0)),
            ("a code", &[key(3, 0), 7], Some(7)),
            (
                "a code below zero",
                &[key(3, 0), 255, 255, 255, 255, 255, 255, 255, 255, 255, 1],
                Some(-1),
            ),
            (
                "fields of later versions",
                &[
                    key(9, 0),
                    1,
                    key(9, 1),
                    1,
                    2,
                    3,
                    4,
                    5,
                    6,
                    7,
                    8,
                    key(9, 5),
                    1,
                    2,
                    3,
                    4,
                    key(9, 2),
                    1,
                    0,
                    key(3, 0),
                    5,
                ],
                Some(5),
            ),
            ("a stream that is cut off", &[key(1, 2), 3, b'a', b'b'], None),
            ("a number that is cut off", &[key(3, 0), 255], None),
            ("a key alone", &[key(3, 0)], None),
            (
                "a number without end",
                &[key(3, 0), 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 1],
                None,
            ),
            ("a group", &[key(1, 3), key(1, 4)], None),
        ];
        for (what, message, expect) in table {
            for pieces in 1..=message.len() + PREFIX_LEN {
                let code = read(9, &framed(message), pieces).map(|answer| answer.exit_code);
                assert_eq!(code, *expect, "{what} in pieces of {pieces}");
            }
        }
        assert_eq!(read(9, &[1, 0, 0, 0, 0], 9), None, "compressed");
        assert_eq!(read(9, &[0, 0, 0, 0, 0, 0], 9), None, "two answers");
        assert_eq!(read(9, &[0, 0, 0, 0], 9), None, "half a prefix");
    }

    proptest! {
        #[test]
        fn an_answer_is_the_same_but_for_its_length(
            stdout in prop::collection::vec(any::<u8>(), 0..300),
            stderr in prop::collection::vec(any::<u8>(), 0..300),
            exit_code: i32,
            keep in 0..400_usize,
            pieces in 1..700_usize,
        ) {
            let whole = ExecSyncResponse { stdout, stderr, exit_code };
            let answer = read(keep, &framed(&whole.encode_to_vec()), pieces);
            let first = |bytes: &[u8]| bytes[..keep.min(bytes.len())].to_vec();
            let (stdout, stderr) = (first(&whole.stdout), first(&whole.stderr));
            prop_assert_eq!(answer, Some(ExecSyncResponse { stdout, stderr, exit_code }));
        }

        #[test]
        fn nothing_is_believed(message in prop::collection::vec(any::<u8>(), 0..60), pieces in 1..70_usize) {
            let decoded = ExecSyncResponse::decode(message.as_slice()).ok();
            let answer = read(usize::MAX, &framed(&message), pieces);
            // Groups and overlong varints do not occur in these messages.
            prop_assert!(answer.is_none() || decoded.is_none() || answer == decoded);
        }
    }

    #[tokio::test]
    async fn trailers_follow_the_truncated_exec_response() {
        let whole =
            ExecSyncResponse { stdout: vec![b'x'; 1000], exit_code: 3, ..Default::default() };
        let bytes = Bytes::from(framed(&whole.encode_to_vec()));
        let trailers: http::HeaderMap =
            [("grpc-status".parse().unwrap(), "0".parse().unwrap())].into_iter().collect();
        let mut frames: Vec<Frame<Bytes>> =
            bytes.chunks(7).map(|piece| Frame::data(Bytes::copy_from_slice(piece))).collect();
        frames.push(Frame::trailers(trailers.clone()));
        let frames = futures_util::stream::iter(frames.into_iter().map(Ok::<_, Infallible>));
        let mut body = TruncatedBody::new(StreamBody::new(frames.boxed()), 10);

        let first = body.frame().await.unwrap().unwrap().into_data().unwrap();
        let short = ExecSyncResponse { stdout: vec![b'x'; 10], ..whole };
        assert_eq!(unframed(&first), short);
        assert_eq!(body.frame().await.unwrap().unwrap().into_trailers().unwrap(), trailers);
        assert!(body.frame().await.is_none());
    }
}
