//! Node restriction: a kubelet writes only its own Node, Lease and CSINode, the statuses and deletions of pods assigned to its node,
//! and mirror pods without references; of its Node no taints and no labels that could attract pods, of a claim its capacity and
//! conditions. The rules and messages of Kubernetes' NodeRestriction.

use std::collections::BTreeMap;

use apiserver_schema::Object;
use proto_api::node_labels::forbidden_labels;

use crate::auth::{Referenced, claim_names, refers_to_any};
use crate::context::RequestContext;
use crate::request::Verb;
use crate::status::ApiError;
use apiserver_auth::{MASTERS, NODE_USER_PREFIX, is_node};

/// Refuses a kubelet's create or update of another node's object. `old` is the stored version of an update.
pub fn admit(
    call: &RequestContext<'_>,
    object: &Object,
    old: Option<&Object>,
) -> Result<(), ApiError> {
    let Some(node) = kubelet(call) else { return Ok(()) };
    let is_mirror = |pod: &Object| {
        let annotations = pod.metadata().and_then(|metadata| metadata.map("annotations"));
        let key = call.server.names.label("config.mirror");
        annotations.is_some_and(|annotations| annotations.contains(&key))
    };
    let is_own = match old {
        Some(old) => belongs_to_node(old, node),
        None if object.kind.is("", "Pod") => belongs_to_node(object, node) && is_mirror(object),
        None => belongs_to_node(object, node),
    };
    if !is_own {
        return Err(refusal(call, object, node));
    }
    match (object.kind.kind(), old) {
        ("Pod", None) => check_references(call, object, node),
        ("Pod", Some(old)) => check_labels(call, object, old, node),
        ("Node", old) => check_own_node(call, object, old, node),
        ("PersistentVolumeClaim", Some(old)) => check_claim(call, object, old, node),
        _ => Ok(()),
    }
}

/// Refuses a kubelet's deletion of another node's object.
pub fn admit_delete(call: &RequestContext<'_>) -> Result<(), ApiError> {
    let Some(node) = kubelet(call) else { return Ok(()) };
    let stored = call.stored()?;
    let object = stored.object();
    let is_own = match object.kind.is("certificates", "CertificateSigningRequest") {
        true => object.str_at(&["spec", "username"]) == call.user.name,
        false => belongs_to_node(object, node),
    };
    if is_own { Ok(()) } else { Err(refusal(call, object, node)) }
}

/// Refuses a mirror pod that refers to objects: the kubelet could read whatever it names.
fn check_references(call: &RequestContext<'_>, pod: &Object, node: &str) -> Result<(), ApiError> {
    let refused = [
        (refers_to_any(pod, Referenced::ServiceAccount), "a service account"),
        (refers_to_any(pod, Referenced::Secret), "secrets"),
        (refers_to_any(pod, Referenced::ConfigMap), "configmaps"),
        (!claim_names(pod).is_empty(), "persistentvolumeclaims"),
    ];
    match refused.into_iter().find(|(refers, _)| *refers) {
        None => Ok(()),
        Some((_, what)) => {
            let why = format!("node {node:?} can not create pods that reference {what}");
            Err(ApiError::forbidden(call.about(), &why))
        }
    }
}

/// Refuses a change of a pod's labels: they decide which Services send it traffic.
fn check_labels(
    call: &RequestContext<'_>,
    pod: &Object,
    old: &Object,
    node: &str,
) -> Result<(), ApiError> {
    if pod.labels() == old.labels() {
        return Ok(());
    }
    let why = format!("node {node:?} cannot update labels through pod status");
    Err(ApiError::forbidden(call.about(), &why))
}

/// Refuses labels by which the node would get pods that it should not have, and a change of its taints, which keep pods away.
fn check_own_node(
    call: &RequestContext<'_>,
    object: &Object,
    old: Option<&Object>,
    node: &str,
) -> Result<(), ApiError> {
    let taints = |object: &Object| object.spec().map(|spec| spec.list("taints").to_vec());
    let refuse = |what: String| {
        Err(ApiError::forbidden(call.about(), &format!("node {node:?} is not allowed to {what}")))
    };
    if let Some(old) = old
        && taints(old).unwrap_or_default() != taints(object).unwrap_or_default()
    {
        return refuse("modify taints".to_owned());
    }
    let before = old.map(Object::labels).unwrap_or_default();
    let changed = changed_labels(&object.labels(), &before);
    let forbidden = forbidden_labels(call.server.names, &changed).join(", ");
    match (forbidden.is_empty(), old) {
        (true, _) => Ok(()),
        (false, None) => refuse(format!("set the following labels: {forbidden}")),
        (false, Some(_)) => refuse(format!("modify labels: {forbidden}")),
    }
}

/// The labels that are only in one of the two, or with another value.
fn changed_labels(
    new: &BTreeMap<String, String>,
    old: &BTreeMap<String, String>,
) -> BTreeMap<String, String> {
    let all = new.iter().chain(old);
    let differs = |key: &String| new.get(key) != old.get(key);
    all.filter(|(key, _)| differs(key)).map(|(key, value)| (key.clone(), value.clone())).collect()
}

/// Refuses a change of a claim beside its capacity and conditions, which a kubelet writes after it has expanded the volume.
fn check_claim(
    call: &RequestContext<'_>,
    claim: &Object,
    old: &Object,
    node: &str,
) -> Result<(), ApiError> {
    let rest = |claim: &Object| {
        let mut claim = claim.clone();
        for field in ["resourceVersion", "managedFields"] {
            claim.metadata_mut().remove(field);
        }
        if let Some(status) = claim.fields.map_mut("status") {
            ["capacity", "conditions"].iter().for_each(|field| drop(status.remove(field)));
        }
        claim
    };
    if rest(claim) == rest(old) {
        return Ok(());
    }
    let why = format!(
        "node {node:?} is not allowed to update fields other than status.capacity and status.conditions"
    );
    Err(ApiError::forbidden(call.about(), &why))
}

/// The node name if the user is a kubelet and not an administrator.
fn kubelet<'a>(call: &RequestContext<'a>) -> Option<&'a str> {
    let user = call.user;
    (is_node(user) && !user.is_in(MASTERS))
        .then(|| user.name.strip_prefix(NODE_USER_PREFIX).unwrap_or_default())
}

fn belongs_to_node(object: &Object, node: &str) -> bool {
    let kind = &object.kind;
    if kind.is("", "Pod") {
        return !node.is_empty() && object.str_at(&["spec", "nodeName"]) == node;
    }
    let is_named_by_node =
        kind.is("", "Node") || kind.is("coordination", "Lease") || kind.is("storage", "CSINode");
    !is_named_by_node || object.name() == node
}

/// The refusal of a request that concerns another node.
fn refusal(call: &RequestContext<'_>, object: &Object, node: &str) -> ApiError {
    let itself = "spec.nodeName set to itself";
    let same_name =
        |what| format!("can only access {what} with the same name as the requesting node");
    let why = match (
        call.request.resource.as_str(),
        call.request.subresource.as_str(),
        call.request.verb,
    ) {
        ("pods", "eviction", _) => format!("node {node} can only evict pods with {itself}"),
        ("pods", "status", _) => {
            format!("node {node:?} can only update pod status for pods with {itself}")
        }
        ("pods", "", Verb::Delete) => format!("node {node:?} can only delete pods with {itself}"),
        ("pods", "", Verb::Create) => format!("node {node:?} can only create pods with {itself}"),
        ("nodes", _, _) => {
            format!("node {node:?} is not allowed to modify node {:?}", object.name())
        }
        ("leases", _, _) => same_name("node lease"),
        ("csinodes", _, _) => same_name("CSINode"),
        _ => "the object does not belong to the requesting node".to_owned(),
    };
    ApiError::forbidden(call.about(), &why)
}
