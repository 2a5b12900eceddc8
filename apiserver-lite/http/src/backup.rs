//! `POST /store/backup`: writes a backup of the store on the server's disk and answers where it lies. A path like any other for authorization: who may
//! `post` to this non-resource URL. The answer has no content of objects.

use std::sync::Arc;

use apiserver_core::backup::back_up;
use apiserver_core::server::Server;
use apiserver_core::status::ApiError;
use apiserver_core::times::now;
use apiserver_store::BackupSummary;
use bytes::Bytes;
use http::{Method, Response};
use serde_json::json;

use crate::body::{ResponseBody, bytes_response};

pub const PATH: &str = "/store/backup";

/// Serves a request to [`PATH`].
///
/// # Errors
/// 405 for another method than POST; errors of the backup.
pub async fn serve(
    server: &Arc<Server>,
    method: &Method,
) -> Result<Response<ResponseBody>, ApiError> {
    if *method != Method::POST {
        return Err(ApiError::method_not_allowed());
    }
    let made = back_up(server.clone(), now()).await?;
    let BackupSummary { path, revision, records, transformed, sha256 } = made;
    let answer = json!({
        "path": path.display().to_string(),
        "resourceVersion": revision.to_string(),
        "objects": records,
        "encryptedObjects": transformed,
        "sha256": sha256,
    });
    Ok(bytes_response(201, "application/json", Bytes::from(format!("{answer}\n"))))
}
