//! Connections: accepted, wrapped in TLS, served as HTTP/1.1 or HTTP/2, drained at the end. Everything has a bound.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use proto_daemon::drain::DrainWatch;
use proto_daemon::panics::{IsolatedExecutor, isolate};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::handler::{Peer, handle};
use crate::auth::certificate_user;
use crate::server::Server;

/// Connections at a time; more wait in the kernel's queue.
const CONNECTIONS_MAX: usize = 8192;
/// Longest TLS handshake.
const HANDSHAKE_MAX: Duration = Duration::from_secs(10);
/// Longest wait for the head of a request, and for the next request of an idle connection.
const HEAD_WAIT_MAX: Duration = Duration::from_secs(120);
/// Requests that one HTTP/2 connection may have open.
const STREAMS_MAX: u32 = 1024;
/// Bytes of a request's head.
const HEAD_LEN_MAX: usize = 64 << 10;
/// Bytes that wait to be sent on one HTTP/2 stream.
const SEND_BUFFER_LEN: usize = 128 << 10;
/// Bytes that a client may send on one stream, and on one connection, before it has to wait.
const STREAM_WINDOW: u32 = 256 << 10;
const CONNECTION_WINDOW: u32 = 1 << 20;
/// A quiet HTTP/2 connection is probed this often, and closed when the answer does not come.
const PING_EVERY: Duration = Duration::from_secs(30);
const PING_WAIT_MAX: Duration = Duration::from_secs(20);

/// Serves `listener` until `until` is asked; connections that are open then get the chance to finish, and are waited for.
pub async fn serve(
    server: Arc<Server>,
    listener: TcpListener,
    tls: TlsAcceptor,
    until: DrainWatch,
) {
    let slots = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        // Both arms are cancel safe: a connection that is not taken stays in the kernel's queue.
        let taken = tokio::select! {
            () = until.asked() => break,
            taken = async { (slots.clone().acquire_owned().await, listener.accept().await) } => taken,
        };
        let (Ok(slot), Ok((socket, address))) = taken else {
            // Out of descriptors, most likely: let others close some.
            tokio::time::sleep(Duration::from_millis(20)).await;
            continue;
        };
        let (server, tls, until) = (server.clone(), tls.clone(), until.clone());
        tokio::spawn(async move {
            let _slot = slot;
            match isolate(connection(server, socket, tls, until)).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => tracing::debug!(%address, %error, "connection ended"),
                Err(panicked) => tracing::error!(%address, %panicked, "connection closed"),
            }
        });
    }
    drop(listener);
    server.stopping.cancel();
    // Every connection holds one slot: all of them free means that nobody is left.
    let _ = slots.acquire_many(u32::try_from(CONNECTIONS_MAX).unwrap_or(u32::MAX)).await;
}

async fn connection(
    server: Arc<Server>,
    socket: TcpStream,
    tls: TlsAcceptor,
    until: DrainWatch,
) -> Result<(), super::BoxError> {
    socket.set_nodelay(true)?;
    let stream = tokio::time::timeout(HANDSHAKE_MAX, tls.accept(socket)).await??;
    let peer = peer(&stream);
    let service = service_fn(move |request| {
        let (server, peer) = (server.clone(), peer.clone());
        async move { Ok::<_, Infallible>(handle(server, peer, request).await) }
    });
    let builder = builder();
    let mut connection =
        std::pin::pin!(builder.serve_connection_with_upgrades(TokioIo::new(stream), service));
    // Cancel safe: the connection is only borrowed.
    tokio::select! {
        ended = connection.as_mut() => return ended,
        () = until.asked() => connection.as_mut().graceful_shutdown(),
    }
    connection.await
}

fn builder() -> auto::Builder<IsolatedExecutor> {
    let mut builder = auto::Builder::new(IsolatedExecutor);
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_WAIT_MAX)
        .max_buf_size(HEAD_LEN_MAX)
        .half_close(false);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS_MAX)
        .max_header_list_size(u32::try_from(HEAD_LEN_MAX).unwrap_or(u32::MAX))
        .max_send_buf_size(SEND_BUFFER_LEN)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .keep_alive_interval(PING_EVERY)
        .keep_alive_timeout(PING_WAIT_MAX);
    builder
}

/// Reads the client's certificate once per connection; TLS has checked it against the client CA.
fn peer(stream: &TlsStream<TcpStream>) -> Peer {
    let (_, session) = stream.get_ref();
    let certificate = session.peer_certificates().and_then(<[_]>::first);
    Peer { certificate: certificate.and_then(|der| certificate_user(der)).map(Arc::new) }
}
