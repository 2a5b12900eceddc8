//! The taint of new Nodes: no pod is scheduled to a Node before the controller nodelifecycle has seen it Ready.

use apiserver_schema::{Map, Object, Value};

use crate::context::RequestContext;

/// Adds the taint `not-ready` to a new Node, unless it has it.
pub fn admit_create(call: &RequestContext<'_>, node: &mut Object) {
    let key = call.server.names.sub_label("node", "not-ready");
    let is_same = |taint: &Map| taint.str("key") == key && taint.str("effect") == "NoSchedule";
    let spec = node.fields.map_or_insert("spec");
    if spec.maps("taints").any(is_same) {
        return;
    }
    let taint: Map = [("key", key.as_str()), ("effect", "NoSchedule")].into_iter().collect();
    let mut taints = spec.list("taints").to_vec();
    taints.push(Value::Map(taint));
    spec.insert("taints", taints);
}
