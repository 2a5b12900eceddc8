//! Frames as clients send them, in pieces of any length, and frames that nobody should send.

use flate2::{Compress, Compression, FlushCompress};
use proptest::prelude::*;

use super::headers::dictionary;
use super::*;

/// A control frame of version 3.
fn control(kind: u16, payload: &[u8]) -> Vec<u8> {
    let len = u32::try_from(payload.len()).expect("short").to_be_bytes();
    [&[0x80, 3], &kind.to_be_bytes()[..], &[0], &len[1..], payload].concat()
}

fn data(stream: u32, payload: &[u8]) -> Vec<u8> {
    let len = u32::try_from(payload.len()).expect("short").to_be_bytes();
    [&stream.to_be_bytes()[..], &[0], &len[1..], payload].concat()
}

/// Packs header blocks as clients do.
struct Packer(Compress);

impl Packer {
    fn new() -> Self {
        let mut compress = Compress::new(Compression::best(), true);
        assert_eq!(compress.set_dictionary(&dictionary()).expect("taken"), 0xe3c6_a7c2);
        Self(compress)
    }

    fn raw(&mut self, block: &[u8]) -> Vec<u8> {
        let mut packed = Vec::with_capacity(block.len() + 1024);
        self.0.compress_vec(block, &mut packed, FlushCompress::Sync).expect("packed");
        packed
    }

    fn headers(&mut self, headers: &[(&str, &str)]) -> Vec<u8> {
        let text = |text: &str| {
            let len = u32::try_from(text.len()).expect("short").to_be_bytes();
            [&len[..], text.as_bytes()].concat()
        };
        let mut block = u32::try_from(headers.len()).expect("few").to_be_bytes().to_vec();
        for (name, value) in headers {
            block.extend(text(name));
            block.extend(text(value));
        }
        self.raw(&block)
    }
}

/// A session as kubectl has it.
fn session() -> Vec<Vec<u8>> {
    let mut packer = Packer::new();
    let mut frames = Vec::new();
    for (stream, kind) in [(1_u8, "error"), (3, "stdin"), (5, "stdout")] {
        let packed = packer.headers(&[("streamtype", kind), ("port", "80")]);
        frames.push(control(1, &[&[0, 0, 0, stream, 0, 0, 0, 0, 0, 0], &packed[..]].concat()));
    }
    frames.push(control(2, &[&[0, 0, 0, 1], &packer.headers(&[])[..]].concat()));
    frames.push(data(3, b"ls -l\n"));
    frames.push(data(3, &vec![b'x'; 70_000]));
    frames.push(data(3, b""));
    frames.push(control(4, &[0, 0, 0, 1, 0, 0, 0, 4, 0, 0, 0, 100]));
    frames.push(control(6, &[0, 0, 0, 1]));
    frames.push(control(9, &[0, 0, 0, 3, 0, 1, 0, 0]));
    frames.push(control(8, &[&[0, 0, 0, 3], &packer.headers(&[("a", "b")])[..]].concat()));
    frames.push(control(3, &[0, 0, 0, 3, 0, 0, 0, 5]));
    frames.push(control(7, &[0, 0, 0, 5, 0, 0, 0, 0]));
    frames
}

/// Frames of a WebSocket client.
fn messages() -> Vec<Vec<u8>> {
    let frame =
        |first: u8, len: &[u8], payload: &[u8]| [&[first], len, &[1, 2, 3, 4], payload].concat();
    vec![
        frame(0x82, &[0x80 | 5], b"hello"),
        frame(0x02, &[0x80 | 126, 1, 0], &[7; 256]),
        frame(0x80, &[0x80 | 127, 0, 0, 0, 0, 0, 1, 0, 0], &[9; 65536]),
        frame(0x89, &[0x80], b""),
        frame(0x88, &[0x80 | 2], &[3, 232]),
    ]
}

fn pass(protocol: &str, pieces: &[&[u8]]) -> (Vec<u8>, Result<(), BadFrame>) {
    let mut checker = Checker::for_protocol(protocol).expect("known");
    let mut passed = Vec::new();
    for piece in pieces {
        if let Err(error) = checker.pass(piece, &mut passed) {
            return (passed, Err(error));
        }
    }
    (passed, Ok(()))
}

#[test]
fn junk_is_refused_before_the_runtime_sees_it() {
    let mut huge = control(4, &[0xff; 4]);
    huge.extend([0; 8]);
    let known: &[u8] =
        &[0x80, 3, 0, 4, 0, 0, 0, 0x0c, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0];
    let syn = |block: &[u8]| {
        control(1, &[&[0, 0, 0, 1, 0, 0, 0, 0, 0, 0], &Packer::new().raw(block)[..]].concat())
    };
    let many = syn(&[0xff, 0xff, 0xff, 0xff]);
    let long = syn(&[0, 0, 0, 1, 0x7f, 0xff, 0xff, 0xff]);
    let more = syn(&[0, 0, 0, 0, 1]);
    let bomb = syn(&vec![0; 1 << 20]);
    let mut ended = Packer::new();
    let mut packed = Vec::with_capacity(64);
    ended.0.compress_vec(&[0; 4], &mut packed, FlushCompress::Finish).expect("packed");
    let ended = control(8, &[&[0, 0, 0, 1], &packed[..]].concat());
    for (frame, why) in [
        (known, "settings"),
        (&huge, "settings"),
        (&many, "a count"),
        (&long, "a length"),
        (&more, "a rest"),
        (&bomb, "a bomb"),
        (&ended, "the end of compression"),
        (&control(1, &[0; 9]), "shorter than its fields"),
        (&control(2, &[0; 3]), "shorter than its fields"),
        (&control(8, &[0, 0, 0, 1, 1, 2, 3]), "no compression"),
        (&control(6, &[0; 5]), "a length of PING"),
        (&control(5, &[]), "a type that is none"),
        (&control(10, &[0; 8]), "a type that nobody reads"),
        (&[0x80, 2, 0, 6, 0, 0, 0, 4], "another version"),
        (&[0x80, 3, 0, 1, 0, 0xff, 0xff, 0xff], "a length that would be kept"),
    ] {
        let (passed, outcome) = pass("SPDY/3.1", &[frame]);
        assert!(outcome.is_err() && passed.is_empty(), "{why}");
    }
    for (frame, why) in [
        (&[0x82, 5][..], "unmasked"),
        (&[0xc2, 0x80], "a reserved bit"),
        (&[0x83, 0x80], "an opcode that is none"),
        (&[0x09, 0x80], "a control frame in parts"),
        (&[0x89, 0xfe], "a long control frame"),
        (&[0x82, 0xff, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0], "a length"),
    ] {
        let (passed, outcome) = pass("websocket", &[frame]);
        assert!(outcome.is_err() && passed.is_empty(), "{why}");
    }
    assert!(Checker::for_protocol("h2c").is_none());
}

#[test]
fn good_frames_before_a_bad_one_pass() {
    let whole = session().concat();
    let (passed, outcome) = pass("spdy/3.1", &[&whole, &control(6, &[])]);
    assert!(outcome.is_err());
    assert_eq!(passed, whole);
}

/// `bytes` in pieces of the lengths, over and over.
fn cut<'a>(bytes: &'a [u8], lens: &[usize]) -> Vec<&'a [u8]> {
    let mut rest = bytes;
    let mut pieces = Vec::new();
    for len in lens.iter().cycle() {
        if rest.is_empty() {
            break;
        }
        let (piece, after) = rest.split_at((*len).min(rest.len()));
        pieces.push(piece);
        rest = after;
    }
    pieces
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn sessions_pass_unchanged_however_they_are_cut(
        lens in proptest::collection::vec(prop_oneof![1_usize..40, 1_usize..20_000], 1..40),
    ) {
        for (protocol, frames) in [("SPDY/3.1", session()), ("websocket", messages())] {
            let whole = frames.concat();
            let (passed, outcome) = pass(protocol, &cut(&whole, &lens));
            prop_assert_eq!(outcome, Ok(()));
            prop_assert!(passed == whole);
        }
    }

    #[test]
    fn the_outcome_does_not_depend_on_the_cuts(
        at in 0_usize..900,
        byte in any::<u8>(),
        lens in proptest::collection::vec(1_usize..60, 1..40),
    ) {
        for (protocol, frames) in [("SPDY/3.1", session()), ("websocket", messages())] {
            let mut whole = frames.concat();
            if let Some(changed) = whole.get_mut(at) {
                *changed = byte;
            }
            let (at_once, one) = pass(protocol, &[&whole]);
            let (in_pieces, other) = pass(protocol, &cut(&whole, &lens));
            prop_assert_eq!(one, other);
            prop_assert!(at_once == in_pieces && whole.starts_with(&at_once));
        }
    }

    #[test]
    fn any_bytes_are_judged(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        for protocol in ["SPDY/3.1", "websocket"] {
            let mut control = vec![0x80, 3, 0];
            control.extend_from_slice(&bytes);
            for bytes in [&bytes, &control] {
                let (passed, _) = pass(protocol, &[bytes]);
                prop_assert!(bytes.starts_with(&passed));
            }
        }
    }
}
