//! Bindings: the scheduler assigns a pod to a node.

use apiserver_schema::validate::names;
use apiserver_schema::{Format, Map, Object, Value};
use apiserver_store::{Write, WriteError};

use crate::admission;
use crate::context::RequestContext;
use crate::key;
use crate::options::Effects;
use crate::record::Draft;
use crate::status::{ApiError, FieldProblem, StatusTarget};
use crate::times::{now, timestamp};
use crate::verbs::{CONFLICT_TRIES, VerbOutput, VerbResponse, decode_as, invalid, write_failed};

/// Binds the requested pod to the node in the body.
///
/// # Errors
/// 404 if the pod does not exist, 409 if it is bound, being deleted, keeps changing, or has another uid or resourceVersion than the binding, 422 for
/// an invalid node name or invalid annotations.
pub async fn create(
    call: &RequestContext<'_>,
    body: &[u8],
    format: Format,
) -> Result<VerbOutput, ApiError> {
    let server = call.server;
    let kind = server
        .engine
        .kind("", "v1", "Binding")
        .ok_or_else(|| crate::server::missing_kind("Binding"))?;
    let decoded = decode_as(call, kind, body, format)?;
    let mut binding = decoded.object;
    let operation = admission::WebhookOperation::Create;
    admission::admit_unstored(call, operation, &mut binding, None, call.effects()?).await?;
    let name = if call.request.name.is_empty() { binding.name() } else { &call.request.name };
    let about = StatusTarget { group: "", kind: "pods/binding", name };
    if binding.name() != name {
        return Err(ApiError::bad_request("name in URL does not match name in Binding object"));
    }
    check(&binding, about)?;
    assign(call, &binding, about, call.effects()?).await?;
    Ok(VerbOutput { response: VerbResponse::Success { code: 201 }, warnings: decoded.warnings })
}

async fn assign(
    call: &RequestContext<'_>,
    binding: &Object,
    about: StatusTarget<'_>,
    effects: Effects,
) -> Result<(), ApiError> {
    let server = call.server;
    let pods = server.kind("", "pods").ok_or_else(|| crate::server::missing_kind("Pod"))?;
    let missing = || ApiError::not_found(StatusTarget { kind: "pods", ..about });
    for _ in 0..CONFLICT_TRIES {
        let old = server.find(pods, &call.request.namespace, about.name).ok_or_else(missing)?;
        let pod = bound(old.object(), binding, about)?;
        server.engine.validate_metadata(&pod).map_err(|errors| invalid(&pod, &errors))?;
        if effects == Effects::DryRun {
            return Ok(());
        }
        let key = key::object(pods, &call.request.namespace, about.name);
        let write = Write::update(key, old.revision(), Draft::new(&server.engine, pod));
        match server.store.write(write).await {
            Ok(_) => return Ok(()),
            Err(WriteError::Conflict { .. }) => {}
            Err(WriteError::NotFound { .. }) => return Err(missing()),
            Err(error) => return Err(write_failed(&error)),
        }
    }
    // Not bound: every attempt conflicted with another write.
    Err(ApiError::modified(about))
}

fn check(binding: &Object, about: StatusTarget<'_>) -> Result<(), ApiError> {
    let mut problems = Vec::new();
    if !matches!(binding.str_at(&["target", "kind"]), "" | "Node") {
        let kind = format!("{:?}", binding.str_at(&["target", "kind"]));
        problems.push(FieldProblem::invalid("target.kind", kind, "must be empty or \"Node\""));
    }
    let node = binding.str_at(&["target", "name"]);
    if node.is_empty() {
        problems.push(FieldProblem::required("target.name", ""));
    } else {
        let wrong = names::dns_subdomain(node).into_iter();
        let invalid = |why: String| FieldProblem::invalid("target.name", format!("{node:?}"), &why);
        problems.extend(wrong.map(invalid));
    }
    if problems.is_empty() {
        return Ok(());
    }
    Err(ApiError::invalid(StatusTarget { kind: "Binding", ..about }, &problems))
}

/// Compares uid and resourceVersion of the binding, if it has them, with those of the pod.
fn check_preconditions(
    pod: &Object,
    binding: &Object,
    about: StatusTarget<'_>,
) -> Result<(), ApiError> {
    for (field, wanted, found) in [
        ("UID", binding.uid(), pod.uid()),
        ("ResourceVersion", binding.resource_version(), pod.resource_version()),
    ] {
        if !wanted.is_empty() && wanted != found {
            let about = StatusTarget { kind: "pods", ..about };
            return Err(ApiError::precondition_failed(about, field, wanted, found));
        }
    }
    Ok(())
}

/// The pod with the binding's node and annotations and the condition `PodScheduled`. Labels are not taken: who binds pods may not change what selects them.
fn bound(pod: &Object, binding: &Object, about: StatusTarget<'_>) -> Result<Object, ApiError> {
    check_preconditions(pod, binding, about)?;
    if pod.deletion_timestamp().is_some() {
        let why = format!("pod {} is being deleted, cannot be assigned to a host", about.name);
        return Err(ApiError::conflict(about, &why));
    }
    let assigned = pod.str_at(&["spec", "nodeName"]);
    if !assigned.is_empty() {
        let why = format!("pod {} is already assigned to node {assigned:?}", about.name);
        return Err(ApiError::conflict(about, &why));
    }
    let mut pod = pod.clone();
    pod.fields.map_or_insert("spec").insert("nodeName", binding.str_at(&["target", "name"]));
    let given = binding.metadata().and_then(|metadata| metadata.map("annotations"));
    if let Some(given) = given.filter(|given| !given.is_empty()) {
        pod.metadata_mut().map_or_insert("annotations").extend(given.clone());
    }
    set_scheduled(pod.fields.map_or_insert("status"));
    Ok(pod)
}

/// Sets the condition `PodScheduled` to true.
fn set_scheduled(status: &mut Map) {
    let condition: Map = [
        ("type", Value::from("PodScheduled")),
        ("status", "True".into()),
        ("lastTransitionTime", timestamp(now()).into()),
    ]
    .into_iter()
    .collect();
    let mut conditions = status.list("conditions").to_vec();
    conditions.retain(|old| old.as_map().is_none_or(|old| old.str("type") != "PodScheduled"));
    conditions.push(condition.into());
    status.insert("conditions", conditions);
}
