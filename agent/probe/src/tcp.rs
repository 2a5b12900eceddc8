//! Connections for one question each.

use std::io;
use std::time::Duration;

use agent_pod::probe::Outcome;
use tokio::net::TcpStream;

/// Opens a connection, and closes it if it opens.
pub(crate) async fn probe(host: &str, port: u16, timeout: Duration) -> Outcome {
    match tokio::time::timeout(timeout, connect(host, port)).await {
        Ok(Ok(_)) => Outcome::Success,
        Ok(Err(line)) => Outcome::Failure(line),
        Err(_) => Outcome::Failure(format!("dial tcp {}: i/o timeout", authority(host, port))),
    }
}

/// Opens a connection that is reset when it is dropped: closed in the ordinary way, each would keep a port for a minute.
pub(crate) async fn connect(host: &str, port: u16) -> Result<TcpStream, String> {
    let host_alone = host.trim_start_matches('[').trim_end_matches(']');
    let opened = TcpStream::connect((host_alone, port)).await;
    let stream = opened.and_then(|stream| stream.set_zero_linger().map(|()| stream));
    stream.map_err(|error| format!("dial tcp {}: {}", authority(host, port), words(&error)))
}

/// Host and port as a URL has them.
pub(crate) fn authority(host: &str, port: u16) -> String {
    if host.contains(':') && !host.starts_with('[') {
        format!("[{host}]:{port}")
    } else {
        format!("{host}:{port}")
    }
}

/// An error in the words that people of this ecosystem search for.
fn words(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => "connect: connection refused".to_owned(),
        io::ErrorKind::HostUnreachable => "connect: no route to host".to_owned(),
        io::ErrorKind::NetworkUnreachable => "connect: network is unreachable".to_owned(),
        io::ErrorKind::TimedOut => "connect: connection timed out".to_owned(),
        _ => error.to_string(),
    }
}
