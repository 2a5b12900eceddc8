//! What a server does with CustomResourceDefinitions by itself: it accepts their names and establishes them, and deletes the objects of a definition
//! that is deleted before the definition goes.
//!
//! One task looks at all definitions after every change of one, so that two of them never get the same name.

use std::sync::Arc;
use std::time::Duration;

use apiserver_custom_resources::OtherDefinition;
use apiserver_schema::custom::CustomNames;
use apiserver_schema::update::Subresource;
use apiserver_schema::{Kind, Object, Value};
use apiserver_store::{WatchEnd, Write, WriteError};
use tokio_util::sync::CancellationToken;

use crate::definitions::strategy::{
    DefinitionCondition, cleanup_finalizer, note_approval, set_condition,
};
use crate::definitions::{GROUP, RESOURCE, is_true, names};
use crate::internal_requests::{agent, call, request};
use crate::key;
use crate::options::{DeleteOptions, Effects};
use crate::record::{Draft, StoredObject};
use crate::registry;
use crate::request::{Query, Verb};
use crate::server::Server;
use crate::status::ApiError;
use crate::times::{now, timestamp};
use crate::verbs::{UpdateAttempt, commit_update, delete_object, write_failed};

/// When to look again at a definition whose objects wait for their finalizers, or after a failure.
const RETRY: Duration = Duration::from_secs(1);
/// Objects that are deleted before other definitions have their turn.
const CHUNK: usize = 200;

/// Follows the definitions until `stopping` is cancelled.
pub async fn run(server: Arc<Server>, stopping: CancellationToken) {
    let Some(kind) = server.kind(GROUP, RESOURCE).cloned() else { return };
    let mut events = Vec::new();
    loop {
        // Watched from before the look, so that no change is missed.
        let watched = server.store.watch(key::prefix(&kind, ""), server.store.revision());
        let again = match Box::pin(take_turn(&server, &kind)).await {
            Ok(again) => again,
            Err(error) => {
                let error = error.to_string();
                tracing::warn!(
                    error,
                    "cannot update the status of CustomResourceDefinitions; retried"
                );
                Some(RETRY)
            }
        };
        let timer = async {
            match again {
                Some(after) => tokio::time::sleep(after).await,
                None => std::future::pending().await,
            }
        };
        let changed = async {
            match watched {
                Ok(mut changes) => changes.next_batch(&mut events).await,
                // The revision was current just before: the next one will do.
                Err(_) => {
                    tokio::time::sleep(RETRY).await;
                    Ok(())
                }
            }
        };
        tokio::select! {
            () = stopping.cancelled() => return,
            () = timer => {}
            changed = changed => if let Err(WatchEnd::Closed) = changed { return },
        }
        events.clear();
    }
}

/// Brings the definitions up to date once, in addition to the task.
///
/// # Errors
/// Errors of reading and writing.
pub async fn update_definitions(server: &Server) -> Result<(), ApiError> {
    let Some(kind) = server.kind(GROUP, RESOURCE).cloned() else { return Ok(()) };
    Box::pin(take_turn(server, &kind)).await.map(drop)
}

/// A look of its own: no state is put back until it has ended, so that it deletes nothing of one.
async fn take_turn(server: &Server, kind: &Arc<Kind>) -> Result<Option<Duration>, ApiError> {
    let _held = server.hold_state().await;
    update_statuses(server, kind).await
}

/// Brings the status of all definitions up to date. Returns when to look again although nothing has changed.
async fn update_statuses(server: &Server, kind: &Arc<Kind>) -> Result<Option<Duration>, ApiError> {
    let mut again: Option<Duration> = None;
    let mut soon = |after: Duration| again = Some(again.map_or(after, |other| other.min(after)));
    // Ends watches of resources that are no longer served, also without a request for them.
    server.definitions.catch_up();
    let stored = server.objects(kind, "", None);
    let mut others: Vec<_> =
        stored.iter().map(|record| names::of_stored(record.object())).collect();
    for record in &stored {
        let step = if let Some(next) = compute_status(server, record.object(), &others) {
            let accepted = names::of_stored(&next).accepted;
            others.push(OtherDefinition { group: names::resource(record.object()).0, accepted });
            // The write wakes this task again: what this definition gives up, another may get.
            write_status(server, kind, record, next).await.map(|()| None)
        } else if is_ending(record.object()) {
            Box::pin(end(server, kind, record)).await
        } else {
            continue;
        };
        match step {
            Ok(after) => after.into_iter().for_each(&mut soon),
            // Other definitions have their turn all the same.
            Err(error) => {
                let (error, definition) = (error.to_string(), record.object().name());
                tracing::warn!(
                    error,
                    definition,
                    "cannot update the status of a CustomResourceDefinition; retried"
                );
                soon(RETRY);
            }
        }
    }
    Ok(again)
}

/// The definition with the names that it gets now, and the condition of its approval; `None` if nothing changes.
fn compute_status(
    server: &Server,
    definition: &Object,
    others: &[OtherDefinition<'_>],
) -> Option<Object> {
    let time = timestamp(now());
    let mut next = definition.clone();
    if !names::is_settled(definition)
        && let Err(error) = names::accept(&mut next, others, &time)
    {
        let definition = definition.name();
        tracing::error!(%error, definition, "the names of a CustomResourceDefinition cannot be accepted; correct the definition");
        return None;
    }
    note_approval(&mut next, server.names, &time);
    (next != *definition).then_some(next)
}

fn is_ending(definition: &Object) -> bool {
    let finalizer = cleanup_finalizer(definition);
    definition.deletion_timestamp().is_some()
        && definition.finalizers().any(|have| have == finalizer)
}

/// The next step of the deletion of a definition: deletes its objects, or lets it go when there are none. Returns when to look again.
async fn end(
    server: &Server,
    kind: &Arc<Kind>,
    record: &Arc<StoredObject>,
) -> Result<Option<Duration>, ApiError> {
    let definition = record.object();
    let time = timestamp(now());
    let condition = |status, reason: &str, message: &str| DefinitionCondition {
        kind: "Terminating",
        status,
        reason: reason.to_owned(),
        message: message.to_owned(),
    };
    let mut next = definition.clone();
    let done = if is_true(definition, "Established") {
        let reason = "InstanceDeletionInProgress";
        let message = "CustomResource deletion is in progress";
        set_condition(&mut next, condition("True", reason, message), &time);
        if next != *definition {
            // The write wakes this task again.
            write_status(server, kind, record, next).await?;
            return Ok(None);
        }
        match delete_objects(server, definition).await? {
            Left::None => {}
            Left::More => return Ok(Some(Duration::ZERO)),
            Left::Waiting => return Ok(Some(RETRY)),
        }
        condition("False", "InstanceDeletionCompleted", "removed all instances")
    } else {
        condition("False", "NeverEstablished", "resource was never established")
    };
    set_condition(&mut next, done, &time);
    let finalizer = cleanup_finalizer(definition);
    let left = next.finalizers().filter(|have| *have != finalizer);
    let left: Vec<Value> = left.map(Value::from).collect();
    match left.is_empty() {
        true => drop(next.metadata_mut().remove("finalizers")),
        false => drop(next.metadata_mut().insert("finalizers", left)),
    }
    finish_deletion(server, record, next).await?;
    Ok(None)
}

/// Writes a definition without the finalizer of its objects, unless another write was first. Not through `status`, which changes no finalizers.
async fn finish_deletion(
    server: &Server,
    record: &Arc<StoredObject>,
    next: Object,
) -> Result<(), ApiError> {
    let key = key::object(&next.kind, "", next.name());
    let write = match registry::is_finished(&next) {
        true => Write::delete(key, record.revision()),
        false => Write::update(key, record.revision(), Draft::new(&server.engine, next)),
    };
    match server.store.write(write).await {
        Ok(_) | Err(WriteError::Conflict { .. } | WriteError::NotFound { .. }) => Ok(()),
        Err(error) => Err(write_failed(&error)),
    }
}

/// What is left of a definition's objects.
enum Left {
    None,
    /// Objects that were not looked at yet.
    More,
    /// Objects that wait for their finalizers.
    Waiting,
}

/// A kind of the definition's objects, also of a definition that is not served because it cannot be read: its objects are there all the same.
fn kind_of(server: &Server, definition: &Object) -> Option<Arc<Kind>> {
    let (group, plural) = names::resource(definition);
    let found = server.definitions.find(group, plural);
    if let Some(version) = found.as_ref().and_then(|found| found.versions.first()) {
        return Some(version.kind.clone());
    }
    let version = definition.spec()?.maps("versions").next()?.str("name");
    server.engine.custom_kind(&CustomNames {
        group,
        version,
        kind: definition.str_at(&["spec", "names", "kind"]),
        plural,
        namespaced: definition.str_at(&["spec", "scope"]) == "Namespaced",
    })
}

async fn delete_objects(server: &Server, definition: &Object) -> Result<Left, ApiError> {
    let Some(kind) = kind_of(server, definition) else { return Ok(Left::None) };
    let stored = server.objects(&kind, "", None);
    let ending = |object: &Object| object.deletion_timestamp().is_some();
    let objects = stored.iter().map(|record| record.object());
    let mut deleted = false;
    for object in objects.filter(|object| !ending(object)).take(CHUNK) {
        // In the version in which it is stored, so that no webhook need be there to delete it.
        let kind = &object.kind;
        let request = request(Verb::Delete, kind, "", object.namespace(), object.name());
        let query = Query::default();
        let agent = agent(server);
        let call = call(server, kind, &request, &query, &agent);
        match delete_object(&call, &DeleteOptions::default()).await {
            Err(error) if !error.is_not_found() => return Err(error),
            _ => deleted = true,
        }
    }
    Ok(match (stored.is_empty(), deleted) {
        (true, _) => Left::None,
        (false, false) => Left::Waiting,
        (false, true) => Left::More,
    })
}

/// Writes the status and the finalizers of a definition, unless another write was first: then this task looks at it again.
async fn write_status(
    server: &Server,
    kind: &Arc<Kind>,
    record: &Arc<StoredObject>,
    next: Object,
) -> Result<(), ApiError> {
    let request = request(Verb::Update, kind, "status", "", record.object().name());
    let (query, agent) = (Query::default(), agent(server));
    let call = call(server, kind, &request, &query, &agent);
    let written = commit_update(&call, record, next, Subresource::Status, Effects::Real).await;
    match written {
        Ok(UpdateAttempt::Done(_) | UpdateAttempt::Conflict) => Ok(()),
        Err(error) if error.is_not_found() => Ok(()),
        Err(error) => Err(error),
    }
}
