//! HTTP/2 connections to one server. One carries all requests and watches until it has as many streams as the server allows; then there is another one.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use hyper::body::{Frame, Incoming, SizeHint};
use hyper::client::conn::TrySendError;
use hyper::client::conn::http2::{Builder, Connection, SendRequest};
use hyper_util::rt::{TokioIo, TokioTimer};
use proto_daemon::panics::{self, IsolatedExecutor};
use proto_daemon::write_coalescing::CoalescingStream;

use super::Body;
use super::dial::{DialError, DialedConnection, Stream};
use super::tls::Generation;

/// Most connections to a server; beyond their streams, requests wait for one of them.
pub(super) const CONNECTIONS_MAX: usize = 16;
/// Flow-control window, in bytes: a burst of one watch must not stall the others on the connection.
const STREAM_WINDOW: u32 = 256 << 10;
const CONNECTION_WINDOW: u32 = 1 << 20;

/// How a dead HTTP/2 connection is noticed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pings {
    /// A ping this often while a request or watch is open ...
    pub(crate) every: Duration,
    /// ... and this long for its answer.
    pub(crate) timeout: Duration,
}

impl Default for Pings {
    fn default() -> Self {
        Self { every: Duration::from_secs(10), timeout: Duration::from_secs(15) }
    }
}

/// The connections that get new requests.
#[derive(Debug, Default)]
pub(super) struct Http2Connections(Vec<Http2Connection>);

#[derive(Clone, Debug)]
struct Http2Connection {
    made: Generation,
    sender: SendRequest<Body>,
    streams: Arc<Streams>,
}

/// The streams of a connection.
#[derive(Debug)]
struct Streams {
    open: AtomicUsize,
    /// What the server allows, once it has answered: it says so when the connection begins.
    most: AtomicUsize,
    /// What the connection says of it now.
    said: AtomicUsize,
}

impl Http2Connections {
    /// A sender on a connection of this generation that has room; `None` if there is none, and another one may be made. Connections of an old generation
    /// stay open for their watches, but get no new requests.
    pub(super) fn sender(&mut self, generation: Generation) -> Option<Http2Sender> {
        self.0.retain(|one| one.made == generation && !one.sender.is_closed());
        if let Some(free) = self.0.iter().find(|one| one.streams.has_room()) {
            return Some(Http2Sender::new(free));
        }
        let is_full = self.0.len() >= CONNECTIONS_MAX;
        let fewest = self.0.iter().min_by_key(|one| one.streams.open.load(Ordering::Relaxed));
        fewest.filter(|_| is_full).map(Http2Sender::new)
    }

    /// Whether there is one of this generation, with room or not.
    pub(super) fn sender_of_any(&self, generation: Generation) -> Option<Http2Sender> {
        let mut alive =
            self.0.iter().filter(|one| one.made == generation && !one.sender.is_closed());
        alive.next().map(Http2Sender::new)
    }

    /// Makes a connection of what was dialed.
    pub(super) async fn handshake(
        dialed: DialedConnection,
        pings: Pings,
        made: Generation,
    ) -> Result<NewHttp2Connection, DialError> {
        let handshake = Builder::new(IsolatedExecutor)
            .timer(TokioTimer::new())
            .keep_alive_interval(pings.every)
            .keep_alive_timeout(pings.timeout)
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_header_list_size(64 << 10)
            .handshake(TokioIo::new(CoalescingStream::new(dialed.stream)));
        let (sender, connection) = handshake.await.map_err(DialError::Handshake)?;
        let (open, most, said) = (AtomicUsize::new(0), usize::MAX.into(), usize::MAX.into());
        let streams = Arc::new(Streams { open, most, said });
        // Ends with the connection; requests on it get the error, also that of a panic.
        panics::spawn(Driver { connection, streams: streams.clone() });
        Ok(NewHttp2Connection(Http2Connection { made, sender, streams }))
    }

    /// Adds a new connection, and gives a sender on it.
    pub(super) fn add(&mut self, NewHttp2Connection(new): NewHttp2Connection) -> Http2Sender {
        let sender = Http2Sender::new(&new);
        self.0.push(new);
        sender
    }
}

/// A connection that no request has used yet.
pub(super) struct NewHttp2Connection(Http2Connection);

/// Sends one request, which counts as a stream of its connection from now on.
pub(super) struct Http2Sender {
    sender: SendRequest<Body>,
    stream: OpenStream,
}

impl Http2Sender {
    fn new(connection: &Http2Connection) -> Self {
        let streams = connection.streams.clone();
        streams.open.fetch_add(1, Ordering::Relaxed);
        Self { sender: connection.sender.clone(), stream: OpenStream(streams) }
    }

    /// The response; its body holds the stream.
    pub(super) async fn try_send_request(
        mut self,
        request: Request<Body>,
    ) -> Result<Response<ResponseBody>, TrySendError<Request<Body>>> {
        let response = self.sender.try_send_request(request).await?;
        let Streams { most, said, .. } = &*self.stream.0;
        most.store(said.load(Ordering::Relaxed), Ordering::Relaxed);
        let stream = Some(self.stream);
        Ok(response.map(|body| ResponseBody { body, _stream: stream }))
    }
}

/// A stream of a connection until it is dropped.
#[derive(Debug)]
struct OpenStream(Arc<Streams>);

impl Drop for OpenStream {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Streams {
    fn has_room(&self) -> bool {
        self.open.load(Ordering::Relaxed) < self.most.load(Ordering::Relaxed)
    }
}

/// Runs a connection, and notes how many streams the server allows.
struct Driver {
    connection: Connection<TokioIo<CoalescingStream<Stream>>, Body, IsolatedExecutor>,
    streams: Arc<Streams>,
}

impl Future for Driver {
    type Output = hyper::Result<()>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<hyper::Result<()>> {
        let polled = Pin::new(&mut self.connection).poll(cx);
        let said = self.connection.current_max_send_streams();
        self.streams.said.store(said, Ordering::Relaxed);
        Poll::Ready(ready!(polled))
    }
}

/// The body of a response. Its request counts as a stream of the connection until the body is dropped.
#[derive(Debug)]
pub struct ResponseBody {
    body: Incoming,
    _stream: Option<OpenStream>,
}

impl From<Incoming> for ResponseBody {
    fn from(body: Incoming) -> Self {
        Self { body, _stream: None }
    }
}

impl hyper::body::Body for ResponseBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
