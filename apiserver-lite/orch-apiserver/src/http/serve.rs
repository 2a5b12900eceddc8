//! Connections: accepted, wrapped in TLS, served as HTTP/1.1 or HTTP/2, drained at the end. Everything has a bound.

use std::sync::Arc;
use std::time::Duration;

use proto_daemon::connections::admission::Bounds;
use proto_daemon::connections::{Connection, ConnectionError, Connections, Limits};
use proto_daemon::drain::DrainWatch;
use proto_daemon::panics::isolate;
use proto_daemon::tls::ClientTrust;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::task::TaskTracker;

use super::handler::{Peer, handle};
use crate::auth::ClientCertificate;
use crate::server::Server;

/// What connections may take. A thousand clients that begin at once at one address (all pods of a node behind one
/// translated address) fit into what one peer may have before it has been authenticated. The times are those of
/// Kubernetes' server: `ReadHeaderTimeout` and `IdleTimeout`.
const LIMITS: Limits = Limits {
    bounds: Bounds { total: 8192, unauthenticated: 4096, unauthenticated_per_peer: 1024 },
    handshake: Duration::from_secs(10),
    first_request: Duration::from_secs(32),
    unauthorized: Duration::from_secs(30),
    idle: Duration::from_secs(90),
    streams: 1024,
};

/// Serves `listener` until `until` is asked; connections that are open then get the chance to finish, and are waited for.
pub async fn serve(
    server: Arc<Server>,
    listener: TcpListener,
    (tls, trust): (TlsAcceptor, Option<Arc<ClientTrust>>),
    until: DrainWatch,
) {
    let connections = Connections::new(LIMITS, Some(server.metrics.connections_closed.clone()));
    let serving = TaskTracker::new();
    loop {
        // Both arms are cancel safe: a connection that is not taken stays in the kernel's queue.
        let (socket, connection) = tokio::select! {
            () = until.asked() => break,
            taken = connections.accept(&listener) => taken,
        };
        let address = connection.address();
        let (server, until) = (server.clone(), until.clone());
        let tls = (tls.clone(), trust.clone());
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
    server: Arc<Server>,
    socket: TcpStream,
    connection: Connection,
    (tls, trust): (TlsAcceptor, Option<Arc<ClientTrust>>),
    until: DrainWatch,
) -> Result<(), ConnectionError> {
    let Some(stream) = connection.handshake(tls.accept(socket)).await else { return Ok(()) };
    let peer = peer(&stream, trust.as_deref(), &connection);
    let handler = move |request| handle(server.clone(), peer.clone(), request);
    connection.serve(stream, handler, until.asked()).await
}

/// Checks and reads the client's certificate once per connection; the handshake has only shown that the client holds its key.
fn peer(
    stream: &TlsStream<TcpStream>,
    trust: Option<&ClientTrust>,
    connection: &Connection,
) -> Peer {
    let (_, session) = stream.get_ref();
    let chain = session.peer_certificates().filter(|chain| !chain.is_empty());
    let certificate = chain.zip(trust).map(|(chain, trust)| match trust.check(chain) {
        Ok(()) => {
            connection.authenticated();
            ClientCertificate::read(&chain[0])
        }
        Err(error) => {
            tracing::info!(%error, "client certificate refused");
            ClientCertificate::Invalid(error.to_string())
        }
    });
    Peer { certificate: certificate.map(Arc::new), connection: Some(connection.clone()) }
}
