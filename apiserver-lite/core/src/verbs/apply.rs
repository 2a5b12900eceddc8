//! apply: merges a configuration into an object, or creates it, and makes the requester owner of what the configuration names.

use std::sync::Arc;

use apiserver_schema::update::Subresource;
use apiserver_schema::{Format, Object, Strictness, Value};
use bytes::Bytes;

use super::create::create_applied;
use super::ownership::{self, AppliedTree, Owners};
use super::update::{check_create, check_revision, refuse_deletion};
use super::update_common::{CONFLICT_TRIES, UpdateAttempt, commit_owned, object_error, strictness};
use super::{VerbOutput, VerbResponse};
use crate::context::RequestContext;
use crate::options::{self, Effects};
use crate::record::StoredObject;
use crate::status::ApiError;
use crate::versions;

/// What is applied, and how.
struct Applied<'a> {
    call: &'a RequestContext<'a>,
    config: Value,
    force: bool,
    effects: Effects,
    strictness: Strictness,
    /// Warnings of reading the configuration.
    warnings: Vec<String>,
}

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
    let parsed = call.server.engine.parse_document(Format::Yaml, &body, strictness);
    let (mut config, warnings) = parsed.map_err(|error| object_error(&error))?;
    if call.request.namespace.is_empty() {
        forget_namespace(&mut config);
    }
    check_identity(call, call.requested_version.kind(), &config)?;
    let applied = Applied { call, config, force, effects, strictness, warnings };
    for _ in 0..CONFLICT_TRIES {
        let found = call.find(&call.request.namespace, &call.request.name).await?;
        let tried = match found {
            Some(old) => applied.update(&old, subresource).await?,
            None if subresource == Subresource::Main => applied.create().await?,
            None => return Err(ApiError::not_found(call.about())),
        };
        match tried {
            UpdateAttempt::Done(mut output) => {
                output.warnings.splice(..0, applied.warnings);
                return Ok(output);
            }
            UpdateAttempt::Conflict if !meta(&applied.config, "resourceVersion").is_empty() => {
                break;
            }
            UpdateAttempt::Conflict => {}
        }
    }
    Err(ApiError::modified(call.about()))
}

impl Applied<'_> {
    /// Creates the object. Another request that creates it first is a conflict.
    async fn create(&self) -> Result<UpdateAttempt, ApiError> {
        let call = self.call;
        check_create(call).await?;
        let uid = meta(&self.config, "uid");
        if !uid.is_empty() {
            let why = format!(
                "uid mismatch: the provided object specified uid {uid}, and no existing object was found"
            );
            return Err(ApiError::conflict(call.about(), &why));
        }
        let AppliedTree { tree, managed_fields, .. } =
            ownership::apply(call, None, &self.config, self.force).await?;
        check_named(call, &tree)?;
        let (object, warnings) = object_of(call, tree, None, self.strictness)?;
        match create_applied(call, object, managed_fields, self.effects).await {
            Err(error) if error.is_already_exists() => Ok(UpdateAttempt::Conflict),
            created => Ok(UpdateAttempt::Done(with_warnings(created?, warnings))),
        }
    }

    async fn update(
        &self,
        old: &Arc<StoredObject>,
        subresource: Subresource,
    ) -> Result<UpdateAttempt, ApiError> {
        let call = self.call;
        let before = old.object();
        let AppliedTree { tree, changed, managed_fields } =
            ownership::apply(call, Some(before), &self.config, self.force).await?;
        let stored = before.metadata().and_then(|metadata| metadata.get("managedFields"));
        if !changed && stored == managed_fields.as_ref() {
            let unchanged = VerbResponse::Stored { code: 200, record: old.clone() };
            return Ok(UpdateAttempt::Done(unchanged.into()));
        }
        check_named(call, &tree)?;
        let (object, warnings) = object_of(call, tree, Some(before), self.strictness)?;
        // A uid is no precondition, as of a patch: another one is refused as a change.
        check_revision(call, &object, before)?;
        refuse_deletion(&object, before)?;
        let owners = Owners::Applied(managed_fields);
        let tried = commit_owned(call, old, object, owners, subresource, self.effects).await?;
        Ok(match tried {
            UpdateAttempt::Done(output) => UpdateAttempt::Done(with_warnings(output, warnings)),
            UpdateAttempt::Conflict => UpdateAttempt::Conflict,
        })
    }
}

fn with_warnings(mut output: VerbOutput, warnings: Vec<String>) -> VerbOutput {
    output.warnings.splice(..0, warnings);
    output
}

fn meta<'a>(config: &'a Value, field: &str) -> &'a str {
    config.as_map().and_then(|config| config.map("metadata")).map_or("", |meta| meta.str(field))
}

/// Removes the namespace of a configuration. As in Kubernetes that of an object which lies in none is ignored.
fn forget_namespace(config: &mut Value) {
    if let Some(metadata) = config.as_map_mut().and_then(|config| config.map_mut("metadata")) {
        metadata.remove("namespace");
    }
}

/// Refuses what has no name after an apply: one that makes an object has to name it, and none may take the name away.
fn check_named(call: &RequestContext<'_>, tree: &Value) -> Result<(), ApiError> {
    if meta(tree, "name").is_empty() {
        return Err(ApiError::bad_request(format!(
            "the name of the object ({} based on URL) was undeterminable: name must be provided",
            call.request.name
        )));
    }
    Ok(())
}

/// The object that a tree of the requested version is, in the stored version, with the warnings of decoding it.
fn object_of(
    call: &RequestContext<'_>,
    tree: Value,
    old: Option<&Object>,
    strictness: Strictness,
) -> Result<(Object, Vec<String>), ApiError> {
    let decoded = call.server.engine.applied(&call.requested_version, tree, old, strictness);
    let decoded = decoded.map_err(|error| object_error(&error))?;
    let object = match Arc::ptr_eq(&call.requested_version, &call.kind) {
        true => decoded.object,
        false => versions::convert(&decoded.object, &call.kind),
    };
    Ok((object, decoded.warnings))
}

/// Refuses a configuration of another kind than `wanted`, or of another object than that of the path.
pub(crate) fn check_identity(
    call: &RequestContext<'_>,
    wanted: &str,
    config: &Value,
) -> Result<(), ApiError> {
    let Some(fields) = config.as_map() else {
        let shape = config.shape();
        return Err(ApiError::bad_request(format!(
            "the applied configuration is of type {shape}, it must be an object"
        )));
    };
    let kind = fields.str("kind");
    if kind != wanted {
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
