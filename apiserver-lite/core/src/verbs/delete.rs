//! delete and deletecollection: immediate, or in two phases when a grace period or finalizers have to end first.

use std::sync::Arc;

use apiserver_auth::{Attributes, Decision};
use apiserver_schema::{Object, Value};
use apiserver_store::{Record as _, Write, WriteError};
use futures_util::{StreamExt as _, stream};
use time::{Duration, OffsetDateTime};

use super::update_common::{CONFLICT_TRIES, write_failed};
use super::{VerbOutput, VerbResponse, propagate, read};
use crate::admission;
use crate::context::RequestContext;
use crate::conversion;
use crate::options::{DeleteOptions, Effects, GRACE_SECS_MAX};
use crate::record::{Draft, StoredObject};
use crate::registry;
use crate::request::RequestInfo;
use crate::status::{ApiError, StatusTarget};
use crate::times::{now, time_of, timestamp};

/// Concurrent deletions of a deletecollection.
const PARALLEL_MAX: usize = 32;

/// Deletes the object that the request names.
///
/// # Errors
/// 404 if it does not exist, 409 if it does not match the preconditions, 403 if admission refuses.
pub async fn delete(
    call: &RequestContext<'_>,
    options: &DeleteOptions,
) -> Result<VerbOutput, ApiError> {
    admission::admit_delete(call)?;
    Ok(delete_asked(call, options, Webhooks::Asked).await?.into())
}

/// Deletes the objects that the request selects; with `limit` and `continue` those of one page, as in Kubernetes.
///
/// # Errors
/// Errors of a list, then the first failed deletion; objects that are deleted already are not failures.
pub async fn delete_collection(
    call: &RequestContext<'_>,
    options: &DeleteOptions,
) -> Result<VerbOutput, ApiError> {
    let mut chosen = read::select(call).await?;
    // All at once, instead of each by its deletion.
    conversion::show(call.asker(), &call.kind, &mut chosen).await?;
    let deletions =
        chosen.into_iter().map(|record| async move { delete_one(call, &record, options).await });
    // All deletions run to completion, even if one fails.
    let first_failure = stream::iter(deletions)
        .buffer_unordered(PARALLEL_MAX)
        .fold(Ok(()), |first: Result<(), ApiError>, next| async move { first.and(next) })
        .await;
    first_failure?;
    Ok(VerbResponse::Success { code: 200 }.into())
}

async fn delete_one(
    call: &RequestContext<'_>,
    record: &StoredObject,
    options: &DeleteOptions,
) -> Result<(), ApiError> {
    let object = record.object();
    let request = RequestInfo {
        namespace: object.namespace().to_owned(),
        name: object.name().to_owned(),
        ..call.request.clone()
    };
    let one = RequestContext {
        server: call.server,
        request: &request,
        kind: call.kind.clone(),
        requested_version: call.requested_version.clone(),
        user: call.user,
        user_agent: call.user_agent,
        query: call.query,
        accepted: call.accepted,
        notes: call.notes,
        audit: call.audit,
    };
    admission::admit_delete(&one)?;
    match delete_asked(&one, options, Webhooks::Asked).await {
        Err(error) if !error.is_not_found() => Err(error),
        _ => Ok(()),
    }
}

/// Deletes the requested object without admission.
///
/// # Errors
/// As [`delete`].
pub async fn delete_object(
    call: &RequestContext<'_>,
    options: &DeleteOptions,
) -> Result<VerbResponse, ApiError> {
    delete_asked(call, options, Webhooks::Skipped).await
}

/// Whether webhooks are called for a deletion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Webhooks {
    Asked,
    Skipped,
}

async fn delete_asked(
    call: &RequestContext<'_>,
    options: &DeleteOptions,
    webhooks: Webhooks,
) -> Result<VerbResponse, ApiError> {
    if call.query.flag(IGNORE_READ_ERROR)
        && let Some(response) = delete_unreadable(call, options).await?
    {
        return Ok(response);
    }
    for _ in 0..CONFLICT_TRIES {
        let old = call.current().await?;
        check_preconditions(call, options, old.object())?;
        if webhooks == Webhooks::Asked {
            admission::ask_about_deletion(call, old.object(), options).await?;
        }
        let step = next_step(old.object(), options, now());
        if options.effects == Effects::DryRun {
            return Ok(dry_run(step, old));
        }
        if let Some(response) = apply_step(call, &old, step).await? {
            return Ok(response);
        }
    }
    Err(ApiError::modified(call.about()))
}

/// The query parameter that lets an object be deleted that cannot be decrypted: Kubernetes has it since 1.32.
const IGNORE_READ_ERROR: &str = "ignoreStoreReadErrorWithClusterBreakingPotential";

/// Deletes an object that cannot be decrypted; `None` for any other. Its finalizers and its uid are not known: it goes at once. The user needs a
/// permission of its own for that, as in Kubernetes.
async fn delete_unreadable(
    call: &RequestContext<'_>,
    options: &DeleteOptions,
) -> Result<Option<VerbResponse>, ApiError> {
    let found = call.server.find(&call.kind, &call.request.namespace, &call.request.name);
    let Some(old) = found.filter(|old| !old.is_readable()) else { return Ok(None) };
    let attributes = Attributes {
        user: call.user,
        verb: "unsafe-delete-ignore-read-errors",
        subject: call.request.subject(),
    };
    let authorization = call.server.authorizer.authorize(&attributes).await;
    if authorization.decision != Decision::Allow {
        return Err(ApiError::forbidden(call.about(), &attributes.denial(&authorization.reason)));
    }
    check_preconditions(call, options, old.object())?;
    if options.effects == Effects::DryRun {
        return Ok(Some(VerbResponse::Success { code: 200 }));
    }
    match call.server.store.write(Write::delete(call.key(), old.revision())).await {
        Ok(_) => {
            tracing::warn!(
                key = call.key(),
                user = call.user.name,
                "deleted an object that cannot be decrypted, because the delete option ignoreStoreReadErrorWithClusterBreakingPotential is set"
            );
            Ok(Some(VerbResponse::Success { code: 200 }))
        }
        Err(WriteError::Conflict { .. }) => Err(ApiError::modified(call.about())),
        Err(WriteError::NotFound { .. }) => Err(ApiError::not_found(call.about())),
        Err(error) => Err(write_failed(&error)),
    }
}

/// Checks the uid and the version that a deletion asks for.
///
/// # Errors
/// 409: the object has others.
pub fn check_preconditions(
    call: &RequestContext<'_>,
    options: &DeleteOptions,
    object: &Object,
) -> Result<(), ApiError> {
    let check = |field: &str, wanted: &Option<String>, found: &str| match wanted {
        Some(wanted) if wanted != found => {
            Err(ApiError::precondition_failed(call.about(), field, wanted, found))
        }
        _ => Ok(()),
    };
    check("UID", &options.uid, object.uid())?;
    check("ResourceVersion", &options.resource_version, object.resource_version())
}

/// The next step of a deletion.
#[derive(Clone, Debug, PartialEq)]
enum DeletionStep {
    /// Remove the object.
    Remove,
    /// Mark the object as deleted; it is removed when its grace period and finalizers have ended.
    Mark(Box<Object>),
    /// Nothing changes: the object is marked already.
    Wait,
}

fn next_step(object: &Object, options: &DeleteOptions, now: OffsetDateTime) -> DeletionStep {
    let marked = object.deletion_timestamp().and_then(time_of);
    let was = object.metadata().and_then(|metadata| metadata.int("deletionGracePeriodSeconds"));
    let was = was.map(|seconds| seconds.clamp(0, GRACE_SECS_MAX));
    let was = was.or_else(|| marked.map(|_| 0));
    let grace = match (was, options.grace_secs) {
        // A running grace period is shortened only by an explicit request.
        (Some(was), None) if marked.is_some() => was,
        (_, wished) => registry::grace_secs(object, wished),
    };
    let pending = marked.is_some() && was.is_some_and(|was| was <= grace);
    let mut next = object.clone();
    // The finalizers of a pod within its grace period are unchanged.
    if !(pending && registry::has_grace(object)) {
        set_finalizers(&mut next, propagate::finalizers(object, options.propagation));
    }
    if marked.is_none() {
        registry::add_deletion_finalizers(&mut next);
    }
    if grace == 0 && !registry::has_finalizers(&next) {
        return DeletionStep::Remove;
    }
    if pending {
        return if next == *object {
            DeletionStep::Wait
        } else {
            DeletionStep::Mark(Box::new(next))
        };
    }
    let metadata = next.metadata_mut();
    metadata.insert("deletionTimestamp", timestamp(end_of_grace(marked, was, grace, now)));
    if registry::shows_grace(object) {
        metadata.insert("deletionGracePeriodSeconds", grace);
    }
    if next.generation() > 0 && marked.is_none() {
        next.set_generation(next.generation().saturating_add(1));
    }
    registry::mark_deleted(&mut next);
    DeletionStep::Mark(Box::new(next))
}

/// The end of a grace period of `grace` seconds, counted from the first deletion request and never in the past.
fn end_of_grace(
    marked: Option<OffsetDateTime>,
    was: Option<i64>,
    grace: i64,
    now: OffsetDateTime,
) -> OffsetDateTime {
    let first_requested =
        marked.and_then(|at| at.checked_sub(Duration::seconds(was.unwrap_or(0)))).unwrap_or(now);
    first_requested.checked_add(Duration::seconds(grace)).unwrap_or(now).max(now)
}

fn set_finalizers(object: &mut Object, finalizers: Vec<String>) {
    if object.finalizers().eq(finalizers.iter().map(String::as_str)) {
        return;
    }
    let metadata = object.metadata_mut();
    if finalizers.is_empty() {
        metadata.remove("finalizers");
    } else {
        let finalizers: Vec<Value> = finalizers.into_iter().map(Value::from).collect();
        metadata.insert("finalizers", finalizers);
    }
}

fn dry_run(step: DeletionStep, old: Arc<StoredObject>) -> VerbResponse {
    match step {
        DeletionStep::Mark(object) => VerbResponse::Object { code: 200, object },
        DeletionStep::Remove | DeletionStep::Wait => deletion_response(old),
    }
}

/// Applies one step; `None` after a conflicting write.
async fn apply_step(
    call: &RequestContext<'_>,
    old: &Arc<StoredObject>,
    step: DeletionStep,
) -> Result<Option<VerbResponse>, ApiError> {
    let key = call.key();
    let store = &call.server.store;
    let _held = registry::hold_allocations(call.server, old.object()).await;
    let (written, removed) = match step {
        DeletionStep::Wait => {
            return Ok(Some(VerbResponse::Stored { code: 200, record: old.clone() }));
        }
        DeletionStep::Remove => (store.write(Write::delete(key, old.revision())).await, true),
        DeletionStep::Mark(object) => {
            // The server's own deletions need no webhook: the object stays in its version.
            let stored = match call.notes {
                Some(_) => conversion::into_storage(call.asker(), *object).await?,
                None => *object,
            };
            let draft = Draft::new(&call.server.engine, stored);
            (store.write(Write::update(key, old.revision(), draft)).await, false)
        }
    };
    match written {
        Ok(committed) if removed => {
            registry::release(call.server, committed.record.object());
            Ok(Some(deletion_response(committed.record)))
        }
        Ok(committed) => Ok(Some(VerbResponse::Stored { code: 200, record: committed.record })),
        Err(WriteError::Conflict { .. }) => Ok(None),
        Err(WriteError::NotFound { .. }) => Err(ApiError::not_found(call.about())),
        Err(error) => Err(write_failed(&error)),
    }
}

/// The response to a removal: the object for some resources, a Status for most.
fn deletion_response(record: Arc<StoredObject>) -> VerbResponse {
    if record.object().kind.is_returned_on_delete() {
        VerbResponse::Stored { code: 200, record }
    } else {
        VerbResponse::Deleted { record }
    }
}

/// Group, resource and name of a removed object, for the details of its Status.
#[must_use]
pub fn about_deleted<'a>(object: &'a Object) -> StatusTarget<'a> {
    StatusTarget { group: &object.kind.group, kind: object.kind.plural(), name: object.name() }
}

#[cfg(test)]
mod tests;
