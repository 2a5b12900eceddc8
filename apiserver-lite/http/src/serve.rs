//! Accepts connections, does the TLS handshake, serves HTTP/1.1 or HTTP/2, and drains at shutdown. All numbers are bounded.

use std::sync::Arc;
use std::time::Duration;

use apiserver_auth::ClientCertificate;
use apiserver_core::times::now;
use proto_daemon::connections::admission::Bounds;
use proto_daemon::connections::{Connection, ConnectionError, Connections, Limits};
use proto_daemon::drain::DrainWatch;
use proto_daemon::panics::isolate;
use proto_daemon::tls::ClientTrust;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::task::TaskTracker;

use super::handler::handle;
use crate::peer::Peer;
use crate::server::HttpServer;

/// Limits of connections. A peer may have a thousand unauthenticated connections, which covers all pods of a node behind one
/// translated address. `first_request` and `idle` are kube-apiserver's `ReadHeaderTimeout` and `IdleTimeout`.
const LIMITS: Limits = Limits {
    bounds: Bounds { total: 8192, unauthenticated: 4096, unauthenticated_per_peer: 1024 },
    handshake: Duration::from_secs(10),
    first_request: Duration::from_secs(32),
    unauthorized: Duration::from_secs(30),
    idle: Duration::from_secs(90),
    streams: 1024,
};

/// How connections are secured, and whose client certificates count.
#[derive(Clone)]
pub struct ServingTls {
    /// Does the handshake. It asks for a certificate and accepts any.
    pub acceptor: TlsAcceptor,
    /// Verifies certificates of users.
    pub clients: Option<Arc<ClientTrust>>,
    /// Verifies certificates of authenticating proxies.
    pub proxies: Option<Arc<ClientTrust>>,
}

/// Serves `listener` until `until` requests a drain; then closes it and waits for the open connections.
pub async fn serve(
    server: Arc<HttpServer>,
    listener: TcpListener,
    tls: ServingTls,
    until: DrainWatch,
) {
    let connections = Connections::new(LIMITS, Some(server.metrics.connections_closed.clone()));
    let serving = TaskTracker::new();
    loop {
        // Cancel safe: a connection that is not accepted stays in the kernel's queue.
        let (socket, connection) = tokio::select! {
            () = until.asked() => break,
            taken = connections.accept(&listener) => taken,
        };
        let address = connection.address();
        let (server, until) = (server.clone(), until.clone());
        let tls = tls.clone();
        serving.spawn(async move {
            match isolate(serve_connection(server, socket, connection, tls, until)).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => tracing::debug!(%address, %error, "connection ended"),
                Err(panicked) => tracing::error!(%address, %panicked, "connection closed"),
            }
        });
    }
    drop(listener);
    server.stopping.cancel();
    serving.close();
    serving.wait().await;
}

async fn serve_connection(
    server: Arc<HttpServer>,
    socket: TcpStream,
    connection: Connection,
    tls: ServingTls,
    until: DrainWatch,
) -> Result<(), ConnectionError> {
    let Some(stream) = connection.handshake(tls.acceptor.accept(socket)).await else {
        return Ok(());
    };
    let peer = peer(&server, &stream, &tls, &connection);
    let handler = move |request| handle(server.clone(), peer.clone(), request);
    connection.serve(stream, handler, until.asked()).await
}

/// Verifies the client certificate once per connection; the handshake only proved that the client holds its key.
fn peer(
    server: &HttpServer,
    stream: &TlsStream<TcpStream>,
    tls: &ServingTls,
    connection: &Connection,
) -> Peer {
    let (_, session) = stream.get_ref();
    let unknown = || Peer { connection: Some(connection.clone()), ..Peer::default() };
    let Some(chain) = session.peer_certificates().filter(|chain| !chain.is_empty()) else {
        return unknown();
    };
    let headers = server.core.authenticators.request_headers.as_ref();
    let proxy = tls.proxies.as_ref().zip(headers).and_then(|(trust, headers)| {
        trust.check(chain).ok()?;
        let shown = ClientCertificate::read(&chain[0]);
        let allowed = shown.user(now()).is_ok_and(|user| headers.allows(&user.name));
        allowed.then(|| Arc::new(shown))
    });
    let certificate = tls.clients.as_ref().map(|trust| match trust.check(chain) {
        Ok(()) => ClientCertificate::read(&chain[0]),
        Err(error) => {
            if proxy.is_none() {
                tracing::info!(%error, "client certificate refused");
            }
            ClientCertificate::Invalid(error.to_string())
        }
    });
    if proxy.is_some() || matches!(certificate, Some(ClientCertificate::User { .. })) {
        connection.authenticated();
    }
    Peer { certificate: certificate.map(Arc::new), proxy, ..unknown() }
}
