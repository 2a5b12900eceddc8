//! Responses of verbs and of failures: their bodies in what the client accepts, codes and headers.

use std::sync::Arc;

use apiserver_core::request::{Accepted, Encoding};
use apiserver_core::status::ApiError;
use apiserver_core::verbs::VerbResponse;
use bytes::Bytes;
use http::header::{HeaderName, RETRY_AFTER};
use http::{HeaderValue, Response};
use proto_daemon::panics;

use super::audit::success;
use super::body::{self, ResponseBody};
use super::{compress, indent, render, watch};
use crate::server::HttpServer;
use crate::watch_batching::ConnectionNumber;

/// Stored bytes of a list that are encoded without a thread of their own: some milliseconds.
const ENCODED_AT_ONCE_MAX: usize = 256 << 10;

/// The response of a verb, as the client accepts it; JSON is indented if `indented`, and a large list compressed if `packed`.
/// A watch shares its sends with the others of its connection.
///
/// # Errors
/// The object cannot be encoded so.
pub async fn encode(
    server: &Arc<HttpServer>,
    accepted: Accepted,
    response: VerbResponse,
    indented: bool,
    packed: bool,
    connection: Option<ConnectionNumber>,
) -> Result<Response<ResponseBody>, ApiError> {
    let names = server.core.names;
    let encoding = accepted.encoding;
    let one = |code: u16, bytes: Bytes| {
        let mut response = Response::new(body::parts(with_final_newline(
            encoding,
            pretty(indented, encoding, vec![bytes]),
        )));
        *response.status_mut() = body::status_code(code);
        body::set_type(&mut response, encoding.media_type(names));
        Ok(response)
    };
    let len = render::assembled_len(accepted, &response);
    match response {
        VerbResponse::Stored { code, record } => {
            one(code, render::stored(&server.core, accepted, &record, true)?)
        }
        VerbResponse::Object { code, object } => {
            one(code, render::object(&server.core, accepted, &object)?)
        }
        VerbResponse::List { kind, meta, items } => {
            let core = server.core.clone();
            let encode = move || render::collection(&core, accepted, &kind, &meta, &items);
            let parts = match len <= ENCODED_AT_ONCE_MAX {
                true => encode()?,
                // Requests of others go on meanwhile.
                false => panics::spawn_blocking(encode)
                    .await
                    .map_err(|error| ApiError::internal(format!("encoding the list: {error}")))??,
            };
            let parts = pretty(indented, encoding, parts);
            let mut response =
                compress::response(with_final_newline(encoding, parts), packed).await;
            body::set_type(&mut response, encoding.media_type(names));
            Ok(response)
        }
        VerbResponse::Watch(start) => {
            let streamed = match encoding {
                Encoding::Protobuf => format!("{};stream=watch", names.protobuf_media_type()),
                _ => "application/json".to_owned(),
            };
            let events = watch::body(server.clone(), *start, accepted, connection);
            let mut response = Response::new(events);
            body::set_type(&mut response, &streamed);
            Ok(response)
        }
        VerbResponse::Deleted { .. } | VerbResponse::Success { .. } => {
            let (code, status) = success(&response).unwrap_or_default();
            one(code, render::status(names, encoding, &status))
        }
    }
}

/// Appends a newline to JSON, as kube-apiserver does.
fn with_final_newline(encoding: Encoding, mut parts: Vec<Bytes>) -> Vec<Bytes> {
    if encoding == Encoding::Json {
        parts.push(Bytes::from_static(b"\n"));
    }
    parts
}

/// JSON indented if that is wanted, and it is not too long.
fn pretty(indented: bool, encoding: Encoding, parts: Vec<Bytes>) -> Vec<Bytes> {
    if encoding != Encoding::Json || !indented {
        return parts;
    }
    indent::indent(&parts).map_or(parts, |indented| vec![indented])
}

/// The response of a failed request: the Status in `encoding`, with `Retry-After` and `WWW-Authenticate` where they apply; JSON is indented if `indented`.
pub fn failure(
    server: &HttpServer,
    encoding: Encoding,
    indented: bool,
    error: &ApiError,
) -> Response<ResponseBody> {
    let bytes = render::status(server.core.names, encoding, error.status());
    let parts = pretty(indented, encoding, vec![bytes]);
    let bytes = Bytes::from(with_final_newline(encoding, parts).concat());
    let mut response =
        body::bytes_response(error.code(), encoding.media_type(server.core.names), bytes);
    if let Some(seconds) = error.retry_after_seconds() {
        response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
    }
    if error.code() == 401 {
        let name = HeaderName::from_static("www-authenticate");
        response.headers_mut().insert(name, HeaderValue::from_static("Bearer"));
    }
    response
}
