//! Streams of exec, attach and port-forward: frames of clients as the node agent checks them, frames of servers as the command-line client reads them.

// A private module of agent-server, which stands alone.
#[allow(dead_code, reason = "the fuzzer uses a part of the file")]
#[path = "../../../agent/server/src"]
mod agent_server {
    pub mod frames;
}

/// A frame of SPDY/3.1 that is no data.
fn control(kind: u16, flags: u8, payload: &[u8]) -> Vec<u8> {
    let len = u32::try_from(payload.len()).unwrap_or(0).to_be_bytes();
    [&[0x80, 3], &kind.to_be_bytes()[..], &[flags], &len[1..], payload].concat()
}

/// A data frame of SPDY/3.1.
fn data(stream: u32, flags: u8, payload: &[u8]) -> Vec<u8> {
    let len = u32::try_from(payload.len()).unwrap_or(0).to_be_bytes();
    [&stream.to_be_bytes()[..], &[flags], &len[1..], payload].concat()
}

/// Frames of clients.
pub mod client_frames {
    use flate2::{Compress, Compression, FlushCompress};

    use super::agent_server::frames::Checker;
    use super::{control, data};

    /// What was passed on of the bytes in pieces of this length, and whether all of it was good.
    fn pass(first: u8, bytes: &[u8], piece: usize) -> (Vec<u8>, bool) {
        let protocol = if first & 1 == 0 { "SPDY/3.1" } else { "websocket" };
        let mut checker = Checker::for_protocol(protocol).expect("a known protocol");
        let mut passed = Vec::new();
        let good = bytes.chunks(piece).all(|piece| checker.pass(piece, &mut passed).is_ok());
        (passed, good)
    }

    /// Reads the bytes as frames of the protocol that the first byte names, whole and in pieces: the same is passed on, unchanged, and no more than was read.
    pub fn check(bytes: &[u8]) {
        let Some((first, bytes)) = bytes.split_first() else { return };
        let whole = pass(*first, bytes, bytes.len().max(1));
        assert!(bytes.starts_with(&whole.0));
        assert_eq!(pass(*first, bytes, usize::from(first >> 1).max(1)), whole);
    }

    /// Header blocks as they lie before they are packed; stored, so that the search can change them.
    fn packed(headers: &[(&str, &str)], level: Compression) -> Vec<u8> {
        let len = |len: usize| u32::try_from(len).unwrap_or(0).to_be_bytes();
        let mut block = len(headers.len()).to_vec();
        for text in headers.iter().flat_map(|(name, value)| [name, value]) {
            block.extend(len(text.len()));
            block.extend(text.as_bytes());
        }
        let mut packed = Vec::with_capacity(block.len() + 64);
        let written =
            Compress::new(level, true).compress_vec(&block, &mut packed, FlushCompress::Sync);
        written.expect("in memory");
        packed
    }

    /// Sessions of both protocols.
    pub fn seeds() -> Vec<Vec<u8>> {
        let session = |level| {
            let headers = packed(&[("streamtype", "stdin"), ("port", "80")], level);
            let open = control(1, 0, &[&[0, 0, 0, 1, 0, 0, 0, 0, 0, 0], &headers[..]].concat());
            let settings = control(4, 0, &[0, 0, 0, 1, 0, 0, 0, 4, 0, 0, 0, 100]);
            let ping = control(6, 0, &[0, 0, 0, 1]);
            let end = control(3, 0, &[0, 0, 0, 1, 0, 0, 0, 5]);
            [&[6], &open[..], &settings, &data(1, 0, b"ls\n"), &ping, &data(1, 1, b""), &end]
                .concat()
        };
        let frame = |first: u8, len: &[u8], payload: &[u8]| {
            [&[first], len, &[1, 2, 3, 4], payload].concat()
        };
        let messages = [
            frame(0x82, &[0x85], b"hello"),
            frame(0x02, &[0xfe, 1, 0], &[7; 256]),
            frame(0x80, &[0xff, 0, 0, 0, 0, 0, 0, 0, 1], &[9]),
            frame(0x89, &[0x80], b""),
            frame(0x88, &[0x82], &[3, 232]),
        ];
        vec![
            session(Compression::none()),
            session(Compression::best()),
            [&[7], &messages.concat()[..]].concat(),
        ]
    }
}

/// Frames of servers.
pub mod session_frames {
    use std::sync::OnceLock;

    use orchctl_streams::exec::{self, Exit, LocalStreams, Streams};
    use orchctl_streams::forward;
    use orchctl_streams::spdy::Connection;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex, sink};
    use tokio::runtime::{Builder, Runtime};

    use super::{control, data};

    fn runtime() -> &'static Runtime {
        static RUNTIME: OnceLock<Runtime> = OnceLock::new();
        RUNTIME.get_or_init(|| Builder::new_current_thread().build().expect("a runtime"))
    }

    /// Sends the bytes, ends, and reads what the client sends.
    async fn serve(far: DuplexStream, bytes: &[u8]) {
        let (mut read, mut write) = tokio::io::split(far);
        let send = async {
            let _ = write.write_all(bytes).await;
            let _ = write.shutdown().await;
        };
        let mut ignored = sink();
        let _ = tokio::join!(send, tokio::io::copy(&mut read, &mut ignored));
    }

    async fn run_command(first: u8, bytes: &[u8]) {
        let has = |bit: u8| first & (1 << bit) != 0;
        let streams = Streams { stdin: has(1), stdout: has(2), stderr: has(3), tty: has(4) };
        let (near, far) = duplex(1 << 16);
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        let local = LocalStreams {
            stdin: &b"input"[..],
            stdout: &mut stdout,
            stderr: &mut stderr,
            sizes: None,
        };
        let (exit, ()) =
            tokio::join!(exec::run(Connection::new(near), streams, local), serve(far, bytes));
        assert!(stdout.len() + stderr.len() <= bytes.len());
        if let Ok(exit) = exit {
            assert!(
                !bytes.is_empty() || matches!(exit, Exit::Failed(_)),
                "without a report: {exit:?}"
            );
        }
    }

    async fn forward_port(bytes: &[u8]) {
        let (near, far) = duplex(1 << 16);
        let (local, mut user) = duplex(1 << 16);
        let user = async {
            let mut received = Vec::new();
            let _ = user.write_all(b"request").await;
            let _ = user.shutdown().await;
            let _ = user.read_to_end(&mut received).await;
            received
        };
        let forwarded = forward::run(Connection::new(near), local, 80);
        let (_, received, ()) = tokio::join!(forwarded, user, serve(far, bytes));
        assert!(received.len() <= bytes.len());
    }

    /// The bytes are what a server sends to a command or, by the first byte, to a forwarded port: the session ends with the connection, and gives no more than
    /// was sent.
    pub fn check(bytes: &[u8]) {
        let Some((first, bytes)) = bytes.split_first() else { return };
        runtime().block_on(async {
            match first & 1 {
                0 => run_command(*first, bytes).await,
                _ => forward_port(bytes).await,
            }
        });
    }

    /// Sessions that end in each way.
    pub fn seeds() -> Vec<Vec<u8>> {
        let status = br#"{"status":"Failure","reason":"NonZeroExitCode","details":{"causes":[{"reason":"ExitCode","message":"3"}]}}"#;
        let reply = control(2, 0, &[0, 0, 0, 1]);
        let ended = [
            &reply[..],
            &data(5, 0, b"out"),
            &data(5, 1, b""),
            &data(7, 1, b"err"),
            &data(1, 1, status),
        ]
        .concat();
        let pinged =
            [&control(6, 0, &[0, 0, 0, 2])[..], &data(3, 1, b"reply"), &control(7, 0, &[0; 8])]
                .concat();
        let refused =
            [&data(1, 1, b"cannot connect")[..], &control(3, 0, &[0, 0, 0, 3, 0, 0, 0, 5])]
                .concat();
        let reports = data(1, 0, b"x").repeat(40);
        vec![
            [&[0x0e], &ended[..]].concat(),
            [&[0x16], &ended[..]].concat(),
            [&[0x01], &pinged[..]].concat(),
            [&[0x01], &refused[..]].concat(),
            [&[0x04], &reports[..], &ended].concat(),
        ]
    }
}
