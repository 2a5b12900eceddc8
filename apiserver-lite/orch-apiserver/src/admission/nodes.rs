//! What a kubelet writes is its node's own, as Kubernetes' NodeRestriction has it: itself, its lease and CSINode, statuses and deletions of pods that
//! are assigned to it, and mirrors of its static pods.

use apiserver_schema::Object;

use crate::auth::{MASTERS, NODE_USER_PREFIX, is_node};
use crate::status::ApiError;
use crate::verbs::RequestContext;

/// Refuses a kubelet's creation or change of what is not its node's. `old` is the stored version of a change.
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
    if is_own { Ok(()) } else { Err(refusal(call)) }
}

/// Refuses a kubelet's deletion of what is not its node's.
pub fn admit_delete(call: &RequestContext<'_>) -> Result<(), ApiError> {
    let Some(node) = kubelet(call) else { return Ok(()) };
    let stored = call.current()?;
    let object = stored.object();
    let is_own = match object.kind.is("certificates", "CertificateSigningRequest") {
        true => object.str_at(&["spec", "username"]) == call.user.name,
        false => belongs_to_node(object, node),
    };
    if is_own { Ok(()) } else { Err(refusal(call)) }
}

/// The name of the node whose kubelet asks; nothing for other users and for administrators.
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

fn refusal(call: &RequestContext<'_>) -> ApiError {
    ApiError::forbidden(call.about(), "it does not belong to the node that asks")
}
