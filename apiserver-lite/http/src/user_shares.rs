//! What requests take of the share of their user: room for a response that is not read yet, and the turn of large work. Administrators and the system's own
//! programs are exempt; nodes are not.

use apiserver_auth::User;
use apiserver_core::request::{Accepted, RequestInfo};
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

/// The user's turn, if the work of a write may hold a thread for long: that of its body, or of the stored object that it names.
///
/// # Errors
/// 429 if too many large requests of the user wait.
pub async fn wait_for_large_turn(
    server: &HttpServer,
    user: &User,
    resource: &RequestInfo,
    body_len: usize,
) -> Result<Option<LargeTurn>, ApiError> {
    let is_large = || body_len >= LARGE_LEN || stored_len(server, resource) >= LARGE_LEN;
    if is_exempt_from_shares(user) || !is_large() {
        return Ok(None);
    }
    let turn = server.overload.unsent(&user.name).large_turn().await;
    turn.map(Some).ok_or_else(too_many)
}

/// The stored length of the object that a request names; 0 if there is none.
fn stored_len(server: &HttpServer, resource: &RequestInfo) -> usize {
    if resource.name.is_empty() {
        return 0;
    }
    let core = &server.core;
    let kind = core.resource(&resource.group, &resource.version, &resource.resource);
    let record = kind.and_then(|kind| core.find(&kind, &resource.namespace, &resource.name));
    record.map_or(0, |record| record.stored_len())
}

/// The user's turn for a large list or object that is encoded for its response. The objects that it holds count as unread while it waits.
///
/// # Errors
/// 429 if the user has too much unread, or too many large requests of the user wait.
pub async fn prepare_response(
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
