//! States of an ephemeral server: all objects at one revision, kept in memory under a name, and put back by one request, so that the tests of a suite
//! begin with the same objects.

use std::collections::BTreeMap;

use apiserver_auth::{MASTERS, User};
use apiserver_schema::Object;
use apiserver_store::{Entry, ReplaceError, SavedRecords};
use tokio::sync::Mutex;

use crate::key;
use crate::record::StoredObject;
use crate::server::Server;
use crate::services;
use crate::status::{About, ApiError};

/// The name of a request without one: the state that the server begins with.
pub const START: &str = "start";
/// Most states that are kept. Each keeps its objects in memory.
const STATES_MAX: usize = 16;
/// Longest name.
const NAME_LEN_MAX: usize = 63;

/// The states by name. Locked while one is saved or put back, so that the requests take turns.
#[derive(Default)]
pub struct SavedStates(Mutex<BTreeMap<String, SavedRecords<StoredObject>>>);

/// What was saved, or put back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateSummary {
    /// Its name.
    pub name: String,
    /// How many objects it has.
    pub objects: usize,
    /// The revision that was saved, or that the server has now.
    pub revision: u64,
}

/// Saves all objects as they are under `name`, in the place of what was saved under it before.
///
/// # Errors
/// 403 for users outside `system:masters`, 400 for a server that is not ephemeral or a bad name, 429 when too many are kept.
pub async fn save(server: &Server, user: &User, name: &str) -> Result<StateSummary, ApiError> {
    let states = states(server, user, name)?;
    let mut states = states.0.lock().await;
    if !states.contains_key(name) && states.len() >= STATES_MAX {
        let text =
            format!("{STATES_MAX} states are saved, which is the most: save over one of them");
        return Err(ApiError::too_many_requests(&text, 1));
    }
    let saved = server.store.save();
    let (objects, revision) = (saved.entries().len(), saved.revision().0);
    states.insert(name.to_owned(), saved);
    Ok(StateSummary { name: name.to_owned(), objects, revision })
}

/// Puts back the state that was saved under `name`. Watches end with 410, and their clients list again; so do readers of earlier revisions.
///
/// # Errors
/// 403 for users outside `system:masters`, 400 for a server that is not ephemeral or a bad name, 404 when nothing is saved under it.
pub async fn restore(server: &Server, user: &User, name: &str) -> Result<StateSummary, ApiError> {
    let states = states(server, user, name)?;
    let states = states.0.lock().await;
    let saved = states.get(name).ok_or_else(|| {
        let known: Vec<&str> = states.keys().map(String::as_str).collect();
        ApiError::new(
            404,
            "NotFound",
            format!("no state is saved as {name:?}; saved are {known:?}"),
        )
    })?;
    // Before the objects are back, so that no other Service gets their addresses.
    let kept = services_of(server, saved.entries());
    services::adopt_all(&server.allocations, &kept);
    let replaced = server.store.replace(saved).await.map_err(|error| match error {
        ReplaceError::OnDisk(_) => ApiError::bad_request(error.to_string()),
        ReplaceError::Closed => ApiError::internal(error),
    })?;
    let gone = services_of(server, &replaced.before);
    services::release_all_but(&server.allocations, &gone, &kept);
    server.definitions.catch_up();
    Ok(StateSummary {
        name: name.to_owned(),
        objects: saved.entries().len(),
        revision: replaced.revision.0,
    })
}

fn states<'a>(server: &'a Server, user: &User, name: &str) -> Result<&'a SavedStates, ApiError> {
    if !user.is_in(MASTERS) {
        let text = format!("only members of {MASTERS} save and restore the state of a server");
        return Err(ApiError::forbidden(About::default(), &text));
    }
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    if name.is_empty() || name.len() > NAME_LEN_MAX || !name.bytes().all(plain) {
        let text = format!("name: expected 1 to {NAME_LEN_MAX} letters, digits and '-'");
        return Err(ApiError::bad_request(text));
    }
    let missing =
        "the state of this server is not saved or restored: it was not started with --ephemeral";
    server.saved_states.as_ref().ok_or_else(|| ApiError::bad_request(missing))
}

fn services_of<'a>(server: &Server, entries: &'a [Entry<StoredObject>]) -> Vec<&'a Object> {
    let Some(kind) = server.kind("", "services") else { return Vec::new() };
    let prefix = key::prefix(kind, "");
    let own = entries.iter().filter(|entry| entry.key.starts_with(&prefix));
    own.map(|entry| entry.record.object()).collect()
}

#[cfg(test)]
mod tests {
    use proto_api::names::{Names, Profile};

    use super::*;

    fn server(ephemeral: bool) -> Server {
        let mut server = Server::for_tests(Names::new(Profile::Kubernetes));
        server.saved_states = ephemeral.then(SavedStates::default);
        server
    }

    #[tokio::test]
    async fn only_administrators_of_ephemeral_servers_put_states_back() {
        let code =
            |outcome: Result<StateSummary, ApiError>| outcome.err().map(|error| error.code());
        let (admin, other) = (User::server(), User::default());
        let (ephemeral, kept) = (server(true), server(false));
        assert_eq!(code(save(&ephemeral, &other, START).await), Some(403));
        assert_eq!(code(restore(&ephemeral, &other, START).await), Some(403));
        assert_eq!(code(restore(&kept, &other, START).await), Some(403));
        assert_eq!(code(save(&kept, &admin, START).await), Some(400));
        assert_eq!(code(restore(&kept, &admin, START).await), Some(400));
        assert_eq!(code(restore(&ephemeral, &admin, START).await), Some(404));
        for name in ["", "a/b", "a b", &"a".repeat(64)] {
            assert_eq!(code(save(&ephemeral, &admin, name).await), Some(400), "{name:?}");
        }
        assert_eq!(code(save(&ephemeral, &admin, START).await), None);
        assert_eq!(code(restore(&ephemeral, &admin, START).await), None);
    }

    #[tokio::test]
    async fn states_are_bounded() {
        let (server, admin) = (server(true), User::server());
        for nth in 0..STATES_MAX {
            save(&server, &admin, &format!("s{nth}")).await.unwrap();
        }
        assert_eq!(save(&server, &admin, "more").await.unwrap_err().code(), 429);
        assert!(save(&server, &admin, "s3").await.is_ok(), "in the place of the old one");
    }
}
