use proto_api::core::v1::{
    Affinity, Container, ContainerPort, Node, NodeAffinity, NodeSelector, NodeSelectorRequirement,
    NodeSelectorTerm, Pod, Taint, Toleration,
};

use super::*;

fn node() -> Node {
    let mut node = Node::default();
    node.metadata.name = "n1".into();
    node.metadata.labels.insert("disk".into(), "ssd".into());
    node.metadata.labels.insert("cores".into(), "8".into());
    for (name, amount) in [("cpu", "1"), ("memory", "1Gi"), ("pods", "2")] {
        node.status.allocatable.insert(name.into(), amount.parse().expect("quantity"));
    }
    node
}

fn pod() -> Pod {
    let mut pod = Pod::default();
    pod.spec.containers = vec![Container::default()];
    pod
}

fn reason(pod: &Pod, node: &Node, load: &NodeLoad) -> String {
    admit(pod, node, load, false).map_or_else(|r| r.reason, |()| "admitted".into())
}

#[test]
fn resources_are_counted_with_what_runs() {
    let mut asks = pod();
    asks.spec.containers[0].resources.requests.insert("cpu".into(), "600m".parse().expect("cpu"));
    let mut load = NodeLoad::default();
    assert_eq!(reason(&asks, &node(), &load), "admitted");
    load.add(&asks);
    let refusal = admit(&asks, &node(), &load, false).expect_err("full");
    assert_eq!(refusal.reason, "OutOfcpu");
    assert_eq!(
        refusal.message,
        "Node didn't have enough resource: cpu, requested: 600, used: 600, capacity: 1000"
    );
    assert_eq!(reason(&pod(), &node(), &load), "admitted");
    load.add(&pod());
    assert_eq!(reason(&pod(), &node(), &load), "OutOfpods");
}

#[test]
fn an_extended_resource_of_the_node_is_accounted_for_and_another_is_not_the_nodes_business() {
    let mut asks = pod();
    asks.spec.containers[0].resources.requests.insert("x.io/y".into(), "1".parse().expect("1"));
    let mut node = node();
    assert_eq!(reason(&asks, &node, &NodeLoad::default()), "admitted");
    node.status.allocatable.insert("x.io/y".into(), "0".parse().expect("0"));
    assert_eq!(reason(&asks, &node, &NodeLoad::default()), "OutOfx.io/y");
}

#[test]
fn host_ports_clash_by_address_protocol_and_number() {
    let port = |ip: &str, protocol: &str| {
        let mut pod = pod();
        let (host_ip, protocol) = (ip.to_owned(), protocol.to_owned());
        pod.spec.containers[0].ports =
            vec![ContainerPort { host_port: 80, host_ip, protocol, ..ContainerPort::default() }];
        pod
    };
    let mut load = NodeLoad::default();
    load.add(&port("10.0.0.1", "TCP"));
    let cases = [
        ("10.0.0.1", "TCP", "NodePorts"),
        ("", "", "NodePorts"),
        ("0.0.0.0", "TCP", "NodePorts"),
        ("10.0.0.2", "TCP", "admitted"),
        ("10.0.0.1", "UDP", "admitted"),
    ];
    for (ip, protocol, expect) in cases {
        assert_eq!(reason(&port(ip, protocol), &node(), &load), expect, "{ip} {protocol}");
    }
}

#[test]
fn selectors_and_required_affinity_choose() {
    let requirement = |key: &str, operator: &str, values: &[&str]| NodeSelectorRequirement {
        key: key.into(),
        operator: operator.into(),
        values: values.iter().map(|v| (*v).to_owned()).collect(),
    };
    let cases = [
        (requirement("disk", "In", &["ssd", "nvme"]), true),
        (requirement("disk", "NotIn", &["ssd"]), false),
        (requirement("gpu", "NotIn", &["x"]), true),
        (requirement("disk", "Exists", &[]), true),
        (requirement("gpu", "DoesNotExist", &[]), true),
        (requirement("cores", "Gt", &["4"]), true),
        (requirement("cores", "Lt", &["4"]), false),
        (requirement("disk", "Nonsense", &[]), false),
    ];
    for (expression, expect) in cases {
        let term = NodeSelectorTerm {
            match_expressions: vec![expression.clone()],
            ..NodeSelectorTerm::default()
        };
        let selector = NodeSelector { node_selector_terms: vec![term] };
        let mut chooses = pod();
        chooses.spec.affinity = Some(Affinity {
            node_affinity: Some(NodeAffinity {
                required_during_scheduling_ignored_during_execution: Some(selector),
                ..NodeAffinity::default()
            }),
            ..Affinity::default()
        });
        let expect = if expect { "admitted" } else { "NodeAffinity" };
        assert_eq!(reason(&chooses, &node(), &NodeLoad::default()), expect, "{expression:?}");
    }
    let mut wrong = pod();
    wrong.spec.node_selector.insert("disk".into(), "hdd".into());
    assert_eq!(reason(&wrong, &node(), &NodeLoad::default()), "NodeAffinity");
}

#[test]
fn only_evicting_taints_keep_a_pod_away() {
    let taint = |effect: &str| Taint {
        key: "k".into(),
        value: "v".into(),
        effect: effect.into(),
        ..Taint::default()
    };
    let mut tainted = node();
    tainted.spec.taints = vec![taint("NoSchedule")];
    assert_eq!(reason(&pod(), &tainted, &NodeLoad::default()), "admitted");
    tainted.spec.taints = vec![taint("NoExecute")];
    assert_eq!(reason(&pod(), &tainted, &NodeLoad::default()), "TaintToleration");
    assert!(admit(&pod(), &tainted, &NodeLoad::default(), true).is_ok(), "static");
    let tolerations = [
        (("k", "Equal", "v", ""), true),
        (("k", "", "v", "NoExecute"), true),
        (("k", "Exists", "", "NoSchedule"), false),
        (("", "Exists", "", ""), true),
        (("", "Equal", "v", ""), false),
        (("k", "Equal", "w", ""), false),
    ];
    for ((key, operator, value, effect), expect) in tolerations {
        let mut tolerant = pod();
        tolerant.spec.tolerations = vec![Toleration {
            key: key.into(),
            operator: operator.into(),
            value: value.into(),
            effect: effect.into(),
            ..Toleration::default()
        }];
        let admitted = admit(&tolerant, &tainted, &NodeLoad::default(), false).is_ok();
        assert_eq!(admitted, expect, "{key} {operator} {value} {effect}");
    }
}
