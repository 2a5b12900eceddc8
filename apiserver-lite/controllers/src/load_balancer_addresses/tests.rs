//! Cases of single Services.

mod histories;

use proto_api::Time;
use proto_api::core::v1::{NodeAddress, NodeCondition};
use proto_api::names::Profile;
use serde_json::Value;

use super::*;

fn names() -> &'static Names {
    Names::new(Profile::Kubernetes)
}

fn ranges(texts: &[&str]) -> AddressRanges {
    let ranges: Vec<AddressRange> = texts.iter().map(|text| text.parse().unwrap()).collect();
    AddressRanges::new(&ranges).unwrap().unwrap()
}

fn node(name: &str, status: &str) -> Arc<Node> {
    let mut node = Node::default();
    node.metadata.name = name.into();
    node.status.conditions = vec![NodeCondition {
        type_: "Ready".into(),
        status: status.into(),
        ..NodeCondition::default()
    }];
    Arc::new(node)
}

/// A load balancer of these families. The number says how old it is.
fn service(number: i64, families: &[&str]) -> Service {
    let mut service = Service::default();
    let metadata = &mut service.metadata;
    metadata.namespace = "ns".into();
    metadata.name = format!("web-{number}");
    metadata.uid = format!("uid-{number}");
    metadata.resource_version = "7".into();
    metadata.creation_timestamp = Time::from_unix(1000 + number);
    service.spec.type_ = "LoadBalancer".into();
    service.spec.ip_families = families.iter().map(|family| (*family).into()).collect();
    service
}

fn with(mut service: Service, ingress: &[&str], node: Option<&str>) -> Service {
    service.status.load_balancer.ingress = ingress.iter().map(|ip| entry(ip, "")).collect();
    let annotations = &mut service.metadata.annotations;
    annotations.extend(node.map(|node| (names().load_balancer_node(), node.to_owned())));
    service
}

fn entry(ip: &str, hostname: &str) -> LoadBalancerIngress {
    LoadBalancerIngress {
        ip: ip.into(),
        hostname: hostname.into(),
        ..LoadBalancerIngress::default()
    }
}

fn asking(mut service: Service, address: &str) -> Service {
    service.spec.load_balancer_ip = address.into();
    service
}

/// Plans one Service among others, with the ranges 192.0.2.1 to .3 and fd00::1, and the node `a`.
fn plan(service: &Service, others: &[Service]) -> AddressPlan {
    let mut all: Vec<Arc<Service>> = others.iter().cloned().map(Arc::new).collect();
    all.push(Arc::new(service.clone()));
    let ranges = ranges(&["192.0.2.1-192.0.2.3", "fd00::1-fd00::1"]);
    let around = Surroundings {
        names: names(),
        ranges: &ranges,
        services: &all,
        nodes: &[node("a", "True")],
        slices: &[],
    };
    PlannedAddresses::default().plan(&around, service)
}

/// The addresses and the node that are written, `-` for what is not written, and the reasons of the events.
fn shown(planned: &AddressPlan) -> String {
    let mut words = Vec::new();
    for write in &planned.plan.writes {
        let ApiWrite::Patch { kind: ObjectKind::Service, part: Part::Status, patch, .. } = write
        else {
            unreachable!("{write:?}")
        };
        assert_eq!(patch["metadata"]["resourceVersion"], "7");
        match patch.pointer("/status/loadBalancer/ingress").and_then(Value::as_array) {
            Some(list) => words.push(format!("{:?}", list.iter().map(address).collect::<Vec<_>>())),
            None => words.push("-".into()),
        }
        let node = &patch["metadata"]["annotations"]["kubernetes.io/load-balancer-node"];
        words.push(node.as_str().unwrap_or("none").to_owned());
    }
    words.extend(planned.plan.reports.iter().map(|event| event.reason.clone().into_owned()));
    words.extend(planned.shortage.as_ref().map(|_| "retried".to_owned()));
    words.join(" ")
}

fn address(entry: &Value) -> String {
    let text = |field| entry[field].as_str().unwrap_or_default();
    format!("{}{}", text("ip"), text("hostname"))
}

const NEW: &str = "IPAllocated EnsuredLoadBalancer nodeAssigned";

#[test]
fn addresses_are_given_by_family_and_kept() {
    let (v4, v6, dual) = (&["IPv4"][..], &["IPv6"][..], &["IPv6", "IPv4"][..]);
    let check = |service: Service, others: &[Service], expected: &str| {
        assert_eq!(shown(&plan(&service, others)), expected, "{service:?}");
    };
    check(service(1, v4), &[], &format!("[\"192.0.2.1\"] a {NEW}"));
    check(service(1, dual), &[], &format!("[\"fd00::1\", \"192.0.2.1\"] a {NEW}"));
    let has_first = with(service(2, v4), &["192.0.2.1"], Some("a"));
    check(service(1, v4), std::slice::from_ref(&has_first), &format!("[\"192.0.2.2\"] a {NEW}"));
    // What fits stays, also behind a free one.
    check(with(service(1, v4), &["192.0.2.3"], Some("a")), &[], "");
    check(with(service(1, dual), &["fd00::1", "192.0.2.3"], Some("a")), &[], "");
    let six_is_missing = with(service(1, dual), &["192.0.2.3"], Some("a"));
    let both = "[\"fd00::1\", \"192.0.2.3\"] a IPAllocated EnsuredLoadBalancer";
    check(six_is_missing, &[], both);
    let one_too_many = with(service(1, v6), &["fd00::1", "192.0.2.3"], Some("a"));
    check(one_too_many, &[], "[\"fd00::1\"] a");
    // Of two with one address the older keeps it.
    let younger = with(service(3, v4), &["192.0.2.1"], Some("a"));
    check(
        younger.clone(),
        std::slice::from_ref(&has_first),
        "[\"192.0.2.2\"] a IPAllocated EnsuredLoadBalancer",
    );
    check(has_first, &[younger], "");
    // All are used.
    let all: Vec<Service> =
        (2..5).map(|n| with(service(n, v4), &[&format!("192.0.2.{}", n - 1)], None)).collect();
    check(service(1, v4), &all, "AllocationFailed retried");
    check(service(1, dual), &all, &format!("[\"fd00::1\"] a AllocationFailed {NEW} retried"));
    let moved = with(service(9, v4), &["192.0.2.1"], Some("a"));
    check(moved, &all, "[] none AllocationFailed retried");
}

#[test]
fn the_address_that_is_asked_for_is_given_or_none() {
    let (v4, dual) = (&["IPv4"][..], &["IPv4", "IPv6"][..]);
    let other = with(service(2, v4), &["192.0.2.3"], Some("a"));
    let check = |service: Service, expected: &str, why: &str| {
        let planned = plan(&service, std::slice::from_ref(&other));
        assert_eq!(shown(&planned), expected, "{service:?}");
        let message = planned.plan.reports.first().map_or("", |event| event.message.as_str());
        assert!(why.is_empty() || message.ends_with(why), "{message}");
    };
    check(asking(service(1, v4), "192.0.2.2"), &format!("[\"192.0.2.2\"] a {NEW}"), "");
    let has = with(service(1, v4), &["192.0.2.1"], Some("a"));
    check(
        asking(has.clone(), "192.0.2.2"),
        "[\"192.0.2.2\"] a IPAllocated EnsuredLoadBalancer",
        "",
    );
    check(asking(has.clone(), "192.0.2.1"), "", "");
    let in_use =
        "Failed to allocate IP for \"ns/web-1\": address 192.0.2.3 is also in use by ns/web-2";
    check(asking(service(1, v4), "192.0.2.3"), "AllocationFailed retried", in_use);
    check(asking(has.clone(), "192.0.2.3"), "AllocationFailed retried", in_use);
    let refused = "\"192.0.9.9\" is not allowed in config";
    check(asking(service(1, v4), "192.0.9.9"), "AllocationFailed", refused);
    check(asking(has, "192.0.9.9"), "AllocationFailed", refused);
    check(asking(service(1, v4), "web"), "AllocationFailed", "\"web\" is not allowed in config");
    let one = format!("[\"fd00::1\"] a AllocationFailed {NEW}");
    check(asking(service(1, dual), "192.0.9.9"), &one, refused);
    let other_family = format!("[\"192.0.2.1\"] a AllocationFailed {NEW}");
    check(asking(service(1, v4), "fd00::1"), &other_family, "none of the Service's IP families");
}

/// A range that covers nodes gives none of their addresses away, not even to who asks for one.
#[test]
fn addresses_of_nodes_are_no_services() {
    let mut of_node = Node::clone(&node("a", "True"));
    let address = NodeAddress { type_: "InternalIP".into(), address: "192.0.2.1".into() };
    of_node.status.addresses = vec![address];
    let (nodes, ranges) = ([Arc::new(of_node)], ranges(&["192.0.2.1-192.0.2.2"]));
    let given = |service: Service| {
        let around = Surroundings {
            names: names(),
            ranges: &ranges,
            services: &[Arc::new(service.clone())],
            nodes: &nodes,
            slices: &[],
        };
        shown(&PlannedAddresses::default().plan(&around, &service))
    };
    assert_eq!(given(service(1, &["IPv4"])), format!("[\"192.0.2.2\"] a {NEW}"));
    assert_eq!(given(asking(service(1, &["IPv4"]), "192.0.2.1")), "AllocationFailed retried");
}

#[test]
fn what_is_not_ours_is_left_alone() {
    let v4 = &["IPv4"][..];
    let classed = |class: &str, service: Service| {
        let mut service = service;
        service.spec.load_balancer_class = Some(class.into());
        service
    };
    let cluster_ip = |mut service: Service| {
        service.spec.type_ = "ClusterIP".into();
        service
    };
    let check = |service: Service, expected: &str| {
        assert_eq!(shown(&plan(&service, &[])), expected, "{service:?}");
    };
    let ours = classed("kubernetes.io/load-balancer-addresses", service(1, v4));
    check(ours, &format!("[\"192.0.2.1\"] a {NEW}"));
    check(classed("example.com/other", service(1, v4)), "");
    check(classed("example.com/other", with(service(1, v4), &["192.0.2.1"], None)), "");
    check(with(service(1, v4), &["198.51.100.1"], None), "");
    let mut named = service(1, v4);
    named.status.load_balancer.ingress = vec![entry("", "lb.example.com")];
    check(named.clone(), "");
    // After a change of the type.
    check(cluster_ip(service(1, v4)), "");
    let had_one = with(service(1, v4), &["192.0.2.1"], Some("a"));
    check(cluster_ip(had_one), "[] none DeletedLoadBalancer");
    check(cluster_ip(with(service(1, v4), &[], Some("a"))), "- none DeletedLoadBalancer");
    check(cluster_ip(named.clone()), "");
    named.status.load_balancer.ingress.push(entry("192.0.2.1", ""));
    check(cluster_ip(named), "[\"lb.example.com\"] none DeletedLoadBalancer");
    let mut deleted = service(1, v4);
    deleted.metadata.deletion_timestamp = Some(Time::from_unix(1));
    check(deleted, "");
}

#[test]
fn the_node_is_written_with_the_addresses_and_moves_alone() {
    let service = |node| with(service(1, &["IPv4"]), &["192.0.2.1"], node);
    assert_eq!(shown(&plan(&service(None), &[])), "- a nodeAssigned");
    assert_eq!(shown(&plan(&service(Some("gone")), &[])), "- a nodeAssigned");
    let all = [Arc::new(service(Some("gone")))];
    let ranges = ranges(&["192.0.2.1/32"]);
    let around = Surroundings {
        names: names(),
        ranges: &ranges,
        services: &all,
        nodes: &[node("b", "Unknown")],
        slices: &[],
    };
    let planned = PlannedAddresses::default().plan(&around, &all[0]);
    assert_eq!(shown(&planned), "- none UnAvailableLoadBalancer");
}

#[test]
fn changes_queue_the_services_that_they_may_help() {
    let (v4, dual) = (&["IPv4"][..], &["IPv4", "IPv6"][..]);
    let has = with(service(1, v4), &["192.0.2.1"], Some("a"));
    let same = with(service(2, v4), &["192.0.2.1"], Some("a"));
    let (lacks, lacks_one) = (service(3, v4), with(service(4, dual), &["fd00::1"], Some("a")));
    let rest = with(service(5, v4), &["192.0.2.2"], Some("a"));
    let mut plain = service(6, v4);
    plain.spec.type_ = "ClusterIP".into();
    let all = || -> Vec<Arc<Service>> {
        [&has, &same, &lacks, &lacks_one, &rest, &plain].map(|s| Arc::new(s.clone())).into()
    };
    let keys = |new: Option<&Service>, old: Option<&Service>| {
        let keys = affected_by_service(names(), new, old, all);
        keys.iter().map(|key| key.name.trim_start_matches("web-").to_owned()).collect::<String>()
    };
    assert_eq!(keys(Some(&has), None), "1");
    assert_eq!(keys(Some(&has), Some(&has)), "1");
    assert_eq!(keys(Some(&has), Some(&service(1, v4))), "11234", "and the one with the same");
    assert_eq!(keys(None, Some(&has)), "134", "those that lack one");
    assert_eq!(keys(Some(&plain), Some(&plain)), "");
    assert_eq!(keys(Some(&plain), Some(&with(service(6, v4), &["192.0.2.9"], None))), "634");
    let nodes = |new: Option<&str>, old: Option<&str>| {
        let made = |status: Option<&str>| status.map(|status| node("a", status));
        affected_by_node(names(), made(new).as_deref(), made(old).as_deref(), all).len()
    };
    assert_eq!(nodes(Some("True"), Some("True")), 0);
    assert_eq!(nodes(Some("Unknown"), Some("True")), 5);
    assert_eq!(nodes(Some("True"), None), 5);
    assert_eq!(nodes(None, Some("Unknown")), 5, "it may be the last one's node");
    assert_eq!(nodes(Some("Unknown"), None), 0);
}
