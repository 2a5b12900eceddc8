//! update: replaces an object, if its resourceVersion is still the one in the request.

use apiserver_schema::Object;
use apiserver_schema::update::Subresource;
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
    fill_name(call, &mut object)?;
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
        if !registry::updates_unconditionally(object) && object.resource_version().is_empty() {
            let detail = "must be specified for an update";
            let problem = FieldProblem::invalid("metadata.resourceVersion", "0x0", detail);
            return Err(ApiError::invalid(about_kind(object), &[problem]));
        }
        let precondition = check_precondition(call, object, old.object())?;
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

/// Compares resourceVersion and uid in the request with those of the stored object.
pub(super) fn check_precondition(
    call: &RequestContext<'_>,
    wanted: &Object,
    stored: &Object,
) -> Result<Precondition, ApiError> {
    if !wanted.uid().is_empty() && wanted.uid() != stored.uid() {
        let why = format!(
            "Precondition failed: UID in precondition: {}, UID in object meta: {}",
            wanted.uid(),
            stored.uid()
        );
        return Err(ApiError::conflict(call.about(), &why));
    }
    match wanted.resource_version() {
        "" | "0" => Ok(Precondition::Unconditional),
        revision if revision == stored.resource_version() => Ok(Precondition::IfUnchanged),
        _ => Err(ApiError::modified(call.about())),
    }
}

fn fill_name(call: &RequestContext<'_>, object: &mut Object) -> Result<(), ApiError> {
    super::create::fill_namespace(call, object)?;
    if object.name().is_empty() {
        object.set_meta_str("name", &call.request.name);
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
