//! Defaults of services, endpoints and network policies.

use super::set_default;
use crate::value::{Map, Value};

/// Default timeout of client-IP affinity in seconds: 3 hours.
const AFFINITY_SECONDS: i64 = 10_800;

/// Defaults of policies; the API server allocates addresses, node ports and IP families.
pub(super) fn default_service(spec: &mut Map) {
    set_default(spec, "sessionAffinity", "None");
    if spec.str("sessionAffinity") == "ClientIP" {
        let config = spec.map_or_insert("sessionAffinityConfig");
        set_default(config.map_or_insert("clientIP"), "timeoutSeconds", AFFINITY_SECONDS);
    } else {
        spec.remove("sessionAffinityConfig");
    }
    set_default(spec, "type", "ClusterIP");
    let kind = spec.str("type").to_owned();
    for port in spec.maps_mut("ports") {
        set_default(port, "protocol", "TCP");
        let unset = port.get("targetPort").is_none_or(Value::is_empty);
        if let Some(number) = port.int("port").filter(|_| unset) {
            port.insert("targetPort", number);
        }
    }
    if matches!(kind.as_str(), "NodePort" | "LoadBalancer") {
        set_default(spec, "externalTrafficPolicy", "Cluster");
    }
    if kind == "LoadBalancer" {
        set_default(spec, "allocateLoadBalancerNodePorts", true);
    }
    if kind != "ExternalName" {
        set_default(spec, "internalTrafficPolicy", "Cluster");
        set_default(spec, "ipFamilyPolicy", "SingleStack");
    }
}

pub(super) fn default_endpoints(fields: &mut Map) {
    for subset in fields.maps_mut("subsets") {
        for port in subset.maps_mut("ports") {
            set_default(port, "protocol", "TCP");
        }
    }
}

pub(super) fn default_slice(fields: &mut Map) {
    for port in fields.maps_mut("ports") {
        set_default(port, "name", "");
        set_default(port, "protocol", "TCP");
    }
}

/// Parameters of a class are of the cluster.
pub(super) fn default_ingress_class(fields: &mut Map) {
    let parameters = fields.map_mut("spec").and_then(|spec| spec.map_mut("parameters"));
    parameters.into_iter().for_each(|parameters| set_default(parameters, "scope", "Cluster"));
}

pub(super) fn default_network_policy(spec: &mut Map) {
    for direction in ["ingress", "egress"] {
        for rule in spec.maps_mut(direction) {
            for port in rule.maps_mut("ports") {
                set_default(port, "protocol", "TCP");
            }
        }
    }
    if !spec.contains("policyTypes") {
        let mut types = vec![Value::from("Ingress")];
        if !spec.list("egress").is_empty() {
            types.push(Value::from("Egress"));
        }
        spec.insert("policyTypes", types);
    }
}
