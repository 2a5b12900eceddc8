//! EndpointSlices: discovery/v1beta1 has the topology of an endpoint as labels, v1 its node and zone as fields.

use apiserver_schema::{Map, Value};
use proto_api::names::Names;

/// Labels that v1 has no fields for.
const DEPRECATED: &str = "deprecatedTopology";

pub(super) fn v1beta1_to_v1(names: &Names, fields: &mut Map) {
    let (zone_label, node_label) = labels(names);
    for endpoint in fields.maps_mut("endpoints") {
        let Some(Value::Map(mut topology)) = endpoint.remove("topology") else { continue };
        if let Some(zone) = topology.remove(&zone_label) {
            endpoint.insert("zone", zone);
        }
        // A client may say two different things of its node; then both are kept.
        let node = topology.get(&node_label).cloned();
        if node.is_some() && !endpoint.contains("nodeName") {
            endpoint.insert("nodeName", node.clone().unwrap_or_default());
        }
        if node.as_ref() == endpoint.get("nodeName") {
            topology.remove(&node_label);
        }
        if !topology.is_empty() {
            endpoint.insert(DEPRECATED, topology);
        }
    }
}

pub(super) fn v1_to_v1beta1(names: &Names, fields: &mut Map) {
    let (zone_label, node_label) = labels(names);
    for endpoint in fields.maps_mut("endpoints") {
        let mut topology = match endpoint.remove(DEPRECATED) {
            Some(Value::Map(topology)) => topology,
            _ => Map::new(),
        };
        if let Some(zone) = endpoint.remove("zone") {
            topology.insert(zone_label.clone(), zone);
        }
        if let Some(node) = endpoint.get("nodeName").filter(|_| !topology.contains(&node_label)) {
            topology.insert(node_label.clone(), node.clone());
        }
        if !topology.is_empty() {
            endpoint.insert("topology", topology);
        }
    }
}

/// The labels of a zone and of a node.
fn labels(names: &Names) -> (String, String) {
    (names.sub_label("topology", "zone"), names.label("hostname"))
}
