//! Bindings: the scheduler's word on which node a pod runs.

use apiserver_schema::{Format, Map, Object, Value};
use apiserver_store::{Write, WriteError};

use crate::key;
use crate::record::Draft;
use crate::server::{now, timestamp};
use crate::status::{About, ApiError, FieldProblem};
use crate::verbs::{Answer, CONFLICT_TRIES, Call, Effects, Outcome, decode_as, write_failed};

/// Binds a pod to a node.
///
/// # Errors
/// 404 without such a pod, 409 when it is bound or going, 422 for a binding to nothing.
pub async fn create(call: &Call<'_>, body: &[u8], format: Format) -> Result<Outcome, ApiError> {
    let server = call.server;
    let kind = server
        .engine
        .kind("", "v1", "Binding")
        .ok_or_else(|| crate::server::missing_kind("Binding"))?;
    let decoded = decode_as(call, kind, body, format)?;
    let binding = decoded.object;
    let name = if call.request.name.is_empty() { binding.name() } else { &call.request.name };
    let node = binding.str_at(&["target", "name"]);
    let about = About { group: "", kind: "pods/binding", name };
    check(&binding, about)?;
    let effects = call.effects()?;
    let pods = server.kind("", "pods").ok_or_else(|| crate::server::missing_kind("Pod"))?;
    for _ in 0..CONFLICT_TRIES {
        let found = server.find(pods, &call.request.namespace, name);
        let old = found.ok_or_else(|| ApiError::not_found(About { kind: "pods", ..about }))?;
        let pod = bound(old.object(), &binding, node, about)?;
        if effects == Effects::DryRun {
            break;
        }
        let key = key::object(pods, &call.request.namespace, name);
        match server
            .store
            .write(Write::update(key, old.revision(), Draft::new(&server.engine, pod)))
            .await
        {
            Ok(_) => break,
            Err(WriteError::Conflict { .. }) => {}
            Err(WriteError::NotFound { .. }) => {
                return Err(ApiError::not_found(About { kind: "pods", ..about }));
            }
            Err(error) => return Err(write_failed(&error)),
        }
    }
    Ok(Outcome { answer: Answer::Success { code: 201 }, warnings: decoded.warnings })
}

fn check(binding: &Object, about: About<'_>) -> Result<(), ApiError> {
    let mut problems = Vec::new();
    if !matches!(binding.str_at(&["target", "kind"]), "" | "Node") {
        let kind = format!("{:?}", binding.str_at(&["target", "kind"]));
        problems.push(FieldProblem::invalid("target.kind", kind, "must be empty or \"Node\""));
    }
    if binding.str_at(&["target", "name"]).is_empty() {
        problems.push(FieldProblem::required("target.name", ""));
    }
    if problems.is_empty() {
        return Ok(());
    }
    Err(ApiError::invalid(About { kind: "Binding", ..about }, &problems))
}

/// The pod with its node.
fn bound(pod: &Object, binding: &Object, node: &str, about: About<'_>) -> Result<Object, ApiError> {
    if pod.deletion_timestamp().is_some() {
        let why = format!("pod {} is being deleted, cannot be assigned to a host", about.name);
        return Err(ApiError::conflict(about, &why));
    }
    if !binding.uid().is_empty() && binding.uid() != pod.uid() {
        let why = format!(
            "Precondition failed: UID in precondition: {}, UID in object meta: {}",
            binding.uid(),
            pod.uid(),
        );
        return Err(ApiError::conflict(about, &why));
    }
    let assigned = pod.str_at(&["spec", "nodeName"]);
    if !assigned.is_empty() {
        let why = format!("pod {} is already assigned to node {assigned:?}", about.name);
        return Err(ApiError::conflict(about, &why));
    }
    let mut pod = pod.clone();
    pod.fields.map_or_insert("spec").insert("nodeName", node);
    for field in ["annotations", "labels"] {
        let given = binding
            .metadata()
            .and_then(|metadata| metadata.map(field))
            .cloned()
            .unwrap_or_default();
        for (key, value) in given {
            pod.metadata_mut().map_or_insert(field).insert(key, value);
        }
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
