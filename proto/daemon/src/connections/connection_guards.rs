//! Guards by which connections and requests are counted: a wrapper of the socket and one of response bodies.

use std::future::Future as _;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_util::sync::WaitForCancellationFutureOwned;

use super::{Connection, OpenRequest};

/// A socket whose connection counts as long as it exists; reads fail once the connection was replaced.
pub(super) struct CountedSocket<S> {
    stream: S,
    lost: Pin<Box<WaitForCancellationFutureOwned>>,
    _place: Connection,
}

impl<S> CountedSocket<S> {
    pub(super) fn new(stream: S, place: Connection) -> Self {
        let lost = Box::pin(place.0.closer.clone().cancelled_owned());
        Self { stream, lost, _place: place }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for CountedSocket<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.lost.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for CountedSocket<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

/// A response body: its request is in flight until the body is dropped, and all that it gave is written.
pub(super) struct Counted<B> {
    body: B,
    request: OpenRequest,
    /// What is left of a large frame.
    rest: Bytes,
}

/// Most bytes of one frame, so that it shows whether the client reads.
const FRAME_LEN_MAX: usize = 64 << 10;
/// A frame of this many bytes that is written shows it.
const PROGRESS_LEN: usize = 32 << 10;

impl<B> Counted<B> {
    pub(super) fn new(body: B, request: OpenRequest) -> Self {
        Self { body, request, rest: Bytes::new() }
    }
}

/// Bytes of a response that wait to be written.
struct Unwritten {
    bytes: Bytes,
    request: OpenRequest,
}

impl AsRef<[u8]> for Unwritten {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Unwritten {
    fn drop(&mut self) {
        if self.bytes.len() >= PROGRESS_LEN {
            self.request.progressed();
        }
    }
}

impl<B: Body<Data = Bytes> + Unpin> Body for Counted<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let mut bytes = std::mem::take(&mut self.rest);
        if bytes.is_empty() {
            let polled = Pin::new(&mut self.body).poll_frame(cx);
            // A stream is in flight until its body ends, whatever is written.
            if self.request.is_stream() {
                return polled;
            }
            bytes = match polled {
                Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                    Ok(bytes) => bytes,
                    Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
                },
                other => return other,
            };
        }
        if bytes.len() > FRAME_LEN_MAX {
            self.rest = bytes.split_off(FRAME_LEN_MAX);
        }
        let unwritten = Unwritten { bytes, request: self.request.clone() };
        Poll::Ready(Some(Ok(Frame::data(Bytes::from_owner(unwritten)))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let (hint, rest) = (self.body.size_hint(), self.rest.len() as u64);
        let mut whole = SizeHint::new();
        whole.set_lower(hint.lower().saturating_add(rest));
        if let Some(upper) = hint.upper() {
            whole.set_upper(upper.saturating_add(rest));
        }
        whole
    }
}
