//! Accepts connections, does the TLS handshake, serves HTTP/1.1 or HTTP/2, and drains at shutdown. All numbers are bounded.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use apiserver_auth::ClientCertificate;
use apiserver_core::times::now;
use proto_daemon::connections::admission::Bounds;
use proto_daemon::connections::{Connection, ConnectionError, Connections, Limits};
use proto_daemon::drain::DrainWatch;
use proto_daemon::panics::isolate;
use proto_daemon::tls::ClientTrust;
use rustls::pki_types::CertificateDer;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::handler::handle;
use crate::peer::Peer;
use crate::server::HttpServer;

/// Limits of connections. A peer may have a thousand unauthenticated connections, which covers all pods of a node behind one
/// translated address. `first_request` and `idle` are kube-apiserver's `ReadHeaderTimeout` and `IdleTimeout`.
pub const LIMITS: Limits = Limits {
    bounds: Bounds {
        total: 8192,
        unauthenticated: 4096,
        unauthenticated_per_peer: 1024,
        authenticated_per_peer: 4096,
        authenticated_per_user: 2048,
    },
    handshake: Duration::from_secs(10),
    first_request: Duration::from_secs(32),
    unauthorized: Duration::from_secs(30),
    answered: Duration::from_secs(60),
    idle: Duration::from_secs(90),
    streams: 1024,
};

/// How connections are secured, and whose client certificates count.
pub struct ServingTls {
    /// Does the handshake. It asks for a certificate and accepts any.
    pub acceptor: TlsAcceptor,
    /// Verifies certificates of users.
    pub clients: Option<Arc<ClientTrust>>,
    /// Verifies certificates of authenticating proxies.
    pub proxies: Option<Arc<ClientTrust>>,
}

/// A new value counts for the handshake of new connections, and its authorities for the next request of every connection.
pub type CurrentTls = watch::Receiver<Arc<ServingTls>>;

/// Serves `listener` until `until` requests a drain; then closes it and waits for the open connections. Dropping the future closes them.
pub async fn serve(
    server: Arc<HttpServer>,
    listener: TcpListener,
    tls: CurrentTls,
    until: DrainWatch,
) {
    let connections = Connections::new(LIMITS, Some(server.metrics.connections_closed.clone()));
    let (serving, abandoned) = (TaskTracker::new(), CancellationToken::new());
    let _abandoned_when_dropped = abandoned.clone().drop_guard();
    loop {
        // Cancel safe: a connection that is not accepted stays in the kernel's queue.
        let (socket, connection) = tokio::select! {
            () = until.asked() => break,
            // It was dropped without a drain.
            () = server.stopping.cancelled() => break,
            taken = connections.accept(&listener) => taken,
        };
        let address = connection.address();
        let (server, until) = (server.clone(), until.clone());
        let (tls, abandoned) = (tls.clone(), abandoned.clone());
        serving.spawn(async move {
            let served = isolate(serve_connection(server, socket, connection, tls, until));
            match abandoned.run_until_cancelled(served).await {
                None | Some(Ok(Ok(()))) => {}
                Some(Ok(Err(error))) => tracing::debug!(%address, %error, "a connection ended with an error"),
                Some(Err(panicked)) => tracing::error!(%address, %panicked, "the task of a connection panicked; the connection is closed"),
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
    tls: CurrentTls,
    until: DrainWatch,
) -> Result<(), ConnectionError> {
    let acceptor = tls.borrow().acceptor.clone();
    let Some(stream) = connection.handshake(acceptor.accept(socket)).await else {
        return Ok(());
    };
    let (_, session) = stream.get_ref();
    let chain = session.peer_certificates().unwrap_or_default().to_vec();
    let client = Client { connection: connection.clone(), chain, tls, judged: Mutex::default() };
    client.peer(&server);
    let stopping = server.stopping.clone();
    let ending = async move {
        tokio::select! {
            () = until.asked() => {}
            () = stopping.cancelled() => {}
        }
    };
    let handler = move |request, open| {
        let peer = Peer { request: Some(open), ..client.peer(&server) };
        handle(server.clone(), peer, request)
    };
    connection.serve(stream, handler, ending).await
}

/// The client of a connection.
struct Client {
    connection: Connection,
    /// Its certificates; the handshake only proved that it has the key of the first.
    chain: Vec<CertificateDer<'static>>,
    tls: CurrentTls,
    /// Who it is, by these authorities.
    judged: Mutex<Option<(Arc<ServingTls>, Peer)>>,
}

impl Client {
    /// Who the client is by the current authorities. Its certificate is verified once for each of them.
    fn peer(&self, server: &HttpServer) -> Peer {
        if self.chain.is_empty() {
            return Peer::default();
        }
        let tls = self.tls.borrow().clone();
        let mut judged = self.judged.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((by, peer)) = judged.as_ref()
            && Arc::ptr_eq(by, &tls)
        {
            return peer.clone();
        }
        let peer = verify_client(server, &self.chain, &tls, &self.connection);
        *judged = Some((tls, peer.clone()));
        peer
    }
}

/// Verifies a client's certificate, the first of `chain`.
fn verify_client(
    server: &HttpServer,
    chain: &[CertificateDer<'_>],
    tls: &ServingTls,
    connection: &Connection,
) -> Peer {
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
                tracing::info!(%error, "a client certificate is not valid; its request is answered 401");
            }
            ClientCertificate::Invalid(error.to_string())
        }
    });
    let known = certificate.as_ref().or(proxy.as_deref());
    if let Some(ClientCertificate::User { user, .. }) = known {
        connection.authenticated(server.overload.share_name(&user.name));
    }
    Peer { certificate: certificate.map(Arc::new), proxy, request: None }
}
