//! A command in a container, or its main process: input, outputs and exit code on the streams of one connection.

use serde_json::Value;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc;

use crate::StreamError;
use crate::spdy::{Connection, Incoming, Outgoing, PIECE_LEN_MAX};

/// Longest error report of a runtime.
const REPORT_LEN_MAX: usize = 64 << 10;

/// The protocol of the streams: with a status on the error stream.
pub const PROTOCOL: &str = "v4.channel.k8s.io";

/// Which streams a session has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Streams {
    /// The command reads.
    pub stdin: bool,
    /// The command writes.
    pub stdout: bool,
    /// The command writes errors on a stream of their own; never with a terminal.
    pub stderr: bool,
    /// The command has a terminal.
    pub tty: bool,
}

/// Columns and rows of a terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// Characters of a row.
    pub width: u16,
    /// Rows.
    pub height: u16,
}

/// The local ends.
pub struct LocalStreams<I, O, E> {
    /// What the command reads.
    pub stdin: I,
    /// What it writes.
    pub stdout: O,
    /// What it reports.
    pub stderr: E,
    /// Sizes of the terminal, the present one first; without them it is never resized.
    pub sizes: Option<mpsc::Receiver<Size>>,
}

/// How a command ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Exit {
    /// With 0.
    Success,
    /// With another code.
    Code(i32),
    /// It did not run, or the runtime does not know.
    Failed(String),
}

/// Runs a session to its end.
///
/// # Errors
/// When the connection or a local stream breaks.
pub async fn run<I, O, E>(
    mut connection: Connection,
    streams: Streams,
    mut local: LocalStreams<I, O, E>,
) -> Result<Exit, StreamError>
where
    I: AsyncRead + Unpin,
    O: AsyncWrite + Unpin,
    E: AsyncWrite + Unpin,
{
    let (report_out, mut report) = connection.open(&[("streamtype", "error")]).await?;
    report_out.finish().await?;
    let stdin = match streams.stdin {
        true => Some(connection.open(&[("streamtype", "stdin")]).await?.0),
        false => None,
    };
    let mut outputs = Vec::with_capacity(2);
    for (name, wanted) in [("stdout", streams.stdout), ("stderr", streams.stderr && !streams.tty)] {
        outputs.push(match wanted {
            true => {
                let (out, output) = connection.open(&[("streamtype", name)]).await?;
                out.finish().await?;
                Some(output)
            }
            false => None,
        });
    }
    let (stderr, stdout) = (outputs.pop().flatten(), outputs.pop().flatten());
    let resize = match streams.tty {
        true => Some(connection.open(&[("streamtype", "resize")]).await?.0),
        false => None,
    };
    let input = async {
        let sending = send_input(stdin, &mut local.stdin);
        let (sent, ()) = tokio::join!(sending, send_sizes(resize, local.sizes.take()));
        match sent {
            // The command may still write, and its end is reported.
            Ok(()) | Err(StreamError::Closed) => std::future::pending().await,
            Err(error) => error,
        }
    };
    // A report of many pieces may come before the outputs end: unread, it would hold them up.
    let reported = async { Ok::<_, StreamError>(report.collect(REPORT_LEN_MAX).await) };
    let output = async {
        let outputs = (pass(stdout, &mut local.stdout), pass(stderr, &mut local.stderr));
        tokio::try_join!(outputs.0, outputs.1, reported).map(|((), (), report)| report)
    };
    let report = tokio::select! {
        report = output => report?,
        error = input => return Err(error),
    };
    exit_of(&report)
}

async fn send_input(
    stdin: Option<Outgoing>,
    local: &mut (impl AsyncRead + Unpin),
) -> Result<(), StreamError> {
    let Some(stdin) = stdin else { return Ok(()) };
    let mut buffer = vec![0; PIECE_LEN_MAX];
    loop {
        match local.read(&mut buffer).await.map_err(StreamError::Local)? {
            0 => return stdin.finish().await,
            len => stdin.send(buffer.get(..len).unwrap_or_default()).await?,
        }
    }
}

async fn send_sizes(resize: Option<Outgoing>, sizes: Option<mpsc::Receiver<Size>>) {
    let (Some(resize), Some(mut sizes)) = (resize, sizes) else { return };
    while let Some(Size { width, height }) = sizes.recv().await {
        let line = format!("{{\"Width\":{width},\"Height\":{height}}}\n");
        if resize.send(line.as_bytes()).await.is_err() {
            return;
        }
    }
}

async fn pass(
    stream: Option<Incoming>,
    local: &mut (impl AsyncWrite + Unpin),
) -> Result<(), StreamError> {
    let Some(mut stream) = stream else { return Ok(()) };
    while let Some(piece) = stream.next().await {
        local.write_all(&piece).await.map_err(StreamError::Local)?;
        local.flush().await.map_err(StreamError::Local)?;
    }
    Ok(())
}

/// Reads the status that ends a session.
fn exit_of(report: &[u8]) -> Result<Exit, StreamError> {
    if report.is_empty() {
        return Err(StreamError::Closed);
    }
    let Ok(status) = serde_json::from_slice::<Value>(report) else {
        return Ok(Exit::Failed(String::from_utf8_lossy(report).trim().to_owned()));
    };
    let text = |pointer: &str| status.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    if text("/status") == "Success" {
        return Ok(Exit::Success);
    }
    if text("/reason") == "NonZeroExitCode" {
        let causes = status.pointer("/details/causes").and_then(Value::as_array);
        let code = causes.into_iter().flatten().find(|cause| cause["reason"] == "ExitCode");
        let code = code.and_then(|cause| cause["message"].as_str()?.parse().ok());
        if let Some(code) = code {
            return Ok(Exit::Code(code));
        }
    }
    Ok(Exit::Failed(text("/message").to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spdy::tests::{Frame, Server};

    const ALL: Streams = Streams { stdin: true, stdout: true, stderr: true, tty: false };

    async fn opened(server: &mut Server) -> (u32, String) {
        loop {
            if let Frame::Opened(id, headers) = server.next().await {
                return (id, headers[0].1.clone());
            }
        }
    }

    #[tokio::test]
    async fn input_ends_and_outputs_arrive_on_their_streams() {
        let (connection, mut server) = Server::pair();
        let serve = async {
            let mut ids = std::collections::HashMap::new();
            for _ in 0..4 {
                let (id, name) = opened(&mut server).await;
                ids.insert(name, id);
            }
            let mut input = Vec::new();
            loop {
                match server.next().await {
                    Frame::Data(id, data) if id == ids["stdin"] => input.extend(data),
                    Frame::End(id) if id == ids["stdin"] => break,
                    _ => {}
                }
            }
            server.send(ids["stdout"], 0, &input).await;
            server.send(ids["stderr"], 1, b"oops").await;
            server.send(ids["stdout"], 1, b"").await;
            let status = br#"{"status":"Failure","reason":"NonZeroExitCode","details":{"causes":[{"reason":"ExitCode","message":"3"}]}}"#;
            server.send(ids["error"], 1, status).await;
            server
        };
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let local =
            LocalStreams { stdin: &b"hello"[..], stdout: &mut out, stderr: &mut err, sizes: None };
        let (exit, _server) = tokio::join!(run(connection, ALL, local), serve);
        assert_eq!(exit.expect("an exit"), Exit::Code(3));
        assert_eq!((out.as_slice(), err.as_slice()), (&b"hello"[..], &b"oops"[..]));
    }

    #[tokio::test]
    async fn terminals_have_sizes_and_one_output() {
        let (connection, mut server) = Server::pair();
        let (sizes, received) = mpsc::channel(1);
        sizes.send(Size { width: 80, height: 24 }).await.expect("open");
        let serve = async {
            let mut names = Vec::new();
            for _ in 0..4 {
                names.push(opened(&mut server).await.1);
            }
            assert_eq!(names, ["error", "stdin", "stdout", "resize"]);
            loop {
                if let Frame::Data(7, data) = server.next().await {
                    break assert_eq!(data, b"{\"Width\":80,\"Height\":24}\n");
                }
            }
            server.send(5, 1, b"").await;
            server.send(1, 1, br#"{"status":"Success"}"#).await;
            server
        };
        // Input that never ends: the session ends all the same.
        let (_held, stdin) = tokio::io::duplex(8);
        let local =
            LocalStreams { stdin, stdout: Vec::new(), stderr: Vec::new(), sizes: Some(received) };
        let session = run(connection, Streams { tty: true, ..ALL }, local);
        let (exit, _server) = tokio::join!(session, serve);
        assert_eq!(exit.expect("an exit"), Exit::Success);
    }

    /// A connection of more pieces of a report than wait for their reader: the outputs behind them arrive.
    #[tokio::test]
    async fn a_report_in_many_pieces_holds_up_no_output() {
        let (connection, mut server) = Server::pair();
        let serve = async {
            for _ in 0..100 {
                server.send(1, 0, b" ").await;
            }
            server.send(5, 1, b"out").await;
            server.send(1, 1, br#"{"status":"Success"}"#).await;
            server
        };
        let streams = Streams { stdin: true, stdout: true, ..Streams::default() };
        let mut out = Vec::new();
        let local =
            LocalStreams { stdin: &b""[..], stdout: &mut out, stderr: Vec::new(), sizes: None };
        let session = run(connection, streams, local);
        let both = async { tokio::join!(session, serve) };
        let ended = tokio::time::timeout(std::time::Duration::from_secs(60), both).await;
        assert_eq!(ended.expect("it ends").0.expect("an exit"), Exit::Success);
        assert_eq!(out, b"out");
    }

    #[tokio::test]
    async fn a_lost_connection_is_no_success() {
        let (connection, server) = Server::pair();
        drop(server);
        let local =
            LocalStreams { stdin: &b""[..], stdout: Vec::new(), stderr: Vec::new(), sizes: None };
        assert!(run(connection, ALL, local).await.is_err());
    }

    #[test]
    fn statuses_become_exits() {
        let failed = |text: &str| Exit::Failed(text.to_owned());
        for (report, exit) in [
            (r#"{"status":"Success"}"#, Exit::Success),
            (r#"{"status":"Failure","message":"no such file"}"#, failed("no such file")),
            (r#"{"status":"Failure","reason":"NonZeroExitCode","message":"m"}"#, failed("m")),
            ("plain text\n", failed("plain text")),
        ] {
            assert_eq!(exit_of(report.as_bytes()).expect("an exit"), exit);
        }
        assert!(exit_of(b"").is_err());
    }
}
