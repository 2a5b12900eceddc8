//! What requests take of the share of their user: room for a response that is not read yet, and the turn of large work.

use apiserver_auth::{MASTERS, User};
use apiserver_core::status::ApiError;
use http::Response;
use hyper::body::Body as _;

use crate::body::{self, ResponseBody};
use crate::overload::too_many;
use crate::server::HttpServer;
use crate::unsent_bytes::{LargeTurn, UNCOUNTED_LEN};

/// The response, which counts as unread by its user until it is written. Streams, whose length is not known, count what they send.
///
/// # Errors
/// 429 if the user has too much unread.
pub fn reserve_unsent(
    server: &HttpServer,
    reader: Option<&str>,
    response: Response<ResponseBody>,
) -> Result<Response<ResponseBody>, ApiError> {
    let len = response.body().size_hint().exact().unwrap_or(0);
    let len = usize::try_from(len).unwrap_or(usize::MAX);
    let Some(reader) = reader.filter(|_| len > UNCOUNTED_LEN) else { return Ok(response) };
    let reserved = server.overload.unsent(reader).try_reserve(len).ok_or_else(too_many)?;
    Ok(response.map(|body| body::hold_until_end(body, reserved)))
}

/// Bytes of a body, or of a list that is assembled, whose work may hold a thread for long.
const LARGE_LEN: usize = 256 << 10;

/// The user's turn, if the work on so many bytes may hold a thread for long. Administrators are exempt.
pub async fn wait_for_large_turn(
    server: &HttpServer,
    user: &User,
    len: usize,
) -> Option<LargeTurn> {
    if len < LARGE_LEN || user.is_in(MASTERS) {
        return None;
    }
    Some(server.overload.unsent(&user.name).large_turn().await)
}
