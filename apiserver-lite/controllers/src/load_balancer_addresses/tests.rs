//! Cases of single Services.

mod histories;

use proto_api::core::v1::{NodeAddress, NodeCondition};
use proto_api::names::Profile;
use proto_api::{AddressRange, Time};
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

/// The addresses of these Services.
fn users(services: &[&Service]) -> AddressUsers {
    let mut users = AddressUsers::default();
    for service in services {
        users.service_changed(names(), &ObjectKey::from_metadata(&service.metadata), Some(service));
    }
    users
}

/// Plans one Service among others, with the ranges 192.0.2.1 to .3 and fd00::1, and the node `a`.
fn plan(service: &Service, others: &[Service]) -> AddressPlan {
    plan_on(service, others, &[node("a", "True")])
}

fn plan_on(service: &Service, others: &[Service], nodes: &[Arc<Node>]) -> AddressPlan {
    let ranges = ranges(&["192.0.2.1-192.0.2.3", "fd00::1-fd00::1"]);
    let around = Surroundings { names: names(), ranges: &ranges, nodes, slices: &[] };
    let all: Vec<&Service> = others.iter().chain([service]).collect();
    users(&all).plan(&around, service)
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
        let around = Surroundings { names: names(), ranges: &ranges, nodes: &nodes, slices: &[] };
        let mut users = users(&[&service]);
        users.node_changed(names(), "a", Some(&nodes[0]), None);
        shown(&users.plan(&around, &service))
    };
    assert_eq!(given(service(1, &["IPv4"])), format!("[\"192.0.2.2\"] a {NEW}"));
    assert_eq!(given(asking(service(1, &["IPv4"]), "192.0.2.1")), "AllocationFailed retried");
}

/// A node writes its own addresses: one that lists those of the ranges takes a few of them at most.
#[test]
fn a_node_does_not_use_up_the_ranges() {
    let ranges = ranges(&["192.0.2.1-192.0.2.40"]);
    let mut of_node = Node::clone(&node("a", "True"));
    let mut listed = |type_: &str, from: u8, to: u8| {
        let all = from..=to;
        of_node.status.addresses = all
            .map(|n| NodeAddress { type_: type_.into(), address: format!("192.0.2.{n}") })
            .collect();
        let nodes = [Arc::new(of_node.clone())];
        let around = Surroundings { names: names(), ranges: &ranges, nodes: &nodes, slices: &[] };
        let service = service(1, &["IPv4"]);
        let mut users = users(&[&service]);
        users.node_changed(names(), "a", Some(&nodes[0]), None);
        (shown(&users.plan(&around, &service)), has_surplus_addresses(&nodes[0]))
    };
    let given = |n: u8| format!("[\"192.0.2.{n}\"] a {NEW}");
    assert_eq!(listed("InternalIP", 1, 8), (given(9), false), "a node has several addresses");
    assert_eq!(listed("InternalIP", 1, 40), (given(9), true));
    assert_eq!(listed("ExternalIP", 1, 40), (given(9), true));
    assert_eq!(listed("Hostname", 1, 3), (given(1), false), "a name");
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
    // What it had before it got the class is released, and nothing of the other controller.
    let had =
        |ingress: &[&str]| classed("example.com/other", with(service(1, v4), ingress, Some("a")));
    check(had(&["192.0.2.1"]), "[] none DeletedLoadBalancer");
    check(had(&["198.51.100.1", "192.0.2.1"]), "[\"198.51.100.1\"] none DeletedLoadBalancer");
    check(had(&["198.51.100.1"]), "- none DeletedLoadBalancer");
    check(with(service(1, v4), &["198.51.100.1"], None), "");
    let mut named = service(1, v4);
    named.status.load_balancer.ingress = vec![entry("", "lb.example.com")];
    check(named.clone(), "");
    // After a change of the type.
    check(cluster_ip(service(1, v4)), "");
    let had_one = with(service(1, v4), &["192.0.2.1"], Some("a"));
    check(cluster_ip(had_one), "[] none DeletedLoadBalancer");
    check(cluster_ip(with(service(1, v4), &[], Some("a"))), "- none DeletedLoadBalancer");
    let outside = with(service(1, v4), &["198.51.100.1"], Some("a"));
    check(cluster_ip(outside), "[] none DeletedLoadBalancer");
    check(cluster_ip(with(service(1, v4), &["198.51.100.1"], None)), "");
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
    let planned = plan_on(&service(Some("gone")), &[], &[node("b", "Unknown")]);
    assert_eq!(shown(&planned), "- none UnAvailableLoadBalancer");
}

/// Smaller ranges take no address away and leave none without a node.
#[test]
fn an_address_outside_of_the_ranges_is_kept_and_moves_with_its_node() {
    let (v4, dual) = (&["IPv4"][..], &["IPv4", "IPv6"][..]);
    let warning = "LoadBalancerIPOutOfRange";
    let check = |service: Service, expected: &str| {
        let planned = plan(&service, &[]);
        assert_eq!(shown(&planned), expected, "{service:?}");
        let about: Vec<&str> = planned.plan.reports.iter().map(|e| e.message.as_str()).collect();
        assert!(about.iter().any(|message| message.contains("192.0.9.9")), "{about:?}");
    };
    let on = |node| with(service(1, v4), &["192.0.9.9"], Some(node));
    check(on("a"), warning);
    check(on("gone"), &format!("- a {warning} nodeAssigned"));
    let asks_for_it = format!("AllocationFailed {warning}");
    check(asking(on("a"), "192.0.9.9"), &asks_for_it);
    let both = with(service(1, dual), &["192.0.9.9", "fd00:9::9"], Some("a"));
    check(both, &format!("{warning} {warning}"));
    // Another one that it asks for is given instead.
    let other = plan(&asking(on("a"), "192.0.2.2"), &[]);
    assert_eq!(shown(&other), "[\"192.0.2.2\"] a IPAllocated EnsuredLoadBalancer");
    // While no node can announce it, the annotation says still that it is ours.
    let planned = plan_on(&on("gone"), &[], &[node("b", "Unknown")]);
    assert_eq!(shown(&planned), warning);
    // A family without a range any more.
    let six = with(service(1, &["IPv6"]), &["fd00:9::9"], Some("gone"));
    let ranges = ranges(&["192.0.2.1/32"]);
    let nodes = [node("a", "True")];
    let around = Surroundings { names: names(), ranges: &ranges, nodes: &nodes, slices: &[] };
    let planned = users(&[&six]).plan(&around, &six);
    assert_eq!(shown(&planned), format!("- a {warning} nodeAssigned"));
}

/// A Service that is deleted, or created again with its name, while it is planned.
#[test]
fn the_plan_of_a_service_that_is_gone_holds_no_address() {
    let ranges = ranges(&["192.0.2.1/32"]);
    let nodes = [node("a", "True")];
    let around = Surroundings { names: names(), ranges: &ranges, nodes: &nodes, slices: &[] };
    let (old, other) = (service(1, &["IPv4"]), service(2, &["IPv4"]));
    let mut again = old.clone();
    again.metadata.uid = "uid-again".into();
    let key = ObjectKey::from_metadata(&old.metadata);
    for next in [None, Some(&again)] {
        let mut users = users(&[&old, &other]);
        assert!(shown(&users.plan(&around, &old)).contains("192.0.2.1"));
        assert_eq!(shown(&users.plan(&around, &other)), "AllocationFailed retried");
        users.service_changed(names(), &key, next);
        assert_eq!(shown(&users.plan(&around, &old)), "", "{next:?}");
        assert!(shown(&users.plan(&around, &other)).contains("192.0.2.1"), "{next:?}");
    }
}

#[test]
fn changes_queue_the_services_that_they_may_help() {
    let (v4, v6, dual) = (&["IPv4"][..], &["IPv6"][..], &["IPv4", "IPv6"][..]);
    let has = with(service(1, v4), &["192.0.2.1"], Some("a"));
    let same = with(service(2, v4), &["192.0.2.1"], Some("a"));
    let (lacks, lacks_one) = (service(3, v4), with(service(4, dual), &["192.0.2.4"], Some("a")));
    let rest = with(service(5, v4), &["192.0.2.2"], Some("a"));
    let mut plain = service(6, v4);
    plain.spec.type_ = "ClusterIP".into();
    let asks = asking(with(service(7, v4), &["192.0.2.7"], Some("a")), "192.0.2.1");
    let six = with(service(8, v6), &["fd00::8"], Some("a"));
    let all = [&same, &lacks, &lacks_one, &rest, &plain, &asks, &six];
    let numbers = |keys: Vec<ObjectKey>| {
        keys.iter().map(|key| key.name.trim_start_matches("web-").to_owned()).collect::<String>()
    };
    let changed = |users: &mut AddressUsers, key: &Service, new: Option<&Service>| {
        numbers(users.service_changed(names(), &ObjectKey::from_metadata(&key.metadata), new))
    };
    let mut users = users(&all);
    assert_eq!(changed(&mut users, &has, Some(&has)), "12", "and the one with the same");
    assert_eq!(changed(&mut users, &has, Some(&has)), "1");
    assert_eq!(changed(&mut users, &has, None), "1", "the other one has it still");
    assert_eq!(changed(&mut users, &same, None), "237", "those that lack it");
    assert_eq!(changed(&mut users, &same, None), "");
    assert_eq!(changed(&mut users, &plain, Some(&plain)), "");
    let had_one = with(plain.clone(), &["192.0.2.9"], None);
    assert_eq!(changed(&mut users, &plain, Some(&had_one)), "6");
    assert_eq!(changed(&mut users, &plain, Some(&plain)), "63");
    assert_eq!(changed(&mut users, &six, None), "84", "of one family");
    assert_eq!(changed(&mut users, &rest, Some(&service(5, v4))), "53");
    // A node may have an address of the ranges.
    let made = |status: &str, address: &str| {
        let mut node = Node::clone(&node("a", status));
        let address = NodeAddress { type_: "InternalIP".into(), address: address.into() };
        node.status.addresses = vec![address];
        node
    };
    let mut changed = |new: Option<&Node>, old: Option<&Node>| {
        numbers(users.node_changed(names(), "a", new, old))
    };
    let (ready, failed) = (made("True", "192.0.2.1"), made("Unknown", "192.0.2.1"));
    assert_eq!(changed(Some(&ready), None), "47", "those that have one");
    assert_eq!(changed(Some(&ready), Some(&ready)), "");
    assert_eq!(changed(Some(&failed), Some(&ready)), "47");
    assert_eq!(changed(Some(&made("Unknown", "192.0.2.99")), Some(&failed)), "357");
    assert_eq!(changed(None, Some(&failed)), "3457", "it may be the last one's node");
    assert_eq!(changed(Some(&failed), None), "");
}

/// What a plan of one Service costs does not depend on the others: the first free address is found without a look at what they have.
#[test]
fn the_index_says_what_the_services_say() {
    let mut index = AddressUsers::default();
    let mut services: Vec<Service> = Vec::new();
    for number in 0_u8..100 {
        let address = format!("192.0.2.{}", number / 2);
        services.push(with(service(i64::from(number), &["IPv4"]), &[&address], Some("a")));
    }
    for service in services.iter().rev() {
        index.service_changed(names(), &ObjectKey::from_metadata(&service.metadata), Some(service));
    }
    for pair in services.chunks(2) {
        let address = of_status(&pair[0]).next().unwrap();
        let [older, younger] = [0, 1].map(|n| ObjectKey::from_metadata(&pair[n].metadata));
        assert_eq!(index.other_user(address, &younger), Some(older.clone()));
        assert_eq!(index.other_user(address, &older), Some(younger.clone()));
        assert!(index.is_lost(address, &pair[1]) && !index.is_lost(address, &pair[0]));
        index.service_changed(names(), &older, None);
        assert!(!index.is_taken(address, &younger) && index.is_taken(address, &older));
        index.service_changed(names(), &younger, None);
        assert!(!index.is_taken(address, &older));
    }
}
