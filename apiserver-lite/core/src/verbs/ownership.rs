//! Field ownership of a write: `metadata.managedFields` of what is created, updated or applied.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use apiserver_managed_fields::{
    Applied, ApplyError, CAUSE, ConvertError, FieldPath, ManagedFields, ReplicasPaths, Request,
    ResetFields, SeveralVersions, Structure, Versions, manager_of_user_agent, owners_of_scale,
    owners_of_scaled, reset_fields, set_managed_fields,
};
use apiserver_schema::{Kind, Object, Strictness, Value};
use proto_api::Time;
use proto_api::meta::v1::StatusCause;
use tokio::time::Instant;

use crate::context::RequestContext;
use crate::conversion;
use crate::field_ownership::ServedVersions;
use crate::status::ApiError;
use crate::times::now;
use crate::verbs::update_common::object_error;
use crate::versions::convert;
use crate::webhooks::CallError;

/// Whose the fields of a written object are.
pub enum Owners {
    /// The requester's, where the object differs from the stored one.
    Compared,
    /// As an apply has left them: `metadata.managedFields`.
    Applied(Option<Value>),
}

/// An applied object before it is checked as one of its kind.
pub struct AppliedTree {
    /// The object in the requested version.
    pub tree: Value,
    /// Whether it differs from the stored object, without the entries.
    pub changed: bool,
    /// `metadata.managedFields` to be stored.
    pub managed_fields: Option<Value>,
}

/// `metadata.managedFields` of a new object, which is defaulted and of the stored version. Entries that the client sent are kept if they can be read.
pub async fn of_created(call: &RequestContext<'_>, object: &Object) -> Option<Value> {
    let new = document(call, object);
    with_request(call, |request| request.create(new.clone()).unwrap_or_default()).await?
}

/// `metadata.managedFields` of an object that is written over `old`, both of the stored version. As in Kubernetes an object whose fields cannot be
/// compared has no entries.
pub async fn of_updated(call: &RequestContext<'_>, old: &Object, wanted: &Object) -> Option<Value> {
    let (live, new) = (document(call, old), document(call, wanted));
    let update = |request: &Request<'_>| request.update(live.clone(), new.clone());
    with_request(call, |request| update(request).unwrap_or_default()).await?
}

/// Applies `config` to the stored object, or to nothing.
///
/// # Errors
/// 409 for fields of others, 400 for a configuration that is no object of the kind, 413 if the object would have too many entries or owned
/// fields, 500 if the stored entries cannot be read.
pub async fn apply(
    call: &RequestContext<'_>,
    live: Option<&Object>,
    config: &Value,
    force: bool,
) -> Result<AppliedTree, ApiError> {
    let live = live.map(|live| document(call, live));
    let applied = with_request(call, |request| {
        let live = live.as_ref().unwrap_or(request.empty).clone();
        request.apply(live, config.clone(), force)
    })
    .await;
    let applied = applied.ok_or_else(ApiError::method_not_allowed)?;
    let applied = applied.map_err(|error| match &error {
        // Its conversion to the versions of other owners fails before it is checked.
        ApplyError::Internal(_) => misfit(call, config).unwrap_or_else(|| refusal(&error)),
        _ => refusal(&error),
    });
    let Applied { tree, changed, managed_fields } = applied?;
    Ok(AppliedTree { tree, changed, managed_fields })
}

/// Why a configuration is no object of its kind; `None` if it is one.
fn misfit(call: &RequestContext<'_>, config: &Value) -> Option<ApiError> {
    let engine = &call.server.engine;
    let object = engine.object_of(&call.requested_version, config.clone(), Strictness::Ignore);
    object.err().map(|error| object_error(&error))
}

/// Applies `config` to `scale`, the scale of a stored object. The owners that it returns are those of the object: of its replicas they are the
/// owners of the scale's.
///
/// # Errors
/// As [`apply`].
pub fn apply_scale(
    call: &RequestContext<'_>,
    parent: &Object,
    scale: &Object,
    config: &Value,
    force: bool,
) -> Result<AppliedTree, ApiError> {
    let server = call.server;
    let version = server.ownership.scale().ok_or_else(ApiError::method_not_allowed)?;
    let paths = replicas_paths(call);
    let stored = parent.metadata().and_then(|metadata| metadata.get("managedFields"));
    let owners =
        ManagedFields::decode(stored).map_err(|error| refusal(&ApplyError::Entries(error)))?;
    let unreadable = |error| refusal(&ApplyError::Bounds(error));
    let mut live = scale.clone();
    let of_scale = owners_of_scale(&owners, &paths).encode().map_err(unreadable)?;
    set_managed_fields(&mut live, of_scale);
    let applied = track_kind(call, version, (&scale.kind, &ResetFields::new()), |request| {
        request.apply(server.engine.written_document(&live), config.clone(), force)
    });
    let Applied { tree, changed, managed_fields } = applied.map_err(|error| refusal(&error))?;
    let of_scale = ManagedFields::decode(managed_fields.as_ref()).map_err(unreadable)?;
    let api_version = &call.requested_version.api_version;
    let owners = owners_of_scaled(&owners, of_scale, api_version, &paths);
    let managed_fields = owners.encode().map_err(unreadable)?;
    Ok(AppliedTree { tree, changed, managed_fields })
}

/// Where the versions of the scaled kind have their replicas. The path of a version without a scale is empty: nothing is there, and its entries stay.
fn replicas_paths(call: &RequestContext<'_>) -> ReplicasPaths {
    let (server, kind) = (call.server, &call.kind);
    if kind.custom().is_none() {
        let versions = server.ownership.versions(&server.engine, kind);
        let served: Vec<&str> = versions.iter().flat_map(ServedVersions::api_versions).collect();
        let path = || FieldPath::fields(&["spec", "replicas"]);
        return served.into_iter().map(|version| (version.to_owned(), path())).collect();
    }
    let found = server.definitions.find(&kind.group, kind.plural());
    let versions = found.iter().flat_map(|definition| &definition.versions);
    let served = versions.filter(|version| version.served);
    let path = |kind: &Kind| {
        let scale = kind.custom_version().and_then(|version| version.scale.clone());
        let path = scale.map(|scale| scale.spec_replicas).unwrap_or_default();
        FieldPath::fields(&path.iter().map(String::as_str).collect::<Vec<_>>())
    };
    served.map(|version| (version.kind.api_version.clone(), path(&version.kind))).collect()
}

fn refusal(error: &ApplyError) -> ApiError {
    match error {
        ApplyError::Conflicts(conflicts) => {
            let causes = conflicts.causes().into_iter().map(|cause| StatusCause {
                reason: CAUSE.to_owned(),
                message: cause.message,
                field: cause.field,
            });
            let conflict = ApiError::new(409, "Conflict", error.to_string());
            causes.fold(conflict, ApiError::because)
        }
        ApplyError::Version { .. }
        | ApplyError::NotAnObject(_)
        | ApplyError::ManagedFields
        | ApplyError::Tree { .. } => ApiError::bad_request(error.to_string()),
        ApplyError::Bounds(_) => ApiError::new(413, "RequestEntityTooLarge", error.to_string()),
        ApplyError::Entries(_) | ApplyError::Internal(_) => ApiError::internal(error),
    }
}

/// The object as a client of the requested version sees it.
fn document(call: &RequestContext<'_>, object: &Object) -> Value {
    let engine = &call.server.engine;
    if call.requested_version.api_version == object.kind.api_version {
        return engine.written_document(object);
    }
    engine.written_document(&convert(object, &call.requested_version))
}

/// Calls `track` with the request, unless its kind is not stored; again where it needs trees in other versions that a webhook has to convert first.
async fn with_request<T>(
    call: &RequestContext<'_>,
    track: impl Fn(&Request<'_>) -> T,
) -> Option<T> {
    let server = call.server;
    if call.kind.custom().is_none() {
        let versions = server.ownership.versions(&server.engine, &call.kind)?;
        return Some(track_versions(call, &versions, versions.api_versions(), track));
    }
    let structures = custom_structures(call);
    if conversion::webhook_version(&call.kind).is_none() {
        return Some(track_custom(call, &structures, &|tree, _, to| Ok(renamed(tree, to)), track));
    }
    let mut known = ConvertedTrees::default();
    let deadline = Instant::now() + CONVERSIONS_TIME;
    for _ in 0..CONVERSIONS_MAX {
        // The closure does not live while the webhook is called.
        let (tracked, missing) = {
            let missing = RefCell::new(None);
            let look_up = |tree: &Value, from: &str, to: &str| {
                let found = known.find(tree, to).cloned();
                found.unwrap_or_else(|| {
                    missing
                        .borrow_mut()
                        .get_or_insert_with(|| (tree.clone(), from.to_owned(), to.to_owned()));
                    Err(ConvertError::new("it is not converted yet"))
                })
            };
            let tracked = track_custom(call, &structures, &look_up, &track);
            (tracked, missing.into_inner())
        };
        let Some((tree, from, to)) = missing else { return Some(tracked) };
        let converted = match Instant::now() < deadline {
            true => Box::pin(converted(call, tree.clone(), &from, &to)).await,
            false => Err(ConvertError::new(CallError::Deadline)),
        };
        known.0.push((tree, to, converted));
    }
    let too_many =
        |_: &Value, _: &str, _: &str| Err(ConvertError::new("there are too many versions"));
    Some(track_custom(call, &structures, &too_many, track))
}

/// Most trees that a webhook converts for one write: a few for each version that has entries.
const CONVERSIONS_MAX: usize = 64;
/// After this time no other one is begun: a write holds its place for as long.
const CONVERSIONS_TIME: Duration = Duration::from_secs(30);

/// Trees with the versions that they were converted to, and what became of them.
#[derive(Default)]
struct ConvertedTrees(Vec<(Value, String, Result<Value, ConvertError>)>);

impl ConvertedTrees {
    fn find(&self, tree: &Value, to: &str) -> Option<&Result<Value, ConvertError>> {
        let mut all = self.0.iter();
        all.find(|(from, version, _)| version == to && from == tree)
            .map(|(.., converted)| converted)
    }
}

/// The tree in a version that differs in its name only.
fn renamed(tree: &Value, to: &str) -> Value {
    let mut tree = tree.clone();
    if let Some(fields) = tree.as_map_mut() {
        fields.insert("apiVersion", to);
    }
    tree
}

/// The tree of an object as the webhook of its definition converts it.
async fn converted(
    call: &RequestContext<'_>,
    tree: Value,
    from: &str,
    to: &str,
) -> Result<Value, ConvertError> {
    let (server, kind) = (call.server, &call.kind);
    let version = |api_version: &str| {
        let found = server.definitions.find(&kind.group, kind.plural());
        let mut versions = found.iter().flat_map(|definition| &definition.versions);
        let version = versions.find(|version| version.kind.api_version == api_version);
        let kind = version.map(|version| version.kind.clone());
        kind.ok_or_else(|| ConvertError::new(format!("version {api_version} is not served")))
    };
    let (from, to) = (version(from)?, version(to)?);
    let object = server.engine.object_of(&from, tree, Strictness::Ignore);
    let object = object.map_err(ConvertError::new)?.object;
    let converted = conversion::convert(call.asker(), &object, &to).await;
    let converted = converted.map_err(ConvertError::new)?;
    Ok(server.engine.written_document(&converted))
}

/// Calls `track` with the request for a custom kind.
fn track_custom<T>(
    call: &RequestContext<'_>,
    structures: &BTreeMap<String, Structure>,
    convert: &dyn Fn(&Value, &str, &str) -> Result<Value, ConvertError>,
    track: impl FnOnce(&Request<'_>) -> T,
) -> T {
    let versions = SeveralVersions { structures: structures.clone(), convert: Some(convert) };
    track_versions(call, &versions, structures.keys().map(String::as_str), track)
}

/// The structures of the served versions of a custom kind.
fn custom_structures(call: &RequestContext<'_>) -> BTreeMap<String, Structure> {
    let kind = &call.kind;
    let found = call.server.definitions.find(&kind.group, kind.plural());
    let versions = found.iter().flat_map(|definition| &definition.versions);
    let served = versions.filter(|version| version.served);
    served.map(|version| (version.kind.api_version.clone(), version.structure())).collect()
}

/// Calls `track` with the request for a kind with these versions.
fn track_versions<'v, T>(
    call: &RequestContext<'_>,
    versions: &dyn Versions,
    served: impl Iterator<Item = &'v str>,
    track: impl FnOnce(&Request<'_>) -> T,
) -> T {
    let (kind, subresource) = (&call.requested_version, call.request.subresource.as_str());
    let fields = reset_fields(kind.short_group, kind.kind(), kind.has_status(), subresource);
    let reset: ResetFields = served.map(|version| (version.to_owned(), fields.clone())).collect();
    track_kind(call, versions, (kind, &reset), track)
}

/// Calls `track` with the request for a kind with these versions, of which an endpoint resets these fields.
fn track_kind<T>(
    call: &RequestContext<'_>,
    versions: &dyn Versions,
    (kind, reset): (&Arc<Kind>, &ResetFields),
    track: impl FnOnce(&Request<'_>) -> T,
) -> T {
    let (server, subresource) = (call.server, call.request.subresource.as_str());
    let empty = server.engine.written_document(&Object::new(kind.clone()));
    let manager = match call.query.text("fieldManager") {
        Some(name) if !name.is_empty() => name.to_owned(),
        _ => manager_of_user_agent(call.user_agent),
    };
    let request = Request {
        versions,
        reset,
        api_version: &kind.api_version,
        subresource,
        manager: &manager,
        empty: &empty,
        now: Time::from_unix(now().unix_timestamp()),
        last_applied: &server.names.sub_label("kubectl", "last-applied-configuration"),
    };
    track(&request)
}
