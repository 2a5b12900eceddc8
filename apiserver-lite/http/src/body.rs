//! Bodies: bounded reading of request bodies, and the type of response bodies.

#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

use apiserver_core::request::BODY_LEN_MAX;
use apiserver_core::status::ApiError;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Response, StatusCode};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body::{Body, Frame, SizeHint};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;

/// Longest time for reading a request body.
const BODY_WAIT_MAX: Duration = Duration::from_secs(30);
/// Bytes of a too large body that are read and discarded. Most clients read the response only after sending the whole body,
/// and report a connection closed before that as a network failure.
const DISCARDED_LEN_MAX: usize = 32 << 20;
/// Longest time for discarding.
const DISCARD_WAIT_MAX: Duration = Duration::from_secs(10);
/// Size up to which parts of a response are merged into one frame for TLS.
const CHUNK_LEN: usize = 64 << 10;

/// Error of a response body; it ends the connection.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// A body that drops `kept` when it is dropped itself.
#[must_use]
pub fn hold_until_end<T: Send + Unpin + 'static>(body: ResponseBody, kept: T) -> ResponseBody {
    HoldingBody { body, _kept: kept }.boxed_unsync()
}

struct HoldingBody<T> {
    body: ResponseBody,
    _kept: T,
}

impl<T: Unpin> Body for HoldingBody<T> {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// The body type of all responses.
pub type ResponseBody = UnsyncBoxBody<Bytes, BoxError>;

/// A complete body.
#[must_use]
pub fn full(bytes: impl Into<Bytes>) -> ResponseBody {
    Full::new(bytes.into()).map_err(|never| match never {}).boxed_unsync()
}

/// A body of shared parts; they are copied into chunks of [`CHUNK_LEN`] only while sending.
#[must_use]
pub fn parts(parts: Vec<Bytes>) -> ResponseBody {
    let left = parts.iter().map(|part| part.len() as u64).sum();
    PartsBody { parts: parts.into_iter(), left }.boxed_unsync()
}

/// Reads a complete request body.
///
/// # Errors
/// 413 above `BODY_LEN_MAX`, 400 when the client aborts it, 408 after [`BODY_WAIT_MAX`].
pub async fn read(body: Incoming) -> Result<Bytes, ApiError> {
    match tokio::time::timeout(BODY_WAIT_MAX, collect_bounded(body)).await {
        Ok(Ok(bytes)) => Ok(bytes),
        Ok(Err(BodyReadError::Aborted)) => {
            Err(ApiError::bad_request("cannot read the request body"))
        }
        Ok(Err(BodyReadError::TooLarge(rest))) => {
            let _ = tokio::time::timeout(DISCARD_WAIT_MAX, discard(*rest)).await;
            Err(ApiError::too_large(BODY_LEN_MAX))
        }
        Err(_) => {
            Err(ApiError::request_timeout("the request body was not received before the deadline"))
        }
    }
}

/// Why a body was not read completely.
enum BodyReadError {
    /// The client aborted it.
    Aborted,
    /// It exceeds `BODY_LEN_MAX`; holds the unread rest.
    TooLarge(Box<Incoming>),
}

/// Reads and discards the rest of a body, so that the client reads the response.
async fn discard(mut body: Incoming) {
    let mut left = DISCARDED_LEN_MAX;
    if body.size_hint().lower() > left as u64 {
        return;
    }
    while let Some(Ok(frame)) = body.frame().await {
        match left.checked_sub(frame.data_ref().map_or(0, Bytes::len)) {
            Some(rest) => left = rest,
            None => return,
        }
    }
}

async fn collect_bounded(mut body: Incoming) -> Result<Bytes, BodyReadError> {
    if body.size_hint().lower() > BODY_LEN_MAX as u64 {
        return Err(BodyReadError::TooLarge(Box::new(body)));
    }
    let mut all = BytesMut::new();
    let mut only: Option<Bytes> = None;
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.map_err(|_| BodyReadError::Aborted)?.into_data() else { continue };
        let held = all.len().saturating_add(only.as_ref().map_or(0, Bytes::len));
        if held.saturating_add(data.len()) > BODY_LEN_MAX {
            return Err(BodyReadError::TooLarge(Box::new(body)));
        }
        // Most bodies are one frame, which is used without a copy.
        match only.take() {
            None if all.is_empty() => only = Some(data),
            first => {
                first.iter().for_each(|first| all.extend_from_slice(first));
                all.extend_from_slice(&data);
            }
        }
    }
    Ok(only.unwrap_or_else(|| all.freeze()))
}

struct PartsBody {
    parts: std::vec::IntoIter<Bytes>,
    left: u64,
}

impl Body for PartsBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let Some(first) = self.parts.next() else { return Poll::Ready(None) };
        if first.len() >= CHUNK_LEN {
            self.left = self.left.saturating_sub(first.len() as u64);
            return Poll::Ready(Some(Ok(Frame::data(first))));
        }
        let room = usize::try_from(self.left).unwrap_or(CHUNK_LEN).min(CHUNK_LEN);
        let mut chunk = BytesMut::with_capacity(room);
        chunk.extend_from_slice(&first);
        while let Some(next) = self.parts.as_slice().first() {
            if chunk.len().saturating_add(next.len()) > CHUNK_LEN {
                break;
            }
            chunk.extend_from_slice(next);
            self.parts.next();
        }
        self.left = self.left.saturating_sub(chunk.len() as u64);
        Poll::Ready(Some(Ok(Frame::data(chunk.freeze()))))
    }

    fn is_end_stream(&self) -> bool {
        self.parts.as_slice().is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}

pub fn status_code(code: u16) -> StatusCode {
    StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
}

/// A response with a complete body.
pub fn bytes_response(code: u16, media_type: &str, bytes: Bytes) -> Response<ResponseBody> {
    let mut response = Response::new(full(bytes));
    *response.status_mut() = status_code(code);
    set_type(&mut response, media_type);
    response
}

/// Sets `Content-Type`.
pub fn set_type(response: &mut Response<ResponseBody>, media_type: &str) {
    if let Ok(value) = HeaderValue::from_str(media_type) {
        response.headers_mut().insert(CONTENT_TYPE, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn parts_are_concatenated() {
        let big = Bytes::from(vec![b'x'; CHUNK_LEN + 1]);
        let body = parts(vec![
            Bytes::from("a"),
            Bytes::from("b"),
            big.clone(),
            Bytes::from("c"),
            Bytes::new(),
        ]);
        assert_eq!(body.size_hint().exact(), Some(3 + big.len() as u64));
        let all = body.collect().await.unwrap().to_bytes();
        assert_eq!(all.len(), 3 + big.len());
        assert!(all.starts_with(b"abx") && all.ends_with(b"xc"));
    }
}
