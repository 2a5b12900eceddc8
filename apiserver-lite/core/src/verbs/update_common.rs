//! Updates of a stored object: what update, patch and scale have in common.

use std::sync::Arc;

use apiserver_audit::ObjectIdentity;
use apiserver_managed_fields::{keep_times, set_managed_fields};
use apiserver_schema::update::{Subresource, merge_for_update};
use apiserver_schema::{DecodeError, DecodedObject, FieldErrors, Format, Object, Strictness};
use apiserver_store::{Write, WriteError};

use super::ownership::{self, Owners};
use super::quotas::{self, ObjectChange};
use super::{VerbOutput, VerbResponse};
use crate::admission::{self, Operation, RestoreFields, Reviewed, WebhookOperation, WebhookReview};
use crate::context::{RequestContext, about_kind};
use crate::conversion;
use crate::key;
use crate::options::Effects;
use crate::record::{Draft, StoredObject};
use crate::status::{ApiError, FieldProblem, StatusTarget};
use crate::{registry, versions};

/// Attempts of an unconditional update while other writes change the same object.
pub const CONFLICT_TRIES: usize = 16;

/// Whether an update is conditional.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precondition {
    /// Only if the object still has the revision that the client read.
    IfUnchanged,
    /// Whatever the current revision is.
    Unconditional,
}

/// Result of one compare-and-swap of an object.
pub enum UpdateAttempt {
    /// The object was written, or the update changes nothing.
    Done(VerbOutput),
    /// Another write changed the object first.
    Conflict,
}

/// Decodes a body as the requested version of the kind, and converts it to the stored version.
///
/// # Errors
/// 400 naming what is wrong with it.
pub fn decode(
    call: &RequestContext<'_>,
    body: &[u8],
    format: Format,
) -> Result<DecodedObject, ApiError> {
    let mut decoded = decode_as(call, &call.requested_version, body, format)?;
    if !Arc::ptr_eq(&call.requested_version, &call.kind) {
        decoded.object = versions::convert(&decoded.object, &call.kind);
    }
    Ok(decoded)
}

/// Decodes a body as an object of `kind`, with the request's `fieldValidation`.
///
/// # Errors
/// 400 naming what is wrong with it; 413 if it has too many values.
pub fn decode_as(
    call: &RequestContext<'_>,
    kind: &Arc<apiserver_schema::Kind>,
    body: &[u8],
    format: Format,
) -> Result<DecodedObject, ApiError> {
    let decoded = call.server.engine.decode(kind, format, body, strictness(call)?);
    let decoded = decoded.map_err(|error| match error {
        DecodeError::Strict(_) => {
            let (kind, version) = (kind.kind(), kind.version());
            let text =
                format!("{kind} in version {version:?} cannot be handled as a {kind}: {error}");
            ApiError::bad_request(text)
        }
        error => object_error(&error),
    })?;
    audit_request(call, &decoded.object);
    Ok(decoded)
}

/// Records the object that the client sent, with defaults as in Kubernetes.
fn audit_request(call: &RequestContext<'_>, object: &Object) {
    if !call.audit.is_on() {
        return;
    }
    call.audit.describe_object(ObjectIdentity {
        namespace: object.namespace(),
        name: object.name(),
        uid: object.uid(),
        resource_version: object.resource_version(),
    });
    if call.audit.records_requests() {
        let (engine, mut object) = (&call.server.engine, object.clone());
        engine.default(&mut object);
        call.audit.set_request_object(&engine.encode_json(&object));
    }
}

/// Parses the query parameter `fieldValidation`.
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
            Err(ApiError::invalid(
                StatusTarget { kind: "Options", ..StatusTarget::default() },
                &[problem],
            ))
        }
    }
}

/// The 400 for a body that cannot be decoded, the 413 for one with too many values.
#[must_use]
pub fn object_error(error: &DecodeError) -> ApiError {
    match error {
        DecodeError::TooLarge(_) => ApiError::new(413, "RequestEntityTooLarge", error.to_string()),
        _ => ApiError::bad_request(error.to_string()),
    }
}

/// The 422 for an object with validation errors.
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

/// The Status of a failed write that is neither a conflict nor a missing object.
pub fn write_failed(error: &WriteError<StoredObject>) -> ApiError {
    match error {
        WriteError::Size { max, .. } => ApiError::too_large(crate::request::BODY_LEN_MAX.min(*max)),
        // The same request finds the address or port taken, or takes another one.
        WriteError::Claimed { claim, .. } => ApiError::too_many_requests(
            format!("{claim} was allocated through another API server at the same time"),
            1,
        ),
        WriteError::Closed | WriteError::ReadOnly { .. } | WriteError::NotWritten { .. } => {
            ApiError::unavailable(error.to_string())
        }
        other => ApiError::internal(other),
    }
}

/// Merges `wanted` into `old` as far as `subresource` allows, admits, validates and commits the result. What it changes becomes the requester's.
///
/// # Errors
/// Errors of admission, validation and the store.
pub async fn commit_update(
    call: &RequestContext<'_>,
    old: &Arc<StoredObject>,
    wanted: Object,
    subresource: Subresource,
    effects: Effects,
) -> Result<UpdateAttempt, ApiError> {
    commit_owned(call, old, wanted, Owners::Compared, subresource, effects).await
}

/// [`commit_update`] of an object whose fields have these owners.
///
/// # Errors
/// Errors of admission, validation and the store.
pub(crate) async fn commit_owned(
    call: &RequestContext<'_>,
    old: &Arc<StoredObject>,
    mut wanted: Object,
    owners: Owners,
    subresource: Subresource,
    effects: Effects,
) -> Result<UpdateAttempt, ApiError> {
    old.check_readable()?;
    let before = old.object();
    // Its version may have gone since the request began, and with it the rules by which it is checked.
    if call.kind.custom().is_some() && call.requested_version.custom_version().is_none() {
        return Err(ApiError::no_such_resource());
    }
    // Defaulted before the merge, because `generation` is compared with the defaulted old object.
    call.server.engine.default(&mut wanted);
    registry::default(&mut wanted);
    let dropped = call.server.engine.drop_disabled(&mut wanted, Some(before));
    admission::warn_of_dropped(call, dropped.iter().filter(|field| field.is_part_of(subresource)));
    let managed_fields = match owners {
        Owners::Compared => ownership::of_updated(call, before, &wanted).await,
        Owners::Applied(managed_fields) => managed_fields,
    };
    let mut object = merge_for_update(before, &wanted, subresource);
    let operation = if subresource == Subresource::Main {
        Operation::Update
    } else {
        Operation::UpdateSubresource
    };
    let mut review = webhooks_of_updated(call, before, effects)?;
    if review.is_some() {
        set_managed_fields(&mut object, managed_fields.clone());
        object.set_meta_str("resourceVersion", before.resource_version());
    }
    // Webhooks may change what the request may change, too.
    let settle = |object: &mut Object| -> Result<(), ApiError> {
        *object = merge_for_update(before, object, subresource);
        Ok(())
    };
    let webhooks = review.as_mut().map(|review| (review, &settle as &RestoreFields<'_>));
    let warnings = admission::admit(call, operation, &mut object, Some(before), webhooks).await?;
    registry::prepare_update(&mut object, before, subresource);
    set_managed_fields(&mut object, managed_fields);
    keep_times(before, &mut object);
    object.set_meta_str("resourceVersion", before.resource_version());
    let checked = call.server.engine.validate_update(before, &object, subresource);
    checked.map_err(|errors| invalid(&object, &errors))?;
    if subresource == Subresource::Main {
        let checked = registry::validate(&object, Some(before), call.server.names);
        checked.map_err(|errors| invalid(&object, &errors))?;
    }
    if let Some(review) = &review {
        Box::pin(review.validate(Some(&object))).await?;
    }
    // An update that changes nothing is written when the object is stored with another key than objects are encrypted with now: so keys are rotated.
    let is_stale = || {
        call.server.store.is_stale(&key::object(&object.kind, object.namespace(), object.name()))
    };
    if object == *before && !old.is_outdated() && !is_stale() {
        let response = VerbResponse::Stored { code: 200, record: old.clone() };
        return Ok(UpdateAttempt::Done(VerbOutput { response, warnings }));
    }
    if subresource == Subresource::Main {
        quotas::check(call, ObjectChange { new: &object, old: Some(before) }).await?;
    }
    let reserved = registry::reserve(call.server, &mut object, Some(before)).await?;
    if effects == Effects::DryRun {
        let response = VerbResponse::Object { code: 200, object: Box::new(object) };
        return Ok(UpdateAttempt::Done(VerbOutput { response, warnings }));
    }
    let mut tried = write_update(call, old, object, subresource).await?;
    if let UpdateAttempt::Done(output) = &mut tried {
        output.warnings = warnings;
        reserved.commit();
    }
    Ok(tried)
}

/// The webhooks that may be called for an update. Those of a scale receive the scale, not its object.
fn webhooks_of_updated<'a>(
    call: &'a RequestContext<'a>,
    before: &'a Object,
    effects: Effects,
) -> Result<Option<WebhookReview<'a>>, ApiError> {
    if call.request.subresource == "scale" {
        return Ok(None);
    }
    let (operation, kind, old) = (WebhookOperation::Update, &call.requested_version, Some(before));
    WebhookReview::begin(call, Reviewed { operation, kind, old, effects, deletion: None })
}

async fn write_update(
    call: &RequestContext<'_>,
    old: &Arc<StoredObject>,
    object: Object,
    subresource: Subresource,
) -> Result<UpdateAttempt, ApiError> {
    let key = key::object(&object.kind, object.namespace(), object.name());
    // The last finalizer of a deleted object was removed: the object is removed with it.
    if registry::is_finished(&object) {
        return match call.server.store.write(Write::delete(key, old.revision())).await {
            Ok(committed) => {
                registry::release(call.server, committed.record.object());
                let record = committed.record;
                Ok(UpdateAttempt::Done(VerbResponse::Stored { code: 200, record }.into()))
            }
            Err(error) => conflict_or_error(call, &error),
        };
    }
    let update = |draft| Write::update(key.clone(), old.revision(), draft);
    let written = match subresource {
        Subresource::Main => {
            let change = ObjectChange { new: &object, old: Some(old.object()) };
            quotas::commit(call, change, update).await?
        }
        _ => {
            let stored = conversion::into_storage(call.asker(), object).await?;
            call.server.store.write(update(Draft::new(&call.server.engine, stored))).await
        }
    };
    match written {
        Ok(committed) => {
            let record = committed.record;
            Ok(UpdateAttempt::Done(VerbResponse::Stored { code: 200, record }.into()))
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
