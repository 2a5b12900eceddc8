//! HTTP/2 connections of an unauthenticated client that requests the version and never reads the response: its flow-control window is 0 (RFC 9113, section
//! 6.9).

#![expect(
    clippy::expect_used,
    reason = "what is sent is constant: a failure is a mistake in this file"
)]

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use cluster::spec::Spec;
use proto_daemon::tls::AnyServer;
use rustls::ClientConfig;
use rustls::crypto::ring;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, timeout};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::Target;

/// Connections that are held.
const STALLED: usize = 500;
/// Connections that are opened between two looks at those that are held.
const BATCH: usize = 50;
/// Longest time of a connect with its handshake.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// The client's preface, its settings with SETTINGS_INITIAL_WINDOW_SIZE 0, and `GET /version` as stream 1 (RFC 9113, sections 3.4, 6.5 and 6.2;
/// header fields by RFC 7541, appendix A).
fn request() -> Vec<u8> {
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    // Length 6, type SETTINGS, no flags, stream 0; identifier 4, value 0.
    bytes.extend([0, 0, 6, 4, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0]);
    // `:method: GET` and `:scheme: https` are entries 2 and 7; `:path` and `:authority` are entries 4 and 1 with values of their own.
    let mut fields = vec![0x82, 0x87, 0x04, 8];
    fields.extend(b"/version");
    fields.extend([0x01, 9]);
    fields.extend(b"localhost");
    // Type HEADERS, flags END_STREAM and END_HEADERS, stream 1.
    bytes.extend([0, 0, u8::try_from(fields.len()).expect("a short request"), 1, 5, 0, 0, 0, 1]);
    bytes.extend(fields);
    bytes
}

fn config() -> Arc<ClientConfig> {
    let provider = Arc::new(ring::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .expect("ring has the default versions")
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AnyServer(provider)))
        .with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec()];
    Arc::new(config)
}

async fn open(
    server: SocketAddr,
    config: &Arc<ClientConfig>,
) -> std::io::Result<TlsStream<TcpStream>> {
    let socket = TcpStream::connect(server).await?;
    let name = ServerName::try_from("localhost").expect("a host name");
    let mut stream = TlsConnector::from(config.clone()).connect(name, socket).await?;
    stream.write_all(&request()).await?;
    stream.flush().await?;
    Ok(stream)
}

/// Whether the server keeps the connection; what it has sent is read, and no window is opened for more.
async fn is_kept(stream: &mut TlsStream<TcpStream>) -> bool {
    let mut bytes = [0; 1024];
    match timeout(Duration::from_millis(1), stream.read(&mut bytes)).await {
        Ok(read) => read.is_ok_and(|len| len > 0),
        Err(_) => true,
    }
}

/// Holds stalled requests to the API server until the end; those that it ends are begun again.
pub async fn hold(target: Target) {
    let server = SocketAddr::from((target.spec.api_address(), Spec::API_PORT));
    let config = config();
    let mut held: Vec<TlsStream<TcpStream>> = Vec::new();
    while Instant::now() < target.until {
        for _ in held.len()..STALLED.min(held.len() + BATCH) {
            match timeout(CONNECT_TIMEOUT, open(server, &config)).await {
                Ok(Ok(stream)) => {
                    target.judge.count("stalled HTTP/2 request", "begun");
                    held.push(stream);
                }
                _ => target.judge.count("stalled HTTP/2 request", "refused"),
            }
        }
        let mut kept = Vec::with_capacity(held.len());
        for mut stream in held {
            if is_kept(&mut stream).await {
                kept.push(stream);
            } else {
                target.judge.count("stalled HTTP/2 request", "ended by the server");
            }
        }
        held = kept;
        sleep(Duration::from_millis(500)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_frames_say_how_long_they_are() {
        let bytes = request();
        let mut rest =
            bytes.strip_prefix(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").expect("the preface");
        let mut kinds = Vec::new();
        while let Some((head, tail)) = rest.split_first_chunk::<9>() {
            kinds.push(head[3]);
            rest = &tail[usize::from(head[2])..];
        }
        assert_eq!(
            (kinds, rest),
            (vec![4, 1], &[][..]),
            "settings, then headers, and nothing else"
        );
    }
}
