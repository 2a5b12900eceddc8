//! Connections: accepted, wrapped in TLS, served as HTTP/1.1 or HTTP/2, drained at the end. Everything has a bound.

use std::sync::Arc;
use std::time::Duration;

use proto_daemon::connections::admission::Bounds;
use proto_daemon::connections::{Connection, ConnectionError, Connections, Limits};
use proto_daemon::drain::DrainWatch;
use proto_daemon::panics::isolate;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::task::TaskTracker;

use super::handler::{Peer, handle};
use crate::auth::certificate_user;
use crate::server::Server;

/// What connections may take. A thousand clients that begin at once at one address (all pods of a node behind one
/// translated address) fit into what one peer may have before it has been authenticated. The times are those of
/// Kubernetes' server: `ReadHeaderTimeout` and `IdleTimeout`.
const LIMITS: Limits = Limits {
    bounds: Bounds { total: 8192, unauthenticated: 4096, unauthenticated_per_peer: 1024 },
    handshake: Duration::from_secs(10),
    first_request: Duration::from_secs(32),
    idle: Duration::from_secs(90),
    streams: 1024,
};

/// Serves `listener` until `until` is asked; connections that are open then get the chance to finish, and are waited for.
pub async fn serve(
    server: Arc<Server>,
    listener: TcpListener,
    tls: TlsAcceptor,
    until: DrainWatch,
) {
    let connections = Connections::new(LIMITS, Some(server.metrics.connections_closed.clone()));
    let serving = TaskTracker::new();
    loop {
        // Both arms are cancel safe: a connection that is not taken stays in the kernel's queue.
        let (socket, place) = tokio::select! {
            () = until.asked() => break,
            taken = connections.accept(&listener) => taken,
        };
        let address = place.address();
        let (server, tls, until) = (server.clone(), tls.clone(), until.clone());
        serving.spawn(async move {
            match isolate(connection(server, socket, place, tls, until)).await {
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

async fn connection(
    server: Arc<Server>,
    socket: TcpStream,
    place: Connection,
    tls: TlsAcceptor,
    until: DrainWatch,
) -> Result<(), ConnectionError> {
    let Some(stream) = place.handshake(tls.accept(socket)).await else { return Ok(()) };
    let peer = peer(&stream, &place);
    let handler = move |request| handle(server.clone(), peer.clone(), request);
    place.serve(stream, handler, until.asked()).await
}

/// Reads the client's certificate once per connection; TLS has checked it against the client CA.
fn peer(stream: &TlsStream<TcpStream>, place: &Connection) -> Peer {
    let (_, session) = stream.get_ref();
    let certificate = session.peer_certificates().and_then(<[_]>::first);
    let certificate = certificate.and_then(|der| certificate_user(der)).map(Arc::new);
    if certificate.is_some() {
        place.authenticated();
    }
    Peer { certificate, connection: Some(place.clone()) }
}
