//! Node restriction, as Kubernetes' NodeRestriction plugin: a kubelet writes only its own Node, Lease and CSINode, the statuses
//! and deletions of pods assigned to its node, and mirror pods.

use apiserver_schema::Object;

use crate::auth::{MASTERS, NODE_USER_PREFIX, is_node};
use crate::context::RequestContext;
use crate::status::ApiError;

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
    if is_own { Ok(()) } else { Err(refusal(call)) }
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
    if is_own { Ok(()) } else { Err(refusal(call)) }
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

fn refusal(call: &RequestContext<'_>) -> ApiError {
    ApiError::forbidden(call.about(), "the object does not belong to the requesting node")
}
