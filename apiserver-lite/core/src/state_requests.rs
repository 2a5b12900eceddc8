//! What administrators ask of the saved states of an ephemeral server: all objects are kept under a name, and put back by one request, so that the tests of
//! a suite begin with the same objects.

use std::sync::Arc;

use apiserver_auth::{MASTERS, User};
use apiserver_store::ReplaceError;

use crate::api_service_lifecycle;
use crate::definition_lifecycle;
use crate::saved_states::SavedStates;
use crate::server::Server;
use crate::services;
use crate::status::{ApiError, StatusTarget};

/// The name of a request without one: the state that the server begins with.
pub const START: &str = "start";
/// Longest name.
const NAME_LEN_MAX: usize = 63;

/// What was saved, put back or forgotten.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateSummary {
    pub name: String,
    /// How many objects it has.
    pub objects: usize,
    /// The revision that was saved, or that the server has now.
    pub revision: u64,
}

/// Saves all objects as they are under `name`, in the place of what was saved under it before. What the server itself writes about definitions is written
/// before.
///
/// # Errors
/// 403 for users outside `system:masters`, 400 for a server that is not ephemeral or a bad name, 409 without room for another.
pub async fn save(server: &Server, user: &User, name: &str) -> Result<StateSummary, ApiError> {
    let states = states(server, user, name)?;
    if let Err(error) = Box::pin(settle(server)).await {
        let error = error.to_string();
        tracing::warn!(
            error,
            name,
            "cannot update definitions and APIServices before a state is saved; it is saved without these updates"
        );
    }
    let mut states = states.by_name().await;
    let saved = server.store.save();
    let (objects, revision) = (saved.entries().len(), saved.revision().0);
    let kept = states.put(name, saved);
    kept.map_err(|full| ApiError::new(409, "Conflict", full.to_string()))?;
    Ok(StateSummary { name: name.to_owned(), objects, revision })
}

/// Writes what the tasks of the server would write soon.
async fn settle(server: &Server) -> Result<(), ApiError> {
    definition_lifecycle::update_definitions(server).await?;
    api_service_lifecycle::reconcile(server).await
}

/// Puts back the state that was saved under `name`. Watches end with 410, and their clients list again; so do readers of earlier revisions. Once begun it is
/// completed, also if the returned future is dropped.
///
/// # Errors
/// 403 for users outside `system:masters`, 400 for a server that is not ephemeral or a bad name, 404 when nothing is saved under it.
pub async fn restore(
    server: &Arc<Server>,
    user: &User,
    name: &str,
) -> Result<StateSummary, ApiError> {
    states(server, user, name)?;
    let (server, name) = (server.clone(), name.to_owned());
    let put_back = tokio::spawn(async move { put_back(&server, &name).await });
    put_back.await.map_err(ApiError::internal)?
}

async fn put_back(server: &Server, name: &str) -> Result<StateSummary, ApiError> {
    let states = ephemeral(server)?;
    let kept = states.by_name().await;
    let saved = kept.get(name).ok_or_else(|| not_saved(name, &kept.names()))?;
    let _alone = states.alone().await;
    let revision = server.store.replace(saved).await.map_err(|error| match error {
        ReplaceError::OnDisk(_) => ApiError::bad_request(error.to_string()),
        ReplaceError::Closed => ApiError::internal(error),
    })?;
    let services = server.kind("", "services").map(|kind| server.objects(kind, "", None));
    let services = services.iter().flatten().map(|record| record.object());
    services::adopt_only(&server.allocations, services);
    server.definitions.catch_up();
    let objects = saved.entries().len();
    Ok(StateSummary { name: name.to_owned(), objects, revision: revision.0 })
}

/// Forgets the state that was saved under `name`.
///
/// # Errors
/// As [`restore`].
pub async fn forget(server: &Server, user: &User, name: &str) -> Result<StateSummary, ApiError> {
    let mut kept = states(server, user, name)?.by_name().await;
    let gone = kept.remove(name).ok_or_else(|| not_saved(name, &kept.names()))?;
    let (objects, revision) = (gone.entries().len(), gone.revision().0);
    Ok(StateSummary { name: name.to_owned(), objects, revision })
}

fn not_saved(name: &str, known: &[&str]) -> ApiError {
    let text = format!("no saved state is named {name:?}; the saved states are {known:?}");
    ApiError::new(404, "NotFound", text)
}

fn states<'a>(server: &'a Server, user: &User, name: &str) -> Result<&'a SavedStates, ApiError> {
    if !user.is_in(MASTERS) {
        let text = format!("only members of {MASTERS} save and restore the state of a server");
        return Err(ApiError::forbidden(StatusTarget::default(), &text));
    }
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    if name.is_empty() || name.len() > NAME_LEN_MAX || !name.bytes().all(plain) {
        let text = format!("name: expected 1 to {NAME_LEN_MAX} letters, digits and '-'");
        return Err(ApiError::bad_request(text));
    }
    ephemeral(server)
}

fn ephemeral(server: &Server) -> Result<&SavedStates, ApiError> {
    let missing =
        "the state of this server is not saved or restored: it was not started with --ephemeral";
    server.saved_states.as_ref().ok_or_else(|| ApiError::bad_request(missing))
}

#[cfg(test)]
mod tests;
