//! One local connection joined with one to a port of a pod. Each has an upgraded connection of its own, so that one that stalls does not hold up others.

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use crate::StreamError;
use crate::spdy::{Connection, PIECE_LEN_MAX};

/// The protocol of the streams.
pub const PROTOCOL: &str = "portforward.k8s.io";

/// Longest error report of a runtime.
const REPORT_LEN_MAX: usize = 4 << 10;

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
    let (sender, mut receiver) = connection.open(&headers("data")).await?;
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
    let failed = async {
        let report = report.collect(REPORT_LEN_MAX).await;
        match report.is_empty() {
            true => std::future::pending().await,
            false => StreamError::Remote(String::from_utf8_lossy(&report).trim().to_owned()),
        }
    };
    // When the pod has ended, data of the client is discarded.
    let both = async {
        tokio::pin!(up, down);
        tokio::select! {
            sent = &mut up => { sent?; down.await }
            received = &mut down => received,
        }
    };
    tokio::select! {
        // A report counts more than the end that comes with it.
        biased;
        error = failed => Err(error),
        ended = both => ended,
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
}
