//! Rows of nodes.

use proto_api::names::Names;

use super::{Cells, or_none};
use crate::object::Object;
use crate::value::Map;

pub(super) fn cells(names: &'static Names, node: &Object, cells: &mut Cells) {
    let empty = Map::new();
    let (spec, status) = (node.spec().unwrap_or(&empty), node.status().unwrap_or(&empty));
    let ready = status.maps("conditions").find(|condition| condition.str("type") == "Ready");
    let mut state = match ready.map(|condition| condition.str("status")) {
        None => "Unknown".to_owned(),
        Some("True") => "Ready".to_owned(),
        Some(_) => "NotReady".to_owned(),
    };
    if spec.is_true("unschedulable") {
        state.push_str(",SchedulingDisabled");
    }
    cells.set("Status", state);
    cells.set("Roles", roles(names, node));
    let info = status.map("nodeInfo").unwrap_or(&empty);
    cells.set("Version", info.str("kubeletVersion"));
    for (column, kind) in [("Internal-IP", "InternalIP"), ("External-IP", "ExternalIP")] {
        let address = status.maps("addresses").find(|address| address.str("type") == kind);
        cells.set(column, or_none(address.map_or("", |address| address.str("address"))));
    }
    for (column, field) in [
        ("OS-Image", "osImage"),
        ("Kernel-Version", "kernelVersion"),
        ("Container-Runtime", "containerRuntimeVersion"),
    ] {
        let text = info.str(field);
        cells.set(column, if text.is_empty() { "<unknown>" } else { text });
    }
}

/// The roles of a node, from the labels `node-role.<domain>/<role>` and the older `<domain>/role: <role>`.
fn roles(names: &'static Names, node: &Object) -> String {
    let prefix = names.sub_label("node-role", "");
    let old = names.label("role");
    let mut roles: Vec<String> = Vec::new();
    for (key, value) in node.labels() {
        match key.strip_prefix(&prefix) {
            Some(role) if !role.is_empty() => roles.push(role.to_owned()),
            _ if key == old && !value.is_empty() => roles.push(value),
            _ => {}
        }
    }
    roles.sort();
    roles.dedup();
    or_none(&roles.join(","))
}
