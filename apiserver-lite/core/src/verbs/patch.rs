//! patch: applies a patch to the newest version of an object, and again after conflicting writes, a bounded number of times.

use std::sync::Arc;

use apiserver_schema::update::Subresource;
use apiserver_schema::{DecodeError, PatchError, PatchType};
use bytes::Bytes;

use super::VerbOutput;
use super::update::{check_revision, refuse_deletion};
use super::update_common::{
    CONFLICT_TRIES, UpdateAttempt, commit_update, object_error, strictness,
};
use crate::context::RequestContext;
use crate::options;
use crate::status::{ApiError, FieldProblem, StatusTarget};
use crate::versions;

/// Patches the requested object.
///
/// # Errors
/// 400 for a malformed patch, 422 for one that does not apply, 409 when it sets another resourceVersion, 404 when the object
/// does not exist; errors of admission and validation.
pub async fn patch(
    call: &RequestContext<'_>,
    subresource: Subresource,
    kind: PatchType,
    body: Bytes,
) -> Result<VerbOutput, ApiError> {
    let effects = call.effects()?;
    options::refuse_force(call.query)?;
    let strictness = strictness(call)?;
    for _ in 0..CONFLICT_TRIES {
        let old = call.current().await?;
        let shown = old.as_version(&call.requested_version);
        let patched = call.server.engine.patch(shown.object(), kind, &body, strictness);
        let patched = patched.map_err(|error| patch_error(call, &error))?;
        let mut patched = patched.map_err(|error| patched_error(call, &error))?;
        if !Arc::ptr_eq(&call.requested_version, &call.kind) {
            patched.object = versions::convert(&patched.object, &call.kind);
        }
        if patched.object.namespace().is_empty() {
            patched.object.set_meta_str("namespace", old.object().namespace());
        }
        if patched.object.name() != old.object().name()
            || patched.object.namespace() != old.object().namespace()
        {
            return Err(ApiError::bad_request(
                "the name and namespace of an object cannot be patched",
            ));
        }
        // A uid is no precondition of a patch: another one is refused as a change.
        check_revision(call, &patched.object, old.object())?;
        refuse_deletion(&patched.object, old.object())?;
        match commit_update(call, &old, patched.object, subresource, effects).await? {
            UpdateAttempt::Done(mut output) => {
                output.warnings.splice(..0, patched.warnings);
                return Ok(output);
            }
            // A patch that sets or tests the old resourceVersion no longer fits the newer object, and is refused when it is applied to it.
            UpdateAttempt::Conflict => {}
        }
    }
    Err(ApiError::modified(call.about()))
}

/// The error of a patch that cannot be applied.
pub(crate) fn patch_error(call: &RequestContext<'_>, error: &PatchError) -> ApiError {
    match error {
        PatchError::Malformed(_) => ApiError::bad_request(error.to_string()),
        PatchError::TooManyOperations(_) | PatchError::TooLarge(_) => {
            ApiError::new(413, "RequestEntityTooLarge", error.to_string())
        }
        PatchError::Inapplicable(text) => unprocessable(call, text),
    }
}

/// The error of a patch whose result is not a valid object of the kind.
pub(crate) fn patched_error(call: &RequestContext<'_>, error: &DecodeError) -> ApiError {
    match error {
        DecodeError::Type { .. } | DecodeError::Strict(_) => {
            unprocessable(call, &error.to_string())
        }
        _ => object_error(error),
    }
}

fn unprocessable(call: &RequestContext<'_>, text: &str) -> ApiError {
    let about =
        StatusTarget { group: &call.kind.group, kind: call.kind.kind(), name: &call.request.name };
    ApiError::invalid(about, &[FieldProblem::invalid("patch", "the patch", text)])
}
