//! Tables of pods and nodes.

use std::sync::Arc;

use proto_api::core::v1::{NodeSelector, NodeSelectorRequirement, NodeSelectorTerm};

use super::*;
use crate::examples::{node, pod, profile};
use crate::node_info::NodeInfo;
use crate::pod_info::HostPort;
use crate::refusal::summary;

fn refusals(pod: &PodInfo, node: NodeInfo) -> String {
    let load = NodeLoad::empty(Arc::new(node));
    check(pod, &load, &profile()).err().map_or_else(String::new, |all| summary(1, [all]))
}

#[test]
fn resources() {
    let mut load = NodeLoad::empty(Arc::new(node("a")));
    load.add(pod("first", 3000, 1 << 30));
    let reasons = |pod: &PodInfo, load: &NodeLoad| {
        check(pod, load, &profile())
            .err()
            .map(|all| all.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "))
    };
    assert_eq!(reasons(&pod("b", 1000, 7 << 30), &load), None);
    assert_eq!(reasons(&pod("b", 1001, 1), &load).unwrap(), "Insufficient cpu");
    assert_eq!(
        reasons(&pod("b", 1001, 8 << 30), &load).unwrap(),
        "Insufficient cpu, Insufficient memory"
    );
    let mut gpu = pod("b", 0, 0);
    gpu.requests.insert("example.com/gpu".into(), 1);
    assert_eq!(reasons(&gpu, &load).unwrap(), "Insufficient example.com/gpu");
    let mut all = pod("b", 1001, 8 << 30);
    for (resource, request) in [("z.com/z", 1), ("a.com/a", 1), ("b.com/b", 0), ("hugepages", 1)] {
        all.requests.insert(resource.into(), request);
    }
    let expected = ["cpu", "memory", "a.com/a", "hugepages", "z.com/z"];
    let expected = expected.map(|resource| format!("Insufficient {resource}")).join(", ");
    assert_eq!(reasons(&all, &load), Some(expected), "CPU and memory first, then by name");
    load.pod_count = 110;
    assert_eq!(reasons(&pod("b", 0, 0), &load).unwrap(), "Too many pods");
}

#[test]
fn disks_are_asked_after_resources() {
    let pod = |cpu: i64| {
        let text = r#"{"spec": {"containers": [], "volumes": [{"name": "v", "awsElasticBlockStore": {"volumeID": "d"}}]}}"#;
        let read = serde_json::from_str(text).expect("a pod");
        let disks = PodInfo::from_pod(crate::examples::names(), &read).disks;
        PodInfo { disks, ..pod("p", cpu, 0) }
    };
    let mut load = NodeLoad::empty(Arc::new(node("a")));
    load.add(pod(100));
    let mut profile = profile();
    assert_eq!(check(&pod(9000), &load, &profile), Err(vec![Refusal::Insufficient(CPU.into())]));
    assert_eq!(check(&pod(100), &load, &profile), Err(vec![Refusal::Disk]));
    profile.left_out.insert(Filter::NodeResourcesFit);
    assert_eq!(check(&pod(9000), &load, &profile), Err(vec![Refusal::Disk]));
    profile.left_out.insert(Filter::VolumeRestrictions);
    assert_eq!(check(&pod(9000), &load, &profile), Ok(()));
}

#[test]
fn a_profile_says_which_filters_are_asked() {
    let mut cordoned = node("a");
    cordoned.admission = Admission::Cordoned;
    cordoned.taints.push(taint("k", "v", "NoSchedule"));
    let load = NodeLoad::empty(Arc::new(cordoned));
    let mut wanted = pod("p", 9000, 0);
    wanted.requests.insert("example.com/gpu".into(), 1);
    wanted.node_selector.insert("zone".into(), "other".into());
    let mut profile = profile();
    let mut reasons = Vec::new();
    for left_out in [
        Filter::NodeUnschedulable,
        Filter::TaintToleration,
        Filter::NodeAffinity,
        Filter::NodeResourcesFit,
    ] {
        reasons.push(check(&wanted, &load, &profile).unwrap_err().len());
        profile.left_out.insert(left_out);
    }
    assert_eq!(reasons, [1, 1, 1, 2]);
    assert_eq!(check(&wanted, &load, &profile), Ok(()));
    profile.left_out.remove(&Filter::NodeResourcesFit);
    profile.fit.ignored_groups.insert("example.com".into());
    let cpu = vec![Refusal::Insufficient("cpu".into())];
    assert_eq!(check(&wanted, &load, &profile), Err(cpu), "only extended resources");
    profile.left_out.clear();
    let required = NodeSelector { node_selector_terms: vec![NodeSelectorTerm::default()] };
    profile.added_affinity.required = Some(required);
    let open = NodeLoad::empty(Arc::new(node("a")));
    let enforced = vec![Refusal::EnforcedNodeAffinity];
    assert_eq!(check(&pod("p", 1, 1), &open, &profile), Err(enforced));
}

#[test]
fn summaries() {
    use Refusal::{Insufficient, NodeAffinity};
    let cpu = || vec![Insufficient("cpu".into())];
    let both = || vec![Insufficient("cpu".into()), Insufficient("memory".into())];
    assert_eq!(summary(1, [cpu()]), "0/1 nodes are available: 1 Insufficient cpu.");
    assert_eq!(
        summary(3, [cpu(), both(), vec![NodeAffinity]]),
        "0/3 nodes are available: 1 Insufficient memory, 1 node(s) didn't match Pod's node \
         affinity/selector, 2 Insufficient cpu."
    );
    assert_eq!(summary(0, []), "no nodes available to schedule pods");
}

fn taint(key: &str, value: &str, effect: &str) -> Taint {
    Taint { key: key.into(), value: value.into(), effect: effect.into(), time_added: None }
}

fn toleration(key: &str, operator: &str, value: &str, effect: &str) -> Toleration {
    Toleration {
        key: key.into(),
        operator: operator.into(),
        value: value.into(),
        effect: effect.into(),
        toleration_seconds: None,
    }
}

#[test]
fn taints() {
    let with = |taints: &[Taint], tolerations: &[Toleration]| {
        let (mut node, mut pod) = (node("a"), pod("p", 0, 0));
        node.taints = taints.to_vec();
        pod.tolerations = tolerations.to_vec();
        refusals(&pod, node)
    };
    let no_schedule = [taint("k", "v", "NoSchedule")];
    let refused = "0/1 nodes are available: 1 node(s) had untolerated taint {k: v}.";
    assert_eq!(with(&no_schedule, &[]), refused);
    assert_eq!(with(&[taint("k", "v", "NoExecute")], &[]), refused);
    assert_eq!(with(&[taint("k", "v", "PreferNoSchedule")], &[]), "");
    for (tolerated, text) in [
        ([toleration("k", "Equal", "v", "NoSchedule")], ""),
        ([toleration("k", "", "v", "")], ""),
        ([toleration("k", "Exists", "", "NoSchedule")], ""),
        ([toleration("", "Exists", "", "")], ""),
        ([toleration("k", "Equal", "w", "NoSchedule")], refused),
        ([toleration("k", "Exists", "", "NoExecute")], refused),
        ([toleration("", "Equal", "v", "")], refused),
        ([toleration("l", "Exists", "", "")], refused),
    ] {
        assert_eq!(with(&no_schedule, &tolerated), text, "{tolerated:?}");
    }
}

#[test]
fn cordoned_nodes() {
    let mut cordoned = node("a");
    cordoned.admission = Admission::Cordoned;
    let unschedulable = "0/1 nodes are available: 1 node(s) were unschedulable.";
    assert_eq!(refusals(&pod("p", 0, 0), cordoned.clone()), unschedulable);
    let mut daemon = pod("p", 0, 0);
    for [key, operator, effect] in
        [["", "Exists", ""], ["node.kubernetes.io/unschedulable", "Exists", "NoSchedule"]]
    {
        daemon.tolerations = vec![toleration(key, operator, "", effect)];
        assert_eq!(refusals(&daemon, cordoned.clone()), "", "before it has the taint");
    }
    daemon.tolerations = vec![toleration("other", "Exists", "", "")];
    assert_eq!(refusals(&daemon, cordoned.clone()), unschedulable);
    cordoned.taints = vec![taint("node.kubernetes.io/unschedulable", "", "NoSchedule")];
    daemon.tolerations = vec![toleration("", "Exists", "", "")];
    assert_eq!(refusals(&daemon, cordoned), "");
}

#[test]
fn labels() {
    let mut big = node("a");
    big.labels.insert("size".into(), "7".into());
    let with = |key: &str, operator: &str, values: &[&str]| {
        let requirement = NodeSelectorRequirement {
            key: key.into(),
            operator: operator.into(),
            values: values.iter().map(|value| (*value).into()).collect(),
        };
        let term = NodeSelectorTerm { match_expressions: vec![requirement], ..Default::default() };
        let mut pod = pod("p", 0, 0);
        pod.required = Some(NodeSelector { node_selector_terms: vec![term] });
        refusals(&pod, big.clone()).is_empty()
    };
    assert!(with("zone", "In", &["zone-b", "zone-a"]) && !with("zone", "In", &["zone-b"]));
    assert!(!with("zone", "NotIn", &["zone-a"]) && with("other", "NotIn", &["x"]));
    assert!(with("zone", "Exists", &[]) && !with("other", "Exists", &[]));
    assert!(!with("zone", "DoesNotExist", &[]) && with("other", "DoesNotExist", &[]));
    assert!(
        with("size", "Gt", &["6"]) && !with("size", "Gt", &["7"]) && !with("zone", "Gt", &["1"])
    );
    assert!(with("size", "Lt", &["8"]) && !with("size", "Lt", &["7"]));
    assert!(!with("size", "Like", &["7"]));

    let mut selected = pod("p", 0, 0);
    selected.node_selector.insert("zone".into(), "zone-a".into());
    assert_eq!(refusals(&selected, node("a")), "");
    assert!(refusals(&selected, node("b")).contains("node affinity/selector"));
    let mut nothing = pod("p", 0, 0);
    nothing.required =
        Some(NodeSelector { node_selector_terms: vec![NodeSelectorTerm::default()] });
    assert!(!refusals(&nothing, node("a")).is_empty(), "an empty term matches nothing");
    let name = NodeSelectorRequirement {
        key: "metadata.name".into(),
        operator: "In".into(),
        values: vec!["b".into()],
    };
    let term = NodeSelectorTerm { match_fields: vec![name], ..Default::default() };
    nothing.required = Some(NodeSelector { node_selector_terms: vec![term] });
    assert!(!refusals(&nothing, node("a")).is_empty() && refusals(&nothing, node("b")).is_empty());
}

#[test]
fn host_ports() {
    let port = |port: i32, protocol: &str, ip: &str| HostPort {
        port,
        protocol: protocol.into(),
        ip: ip.into(),
    };
    let check_ports = |wanted: HostPort, taken: HostPort| {
        let (mut first, mut second) = (pod("a", 0, 0), pod("b", 0, 0));
        first.host_ports = vec![taken];
        second.host_ports = vec![wanted];
        let mut load = NodeLoad::empty(Arc::new(node("a")));
        load.add(first);
        check(&second, &load, &profile()).is_ok()
    };
    assert!(!check_ports(port(80, "TCP", ""), port(80, "TCP", "")));
    assert!(!check_ports(port(80, "TCP", "10.0.0.1"), port(80, "TCP", "0.0.0.0")));
    assert!(check_ports(port(80, "TCP", "10.0.0.1"), port(80, "TCP", "10.0.0.2")));
    assert!(check_ports(port(80, "TCP", ""), port(80, "UDP", "")));
    assert!(check_ports(port(80, "TCP", ""), port(81, "TCP", "")));
    assert!(!check_ports(port(80, "TCP", "::"), port(80, "TCP", "10.0.0.2")));
    assert!(!check_ports(port(80, "TCP", "fd00::1"), port(80, "TCP", "::")));
}

/// The number of host ports is bounded only by the size of a pod.
#[test]
fn host_port_checks_are_not_quadratic() {
    let all = |from: i32| {
        let ports = (0..40_000).map(|nth| HostPort {
            port: from + nth / 4,
            protocol: "TCP".into(),
            ip: format!("10.0.0.{}", nth % 4),
        });
        ports.collect::<Vec<_>>()
    };
    let (mut there, mut wanted) = (pod("a", 0, 0), pod("b", 0, 0));
    there.host_ports = all(1);
    wanted.host_ports = all(20_000);
    let mut load = NodeLoad::empty(Arc::new(node("a")));
    // A step is a look at a port or an address.
    let steps = proto_api::steps::count_during(|| {
        load.add(there);
        assert!(check(&wanted, &load, &profile()).is_ok());
    });
    assert_eq!(steps, 80_000, "one for each port that is there, and one for each that is wanted");
}
