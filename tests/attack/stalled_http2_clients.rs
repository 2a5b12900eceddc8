//! HTTP/2 connections of clients that never read a response: their flow-control window is 0 (RFC 9113, section 6.9). One client is unauthenticated and
//! requests the version; the other has the token of a service account without any role, and requests a large document many times on each connection.

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

use crate::{Target, manifests};

/// Connections that are held.
const STALLED: usize = 500;
/// Of the client with a token.
const KNOWN_STALLED: usize = 100;
/// Its requests on one connection.
const KNOWN_REQUESTS: u8 = 100;
/// Connections that are opened between two looks at those that are held.
const BATCH: usize = 50;
/// Longest time of a connect with its handshake.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// What a client sends on a new connection.
struct Requests {
    path: &'static str,
    token: Option<String>,
    /// Streams of one connection, at most 127.
    streams: u8,
}

impl Requests {
    /// The client's preface, its settings with SETTINGS_INITIAL_WINDOW_SIZE 0, and GET requests as streams 1, 3 and so on (RFC 9113, sections 3.4, 6.5
    /// and 6.2; header fields by RFC 7541, appendix A).
    fn bytes(&self) -> Vec<u8> {
        let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
        // Length 6, type SETTINGS, no flags, stream 0; identifier 4, value 0.
        bytes.extend([0, 0, 6, 4, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0]);
        // `:method: GET` and `:scheme: https` are entries 2 and 7; `:path`, `:authority` and `authorization` are entries 4, 1 and 23 with values of their
        // own.
        let mut fields = vec![0x82, 0x87, 0x04];
        extend_text(&mut fields, self.path);
        fields.push(0x01);
        extend_text(&mut fields, "localhost");
        if let Some(token) = &self.token {
            fields.extend([0x0f, 23 - 15]);
            extend_text(&mut fields, &format!("Bearer {token}"));
        }
        let [_, len @ ..] = u32::try_from(fields.len()).expect("a short request").to_be_bytes();
        for stream in 0..self.streams {
            // Type HEADERS, flags END_STREAM and END_HEADERS.
            bytes.extend(len);
            bytes.extend([1, 5, 0, 0, 0, stream * 2 + 1]);
            bytes.extend(&fields);
        }
        bytes
    }
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
    requests: &[u8],
) -> std::io::Result<TlsStream<TcpStream>> {
    let socket = TcpStream::connect(server).await?;
    let name = ServerName::try_from("localhost").expect("a host name");
    let mut stream = TlsConnector::from(config.clone()).connect(name, socket).await?;
    stream.write_all(requests).await?;
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

/// Holds stalled requests of an unauthenticated client until the end; those that the server ends are begun again.
pub async fn hold(target: Target) {
    let requests = Requests { path: "/version", token: None, streams: 1 };
    hold_all(target, "stalled HTTP/2 request", &requests.bytes(), STALLED).await;
}

/// The same of a client with a token.
pub async fn hold_known(target: Target) {
    let token = match manifests::service_account_token(&target.client, "stalled").await {
        Ok(token) => Some(token),
        Err(error) => {
            target.judge.find(format!("no token for the stalled client: {error:#}"));
            return;
        }
    };
    let requests = Requests { path: "/openapi/v2", token, streams: KNOWN_REQUESTS };
    hold_all(target, "stalled HTTP/2 requests with a token", &requests.bytes(), KNOWN_STALLED)
        .await;
}

async fn hold_all(target: Target, what: &'static str, requests: &[u8], many: usize) {
    let server = SocketAddr::from((target.spec.api_address(), Spec::API_PORT));
    let config = config();
    let mut held: Vec<TlsStream<TcpStream>> = Vec::new();
    while Instant::now() < target.until {
        for _ in held.len()..many.min(held.len() + BATCH) {
            match timeout(CONNECT_TIMEOUT, open(server, &config, requests)).await {
                Ok(Ok(stream)) => {
                    target.judge.count(what, "begun");
                    held.push(stream);
                }
                _ => target.judge.count(what, "refused"),
            }
        }
        let mut kept = Vec::with_capacity(held.len());
        for mut stream in held {
            if is_kept(&mut stream).await {
                kept.push(stream);
            } else {
                target.judge.count(what, "ended by the server");
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
        let known = Requests { path: "/a", token: Some("t".repeat(1000)), streams: 2 };
        for (requests, frames) in [
            (Requests { path: "/version", token: None, streams: 1 }, vec![4, 1]),
            (known, vec![4, 1, 1]),
        ] {
            let bytes = requests.bytes();
            let mut rest =
                bytes.strip_prefix(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").expect("the preface");
            let mut kinds = Vec::new();
            while let Some((head, tail)) = rest.split_first_chunk::<9>() {
                kinds.push(head[3]);
                rest = &tail[usize::from(head[1]) * 256 + usize::from(head[2])..];
            }
            assert_eq!(
                (kinds, rest),
                (frames, &[][..]),
                "settings, then headers, and nothing else"
            );
        }
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
}
