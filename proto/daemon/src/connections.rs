//! io: the connections of a server that any client can reach. Their number is limited ([`admission`]). Each has a deadline for its TLS
//! handshake, for its first request, for the time between requests, and for the reading of each response: an HTTP/2 window of zero would keep it for
//! ever. HTTP/2 PINGs and part of a request's head do not count as activity. A request is in flight until its response is written, not only made; what
//! the server counts for it is kept as long ([`OpenRequest::keep`]). Streams (an open watch, a session) last as long as they last.

pub mod admission;

mod client_deadlines;
mod connection_guards;

use std::any::Any;
use std::collections::HashMap;
use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use hyper::body::{Body, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use nix::sys::socket::{setsockopt, sockopt};
use prometheus::{IntCounterVec, Opts};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::panics::IsolatedExecutor;
use admission::{AdmissionDecision, Bounds, ConnectionAdmission, Peer};
use client_deadlines::ClientDeadlines;
use connection_guards::{Counted, CountedSocket};

/// Limits of a server's connections.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// How many connections there may be.
    pub bounds: Bounds,
    /// Longest TLS handshake.
    pub handshake: Duration,
    /// Longest time from the handshake to the complete head of the first request.
    pub first_request: Duration,
    /// Longest time from the head of a request that is not authorized until its response is written.
    pub unauthorized: Duration,
    /// Longest time from the beginning of the response to an authorized request, or from a large part of it that is written, until all of it is.
    pub answered: Duration,
    /// Longest time between the end of a request and the complete head of the next.
    pub idle: Duration,
    /// Requests that one HTTP/2 connection may have open.
    pub streams: u32,
}

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
/// Streams that a client opened and reset before they were accepted; one more ends the connection (CVE-2023-44487).
const PENDING_RESETS_MAX: usize = 20;
/// Streams that were reset for a client's errors; one more ends the connection (CVE-2025-8671).
const ERROR_RESETS_MAX: usize = 256;
/// Longest graceful shutdown of an idle connection.
const GOODBYE_MAX: Duration = Duration::from_secs(5);
/// TCP keep-alive: seconds until the first probe, seconds between probes, number of probes. A dead peer is noticed after two minutes.
const TCP_PROBE_AFTER_SECS: u32 = 60;
const TCP_PROBE_EVERY_SECS: u32 = 20;
const TCP_PROBES: u32 = 3;
/// Pause after a connection could not be accepted, as descriptors are used up.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);

/// Errors of HTTP connections.
pub type ConnectionError = Box<dyn std::error::Error + Send + Sync>;

/// Why a connection was closed from this side, as the label `reason`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reason {
    /// The limit was reached.
    Full,
    /// Replaced by another connection at the limit.
    Replaced,
    /// The handshake took too long or failed.
    Handshake,
    /// No first request in time.
    NoRequest,
    /// No further request in time.
    Idle,
    /// The client did not read a response in time.
    NotTaken,
}

impl Reason {
    fn as_str(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Replaced => "replaced",
            Self::Handshake => "handshake",
            Self::NoRequest => "no_request",
            Self::Idle => "idle",
            Self::NotTaken => "not_taken",
        }
    }
}

/// The connections of one server.
#[derive(Debug)]
pub struct Connections {
    limits: Limits,
    open: Mutex<Open>,
    closed: Option<IntCounterVec>,
}

#[derive(Debug)]
struct Open {
    admission: ConnectionAdmission,
    /// Closes a connection that was replaced.
    closers: HashMap<u64, CancellationToken>,
}

/// The counter of connections that a server closed, by `reason`: `full`, `replaced`, `handshake`, `no_request`,
/// `idle`, `not_taken`.
///
/// # Errors
/// `name` is not a valid name of a metric.
pub fn closed_counter(name: &str) -> Result<IntCounterVec, prometheus::Error> {
    let help = "Connections refused or closed by the server, by reason.";
    IntCounterVec::new(Opts::new(name, help), &["reason"])
}

impl Connections {
    /// Without any connection. `closed` counts those that are refused or closed early ([`closed_counter`]).
    #[must_use]
    pub fn new(limits: Limits, closed: Option<IntCounterVec>) -> Arc<Self> {
        let open =
            Open { admission: ConnectionAdmission::new(limits.bounds), closers: HashMap::new() };
        Arc::new(Self { limits, open: Mutex::new(open), closed })
    }

    /// The next connection that is admitted. Cancel safe: one that is not accepted stays in the kernel's queue.
    pub async fn accept(self: &Arc<Self>, listener: &TcpListener) -> (TcpStream, Connection) {
        loop {
            match listener.accept().await {
                Ok((socket, address)) => {
                    if let Some(connection) = self.admit(address) {
                        prepare(&socket);
                        return (socket, connection);
                    }
                }
                Err(error) => {
                    // Most likely out of descriptors: the oldest connection is closed.
                    tracing::debug!(%error, "cannot accept a connection");
                    self.make_room();
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    /// Admits a connection from that address; `None` at the limit.
    pub fn admit(self: &Arc<Self>, address: SocketAddr) -> Option<Connection> {
        let mut open = self.open();
        let id = match open.admission.admit(Peer::from_address(address.ip())) {
            AdmissionDecision::Admitted(id) => id,
            AdmissionDecision::Replacing { id, closed } => {
                self.close(&mut open, closed);
                id
            }
            AdmissionDecision::Refused => {
                self.count(Reason::Full);
                return None;
            }
        };
        let closer = CancellationToken::new();
        open.closers.insert(id, closer.clone());
        Some(Connection(Arc::new(Inner {
            owner: self.clone(),
            id,
            address,
            closer,
            authenticated: AtomicBool::new(false),
            state: Mutex::new(State {
                debts: ClientDeadlines::new(Instant::now()),
                upgraded: false,
                asleep: false,
            }),
            changed: Notify::new(),
        })))
    }

    fn make_room(&self) {
        let mut open = self.open();
        if let Some(id) = open.admission.make_room() {
            self.close(&mut open, id);
        }
    }

    fn close(&self, open: &mut Open, id: u64) {
        if let Some(closer) = open.closers.remove(&id) {
            closer.cancel();
        }
        self.count(Reason::Replaced);
    }

    fn count(&self, reason: Reason) {
        self.closed.iter().for_each(|closed| closed.with_label_values(&[reason.as_str()]).inc());
    }

    fn open(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Disables Nagle's algorithm and enables keep-alive. Best effort: the deadlines hold without it.
fn prepare(socket: &TcpStream) {
    let _ = socket.set_nodelay(true);
    let _ = setsockopt(socket, sockopt::KeepAlive, &true);
    let _ = setsockopt(socket, sockopt::TcpKeepIdle, &TCP_PROBE_AFTER_SECS);
    let _ = setsockopt(socket, sockopt::TcpKeepInterval, &TCP_PROBE_EVERY_SECS);
    let _ = setsockopt(socket, sockopt::TcpKeepCount, &TCP_PROBES);
}

/// An admitted connection. It counts until the last clone is dropped.
#[derive(Clone, Debug)]
pub struct Connection(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    owner: Arc<Connections>,
    id: u64,
    address: SocketAddr,
    closer: CancellationToken,
    authenticated: AtomicBool,
    state: Mutex<State>,
    /// Notified when the client's deadline changes while no task waits for it.
    changed: Notify,
}

#[derive(Debug)]
struct State {
    debts: ClientDeadlines,
    /// The connection no longer speaks HTTP.
    upgraded: bool,
    /// The deadline is not checked until `changed`.
    asleep: bool,
}

impl Drop for Inner {
    fn drop(&mut self) {
        let mut open = self.owner.open();
        open.admission.remove(self.id);
        open.closers.remove(&self.id);
    }
}

/// A request in flight: until the last clone is dropped, and the response is written.
#[derive(Clone, Debug)]
pub struct OpenRequest(Arc<InFlight>);

#[derive(Debug)]
struct InFlight {
    connection: Connection,
    number: u64,
    is_stream: AtomicBool,
    kept: Mutex<Option<Box<dyn Any + Send>>>,
}

impl Drop for InFlight {
    fn drop(&mut self) {
        let Connection(inner) = &self.connection;
        let mut state = inner.state();
        let had_streams = state.debts.has_streams();
        state.debts.end(self.number, Instant::now());
        if had_streams
            && !state.debts.has_streams()
            && !state.upgraded
            && !inner.authenticated.load(Ordering::Acquire)
        {
            inner.owner.open().admission.end_session(inner.id);
        }
        inner.wake(&mut state);
    }
}

/// A request that waits for the server, until dropped ([`OpenRequest::wait`]).
#[derive(Debug)]
pub struct Waiting<'a>(&'a OpenRequest);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.change(|debts, number| debts.resume(number, Instant::now()));
    }
}

impl OpenRequest {
    /// The address of the client.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.0.connection.address()
    }

    #[must_use]
    pub fn connection(&self) -> &Connection {
        &self.0.connection
    }

    /// It is authorized: no client deadline runs until its response begins.
    pub fn authorized(&self) {
        self.change(ClientDeadlines::authorize);
    }

    /// It is authorized, and lasts as long as its client reads: it has no deadline, and its connection is among the last to be replaced.
    pub fn stream(&self) {
        let Connection(inner) = &self.0.connection;
        self.0.is_stream.store(true, Ordering::Release);
        let mut state = inner.state();
        let is_first = !state.debts.has_streams();
        // An authenticated connection is never replaced for this: its requests need not take the server's one lock.
        if state.debts.stream(self.0.number)
            && is_first
            && !inner.authenticated.load(Ordering::Acquire)
        {
            inner.owner.open().admission.begin_session(inner.id);
        }
    }

    /// It waits for the server: no client deadline runs until the result is dropped.
    #[must_use]
    pub fn wait(&self) -> Waiting<'_> {
        self.change(|debts, number| debts.wait(number, Instant::now()));
        Waiting(self)
    }

    /// Keeps `value` until the response is written.
    pub fn keep(&self, value: impl Any + Send) {
        *self.0.kept.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(value));
    }

    fn is_stream(&self) -> bool {
        self.0.is_stream.load(Ordering::Acquire)
    }

    fn answered(&self) {
        self.change(|debts, number| debts.answer(number, Instant::now()));
    }

    fn progressed(&self) {
        self.change(|debts, number| debts.progress(number, Instant::now()));
    }

    fn upgraded(&self) {
        self.0.connection.0.state().upgraded = true;
    }

    fn change(&self, change: impl FnOnce(&mut ClientDeadlines, u64)) {
        let Connection(inner) = &self.0.connection;
        let mut state = inner.state();
        change(&mut state.debts, self.0.number);
        inner.wake(&mut state);
    }
}

impl Inner {
    /// Taken before the lock of [`Connections`], never within it.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes the task that checks the deadline.
    fn wake(&self, state: &mut State) {
        if std::mem::take(&mut state.asleep) {
            self.changed.notify_one();
        }
    }
}

impl Connection {
    /// The address of the client.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.0.address
    }

    /// The number of this connection, which no other of the same [`Connections`] has or had.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.0.id
    }

    /// A client certificate or the credentials of a request were accepted as those of `user`: the connection counts among those that are reserved for
    /// authenticated clients, unless the user or the peer has its part of them.
    pub fn authenticated(&self, user: &str) {
        let inner = &self.0;
        if !inner.authenticated.load(Ordering::Acquire)
            && inner.owner.open().admission.authenticated(inner.id, user)
        {
            inner.authenticated.store(true, Ordering::Release);
        }
    }

    /// The result of a TLS handshake, if it succeeds in time and the connection is not replaced meanwhile.
    pub async fn handshake<T, E>(
        &self,
        handshake: impl Future<Output = Result<T, E>>,
    ) -> Option<T> {
        let owner = &self.0.owner;
        // Neither arm is polled again.
        let done = tokio::select! {
            done = tokio::time::timeout(owner.limits.handshake, handshake) => done.ok().and_then(Result::ok),
            () = self.0.closer.cancelled() => return None,
        };
        self.0.state().debts.await_first(Instant::now());
        if done.is_none() {
            owner.count(Reason::Handshake);
        }
        done
    }

    /// Serves HTTP/1.1 or HTTP/2 on `io` by `handler` until the client disconnects, a deadline passes, the connection is replaced, or `until` has begun
    /// and the open requests are answered. The connection counts until `io` is dropped, which for an upgraded connection is later.
    ///
    /// # Errors
    /// The error that ended the connection.
    pub async fn serve<S, H, F, B>(
        self,
        io: S,
        handler: H,
        until: impl Future<Output = ()>,
    ) -> Result<(), ConnectionError>
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
        H: Fn(Request<Incoming>, OpenRequest) -> F,
        F: Future<Output = Response<B>> + Send + 'static,
        B: Body<Data = Bytes> + Send + Unpin + 'static,
        B::Error: Into<ConnectionError>,
    {
        let counted = self.clone();
        let service = service_fn(move |request| {
            let open = counted.request();
            // In a box, which is freed once it has answered: hyper keeps the memory of the future of an HTTP/2 request until its response is read.
            let answer = Box::pin(handler(request, open.clone()));
            async move {
                let answer = answer.await;
                match answer.status() == StatusCode::SWITCHING_PROTOCOLS {
                    true => open.upgraded(),
                    false => open.answered(),
                }
                Ok::<_, Infallible>(answer.map(|body| Counted::new(body, open)))
            }
        });
        let builder = builder(&self.0.owner.limits);
        let io = TokioIo::new(CountedSocket::new(io, self.clone()));
        let mut connection = std::pin::pin!(builder.serve_connection_with_upgrades(io, service));
        // The connection is only borrowed; the other arms are not polled again.
        tokio::select! {
            ended = connection.as_mut() => return ended,
            () = self.0.closer.cancelled() => return Ok(()),
            () = self.client_is_late() => {
                connection.as_mut().graceful_shutdown();
                let _ = tokio::time::timeout(GOODBYE_MAX, connection).await;
                return Ok(());
            }
            () = until => connection.as_mut().graceful_shutdown(),
        }
        connection.await
    }

    fn request(&self) -> OpenRequest {
        let number = self.0.state().debts.begin(Instant::now());
        OpenRequest(Arc::new(InFlight {
            connection: self.clone(),
            number,
            is_stream: AtomicBool::new(false),
            kept: Mutex::new(None),
        }))
    }

    /// Returns when the client has delayed a request, or the reading of a response, for longer than the limits allow.
    async fn client_is_late(&self) {
        let inner = &self.0;
        let limits = &inner.owner.limits;
        loop {
            let due = {
                let mut state = inner.state();
                let due = state.debts.due(limits).filter(|_| !state.upgraded);
                state.asleep = due.is_none();
                due
            };
            let Some((at, reason)) = due else {
                inner.changed.notified().await;
                continue;
            };
            let left = at.saturating_duration_since(Instant::now());
            if left.is_zero() {
                inner.owner.count(reason);
                return;
            }
            // A request does not end this pause: no debt is due sooner than this after it.
            tokio::time::sleep(left.min(limits.unauthorized).min(limits.answered)).await;
        }
    }
}

fn builder(limits: &Limits) -> auto::Builder<IsolatedExecutor> {
    let mut builder = auto::Builder::new(IsolatedExecutor);
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.idle.max(limits.first_request))
        .max_buf_size(HEAD_LEN_MAX)
        .half_close(false);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(limits.streams)
        .max_pending_accept_reset_streams(PENDING_RESETS_MAX)
        .max_local_error_reset_streams(ERROR_RESETS_MAX)
        .max_header_list_size(u32::try_from(HEAD_LEN_MAX).unwrap_or(u32::MAX))
        .max_send_buf_size(SEND_BUFFER_LEN)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .keep_alive_interval(PING_EVERY)
        .keep_alive_timeout(PING_WAIT_MAX);
    builder
}

#[cfg(test)]
mod tests;
