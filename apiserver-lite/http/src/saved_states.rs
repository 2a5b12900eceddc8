//! `POST /store/save`, `/store/restore` and `/store/forget`, each with `?name=`: the state of an ephemeral server is kept under a name, put back, and dropped.

use std::sync::Arc;

use apiserver_auth::User;
use apiserver_core::request::Query;
use apiserver_core::server::Server;
use apiserver_core::state_requests::{START, forget, restore, save};
use apiserver_core::status::ApiError;
use bytes::Bytes;
use http::{Method, Response};
use serde_json::json;

use crate::body::{ResponseBody, bytes_response};

/// The path that saves.
const SAVE: &str = "/store/save";
/// The path that restores.
const RESTORE: &str = "/store/restore";
/// The path that forgets.
const FORGET: &str = "/store/forget";

/// Whether `path` is one of this file.
pub fn is_path(path: &str) -> bool {
    matches!(path, SAVE | RESTORE | FORGET)
}

/// Serves a request to a path of this file.
///
/// # Errors
/// 405 for another method than POST; errors of saving and restoring.
pub async fn serve(
    server: &Arc<Server>,
    user: &User,
    method: &Method,
    path: &str,
    query: &Query,
) -> Result<Response<ResponseBody>, ApiError> {
    if *method != Method::POST {
        return Err(ApiError::method_not_allowed());
    }
    let name = query.text("name").unwrap_or(START);
    let done = match path {
        RESTORE => restore(server, user, name).await?,
        FORGET => forget(server, user, name).await?,
        _ => save(server, user, name).await?,
    };
    let answer = json!({
        "name": done.name,
        "objects": done.objects,
        "resourceVersion": done.revision.to_string(),
    });
    Ok(bytes_response(201, "application/json", Bytes::from(format!("{answer}\n"))))
}
