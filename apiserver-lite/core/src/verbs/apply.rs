//! apply: merges a configuration into an object, or creates it, and makes the requester owner of what the configuration names.

use std::sync::Arc;

use apiserver_schema::update::Subresource;
use apiserver_schema::{Format, Object, Strictness, Value};
use bytes::Bytes;

use super::create::create_applied;
use super::ownership::{self, AppliedTree, Owners};
use super::update::{check_create, check_precondition};
use super::update_common::{
    CONFLICT_TRIES, Precondition, UpdateAttempt, commit_owned, object_error, strictness,
};
use super::{VerbOutput, VerbResponse};
use crate::context::RequestContext;
use crate::options;
use crate::status::ApiError;
use crate::versions;

/// Applies the configuration in the request's body.
///
/// # Errors
/// 409 for fields that others own, unless `force` is set; 422 without `fieldManager`; 400 for a configuration that is no object of the kind; errors of
/// admission and validation.
pub async fn apply(
    call: &RequestContext<'_>,
    subresource: Subresource,
    body: Bytes,
) -> Result<VerbOutput, ApiError> {
    let effects = call.effects()?;
    let strictness = strictness(call)?;
    let force = options::apply_force(call.query)?;
    let config = call.server.engine.parse_document(Format::Yaml, &body);
    let config = config.map_err(|error| object_error(&error))?;
    check_identity(call, &config)?;
    for _ in 0..CONFLICT_TRIES {
        let request = call.request;
        let Some(old) = call.server.find(&call.kind, &request.namespace, &request.name) else {
            if subresource != Subresource::Main {
                return Err(ApiError::not_found(call.about()));
            }
            check_create(call).await?;
            let uid = meta(&config, "uid");
            if !uid.is_empty() {
                let why = format!(
                    "uid mismatch: the provided object specified uid {uid}, and no existing object was found"
                );
                return Err(ApiError::conflict(call.about(), &why));
            }
            let applied = ownership::apply(call, None, config.clone(), force)?;
            let (mut object, warnings) = object_of(call, applied.tree, strictness)?;
            object.set_meta_str("name", &request.name);
            match create_applied(call, object, applied.managed_fields, effects).await {
                // Another request has created it.
                Err(error) if error.code() == 409 && error.is_already_exists() => continue,
                created => return with_warnings(created, warnings),
            }
        };
        let AppliedTree { tree, changed, managed_fields } =
            ownership::apply(call, Some(old.object()), config.clone(), force)?;
        let stored = old.object().metadata().and_then(|metadata| metadata.get("managedFields"));
        if !changed && stored == managed_fields.as_ref() {
            return Ok(VerbResponse::Stored { code: 200, record: old }.into());
        }
        let (object, warnings) = object_of(call, tree, strictness)?;
        let precondition = check_precondition(call, &object, old.object())?;
        let owners = Owners::Applied(managed_fields);
        match commit_owned(call, &old, object, owners, subresource, effects).await? {
            UpdateAttempt::Done(output) => return with_warnings(Ok(output), warnings),
            UpdateAttempt::Conflict
                if precondition == Precondition::IfUnchanged && names_revision(&config) =>
            {
                break;
            }
            UpdateAttempt::Conflict => {}
        }
    }
    Err(ApiError::modified(call.about()))
}

fn with_warnings(
    output: Result<VerbOutput, ApiError>,
    warnings: Vec<String>,
) -> Result<VerbOutput, ApiError> {
    output.map(|mut output| {
        output.warnings.splice(..0, warnings);
        output
    })
}

/// Whether the configuration is for one version of the object.
fn names_revision(config: &Value) -> bool {
    !meta(config, "resourceVersion").is_empty()
}

fn meta<'a>(config: &'a Value, field: &str) -> &'a str {
    config.as_map().and_then(|config| config.map("metadata")).map_or("", |meta| meta.str(field))
}

/// The object that a tree of the requested version is, in the stored version, with the warnings of decoding it.
fn object_of(
    call: &RequestContext<'_>,
    tree: Value,
    strictness: Strictness,
) -> Result<(Object, Vec<String>), ApiError> {
    let decoded = call.server.engine.object_of(&call.requested_version, tree, strictness);
    let decoded = decoded.map_err(|error| object_error(&error))?;
    let object = match Arc::ptr_eq(&call.requested_version, &call.kind) {
        true => decoded.object,
        false => versions::convert(&decoded.object, &call.kind),
    };
    Ok((object, decoded.warnings))
}

/// Refuses a configuration of another kind or object than that of the path.
fn check_identity(call: &RequestContext<'_>, config: &Value) -> Result<(), ApiError> {
    let Some(fields) = config.as_map() else {
        let shape = config.shape();
        return Err(ApiError::bad_request(format!(
            "the applied configuration is of type {shape}, it must be an object"
        )));
    };
    let kind = fields.str("kind");
    if kind != call.requested_version.kind {
        let wanted = call.requested_version.kind;
        return Err(ApiError::bad_request(format!(
            "the kind of the applied configuration ({kind:?}) is not that of the path ({wanted:?})"
        )));
    }
    for (field, wanted) in [("name", &call.request.name), ("namespace", &call.request.namespace)] {
        let given = meta(config, field);
        if !given.is_empty() && given != wanted {
            return Err(ApiError::bad_request(format!(
                "the {field} of the object ({given}) does not match the {field} on the URL ({wanted})"
            )));
        }
    }
    Ok(())
}
