//! Node restriction: a kubelet writes only its own Node, Lease and CSINode, the statuses, deletions and evictions of pods assigned to its
//! node, and mirror pods that its Node owns and that refer to nothing; of its Node no taints, no owners and no labels that could attract
//! pods, of claims only the capacity and conditions, and it asks for tokens of pods only. The rules and messages of Kubernetes'
//! NodeRestriction, with that of owners from its later releases.

use std::collections::BTreeMap;

use apiserver_schema::Object;
use proto_api::node_labels::forbidden_labels;

use super::WebhookOperation;
use crate::auth::{ReferencedKind, claim_names, refers_to_any};
use crate::context::RequestContext;
use crate::request::Verb;
use crate::status::{ApiError, StatusTarget};
use apiserver_auth::{NODE_USER_PREFIX, is_node};

/// Refuses a kubelet's create or update of another node's object, and of its own what it may not decide. `old` is the stored version of
/// an update.
///
/// # Errors
/// 403; 404 if the Node that must own a mirror pod does not exist.
pub fn admit(
    call: &RequestContext<'_>,
    object: &Object,
    old: Option<&Object>,
) -> Result<(), ApiError> {
    let Some(node) = kubelet(call, object.name())? else { return Ok(()) };
    match (object.kind.short_group, object.kind.kind()) {
        ("", "Pod") => match (old, call.request.subresource.as_str()) {
            (None, _) => check_mirror_pod(call, object, node),
            (Some(old), "status") => check_pod_status(call, object, old, node),
            (Some(_), "") => {
                let only = format!("node {node:?} can only create and delete mirror pods");
                Err(forbid(call, object, &format!("unexpected operation \"UPDATE\", {only}")))
            }
            (Some(_), other) => Err(forbid(call, object, &unexpected_subresource(other))),
        },
        ("", "PersistentVolumeClaim") => match (old, call.request.subresource.as_str()) {
            (Some(old), "status") => check_claim(call, object, old, node),
            _ => Err(forbid(call, object, CLAIM_STATUS)),
        },
        _ if !belongs_to_node(call, old.unwrap_or(object), node) => {
            Err(refusal(call, object, node))
        }
        ("", "Node") => check_own_node(call, object, old, node),
        _ => Ok(()),
    }
}

/// Refuses a kubelet's deletion of another node's object.
///
/// # Errors
/// 403, or 404 if there is no such object.
pub fn admit_delete(call: &RequestContext<'_>) -> Result<(), ApiError> {
    let Some(node) = kubelet(call, &call.request.name)? else { return Ok(()) };
    let stored = call.stored()?;
    let object = stored.object();
    if object.kind.is("", "PersistentVolumeClaim") {
        return Err(forbid(call, object, CLAIM_STATUS));
    }
    let is_own = match object.kind.is("certificates", "CertificateSigningRequest") {
        true => object.str_at(&["spec", "username"]) == call.user.name,
        false => belongs_to_node(call, object, node),
    };
    if is_own { Ok(()) } else { Err(refusal(call, object, node)) }
}

/// Refuses what a kubelet creates through a subresource: of pods anything but an eviction, of service accounts tokens that are not for a
/// pod. Whether the pod is on the node is checked where the token is issued.
///
/// # Errors
/// 403.
pub fn admit_unstored(
    call: &RequestContext<'_>,
    operation: WebhookOperation,
    object: &Object,
) -> Result<(), ApiError> {
    if kubelet(call, &call.request.name)?.is_none() || !call.request.group.is_empty() {
        return Ok(());
    }
    match (call.request.resource.as_str(), call.request.subresource.as_str(), operation) {
        (_, _, WebhookOperation::Connect) | ("pods", "eviction", _) => Ok(()),
        ("pods", subresource, _) => Err(forbid(call, object, &unexpected_subresource(subresource))),
        ("serviceaccounts", "token", _) => {
            let bound = |field: &str| object.str_at(&["spec", "boundObjectRef", field]);
            if (bound("apiVersion"), bound("kind")) != ("v1", "Pod") || bound("name").is_empty() {
                return Err(forbid(call, object, "node requested token not bound to a pod"));
            }
            match bound("uid") {
                "" => Err(forbid(
                    call,
                    object,
                    "node requested token with a pod binding without a uid",
                )),
                _ => Ok(()),
            }
        }
        _ => Ok(()),
    }
}

const CLAIM_STATUS: &str = "may only update PVC status";

fn unexpected_subresource(subresource: &str) -> String {
    format!("unexpected pod subresource {subresource:?}, only 'status' and 'eviction' are allowed")
}

/// A refusal about the requested object. What is created has its name in its body only.
fn forbid(call: &RequestContext<'_>, object: &Object, why: &str) -> ApiError {
    let name = match call.request.name.as_str() {
        "" => object.name(),
        name => name,
    };
    ApiError::forbidden(StatusTarget { name, ..call.about() }, why)
}

/// Refuses a new pod that is not the mirror of a static pod of the node.
fn check_mirror_pod(call: &RequestContext<'_>, pod: &Object, node: &str) -> Result<(), ApiError> {
    let annotations = pod.metadata().and_then(|metadata| metadata.map("annotations"));
    let key = call.server.names.label("config.mirror");
    if !annotations.is_some_and(|annotations| annotations.contains(&key)) {
        let only = format!("node {node:?} can only create mirror pods");
        return Err(forbid(call, pod, &format!("pod does not have {key:?} annotation, {only}")));
    }
    if !belongs_to_node(call, pod, node) {
        return Err(refusal(call, pod, node));
    }
    check_owner(call, pod, node)?;
    check_references(call, pod, node)
}

/// Refuses a mirror pod that is not its Node's own: its controller would count it among its pods, and delete another one for it.
fn check_owner(call: &RequestContext<'_>, pod: &Object, node: &str) -> Result<(), ApiError> {
    let refuse = |what: &str| {
        let what = format!("node {node:?} can only create pods with {what} set to itself");
        Err(forbid(call, pod, &what))
    };
    let owners = pod.metadata().map(|metadata| metadata.list("ownerReferences"));
    let owner = match owners.unwrap_or_default() {
        [] => return refuse("an owner reference"),
        [owner] => owner.as_map(),
        _ => return refuse("a single owner reference"),
    };
    let says = |field: &str| owner.map(|owner| owner.str(field)).unwrap_or_default();
    let is_true = |field: &str| owner.is_some_and(|owner| owner.is_true(field));
    if (says("apiVersion"), says("kind"), says("name")) != ("v1", "Node", node) {
        return refuse("an owner reference");
    }
    if !is_true("controller") {
        return refuse("a controller owner reference");
    }
    if is_true("blockOwnerDeletion") {
        let why = format!("node {node:?} must not set blockOwnerDeletion on an owner reference");
        return Err(forbid(call, pod, &why));
    }
    let stored = call.server.find_in("", "nodes", "", node);
    let about = StatusTarget { group: "", kind: "nodes", name: node };
    let stored = stored.ok_or_else(|| ApiError::not_found(about))?;
    let (asked, uid) = (says("uid"), stored.object().uid());
    if asked != uid {
        let why = format!("node {node} UID mismatch: expected {asked} got {uid}");
        return Err(forbid(call, pod, &why));
    }
    Ok(())
}

/// Refuses a mirror pod that refers to objects: the kubelet could read whatever it names.
fn check_references(call: &RequestContext<'_>, pod: &Object, node: &str) -> Result<(), ApiError> {
    let refused = [
        (refers_to_any(pod, ReferencedKind::ServiceAccount), "a service account"),
        (refers_to_any(pod, ReferencedKind::Secret), "secrets"),
        (refers_to_any(pod, ReferencedKind::ConfigMap), "configmaps"),
        (!claim_names(pod).is_empty(), "persistentvolumeclaims"),
    ];
    match refused.into_iter().find(|(refers, _)| *refers) {
        None => Ok(()),
        Some((_, what)) => {
            let why = format!("node {node:?} can not create pods that reference {what}");
            Err(forbid(call, pod, &why))
        }
    }
}

/// Refuses the status of another node's pod, and a change of labels with it: they decide which Services send traffic to the pod.
fn check_pod_status(
    call: &RequestContext<'_>,
    pod: &Object,
    old: &Object,
    node: &str,
) -> Result<(), ApiError> {
    if !belongs_to_node(call, old, node) {
        return Err(refusal(call, old, node));
    }
    if pod.labels() == old.labels() {
        return Ok(());
    }
    Err(forbid(call, pod, &format!("node {node:?} cannot update labels through pod status")))
}

/// Refuses labels by which the node would get pods that it should not have, a change of its taints, which keep pods away, and owners: with
/// one that does not exist the Node would be deleted, and the node could register again without what administrators have set.
fn check_own_node(
    call: &RequestContext<'_>,
    object: &Object,
    old: Option<&Object>,
    node: &str,
) -> Result<(), ApiError> {
    let allowed = |what: &str| format!("is not allowed to {what}");
    let refuse =
        |what: &str| Err(forbid(call, object, &format!("node {node:?} {}", allowed(what))));
    let source = |object: &Object| object.spec().and_then(|spec| spec.get("configSource")).cloned();
    match (source(object), old.map(source)) {
        (None, _) => {}
        (Some(_), None) => return refuse("create pods with a non-nil configSource"),
        (new, Some(before)) if new != before => {
            return refuse("update configSource to a new non-nil configSource");
        }
        (Some(_), Some(_)) => {}
    }
    let taints = |object: &Object| object.spec().map(|spec| spec.list("taints").to_vec());
    if let Some(old) = old
        && taints(old).unwrap_or_default() != taints(object).unwrap_or_default()
    {
        return refuse("modify taints");
    }
    let owners =
        |object: &Object| object.metadata().map(|meta| meta.list("ownerReferences").to_vec());
    let owners_before = old.and_then(owners).unwrap_or_default();
    if owners(object).unwrap_or_default() != owners_before {
        return refuse("modify ownerReferences");
    }
    let before = old.map(Object::labels).unwrap_or_default();
    let changed = changed_labels(&object.labels(), &before);
    let forbidden = forbidden_labels(call.server.names, &changed).join(", ");
    match (forbidden.is_empty(), old) {
        (true, _) => Ok(()),
        (false, None) => refuse(&format!("set the following labels: {forbidden}")),
        // Kubernetes does not name the node here.
        (false, Some(_)) => {
            Err(forbid(call, object, &allowed(&format!("modify labels: {forbidden}"))))
        }
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

/// Refuses a change of a claim besides its capacity and conditions, which a kubelet writes after it has expanded the volume.
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
    Err(forbid(call, claim, &why))
}

/// The node name if the user is a kubelet. One that is an administrator too is restricted all the same, one that is half a kubelet only is not.
/// `name` is that of the object.
fn kubelet<'a>(call: &RequestContext<'a>, name: &str) -> Result<Option<&'a str>, ApiError> {
    let user = call.user;
    if !is_node(user) {
        return Ok(None);
    }
    match user.name.strip_prefix(NODE_USER_PREFIX) {
        Some("") => {
            let why = format!("could not determine node from user {:?}", user.name);
            Err(ApiError::forbidden(StatusTarget { name, ..call.about() }, &why))
        }
        name => Ok(Some(name.unwrap_or_default())),
    }
}

fn belongs_to_node(call: &RequestContext<'_>, object: &Object, node: &str) -> bool {
    let kind = &object.kind;
    match (kind.short_group, kind.kind()) {
        ("", "Pod") => !node.is_empty() && object.str_at(&["spec", "nodeName"]) == node,
        ("coordination", "Lease") => {
            object.namespace() == call.server.names.node_lease_namespace() && object.name() == node
        }
        ("", "Node") | ("storage", "CSINode") => object.name() == node,
        _ => true,
    }
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
        ("leases", _, _) => {
            let namespace = call.server.names.node_lease_namespace();
            match object.namespace() == namespace {
                true => same_name("node lease"),
                false => format!("can only access leases in the {namespace:?} system namespace"),
            }
        }
        ("csinodes", _, _) => same_name("CSINode"),
        _ => "the object does not belong to the requesting node".to_owned(),
    };
    forbid(call, object, &why)
}
