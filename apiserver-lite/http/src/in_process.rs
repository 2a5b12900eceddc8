//! Connections from this process, without a socket: for tests that have a server of their own, and for what the server loads before it listens.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use apiserver_auth::{ClientCertificate, User};
use http::Request;
use http::header::AUTHORIZATION;
use hyper::body::Incoming;
use proto_daemon::connections::{Connection, Connections, OpenRequest};
use proto_daemon::panics::isolate;
use tokio::io::DuplexStream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::handler::handle;
use crate::peer::Peer;
use crate::serve::LIMITS;
use crate::server::HttpServer;

/// Bytes that one side may write before the other reads.
const PIPE_LEN: usize = 256 << 10;

/// The connections from this process.
pub struct InProcess {
    server: Arc<HttpServer>,
    connections: Arc<Connections>,
    serving: TaskTracker,
    /// Cancelled when it is not waited for them any more.
    abandoned: CancellationToken,
}

impl InProcess {
    /// There is none yet.
    #[must_use]
    pub fn new(server: Arc<HttpServer>) -> Self {
        let closed = Some(server.metrics.connections_closed.clone());
        let connections = Connections::new(LIMITS, closed);
        Self {
            server,
            connections,
            serving: TaskTracker::new(),
            abandoned: CancellationToken::new(),
        }
    }

    /// A new connection, whose requests are of `user` unless they have credentials of their own. It ends with the server.
    ///
    /// # Errors
    /// The server is stopping, or there are too many.
    pub fn connect(&self, user: Option<User>) -> io::Result<DuplexStream> {
        let server = self.server.clone();
        if server.stopping.is_cancelled() {
            return Err(io::Error::new(io::ErrorKind::ConnectionRefused, "the server has stopped"));
        }
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let connection = self.connections.admit(address).ok_or_else(|| {
            io::Error::new(io::ErrorKind::ConnectionRefused, "too many connections")
        })?;
        let (own, given) = tokio::io::duplex(PIPE_LEN);
        let abandoned = self.abandoned.clone();
        self.serving.spawn(async move {
            let served = isolate(serve(server, own, connection, user));
            if let Some(Ok(Err(error))) = abandoned.run_until_cancelled(served).await {
                tracing::debug!(%error, "a connection from this process ended with an error");
            }
        });
        Ok(given)
    }

    /// Waits for the connections to end, once the server is stopping. Those with unread responses at the deadline are closed.
    pub async fn end(&self, deadline: Duration) {
        self.serving.close();
        if tokio::time::timeout(deadline, self.serving.wait()).await.is_err() {
            tracing::warn!(
                "the shutdown deadline has passed; open connections from this process are closed"
            );
            self.abandoned.cancel();
            self.serving.wait().await;
        }
    }
}

async fn serve(
    server: Arc<HttpServer>,
    stream: DuplexStream,
    connection: Connection,
    user: Option<User>,
) -> Result<(), proto_daemon::connections::ConnectionError> {
    let shown = user.map(|user| {
        connection.authenticated(server.overload.share_name(&user.name));
        // As if the user had shown a certificate that never expires.
        Arc::new(ClientCertificate::User { user: user.authenticated(), not_after: i64::MAX })
    });
    let stopping = server.stopping.clone();
    let handler = move |request: Request<Incoming>, open: OpenRequest| {
        let mut peer = Peer { certificate: shown.clone(), proxy: None, request: Some(open) };
        if request.headers().contains_key(AUTHORIZATION) {
            // Or a wrong token would be as good as the right one.
            peer.certificate = None;
        }
        handle(server.clone(), peer, request)
    };
    connection.serve(stream, handler, stopping.cancelled_owned()).await
}
