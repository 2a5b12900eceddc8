//! exec, attach and port-forward: joins the client's connection with one to the runtime's streaming
//! server in the protocol that the two negotiated (SPDY/3.1 or WebSocket). Frames of the client are
//! validated ([`super::frames`]): an invalid one ends the session before it reaches the runtime.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode, Uri, header};
use http_body_util::{BodyExt, Empty, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use proto_daemon::exit::chain;
use proto_daemon::panics;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf, copy_bidirectional_with_sizes};
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::time::timeout;

use super::frames::Checker;
use super::request_permits::RequestPermit;

/// Time limit for connecting to the runtime and its response.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// Longest error response of the runtime that is passed on.
const REFUSAL_LEN_MAX: usize = 64 << 10;
/// How long a session continues after one side has closed: none of the protocols is half-duplex,
/// and a side that never closes would hold its permit.
const LINGER: Duration = Duration::from_secs(10);
/// Buffer of each session and direction.
const BUFFER: usize = 16 << 10;

/// Why a session could not be established; the client gets 502.
#[derive(Debug, thiserror::Error)]
pub enum SpliceError {
    /// The runtime returned an invalid URL.
    #[error("the runtime's session address {0:?} is not an http URL")]
    Address(String),
    /// The connection was refused.
    #[error("cannot connect to the runtime's streaming server")]
    Connect(#[source] std::io::Error),
    /// The connection broke.
    #[error("the runtime's streaming server closed the connection")]
    Broken(#[source] hyper::Error),
    /// It switched to an unknown protocol.
    #[error("the runtime's streaming server switched to {0:?}, expected SPDY/3.1 or websocket")]
    Protocol(String),
    /// It did not respond in time.
    #[error("the runtime's streaming server did not answer within {} s", ANSWER_TIMEOUT.as_secs())]
    TooSlow,
    /// The request cannot be passed on.
    #[error("cannot forward the request")]
    Request(#[source] http::Error),
}

/// Forwards `request` to `url`; if the runtime switches protocols, joins both connections in a task
/// that holds `permit`. `who` names session and client in the log.
pub async fn splice(
    mut request: Request<Incoming>,
    url: &str,
    permit: RequestPermit,
    who: String,
) -> Result<Response<Full<Bytes>>, SpliceError> {
    let onward = onward(&request, url)?;
    let near = hyper::upgrade::on(&mut request);
    let mut answer = timeout(ANSWER_TIMEOUT, send_request(onward, url))
        .await
        .map_err(|_| SpliceError::TooSlow)??;
    if answer.status() != StatusCode::SWITCHING_PROTOCOLS {
        return Ok(refusal(answer).await);
    }
    let checker = checker(answer.headers())?;
    let far = hyper::upgrade::on(&mut answer);
    panics::spawn(async move {
        let _permit = permit;
        // Both upgrade once the response is written; a client that disconnects first ends the task.
        let (Ok(near), Ok(far)) = tokio::join!(near, far) else { return };
        let (read, write) = tokio::io::split(TokioIo::new(near));
        let near = tokio::io::join(Checked::new(read, checker, who), write);
        join(near, TokioIo::new(far)).await;
    });
    let mut response = Response::new(Full::default());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    *response.headers_mut() = answer.headers().clone();
    Ok(response)
}

/// Copies bytes both ways until both sides have closed, or one has and the other does not follow.
async fn join(near: impl AsyncRead + AsyncWrite, far: impl AsyncRead + AsyncWrite) {
    let ended = Arc::<Notify>::default();
    let (mut near, mut far) = (noted(near, &ended), noted(far, &ended));
    let lingers = async {
        ended.notified().await;
        tokio::time::sleep(LINGER).await;
    };
    // Either side may close at any time. Whichever finishes first, both are dropped.
    tokio::select! {
        _ = copy_bidirectional_with_sizes(&mut near, &mut far, BUFFER, BUFFER) => {}
        () = lingers => {}
    }
}

/// A side of a session that notifies `ended` at its end of stream.
fn noted(
    side: impl AsyncRead + AsyncWrite,
    ended: &Arc<Notify>,
) -> impl AsyncRead + AsyncWrite + Unpin {
    let (read, write) = tokio::io::split(side);
    tokio::io::join(Noted { read, ended: ended.clone() }, write)
}

/// The reading half of [`noted`].
struct Noted<R> {
    read: R,
    ended: Arc<Notify>,
}

impl<R: AsyncRead + Unpin> AsyncRead for Noted<R> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buffer.filled().len();
        ready!(Pin::new(&mut this.read).poll_read(cx, buffer))?;
        if buffer.filled().len() == before {
            this.ended.notify_one();
        }
        Poll::Ready(Ok(()))
    }
}

fn checker(agreed: &HeaderMap) -> Result<Checker, SpliceError> {
    let protocol = agreed.get(header::UPGRADE).map(|value| value.to_str().unwrap_or_default());
    let protocol = protocol.unwrap_or_default();
    Checker::for_protocol(protocol).ok_or_else(|| SpliceError::Protocol(protocol.to_owned()))
}

/// The client's side of a session, with validated frames.
struct Checked<S> {
    stream: S,
    checker: Checker,
    who: String,
    /// Read but not yet validated.
    read: Box<[u8]>,
    /// Validated; passed on up to `given`.
    checked: Vec<u8>,
    given: usize,
    is_bad: bool,
}

impl<S> Checked<S> {
    fn new(stream: S, checker: Checker, who: String) -> Self {
        let read = vec![0; BUFFER].into_boxed_slice();
        Self { stream, checker, who, read, checked: Vec::new(), given: 0, is_bad: false }
    }

    fn refused() -> io::Error {
        io::Error::new(io::ErrorKind::InvalidData, "invalid frame")
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Checked<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        loop {
            let ready = this.checked.get(this.given..).unwrap_or_default();
            if !ready.is_empty() {
                let len = ready.len().min(buffer.remaining());
                buffer.put_slice(ready.get(..len).unwrap_or_default());
                this.given = this.given.saturating_add(len);
                return Poll::Ready(Ok(()));
            }
            if this.is_bad {
                return Poll::Ready(Err(Self::refused()));
            }
            this.checked.clear();
            this.given = 0;
            let mut read = ReadBuf::new(&mut this.read);
            ready!(Pin::new(&mut this.stream).poll_read(cx, &mut read))?;
            if read.filled().is_empty() {
                return Poll::Ready(Ok(()));
            }
            if let Err(error) = this.checker.pass(read.filled(), &mut this.checked) {
                tracing::warn!(
                    session = this.who,
                    error = chain(&error),
                    "session ended: the client sent an invalid frame"
                );
                this.is_bad = true;
            }
        }
    }
}

/// The request for the runtime: its URL, and the client's headers without credentials.
fn onward(request: &Request<Incoming>, url: &str) -> Result<Request<Empty<Bytes>>, SpliceError> {
    let (authority, path) = target(url)?;
    let mut onward = Request::builder()
        .method(request.method())
        .uri(path)
        .body(Empty::new())
        .map_err(SpliceError::Request)?;
    *onward.headers_mut() = passed_on(request.headers());
    let host = authority.parse().map_err(|_| SpliceError::Address(url.to_owned()))?;
    onward.headers_mut().insert(header::HOST, host);
    Ok(onward)
}

fn passed_on(headers: &HeaderMap) -> HeaderMap {
    let mut passed = headers.clone();
    for name in [
        header::HOST,
        header::AUTHORIZATION,
        header::COOKIE,
        header::CONTENT_LENGTH,
        header::TRANSFER_ENCODING,
    ] {
        passed.remove(name);
    }
    passed
}

/// Host with port, and path with query, of an http URL.
fn target(url: &str) -> Result<(String, String), SpliceError> {
    let wrong = || SpliceError::Address(url.to_owned());
    let uri: Uri = url.parse().map_err(|_| wrong())?;
    if uri.scheme_str() != Some("http") {
        return Err(wrong());
    }
    let authority = uri.authority().ok_or_else(wrong)?;
    let port = authority.port_u16().unwrap_or(80);
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    Ok((format!("{}:{port}", authority.host()), path.to_owned()))
}

async fn send_request(
    request: Request<Empty<Bytes>>,
    url: &str,
) -> Result<Response<Incoming>, SpliceError> {
    let (authority, _) = target(url)?;
    let socket = TcpStream::connect(authority).await.map_err(SpliceError::Connect)?;
    // Interactive: small writes must not be delayed.
    let _ = socket.set_nodelay(true);
    let (mut sender, connection) =
        http1::handshake(TokioIo::new(socket)).await.map_err(SpliceError::Broken)?;
    panics::spawn(connection.with_upgrades());
    sender.send_request(request).await.map_err(SpliceError::Broken)
}

/// The runtime's other response, including redirects, which are returned to the client and never
/// followed.
async fn refusal(answer: Response<Incoming>) -> Response<Full<Bytes>> {
    let (head, body) = answer.into_parts();
    let body = timeout(ANSWER_TIMEOUT, Limited::new(body, REFUSAL_LEN_MAX).collect()).await;
    let body = body.ok().and_then(Result::ok).map(|body| body.to_bytes()).unwrap_or_default();
    let mut response = Response::new(Full::new(body));
    *response.status_mut() = head.status;
    if let Some(kind) = head.headers.get(header::CONTENT_TYPE) {
        response.headers_mut().insert(header::CONTENT_TYPE, kind.clone());
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_http_urls_are_sessions() {
        let good = target("http://127.0.0.1:1234/exec/abc?x=1").expect("valid");
        assert_eq!(good, ("127.0.0.1:1234".to_owned(), "/exec/abc?x=1".to_owned()));
        assert_eq!(target("http://[::1]:9/a").expect("valid").0, "[::1]:9");
        for bad in ["https://h/", "/exec/abc", "unix:///x", ""] {
            assert!(target(bad).is_err(), "{bad:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_session_ends_soon_after_either_side() {
        use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
        for runtime_ends in [true, false] {
            let (mut client, near) = tokio::io::duplex(BUFFER);
            let (mut runtime, far) = tokio::io::duplex(BUFFER);
            let joined = tokio::spawn(join(near, far));
            let (ends, stays) = if runtime_ends {
                (&mut runtime, &mut client)
            } else {
                (&mut client, &mut runtime)
            };
            ends.write_all(b"bye").await.expect("written");
            ends.shutdown().await.expect("ended");
            let mut last = Vec::new();
            stays.read_to_end(&mut last).await.expect("read");
            assert_eq!(last, b"bye");
            // Data in transit to the closed side is delivered.
            stays.write_all(b"late").await.expect("written");
            let mut late = [0; 4];
            ends.read_exact(&mut late).await.expect("read");
            assert_eq!(&late, b"late");
            tokio::time::timeout(2 * LINGER, joined).await.expect("in time").expect("joined");
        }
    }

    #[test]
    fn credentials_stay_here() {
        let mut headers = HeaderMap::new();
        for name in
            ["host", "authorization", "upgrade", "x-stream-protocol-version", "sec-websocket-key"]
        {
            headers.insert(name, "v".parse().expect("valid"));
        }
        let mut names: Vec<_> = passed_on(&headers).keys().map(|name| name.to_string()).collect();
        names.sort();
        assert_eq!(names, ["sec-websocket-key", "upgrade", "x-stream-protocol-version"]);
    }
}
