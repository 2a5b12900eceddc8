//! The scale subresource: reads, sets and applies the replicas of any scalable kind.

use std::sync::Arc;

use apiserver_schema::custom::ScalePaths;
use apiserver_schema::update::Subresource;
use apiserver_schema::{Format, Map, Object, PatchType, Value};

use crate::admission;
use crate::context::RequestContext;
use crate::conversion;
use crate::options;
use crate::record::StoredObject;
use crate::status::{ApiError, FieldProblem, StatusTarget};
use crate::verbs::{
    AppliedTree, CONFLICT_TRIES, Owners, UpdateAttempt, VerbOutput, VerbResponse, apply_scale,
    check_identity, check_uid, commit_owned, decode_as, object_error, patch_error, patched_error,
    strictness,
};

/// What a request makes of a scale.
struct WantedScale {
    scale: Object,
    /// The owners of the scaled object's fields.
    owners: Owners,
    /// Warnings of decoding it.
    warnings: Vec<String>,
}

/// Returns the scale of the requested object.
///
/// # Errors
/// 404.
pub async fn get(call: &RequestContext<'_>) -> Result<VerbOutput, ApiError> {
    let scale = scale_of(call, call.current().await?.object())?;
    Ok(VerbResponse::Object { code: 200, object: Box::new(scale) }.into())
}

/// Replaces the scale.
///
/// # Errors
/// 404, 409 when the object has another resourceVersion, 422 for a negative count.
pub async fn update(
    call: &RequestContext<'_>,
    body: &[u8],
    format: Format,
) -> Result<VerbOutput, ApiError> {
    let kind = kind(call)?;
    let decoded = decode_as(call, &kind, body, format)?;
    update_replicas(call, |_| {
        let (scale, warnings) = (decoded.object.clone(), decoded.warnings.clone());
        Ok(WantedScale { scale, owners: Owners::Compared, warnings })
    })
    .await
}

/// Patches the scale.
///
/// # Errors
/// As [`update`], and 400 for a malformed patch, 422 for one that does not apply.
pub async fn patch(
    call: &RequestContext<'_>,
    kind: PatchType,
    body: &[u8],
) -> Result<VerbOutput, ApiError> {
    options::refuse_force(call.query)?;
    let strictness = strictness(call)?;
    update_replicas(call, |current| {
        let scale = with_replicas(scale_before(call, current.object())?);
        let patched = call.server.engine.patch(&scale, kind, body, strictness);
        let patched = patched.map_err(|error| patch_error(call, &error))?;
        let patched = patched.map_err(|error| patched_error(call, &error))?;
        let (scale, warnings) = (patched.object, patched.warnings);
        Ok(WantedScale { scale, owners: Owners::Compared, warnings })
    })
    .await
}

/// Applies the configuration of a scale: its owner becomes that of the scaled object's replicas.
///
/// # Errors
/// As [`update`], and 409 for replicas that others own, unless `force` is set; 422 without `fieldManager`; 400 for a configuration that is no scale.
pub async fn apply(call: &RequestContext<'_>, body: &[u8]) -> Result<VerbOutput, ApiError> {
    let (strictness, force) = (strictness(call)?, options::apply_force(call.query)?);
    let (engine, kind) = (&call.server.engine, kind(call)?);
    let parsed = engine.parse_document(Format::Yaml, body, strictness);
    let (config, read) = parsed.map_err(|error| object_error(&error))?;
    check_identity(call, kind.kind(), &config)?;
    update_replicas(call, |current| {
        let before = scale_before(call, current.object())?;
        let AppliedTree { tree, managed_fields, .. } =
            apply_scale(call, current.object(), &before, &config, force)?;
        let applied = engine.applied(&kind, tree, Some(&before), strictness);
        let applied = applied.map_err(|error| object_error(&error))?;
        let mut warnings = read.clone();
        warnings.extend(applied.warnings);
        let owners = Owners::Applied(managed_fields);
        // Of a built-in kind no replicas are none of them; a custom object needs a number.
        let scale = match paths(call) {
            Some(_) => with_replicas(applied.object),
            None => applied.object,
        };
        Ok(WantedScale { scale, owners, warnings })
    })
    .await
}

async fn update_replicas(
    call: &RequestContext<'_>,
    wanted: impl Fn(&Arc<StoredObject>) -> Result<WantedScale, ApiError>,
) -> Result<VerbOutput, ApiError> {
    let effects = call.effects()?;
    for _ in 0..CONFLICT_TRIES {
        let old = call.current().await?;
        let WantedScale { mut scale, owners, warnings } = wanted(&old)?;
        check_object(call, &scale, old.object())?;
        let insists = !scale.resource_version().is_empty();
        if insists && scale.resource_version() != old.object().resource_version() {
            break;
        }
        let before = scale_before(call, old.object())?;
        let operation = admission::WebhookOperation::Update;
        admission::admit_unstored(call, operation, &mut scale, Some(&before), effects).await?;
        let replicas = scale.spec().and_then(|spec| spec.int("replicas")).unwrap_or(0);
        if let (UNSET, Some(paths)) = (replicas, paths(call)) {
            let path = paths.spec_replicas.join(".");
            return Err(ApiError::bad_request(format!(
                "the spec replicas field \".{path}\" cannot be empty"
            )));
        }
        if replicas < 0 {
            let detail = "must be greater than or equal to 0";
            let problem = FieldProblem::invalid("spec.replicas", replicas, detail);
            return Err(ApiError::invalid(
                StatusTarget { kind: "Scale", group: "autoscaling", name: &call.request.name },
                &[problem],
            ));
        }
        let mut next = old.object().clone();
        match paths(call) {
            Some(paths) => insert_at(&mut next.fields, &paths.spec_replicas, replicas),
            None => drop(next.fields.map_or_insert("spec").insert("replicas", replicas)),
        }
        match commit_owned(call, &old, next, owners, Subresource::Main, effects).await? {
            UpdateAttempt::Done(VerbOutput {
                response: VerbResponse::Stored { record, .. },
                ..
            }) => {
                let written = conversion::show_one(call.asker(), &call.kind, record).await?;
                let object = Box::new(scale_of(call, written.object())?);
                return Ok(VerbOutput {
                    response: VerbResponse::Object { code: 200, object },
                    warnings,
                });
            }
            UpdateAttempt::Done(_) => {
                return Ok(VerbOutput {
                    response: VerbResponse::Object { code: 200, object: Box::new(scale) },
                    warnings,
                });
            }
            UpdateAttempt::Conflict => {}
        }
    }
    Err(ApiError::modified(call.about()))
}

/// Refuses a scale that says that it is another object's.
fn check_object(
    call: &RequestContext<'_>,
    scale: &Object,
    stored: &Object,
) -> Result<(), ApiError> {
    for (field, place) in [("name", "on the URL"), ("namespace", "on the request")] {
        let (given, wanted) = (scale.meta_str(field), stored.meta_str(field));
        if !given.is_empty() && given != wanted {
            return Err(ApiError::bad_request(format!(
                "the {field} of the object ({given}) does not match the {field} {place} ({wanted})"
            )));
        }
    }
    check_uid(call, scale, stored)
}

fn kind(call: &RequestContext<'_>) -> Result<Arc<apiserver_schema::Kind>, ApiError> {
    let found = call.server.engine.kind("autoscaling", "v1", "Scale");
    found.cloned().ok_or_else(|| crate::server::missing_kind("Scale"))
}

/// The wanted replicas of a custom object that has none, for a patch of its scale: as in Kubernetes they are set by it, and it is refused if they are not.
const UNSET: i64 = i32::MIN as i64;

/// The scale of a workload.
///
/// # Errors
/// 500 for a custom object that has no wanted replicas, or whose fields hold no numbers.
fn scale_of(call: &RequestContext<'_>, object: &Object) -> Result<Object, ApiError> {
    let scale = scale_before(call, object)?;
    match paths(call) {
        Some(paths) if !has_replicas(&scale) => {
            let path = paths.spec_replicas.join(".");
            Err(ApiError::internal(format!("the spec replicas field \".{path}\" does not exist")))
        }
        _ => Ok(scale),
    }
}

/// The scale with replicas that [`update_replicas`] knows as unset, if it has none.
fn with_replicas(mut scale: Object) -> Object {
    if !has_replicas(&scale) {
        scale.fields.map_or_insert("spec").insert("replicas", UNSET);
    }
    scale
}

fn has_replicas(scale: &Object) -> bool {
    scale.spec().is_some_and(|spec| spec.contains("replicas"))
}

/// The scale of a workload before it is changed; that of a custom object may have no wanted replicas yet.
///
/// # Errors
/// 500 for a custom object whose fields hold no numbers.
fn scale_before(call: &RequestContext<'_>, object: &Object) -> Result<Object, ApiError> {
    let mut scale = Object::new(kind(call)?);
    for field in ["name", "namespace", "uid", "resourceVersion"] {
        scale.set_meta_str(field, object.meta_str(field));
    }
    if let Some(created) = object.metadata().and_then(|metadata| metadata.get("creationTimestamp"))
    {
        scale.metadata_mut().insert("creationTimestamp", created.clone());
    }
    if let Some(paths) = paths(call) {
        fill_custom(&mut scale, object, &paths)?;
        return Ok(scale);
    }
    let wanted = object.spec().and_then(|spec| spec.int("replicas")).unwrap_or(0);
    scale.fields.map_or_insert("spec").insert("replicas", wanted);
    let status = scale.fields.map_or_insert("status");
    status
        .insert("replicas", object.status().and_then(|status| status.int("replicas")).unwrap_or(0));
    status.insert("selector", selector_text(object.spec().and_then(|spec| spec.map("selector"))));
    Ok(scale)
}

/// Where a custom kind has its replicas.
fn paths(call: &RequestContext<'_>) -> Option<ScalePaths> {
    call.kind.custom_version()?.scale.clone()
}

/// Fills the scale of a custom object from the fields that its definition names.
///
/// # Errors
/// 500 for an object whose fields hold no numbers.
fn fill_custom(scale: &mut Object, object: &Object, paths: &ScalePaths) -> Result<(), ApiError> {
    let at = |path: &[String]| {
        let path: Vec<&str> = path.iter().map(String::as_str).collect();
        object.fields.at(&path)
    };
    let number = |path: &[String]| match at(path) {
        None => Ok(None),
        Some(Value::Int(number)) => Ok(Some(*number)),
        Some(other) => Err(ApiError::internal(format!(
            ".{} accessor error: {} is of the type {}, expected int64",
            path.join("."),
            other.as_str().unwrap_or_default(),
            other.shape()
        ))),
    };
    if let Some(wanted) = number(&paths.spec_replicas)? {
        scale.fields.map_or_insert("spec").insert("replicas", wanted);
    }
    let present = number(&paths.status_replicas)?.unwrap_or(0);
    let status = scale.fields.map_or_insert("status");
    status.insert("replicas", present);
    let selector = at(&paths.label_selector).filter(|_| !paths.label_selector.is_empty());
    status.insert("selector", selector.and_then(Value::as_str).unwrap_or_default());
    Ok(())
}

fn insert_at(fields: &mut Map, path: &[String], value: i64) {
    match path {
        [] => {}
        [name] => drop(fields.insert(name.clone(), value)),
        [name, below @ ..] => insert_at(fields.map_or_insert(name.clone()), below, value),
    }
}

/// A selector as text: `a=b,c in (d,e)`. Replication controllers have a plain map of labels.
fn selector_text(selector: Option<&Map>) -> String {
    let Some(selector) = selector else { return String::new() };
    let structured = selector.contains("matchLabels") || selector.contains("matchExpressions");
    let labels = if structured { selector.map("matchLabels") } else { Some(selector) };
    let equal = labels.into_iter().flat_map(Map::iter_sorted);
    let mut parts: Vec<String> =
        equal.map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or_default())).collect();
    for expression in selector.maps("matchExpressions") {
        let key = expression.str("key");
        let mut values: Vec<&str> =
            expression.list("values").iter().filter_map(Value::as_str).collect();
        values.sort_unstable();
        parts.push(match expression.str("operator") {
            "In" => format!("{key} in ({})", values.join(",")),
            "NotIn" => format!("{key} notin ({})", values.join(",")),
            "Exists" => key.to_owned(),
            _ => format!("!{key}"),
        });
    }
    parts.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selectors_as_text() {
        let labels: Map = [("b", "2"), ("a", "1")].into_iter().collect();
        assert_eq!(selector_text(Some(&labels)), "a=1,b=2");
        let values = vec![Value::from("y"), Value::from("x")];
        let expression: Map =
            [("key", Value::from("k")), ("operator", "In".into()), ("values", values.into())]
                .into_iter()
                .collect();
        let selector: Map = [
            ("matchLabels", Value::from(labels)),
            ("matchExpressions", vec![Value::from(expression)].into()),
        ]
        .into_iter()
        .collect();
        assert_eq!(selector_text(Some(&selector)), "a=1,b=2,k in (x,y)");
        assert_eq!(selector_text(None), "");
    }
}
