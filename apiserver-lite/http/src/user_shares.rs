//! What requests take of the share of their user: room for a response that is not read yet, and the turn of large work. Administrators and the system's own
//! programs are exempt; nodes are not.

use apiserver_auth::User;
use apiserver_core::request::Accepted;
use apiserver_core::status::ApiError;
use apiserver_core::verbs::VerbResponse;
use http::Response;
use hyper::body::Body as _;

use crate::body::{self, ResponseBody};
use crate::overload::{is_exempt_from_shares, too_many};
use crate::render;
use crate::server::HttpServer;
use crate::unsent_bytes::{LargeTurn, ReservedBytes, UNCOUNTED_LEN};

/// Bytes of a body, or of a list that is assembled, whose work may hold a thread for long.
const LARGE_LEN: usize = 256 << 10;

/// The response of a short read, which counts as unread by its user until it is written.
///
/// # Errors
/// 429 if the user has too much unread.
pub fn reserve_unsent(
    server: &HttpServer,
    user: &User,
    response: Response<ResponseBody>,
) -> Result<Response<ResponseBody>, ApiError> {
    let len = response.body().size_hint().exact().unwrap_or(0);
    let len = usize::try_from(len).unwrap_or(usize::MAX);
    if len <= UNCOUNTED_LEN || is_exempt_from_shares(user) {
        return Ok(response);
    }
    let reserved = server.overload.unsent(&user.name).try_reserve(len).ok_or_else(too_many)?;
    Ok(response.map(|body| body::hold_until_end(body, reserved)))
}

/// The user's turn, if the work on so many bytes may hold a thread for long.
///
/// # Errors
/// 429 if too many large requests of the user wait.
pub async fn wait_for_large_turn(
    server: &HttpServer,
    user: &User,
    len: usize,
) -> Result<Option<LargeTurn>, ApiError> {
    if len < LARGE_LEN || is_exempt_from_shares(user) {
        return Ok(None);
    }
    let turn = server.overload.unsent(&user.name).large_turn().await;
    turn.map(Some).ok_or_else(too_many)
}

/// The user's turn for a large list that is assembled for its response. The objects that it holds count as unread while it waits.
///
/// # Errors
/// 429 if the user has too much unread, or too many large requests of the user wait.
pub async fn prepare_list(
    server: &HttpServer,
    user: &User,
    accepted: Accepted,
    response: &VerbResponse,
) -> Result<Option<(ReservedBytes, LargeTurn)>, ApiError> {
    let len = render::assembled_len(accepted, response);
    if len < LARGE_LEN || is_exempt_from_shares(user) {
        return Ok(None);
    }
    let share = server.overload.unsent(&user.name);
    let reserved = share.try_reserve(len).ok_or_else(too_many)?;
    let turn = share.large_turn().await.ok_or_else(too_many)?;
    Ok(Some((reserved, turn)))
}
