//! Every integer field of the watched objects at extreme values, through all that is derived from them: tables,
//! sockets, DNS names, health checks, routes.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may end anywhere")]

use std::sync::Arc;

use proto_api::core::v1::{Node, Service};
use proto_api::discovery::v1::EndpointSlice;
use proto_api::names::{Names, Profile};
use proxy_dns::model::{name_service, name_slice};
use proxy_netfilter::nft::Batch;
use proxy_netfilter::nft::numbers::TableFlags;
use proxy_rules::layout::{FAMILIES, Layout};
use proxy_rules::localise::{localise_service, localise_slice};
use proxy_rules::model::{LocalPort, LocalService, Policy, ServiceId, Settings};
use proxy_rules::{Dataplane, Pass};
use proxy_userspace::Forwarder;
use serde_json::{Value, json};

const EXTREMES: [i64; 16] = [
    i64::MAX,
    i64::MIN,
    0,
    -1,
    1,
    u16::MAX as i64,
    u16::MAX as i64 + 1,
    86_400,
    86_401,
    i32::MAX as i64,
    i32::MAX as i64 + 1,
    i32::MIN as i64,
    u32::MAX as i64,
    u32::MAX as i64 + 1,
    1 << 53,
    -(1 << 16),
];

/// Prefix lengths of CIDRs.
const PREFIXES: [&str; 8] = ["-1", "0", "33", "129", "256", "4294967296", "+8", ""];

const TYPES: [&str; 5] = ["ClusterIP", "NodePort", "LoadBalancer", "ExternalName", "x"];

fn names() -> &'static Names {
    Names::new(Profile::Kubernetes)
}

fn service(kind: &str) -> Value {
    let text = include_str!("../../../proto/api/testdata/core.v1.Service.json");
    let mut service: Value = serde_json::from_str(text).unwrap();
    service["metadata"]["namespace"] = json!("ns");
    service["metadata"]["name"] = json!("web");
    service["metadata"]["labels"] = json!({});
    let spec = &mut service["spec"];
    for (field, value) in [
        ("type", json!(kind)),
        ("clusterIP", json!("10.96.0.1")),
        ("clusterIPs", json!(["10.96.0.1", "fd96::1"])),
        ("externalIPs", json!(["198.51.100.1", "2001:db8::1"])),
        ("externalTrafficPolicy", json!("Local")),
        ("internalTrafficPolicy", json!("Cluster")),
        ("sessionAffinity", json!("ClientIP")),
        ("loadBalancerSourceRanges", json!(["192.0.2.0/24"])),
        ("ports", json!([{"name": "http", "protocol": "TCP", "port": 80, "nodePort": 30_080}])),
    ] {
        spec[field] = value;
    }
    service["status"]["loadBalancer"]["ingress"][0]["ip"] = json!("198.51.100.2");
    service
}

fn slice() -> Value {
    let endpoint = |address: &str| json!({"addresses": [address], "nodeName": "n1"});
    json!({
        "metadata": {
            "namespace": "ns", "name": "web-1", "generation": 1, "deletionGracePeriodSeconds": 1,
            "labels": {(names().label("service-name")): "web"},
        },
        "addressType": "IPv4",
        "ports": [{"name": "http", "protocol": "TCP", "port": 8080}],
        "endpoints": [endpoint("10.244.0.5"), endpoint("10.244.0.6")],
    })
}

/// JSON pointers of all integers below `value`.
fn places(value: &Value, at: &str, found: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            fields.iter().for_each(|(name, field)| places(field, &format!("{at}/{name}"), found));
        }
        Value::Array(items) => {
            let items = items.iter().enumerate();
            items.for_each(|(n, item)| places(item, &format!("{at}/{n}"), found));
        }
        Value::Number(_) => found.push(at.to_owned()),
        _ => {}
    }
}

/// One object for each integer field and each extreme value that it can hold.
fn variants<T: serde::de::DeserializeOwned>(filled: &Value) -> Vec<(String, T)> {
    let mut all = Vec::new();
    places(filled, "", &mut all);
    let mut made = Vec::new();
    for place in all {
        for value in EXTREMES {
            let mut object = filled.clone();
            *object.pointer_mut(&place).unwrap() = json!(value);
            // A value that the field cannot hold fails to decode.
            if let Ok(object) = serde_json::from_value(object) {
                made.push((format!("{place} = {value}"), object));
            }
        }
    }
    made
}

fn layout() -> Layout {
    Layout {
        table: "t".into(),
        flags: TableFlags::NONE,
        families: FAMILIES.to_vec(),
        settings: Settings::default(),
    }
}

/// Another Service with a node port, which must be served whatever the first one contains.
fn neighbour() -> LocalService {
    let port = LocalPort {
        name: "http".into(),
        protocol: proxy_rules::model::Protocol::Tcp,
        port: 80,
        node_port: Some(30_081),
    };
    LocalService {
        cluster_ips: ["10.96.0.2".parse().unwrap()].into(),
        external: Policy::Cluster,
        ports: [port].into(),
        ..LocalService::default()
    }
}

/// Everything derived from a Service and an EndpointSlice of it.
fn make(service: &Service, slice: &EndpointSlice) {
    let (id, other) = (ServiceId::new("ns", "web"), ServiceId::new("ns", "other"));
    let local = localise_service(service, names()).map(Arc::new);
    let endpoints = localise_slice(slice, names(), "n1").map(Arc::new);
    if let Some(local) = &local {
        let numbers = local.ports.iter().flat_map(|port| [Some(port.port), port.node_port]);
        assert!(numbers.flatten().all(|number| number > 0));
        assert_ne!(local.health_check_port, Some(0));
    }
    assert!(endpoints.iter().flat_map(|slice| &slice.ports).all(|port| port.port > 0));
    let mut plane = Dataplane::new(layout());
    let forwarder = Forwarder::new(Settings::default());
    for (id, service) in [(&id, local.clone()), (&other, Some(Arc::new(neighbour())))] {
        plane.service_changed(id, service.clone());
        forwarder.service_changed(id, service);
    }
    plane.slice_changed("web-1", None, endpoints.clone());
    forwarder.slice_changed("web-1", None, endpoints.clone());
    let mut batch = Batch::new(1, None);
    plane.load().encode(&layout(), &mut batch);
    batch.finish().unwrap();
    let _ = (plane.changed_health_checks(), plane.without_local_endpoints());
    plane.slice_changed("web-1", endpoints.as_deref(), None);
    plane.service_changed(&id, None);
    if let Pass::Change(transaction) = plane.pass() {
        let _ = proxy_rules::stale::stale_flows(&transaction);
    }
    assert_eq!(plane.services_len(), 1);
    let named = name_service(service).map(Arc::new);
    let mut zone = proxy_dns::Zone::new("cluster.local", ("system", "dns")).unwrap();
    zone.service_changed("ns", "web", named);
    zone.slice_changed("web-1", None, name_slice(slice, names()).map(Arc::new));
    assert!(zone.services_len() <= 1);
}

#[test]
fn no_number_of_a_service_or_slice_panics() {
    let (plain_service, plain_slice): (Vec<Service>, EndpointSlice) = (
        TYPES.map(|kind| serde_json::from_value(service(kind)).unwrap()).into(),
        serde_json::from_value(slice()).unwrap(),
    );
    let mut cases: Vec<(String, Service, EndpointSlice)> = Vec::new();
    for kind in TYPES {
        let all = variants::<Service>(&service(kind));
        cases.extend(all.into_iter().map(|(text, s)| (text, s, plain_slice.clone())));
        for prefix in PREFIXES {
            let mut object = service(kind);
            let ranges = json!([format!("10.0.0.0/{prefix}"), format!("fd00::/{prefix}")]);
            object["spec"]["loadBalancerSourceRanges"] = ranges;
            let object = serde_json::from_value(object).unwrap();
            cases.push((format!("ranges /{prefix}"), object, plain_slice.clone()));
        }
    }
    for (text, slice) in variants::<EndpointSlice>(&slice()) {
        cases.extend(plain_service.iter().map(|s| (text.clone(), s.clone(), slice.clone())));
    }
    assert!(cases.len() > 500, "{}", cases.len());
    for (text, service, slice) in cases {
        let made = std::panic::catch_unwind(|| make(&service, &slice));
        assert!(made.is_ok(), "{} {text}", service.spec.type_);
    }
}

#[test]
fn no_number_of_a_node_panics() {
    let text = include_str!("../../../proto/api/testdata/core.v1.Node.json");
    let filled: Value = serde_json::from_str(text).unwrap();
    let mut nodes = variants::<Node>(&filled);
    for prefix in PREFIXES {
        let mut node = filled.clone();
        node["spec"]["podCIDRs"] =
            json!([format!("10.0.0.0/{prefix}"), format!("fd00::/{prefix}")]);
        nodes.push((format!("podCIDRs /{prefix}"), serde_json::from_value(node).unwrap()));
    }
    let cluster = ["0.0.0.0/0", "::/0"].map(|block| block.parse().unwrap());
    for (text, node) in nodes {
        let made = std::panic::catch_unwind(|| {
            let _ = proxy_pod_routes::routes::plan_routes([&node], "n1", &cluster);
            let _ = proxy_pod_routes::routes::plan_routes([&node], &node.metadata.name, &cluster);
            let _ = orch_proxy::local_node::local_traffic(
                &proxy_pod_routes::pod_cidrs::pod_blocks(&node),
            );
        });
        assert!(made.is_ok(), "{text}");
    }
}
