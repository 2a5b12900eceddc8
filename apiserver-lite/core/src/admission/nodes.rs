//! Node restriction: a kubelet writes only its own Node, Lease and CSINode, the statuses and deletions of pods assigned to its node,
//! and mirror pods without references. Of Kubernetes' NodeRestriction it lacks the limits on taints and labels of the own Node and on
//! the fields of a claim's status.

use apiserver_schema::Object;

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
        return Err(refusal(call, node));
    }
    match old {
        _ if !object.kind.is("", "Pod") => Ok(()),
        None => check_references(call, object, node),
        Some(old) => check_labels(call, object, old, node),
    }
}

/// Refuses a kubelet's deletion of another node's object.
pub fn admit_delete(call: &RequestContext<'_>) -> Result<(), ApiError> {
    let Some(node) = kubelet(call) else { return Ok(()) };
    let stored = call.current()?;
    let object = stored.object();
    let is_own = match object.kind.is("certificates", "CertificateSigningRequest") {
        true => object.str_at(&["spec", "username"]) == call.user.name,
        false => belongs_to_node(object, node),
    };
    if is_own { Ok(()) } else { Err(refusal(call, node)) }
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

/// The refusal of a request that concerns another node, for pods in Kubernetes' words.
fn refusal(call: &RequestContext<'_>, node: &str) -> ApiError {
    let itself = "spec.nodeName set to itself";
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
        _ => "the object does not belong to the requesting node".to_owned(),
    };
    ApiError::forbidden(call.about(), &why)
}
