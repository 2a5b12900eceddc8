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

use crate::http2_frames::{Window, head, preface, request};
use crate::{Target, manifests};

/// Connections that are held.
const STALLED: usize = 500;
/// Of the client with a token.
const KNOWN_STALLED: usize = 100;
/// Its requests on one connection.
const KNOWN_REQUESTS: u32 = 100;
/// Connections that are opened between two looks at those that are held.
const BATCH: usize = 50;
/// Longest time of a connect with its handshake.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// What a client sends on a new connection: the same request again and again.
fn stalled(path: &str, token: Option<&str>, streams: u32) -> Vec<u8> {
    let head = head("GET", path, token);
    let requests = (0..streams).flat_map(|number| request(&head, number));
    preface(Window::Closed).into_iter().chain(requests).collect()
}

/// TLS of a client that takes any server and speaks HTTP/2.
pub fn config() -> Arc<ClientConfig> {
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

/// A new connection on which the first bytes are sent.
pub async fn open(
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
    let requests = stalled("/version", None, 1);
    hold_all(target, "stalled HTTP/2 request", &requests, STALLED).await;
}

/// The same of a client with a token.
pub async fn hold_known(target: Target) {
    let token = match manifests::service_account_token(&target.client, "stalled").await {
        Ok(token) => token,
        Err(error) => {
            target.judge.find(format!("no token for the stalled client: {error:#}"));
            return;
        }
    };
    let requests = stalled("/openapi/v2", Some(&token), KNOWN_REQUESTS);
    hold_all(target, "stalled HTTP/2 requests with a token", &requests, KNOWN_STALLED).await;
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
