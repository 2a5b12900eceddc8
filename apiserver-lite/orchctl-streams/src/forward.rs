//! One local connection joined with one to a port of a pod. Each has an upgraded connection of its own, so that one that stalls does not hold up others.

use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use crate::StreamError;
use crate::spdy::{Connection, Incoming, Outgoing, PIECE_LEN_MAX};

/// The protocol of the streams.
pub const PROTOCOL: &str = "portforward.k8s.io";

/// Longest error report of a runtime.
const REPORT_LEN_MAX: usize = 4 << 10;
/// Longest wait for the report after the data has ended. Runtimes end both at once, containerd a second later when the client has not ended.
const REPORT_WAIT: Duration = Duration::from_secs(2);

/// Copies bytes in both directions until both have ended.
///
/// # Errors
/// When a connection breaks, or the runtime cannot reach the port.
pub async fn run(
    mut connection: Connection,
    local: impl AsyncRead + AsyncWrite,
    port: u16,
) -> Result<(), StreamError> {
    let port = port.to_string();
    let headers = |kind| [("streamtype", kind), ("port", port.as_str()), ("requestid", "0")];
    let (report_out, mut report) = connection.open(&headers("error")).await?;
    report_out.finish().await?;
    let (sender, receiver) = connection.open(&headers("data")).await?;
    let mut said = Vec::new();
    let ended = {
        let (reported, data) = (read_report(&mut report, &mut said), join(local, sender, receiver));
        tokio::pin!(reported, data);
        tokio::select! {
            // A report counts more than the end that comes with it.
            biased;
            has_text = &mut reported => match has_text {
                true => Ok(()),
                false => data.await,
            },
            ended = &mut data => {
                // The runtime may say only now why it has ended them.
                let _ = tokio::time::timeout(REPORT_WAIT, reported).await;
                ended
            }
        }
    };
    match said.is_empty() {
        true => ended,
        false => Err(StreamError::Remote(String::from_utf8_lossy(&said).trim().to_owned())),
    }
}

/// Reads to the end of a report, of which the beginning is kept; whether there is any.
async fn read_report(report: &mut Incoming, said: &mut Vec<u8>) -> bool {
    while let Some(piece) = report.next().await {
        let room = REPORT_LEN_MAX.saturating_sub(said.len()).min(piece.len());
        said.extend_from_slice(piece.get(..room).unwrap_or_default());
    }
    !said.is_empty()
}

/// Copies the data of both directions until both have ended. When the pod has ended, data of the client is discarded.
async fn join(
    local: impl AsyncRead + AsyncWrite,
    sender: Outgoing,
    mut receiver: Incoming,
) -> Result<(), StreamError> {
    let (mut read, mut write) = tokio::io::split(local);
    let up = async {
        let mut buffer = vec![0; PIECE_LEN_MAX];
        loop {
            match read.read(&mut buffer).await.map_err(StreamError::Local)? {
                0 => break sender.finish().await,
                len => sender.send(buffer.get(..len).unwrap_or_default()).await?,
            }
        }
    };
    let down = async {
        while let Some(piece) = receiver.next().await {
            write.write_all(&piece).await.map_err(StreamError::Local)?;
        }
        write.shutdown().await.map_err(StreamError::Local)
    };
    tokio::pin!(up, down);
    tokio::select! {
        sent = &mut up => { sent?; down.await }
        received = &mut down => received,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spdy::tests::{Frame, Server};

    #[tokio::test]
    async fn bytes_pass_and_ends_too() {
        let (connection, mut server) = Server::pair();
        let (mut client, local) = tokio::io::duplex(64);
        let serve = async {
            let Frame::Opened(1, headers) = server.next().await else { panic!("an error stream") };
            assert_eq!(headers[1], ("port".to_owned(), "80".to_owned()));
            assert_eq!(server.next().await, Frame::End(1));
            assert!(matches!(server.next().await, Frame::Opened(3, _)));
            assert_eq!(server.next().await, Frame::Data(3, b"ask".to_vec()));
            assert_eq!(server.next().await, Frame::End(3));
            server.send(3, 1, b"answer").await;
            server
        };
        let ask = async {
            client.write_all(b"ask").await.expect("open");
            client.shutdown().await.expect("open");
            let mut answer = String::new();
            client.read_to_string(&mut answer).await.expect("open");
            answer
        };
        let (ended, _server, answer) = tokio::join!(run(connection, local, 80), serve, ask);
        ended.expect("ended");
        assert_eq!(answer, "answer");
    }

    #[tokio::test]
    async fn a_refused_connection_to_a_forwarded_port_is_reported() {
        let (connection, mut server) = Server::pair();
        let (_client, local) = tokio::io::duplex(64);
        let serve = async {
            while server.next().await != Frame::End(1) {}
            server.send(1, 1, b"connection refused\n").await;
            server
        };
        let (ended, _server) = tokio::join!(run(connection, local, 80), serve);
        assert_eq!(ended.expect_err("refused").to_string(), "connection refused");
    }

    /// The data may end before the runtime says why, and a runtime may not end its report.
    #[tokio::test(start_paused = true)]
    async fn a_report_after_the_end_of_the_data_is_not_lost() {
        for (broken, report_flags) in [(false, 1), (false, 0), (true, 1)] {
            let (connection, mut server) = Server::pair();
            let (client, local) = tokio::io::duplex(64);
            // A client that has gone: what is written to it fails.
            let client = (!broken).then_some(client);
            let serve = async {
                while !matches!(server.next().await, Frame::Opened(3, _)) {}
                server.send(3, u8::from(!broken), b"x").await;
                for _ in 0..100 {
                    tokio::task::yield_now().await;
                }
                server.send(1, report_flags, b"connection refused").await;
                server
            };
            let (ended, _server) = tokio::join!(run(connection, local, 80), serve);
            assert_eq!(ended.expect_err("refused").to_string(), "connection refused");
            drop(client);
        }
    }
}
