//! TCP connections of probes.

use std::io;

use agent_pod::probe::ProbeOutcome;
use tokio::net::TcpStream;

use crate::lookup::LookupError;
use crate::prober::Prober;

/// Opens a connection and closes it.
pub(crate) async fn probe(host: &str, port: u16, asker: Prober<'_>) -> ProbeOutcome {
    match tokio::time::timeout(asker.timeout, connect(host, port, asker)).await {
        Ok(Ok(_)) => ProbeOutcome::Success,
        Ok(Err(error)) => ProbeOutcome::Failure(error.to_string()),
        Err(_) => ProbeOutcome::Failure(format!("dial tcp {}: i/o timeout", authority(host, port))),
    }
}

/// A pod that does not take a connection. The text is that of Go's network library.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConnectError {
    #[error("dial tcp: {0}")]
    Lookup(LookupError),
    #[error("dial tcp {address}: {}", describe_error(error))]
    Dial { address: String, error: io::Error },
}

/// Opens a connection that is reset when dropped: an ordinary close would leave each port in TIME_WAIT for a minute.
pub(crate) async fn connect(
    host: &str,
    port: u16,
    asker: Prober<'_>,
) -> Result<TcpStream, ConnectError> {
    let host_alone = host.trim_start_matches('[').trim_end_matches(']');
    let found = asker.names.addresses(host_alone, port, asker.pod, asker.timeout).await;
    let addresses = found.map_err(ConnectError::Lookup)?;
    let opened = TcpStream::connect(addresses.as_slice()).await;
    let stream = opened.and_then(|stream| stream.set_zero_linger().map(|()| stream));
    stream.map_err(|error| ConnectError::Dial { address: authority(host, port), error })
}

/// Host and port as in a URL.
pub(crate) fn authority(host: &str, port: u16) -> String {
    if host.contains(':') && !host.starts_with('[') {
        format!("[{host}]:{port}")
    } else {
        format!("{host}:{port}")
    }
}

/// An error in the words of Go's network library, which users search for.
fn describe_error(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => "connect: connection refused".to_owned(),
        io::ErrorKind::HostUnreachable => "connect: no route to host".to_owned(),
        io::ErrorKind::NetworkUnreachable => "connect: network is unreachable".to_owned(),
        io::ErrorKind::TimedOut => "connect: connection timed out".to_owned(),
        _ => error.to_string(),
    }
}
