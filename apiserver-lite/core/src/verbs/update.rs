//! update: replaces an object, if its resourceVersion is still the one in the request.

use apiserver_schema::update::Subresource;
use apiserver_schema::{Object, Value};
use bytes::Bytes;

use super::VerbOutput;
use super::update_common::{CONFLICT_TRIES, Precondition, UpdateAttempt, commit_update, decode};
use crate::context::{RequestContext, about_kind};
use crate::options::Effects;
use crate::registry;
use crate::status::{ApiError, FieldProblem};
use apiserver_auth::{Attributes, Decision};

/// Replaces the requested object.
///
/// # Errors
/// 409 when it has changed, 404 when it does not exist; errors of decoding, admission and validation.
pub async fn update(
    call: &RequestContext<'_>,
    subresource: Subresource,
    body: Bytes,
    format: apiserver_schema::Format,
) -> Result<VerbOutput, ApiError> {
    let effects = call.effects()?;
    let decoded = decode(call, &body, format)?;
    let mut object = decoded.object;
    check_name(call, &mut object)?;
    let mut output = replace(call, &object, subresource, effects).await?;
    output.warnings.splice(..0, decoded.warnings);
    Ok(output)
}

async fn replace(
    call: &RequestContext<'_>,
    object: &Object,
    subresource: Subresource,
    effects: Effects,
) -> Result<VerbOutput, ApiError> {
    for _ in 0..CONFLICT_TRIES {
        let Some(old) = call.find(object.namespace(), object.name()).await? else {
            if subresource == Subresource::Main && registry::creates_on_update(&call.kind) {
                check_create(call).await?;
                let mut fresh = object.clone();
                fresh.set_meta_str("resourceVersion", "");
                return super::create_object(call, fresh, effects).await;
            }
            return Err(ApiError::not_found(call.about()));
        };
        check_uid(call, object, old.object())?;
        let precondition = check_revision(call, object, old.object())?;
        refuse_deletion(object, old.object())?;
        match commit_update(call, &old, object.clone(), subresource, effects).await? {
            UpdateAttempt::Done(output) => return Ok(output),
            UpdateAttempt::Conflict if precondition == Precondition::IfUnchanged => break,
            UpdateAttempt::Conflict => {}
        }
    }
    Err(ApiError::modified(call.about()))
}

/// Authorizes the create of an update whose object does not exist.
pub(super) async fn check_create(call: &RequestContext<'_>) -> Result<(), ApiError> {
    let attributes =
        Attributes { user: call.user, verb: "create", subject: call.request.subject() };
    let authorization = call.server.authorizer.authorize(&attributes).await;
    if authorization.decision == Decision::Allow {
        return Ok(());
    }
    Err(ApiError::forbidden(call.about(), &attributes.denial(&authorization.reason)))
}

/// Refuses a write that marks an object as deleted, or changes its grace: only a delete does. What it says of an object that is being deleted is ignored.
pub(super) fn refuse_deletion(wanted: &Object, stored: &Object) -> Result<(), ApiError> {
    if stored.deletion_timestamp().is_some() {
        return Ok(());
    }
    for field in ["deletionTimestamp", "deletionGracePeriodSeconds"] {
        let given = wanted.metadata().and_then(|metadata| metadata.get(field));
        if let Some(given) = given.filter(|given| **given != Value::Null) {
            let shown = given
                .as_str()
                .map_or_else(|| given.as_int().unwrap_or(0).to_string(), str::to_owned);
            let path = format!("metadata.{field}");
            let problem = FieldProblem::invalid(&path, &shown, "field is immutable");
            return Err(ApiError::invalid(about_kind(stored), &[problem]));
        }
    }
    Ok(())
}

/// Compares the uid in the request with that of the stored object.
pub(crate) fn check_uid(
    call: &RequestContext<'_>,
    wanted: &Object,
    stored: &Object,
) -> Result<(), ApiError> {
    if !wanted.uid().is_empty() && wanted.uid() != stored.uid() {
        let (wanted, found) = (wanted.uid(), stored.uid());
        return Err(ApiError::precondition_failed(call.about(), "UID", wanted, found));
    }
    Ok(())
}

/// Compares the resourceVersion in the request with that of the stored object.
pub(super) fn check_revision(
    call: &RequestContext<'_>,
    wanted: &Object,
    stored: &Object,
) -> Result<Precondition, ApiError> {
    match wanted.resource_version() {
        "" | "0" if registry::updates_unconditionally(&stored.kind) => {
            Ok(Precondition::Unconditional)
        }
        "" | "0" => {
            let detail = "must be specified for an update";
            let problem = FieldProblem::invalid("metadata.resourceVersion", "0x0", detail);
            Err(ApiError::invalid(about_kind(stored), &[problem]))
        }
        revision if revision == stored.resource_version() => Ok(Precondition::IfUnchanged),
        _ => Err(ApiError::modified(call.about())),
    }
}

fn check_name(call: &RequestContext<'_>, object: &mut Object) -> Result<(), ApiError> {
    super::create::fill_namespace(call, object)?;
    if object.name().is_empty() {
        return Err(ApiError::bad_request(format!(
            "the name of the object ({} based on URL) was undeterminable: name must be provided",
            call.request.name,
        )));
    }
    if object.name() != call.request.name {
        return Err(ApiError::bad_request(format!(
            "the name of the object ({}) does not match the name on the URL ({})",
            object.name(),
            call.request.name,
        )));
    }
    Ok(())
}
