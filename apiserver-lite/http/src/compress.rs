//! gzip compression of large responses.

use std::io::Write as _;

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use http::header::{ACCEPT_ENCODING, CONTENT_ENCODING, VARY};
use http::{HeaderMap, HeaderValue, Response};
use proto_daemon::panics;
use tokio::sync::Semaphore;

use super::body::{self, ResponseBody};

/// Responses shorter than this are not compressed, as in kube-apiserver.
const LEN_MIN: usize = 128 << 10;

/// What may be compressed at a time: half of the blocking threads, which do other work too.
static PLACES: Semaphore = Semaphore::const_new(4);

/// Whether the client accepts gzip.
#[must_use]
pub fn is_accepted(headers: &HeaderMap) -> bool {
    let values = headers.get_all(ACCEPT_ENCODING).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).any(|coding| {
        let (name, weight) = coding.split_once(';').unwrap_or((coding, ""));
        name.trim() == "gzip" && !matches!(weight.trim(), "q=0" | "q=0.0" | "q=0.00" | "q=0.000")
    })
}

/// A response of `parts`, compressed on a blocking thread if it is large and `accepted`, and there is a place for it.
pub async fn response(parts: Vec<Bytes>, accepted: bool) -> Response<ResponseBody> {
    let len: usize = parts.iter().map(Bytes::len).sum();
    if !accepted || len < LEN_MIN || PLACES.available_permits() == 0 {
        return Response::new(body::parts(parts));
    }
    match pack(parts.clone()).await {
        Some(packed) => packed_response(packed.into()),
        None => Response::new(body::parts(parts)),
    }
}

/// `parts` compressed on a blocking thread, once few enough others are. The work keeps its place to its end, also if its client has gone.
pub async fn pack(parts: Vec<Bytes>) -> Option<Vec<u8>> {
    // The semaphore is never closed.
    let place = PLACES.acquire().await.ok()?;
    let work = move || {
        let _place = place;
        gzip(&parts)
    };
    // Writing to memory does not fail; the task fails only while the runtime shuts down.
    panics::spawn_blocking(work).await.ok()?.ok()
}

/// A response of what is compressed.
pub fn packed_response(packed: Bytes) -> Response<ResponseBody> {
    let mut response = Response::new(body::full(packed));
    response.headers_mut().insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    response.headers_mut().insert(VARY, HeaderValue::from_static("Accept-Encoding"));
    response
}

fn gzip(parts: &[Bytes]) -> std::io::Result<Vec<u8>> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    parts.iter().try_for_each(|part| encoder.write_all(part))?;
    encoder.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::BodyExt as _;
    use std::future::poll_fn;
    use std::io::Read as _;
    use std::pin::pin;
    use std::task::Poll;

    /// Held by tests that look at the places.
    static ALONE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

    #[tokio::test]
    async fn a_client_that_goes_leaves_no_place_before_the_work_ends() {
        let _alone = ALONE.lock().await;
        {
            let mut packing = pin!(pack(vec![Bytes::from(vec![b'x'; 64 << 20])]));
            let begun = poll_fn(|context| Poll::Ready(packing.as_mut().poll(context))).await;
            assert!(begun.is_pending());
        }
        assert_eq!(PLACES.available_permits(), 3);
        drop(PLACES.acquire_many(4).await.unwrap());
    }

    #[tokio::test]
    async fn only_large_answers_are_packed() {
        let _alone = ALONE.lock().await;
        let small = response(vec![Bytes::from("a")], true).await;
        assert!(!small.headers().contains_key(CONTENT_ENCODING));
        let part = Bytes::from(vec![b'x'; LEN_MIN]);
        let places = PLACES.acquire_many(4).await.unwrap();
        let plain = response(vec![part.clone(), part.clone()], true).await;
        assert!(!plain.headers().contains_key(CONTENT_ENCODING), "enough are packed already");
        drop(places);
        let large = response(vec![part.clone(), part], true).await;
        assert_eq!(large.headers()[CONTENT_ENCODING], "gzip");
        let packed = large.into_body().collect().await.unwrap().to_bytes();
        let mut text = Vec::new();
        flate2::read::GzDecoder::new(packed.as_ref()).read_to_end(&mut text).unwrap();
        assert_eq!(text.len(), 2 * LEN_MIN);
    }

    #[test]
    fn gzip_is_chosen_by_the_accept_encoding_header() {
        let asked = |value: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(ACCEPT_ENCODING, HeaderValue::from_static(value));
            is_accepted(&headers)
        };
        assert!(asked("br, gzip;q=0.5"));
        assert!(!asked("br"));
        assert!(!asked("gzip;q=0"));
    }
}
