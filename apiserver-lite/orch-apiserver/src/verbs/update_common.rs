//! Changing a stored object: the part that update, patch and the acting subresources have in common.

use std::sync::Arc;

use apiserver_schema::update::{Subresource, merge_for_update};
use apiserver_schema::{DecodeError, Decoded, FieldErrors, Format, Object, Strictness};
use apiserver_store::{Write, WriteError};

use super::{Effects, RequestContext, VerbResponse};
use crate::admission::{self, Operation};
use crate::key;
use crate::record::{Draft, StoredObject};
use crate::registry::{self, versions};
use crate::status::{About, ApiError, FieldProblem};

/// Tries of a change that does not insist on a revision, while others change the same object.
pub const CONFLICT_TRIES: usize = 16;

/// What a change insists on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precondition {
    /// The caller read this version and wants to change just that one.
    IfUnchanged,
    /// Apply to whatever is there now.
    Unconditional,
}

/// VerbOutput of one try to change an object.
pub enum UpdateAttempt {
    /// Done, or nothing to do.
    Done(VerbResponse),
    /// Another write came first; this is what is there now.
    Conflict,
}

/// Decodes a body as the kind of the request's resource.
///
/// # Errors
/// 400 naming what is wrong with it.
pub fn decode(call: &RequestContext<'_>, body: &[u8], format: Format) -> Result<Decoded, ApiError> {
    let mut decoded = decode_as(call, &call.requested_version, body, format)?;
    if !Arc::ptr_eq(&call.requested_version, &call.kind) {
        decoded.object = versions::convert(&decoded.object, &call.kind);
    }
    Ok(decoded)
}

/// Decodes a body as `kind`.
///
/// # Errors
/// 400 naming what is wrong with it.
pub fn decode_as(
    call: &RequestContext<'_>,
    kind: &Arc<apiserver_schema::Kind>,
    body: &[u8],
    format: Format,
) -> Result<Decoded, ApiError> {
    let decoded = call.server.engine.decode(kind, format, body, strictness(call)?);
    decoded.map_err(|error| object_error(&error))
}

/// What `fieldValidation` asks for.
///
/// # Errors
/// 422 for an unknown value.
pub fn strictness(call: &RequestContext<'_>) -> Result<Strictness, ApiError> {
    match call.query.text("fieldValidation") {
        None | Some("Warn") => Ok(Strictness::Warn),
        Some("Ignore") => Ok(Strictness::Ignore),
        Some("Strict") => Ok(Strictness::Strict),
        Some(other) => {
            let problem = FieldProblem {
                reason: "FieldValueNotSupported".to_owned(),
                message: format!(
                    "Unsupported value: {other:?}: supported values: \"\", \"Ignore\", \"Strict\", \"Warn\""
                ),
                field: "fieldValidation".to_owned(),
            };
            Err(ApiError::invalid(About { kind: "Options", ..About::default() }, &[problem]))
        }
    }
}

/// A body that cannot be decoded.
#[must_use]
pub fn object_error(error: &DecodeError) -> ApiError {
    ApiError::bad_request(error.to_string())
}

/// What statuses about an invalid object name: its kind.
#[must_use]
pub fn about_kind(object: &Object) -> About<'_> {
    About { group: &object.kind.group, kind: object.kind.kind, name: object.name() }
}

/// An object that breaks rules.
#[must_use]
pub fn invalid(object: &Object, errors: &FieldErrors) -> ApiError {
    let problem = |error: &apiserver_schema::FieldError| FieldProblem {
        reason: error.cause.reason().to_owned(),
        message: error.message.clone(),
        field: error.field.clone(),
    };
    let problems: Vec<FieldProblem> = errors.0.iter().map(problem).collect();
    ApiError::invalid(about_kind(object), &problems)
}

/// A write that the store could not carry out for reasons of its own.
pub fn write_failed(error: &WriteError<StoredObject>) -> ApiError {
    match error {
        WriteError::Size { .. } => ApiError::too_large(crate::request::BODY_LEN_MAX),
        WriteError::Closed | WriteError::ReadOnly { .. } | WriteError::NotWritten { .. } => {
            ApiError::unavailable(error.to_string())
        }
        other => ApiError::internal(other),
    }
}

/// Makes `wanted` the successor of `old`, as far as `subresource` may, and commits it.
///
/// # Errors
/// Whatever admission, validation and the store have against it.
pub async fn commit_update(
    call: &RequestContext<'_>,
    old: &Arc<StoredObject>,
    mut wanted: Object,
    subresource: Subresource,
    effects: Effects,
) -> Result<UpdateAttempt, ApiError> {
    let before = old.object();
    // Before the merge: a new generation is one that differs from the old object with its defaults.
    call.server.engine.default(&mut wanted);
    let mut object = merge_for_update(before, &wanted, subresource);
    let operation = if subresource == Subresource::Main {
        Operation::Update
    } else {
        Operation::UpdateSubresource
    };
    admission::admit(call, operation, &mut object, Some(before)).await?;
    registry::prepare_update(&mut object, before, subresource);
    object.set_meta_str("resourceVersion", before.resource_version());
    let checked = call.server.engine.validate_update(before, &object, subresource);
    checked.map_err(|errors| invalid(&object, &errors))?;
    if object == *before {
        return Ok(UpdateAttempt::Done(VerbResponse::Stored { code: 200, record: old.clone() }));
    }
    let reserved = registry::reserve(call.server, &mut object, Some(before))?;
    if effects == Effects::DryRun {
        return Ok(UpdateAttempt::Done(VerbResponse::Object {
            code: 200,
            object: Box::new(object),
        }));
    }
    let tried = write_update(call, old, object).await?;
    if matches!(tried, UpdateAttempt::Done(_)) {
        reserved.commit();
    }
    Ok(tried)
}

async fn write_update(
    call: &RequestContext<'_>,
    old: &Arc<StoredObject>,
    object: Object,
) -> Result<UpdateAttempt, ApiError> {
    let key = key::object(&object.kind, object.namespace(), object.name());
    // The last finalizer of a deleted object went away: the object follows.
    if registry::is_finished(&object) {
        return match call.server.store.write(Write::delete(key, old.revision())).await {
            Ok(committed) => {
                registry::release(call.server, committed.record.object());
                Ok(UpdateAttempt::Done(VerbResponse::Stored {
                    code: 200,
                    record: committed.record,
                }))
            }
            Err(error) => conflict_or_error(call, &error),
        };
    }
    let draft = Draft::new(&call.server.engine, object);
    match call.server.store.write(Write::update(key, old.revision(), draft)).await {
        Ok(committed) => {
            Ok(UpdateAttempt::Done(VerbResponse::Stored { code: 200, record: committed.record }))
        }
        Err(error) => conflict_or_error(call, &error),
    }
}

fn conflict_or_error(
    call: &RequestContext<'_>,
    error: &WriteError<StoredObject>,
) -> Result<UpdateAttempt, ApiError> {
    match error {
        WriteError::Conflict { .. } => Ok(UpdateAttempt::Conflict),
        WriteError::NotFound { .. } => Err(ApiError::not_found(call.about())),
        other => Err(write_failed(other)),
    }
}
