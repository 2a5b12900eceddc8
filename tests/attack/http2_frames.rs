//! Pure: frames of HTTP/2 clients (RFC 9113), and what a server answers to them. Header fields are literals (RFC 7541): what is sent has the size that it says.

#![expect(
    clippy::expect_used,
    reason = "what is sent is constant: a failure is a mistake in this file"
)]

/// Longest payload of a frame, for both sides, as neither asks for more.
const PAYLOAD_LEN_MAX: usize = 16 << 10;
/// Bytes before the payload of a frame.
const FRAME_HEAD_LEN: usize = 9;

/// Types of frames (RFC 9113, section 6).
mod kind {
    pub(super) const HEADERS: u8 = 1;
    pub(super) const RST_STREAM: u8 = 3;
    pub(super) const SETTINGS: u8 = 4;
    pub(super) const GOAWAY: u8 = 7;
    pub(super) const WINDOW_UPDATE: u8 = 8;
    pub(super) const CONTINUATION: u8 = 9;
}

/// What the client takes of the server's answers.
#[derive(Clone, Copy, Debug)]
pub enum Window {
    /// Nothing.
    Closed,
    /// All, as far as the connection is concerned.
    Open,
}

/// The client's preface and its settings.
pub fn preface(window: Window) -> Vec<u8> {
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    match window {
        // SETTINGS_INITIAL_WINDOW_SIZE is identifier 4.
        Window::Closed => extend_frame(&mut bytes, (kind::SETTINGS, 0, 0), &[0, 4, 0, 0, 0, 0]),
        Window::Open => {
            extend_frame(&mut bytes, (kind::SETTINGS, 0, 0), &[]);
            let most = (1_u32 << 31) - 1 - 65_535;
            extend_frame(&mut bytes, (kind::WINDOW_UPDATE, 0, 0), &most.to_be_bytes());
        }
    }
    bytes
}

/// The header fields of a request without a body.
pub fn head(method: &str, path: &str, token: Option<&str>) -> Vec<u8> {
    // `:method`, `:path`, `:authority` and `authorization` are entries 2, 4, 1 and 23 of the static table; `:scheme: https` is entry 7 with its value.
    let mut fields = vec![0x87, 0x02];
    extend_text(&mut fields, method);
    fields.push(0x04);
    extend_text(&mut fields, path);
    fields.push(0x01);
    extend_text(&mut fields, "localhost");
    if let Some(token) = token {
        fields.extend([0x0f, 23 - 15]);
        extend_text(&mut fields, &format!("Bearer {token}"));
    }
    fields
}

/// The frames of a request whose number on its connection is `number`, from 0.
pub fn request(head: &[u8], number: u32) -> Vec<u8> {
    const END_STREAM: u8 = 1;
    const END_HEADERS: u8 = 4;
    let stream = number * 2 + 1;
    let parts = head.chunks(PAYLOAD_LEN_MAX);
    let last = parts.len().saturating_sub(1);
    let mut bytes = Vec::with_capacity(head.len() + (last + 1) * FRAME_HEAD_LEN);
    for (at, part) in parts.enumerate() {
        let (kind, first) = match at {
            0 => (kind::HEADERS, END_STREAM),
            _ => (kind::CONTINUATION, 0),
        };
        let end = if at == last { END_HEADERS } else { 0 };
        extend_frame(&mut bytes, (kind, first | end, stream), part);
    }
    bytes
}

/// One frame of this type, these flags and this stream.
fn extend_frame(bytes: &mut Vec<u8>, (kind, flags, stream): (u8, u8, u32), payload: &[u8]) {
    let [_, len @ ..] = u32::try_from(payload.len()).expect("a short payload").to_be_bytes();
    bytes.extend(len);
    bytes.extend([kind, flags]);
    bytes.extend(stream.to_be_bytes());
    bytes.extend(payload);
}

/// A string literal: its length with a prefix of 7 bits, and its octets (RFC 7541, sections 5.1 and 5.2).
fn extend_text(fields: &mut Vec<u8>, text: &str) {
    const PREFIX: usize = 0x7f;
    match text.len().checked_sub(PREFIX) {
        None => fields.push(u8::try_from(text.len()).expect("less than the prefix")),
        Some(mut rest) => {
            fields.push(0x7f);
            while rest >= 128 {
                fields.push(u8::try_from(rest % 128).expect("less than 128") | 0x80);
                rest /= 128;
            }
            fields.push(u8::try_from(rest).expect("less than 128"));
        }
    }
    fields.extend(text.as_bytes());
}

/// What a frame of the server says of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// A response with status 200.
    Accepted,
    /// A response with another status.
    OtherStatus,
    /// The stream was reset.
    Reset,
    /// The connection takes no more requests.
    GoAway,
}

/// The server's frames, as far as they have come.
#[derive(Debug, Default)]
pub struct Answers {
    unread: Vec<u8>,
}

impl Answers {
    /// Takes what was read, and gives what it says. `None` for a frame that is longer than the client allows.
    pub fn take(&mut self, bytes: &[u8]) -> Option<Vec<Answer>> {
        self.unread.extend_from_slice(bytes);
        let mut answers = Vec::new();
        let mut rest = self.unread.as_slice();
        while let Some((head, tail)) = rest.split_first_chunk::<FRAME_HEAD_LEN>() {
            let len = head[..3].iter().fold(0, |len, byte| (len << 8) | usize::from(*byte));
            if len > PAYLOAD_LEN_MAX {
                return None;
            }
            let Some((payload, after)) = tail.split_at_checked(len) else { break };
            answers.extend(match head[3] {
                // Entry 8 of the static table is `:status: 200`, which is the first field.
                kind::HEADERS if payload.first() == Some(&0x88) => Some(Answer::Accepted),
                kind::HEADERS => Some(Answer::OtherStatus),
                kind::RST_STREAM => Some(Answer::Reset),
                kind::GOAWAY => Some(Answer::GoAway),
                _ => None,
            });
            rest = after;
        }
        let read = self.unread.len() - rest.len();
        self.unread.drain(..read);
        Some(answers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Type, flags and stream of each frame.
    fn frames(mut rest: &[u8]) -> Vec<(u8, u8, u8)> {
        let mut frames = Vec::new();
        while let Some((head, tail)) = rest.split_first_chunk::<FRAME_HEAD_LEN>() {
            frames.push((head[3], head[4], head[8]));
            rest = &tail[usize::from(head[1]) * 256 + usize::from(head[2])..];
        }
        assert!(rest.is_empty(), "{} bytes are no frame", rest.len());
        frames
    }

    #[test]
    fn the_frames_say_how_long_they_are() {
        let preface_of = |window| {
            let bytes = preface(window);
            frames(bytes.strip_prefix(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").expect("the preface"))
        };
        assert_eq!(preface_of(Window::Closed), [(4, 0, 0)]);
        assert_eq!(preface_of(Window::Open), [(4, 0, 0), (8, 0, 0)]);
        let known = head("GET", "/a", Some(&"t".repeat(1000)));
        assert_eq!(frames(&request(&known, 1)), [(1, 5, 3)]);
        let long = head("GET", &"p".repeat(40_000), None);
        assert_eq!(frames(&request(&long, 2)), [(1, 1, 5), (9, 0, 5), (9, 4, 5)]);
        let exact = vec![0x87; PAYLOAD_LEN_MAX];
        assert_eq!(frames(&request(&exact, 0)), [(1, 5, 1)]);
    }

    #[test]
    fn lengths_of_texts_are_those_of_the_rfc() {
        for (len, expected) in
            [(9, &[9][..]), (127, &[127, 0]), (128, &[127, 1]), (1337 + 96, &[127, 0x9a, 0x0a])]
        {
            let mut fields = Vec::new();
            extend_text(&mut fields, &"a".repeat(len));
            assert_eq!(fields[..fields.len() - len], *expected, "{len}");
        }
    }

    #[test]
    fn answers_are_read_however_they_are_cut() {
        let mut bytes = Vec::new();
        extend_frame(&mut bytes, (kind::SETTINGS, 0, 0), &[]);
        extend_frame(&mut bytes, (kind::HEADERS, 4, 1), &[0x88, 0x01]);
        extend_frame(&mut bytes, (0, 1, 1), b"body");
        extend_frame(&mut bytes, (kind::HEADERS, 4, 3), &[0x48, 0x03]);
        extend_frame(&mut bytes, (kind::RST_STREAM, 0, 5), &[0, 0, 0, 7]);
        extend_frame(&mut bytes, (kind::GOAWAY, 0, 0), &[0; 8]);
        let expected = [Answer::Accepted, Answer::OtherStatus, Answer::Reset, Answer::GoAway];
        for size in [1, 7, 9, bytes.len()] {
            let mut answers = Answers::default();
            let found = bytes.chunks(size).flat_map(|part| answers.take(part).expect("frames"));
            assert_eq!(found.collect::<Vec<_>>(), expected, "{size}");
            assert!(answers.unread.is_empty());
        }
        assert!(Answers::default().take(&[1, 0, 0, 0, 0, 0, 0, 0, 0]).is_none(), "too long");
    }
}
