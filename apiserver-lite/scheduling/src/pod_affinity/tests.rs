//! Pods with inter-pod constraints on three nodes in two zones.

use std::sync::Arc;

use proto_api::core::v1::{
    Affinity, Pod, PodAffinity, PodAffinityTerm, PodAntiAffinity, TopologySpreadConstraint,
};
use proto_api::meta::v1::LabelSelector;
use proto_api::steps::count_during;

use super::*;
use crate::examples::{names, node, profile};
use crate::features::SchedulingFeatures;

fn loads() -> Vec<NodeLoad> {
    [("n1", "a"), ("n2", "a"), ("n3", "b")]
        .map(|(name, zone)| {
            let mut node = node(name);
            node.labels =
                BTreeMap::from([("zone".into(), zone.into()), ("host".into(), name.into())]);
            NodeLoad::empty(Arc::new(node))
        })
        .into()
}

fn app(app: &str) -> Option<LabelSelector> {
    let match_labels = BTreeMap::from([("app".to_owned(), app.to_owned())]);
    Some(LabelSelector { match_labels, ..LabelSelector::default() })
}

fn term(of: &str, topology_key: &str) -> PodAffinityTerm {
    let (label_selector, topology_key) = (app(of), topology_key.to_owned());
    PodAffinityTerm { label_selector, topology_key, ..PodAffinityTerm::default() }
}

fn pod(app: &str, change: impl FnOnce(&mut Pod)) -> PodInfo {
    let mut pod = Pod::default();
    pod.metadata.namespace = "ns".into();
    pod.metadata.labels.insert("app".into(), app.into());
    change(&mut pod);
    PodInfo::from_pod(names(), &pod)
}

fn set_affinity(pod: &mut Pod, term: PodAffinityTerm) {
    let required_during_scheduling_ignored_during_execution = vec![term];
    let affinity =
        PodAffinity { required_during_scheduling_ignored_during_execution, ..Default::default() };
    pod.spec.affinity = Some(Affinity { pod_affinity: Some(affinity), ..Affinity::default() });
}

fn set_anti_affinity(pod: &mut Pod, term: PodAffinityTerm) {
    let required_during_scheduling_ignored_during_execution = vec![term];
    let anti_affinity = PodAntiAffinity {
        required_during_scheduling_ignored_during_execution,
        ..Default::default()
    };
    pod.spec.affinity =
        Some(Affinity { pod_anti_affinity: Some(anti_affinity), ..Affinity::default() });
}

/// For each node: `.` if it is feasible, else the short reason.
fn check_nodes(pod: &PodInfo, loads: &[NodeLoad]) -> String {
    let namespaces = NamespaceLabels::from([(
        "other".into(),
        BTreeMap::from([("team".into(), "x".into())]).into(),
    )]);
    let inter_pod = InterPodState::new(pod, loads, &namespaces, &profile());
    let mark = |load: &NodeLoad| match inter_pod.refusal(&load.node) {
        None => ".",
        Some(Refusal::PodAntiAffinity) => "anti-affinity",
        Some(Refusal::ExistingAntiAffinity) => "excluded",
        Some(Refusal::PodAffinity) => "affinity",
        Some(Refusal::TopologySpread) => "skew",
        Some(Refusal::TopologySpreadLabel) => "no key",
        Some(other) => unreachable!("{other}"),
    };
    loads.iter().map(mark).collect::<Vec<_>>().join(" ")
}

#[test]
fn anti_affinity_by_host_and_by_zone() {
    let mut loads = loads();
    loads[0].add(pod("db", |_| {}));
    assert_eq!(
        check_nodes(&pod("db", |p| set_anti_affinity(p, term("db", "host"))), &loads),
        "anti-affinity . ."
    );
    assert_eq!(
        check_nodes(&pod("db", |p| set_anti_affinity(p, term("db", "zone"))), &loads),
        "anti-affinity anti-affinity ."
    );
    assert_eq!(
        check_nodes(&pod("db", |p| set_anti_affinity(p, term("web", "zone"))), &loads),
        ". . ."
    );
    assert_eq!(check_nodes(&pod("db", |_| {}), &loads), ". . .");
}

#[test]
fn anti_affinity_of_assigned_pods_excludes_later_pods() {
    let mut loads = loads();
    loads[2].add(pod("isolated", |p| set_anti_affinity(p, term("web", "zone"))));
    assert_eq!(check_nodes(&pod("web", |_| {}), &loads), ". . excluded");
    assert_eq!(check_nodes(&pod("db", |_| {}), &loads), ". . .");
}

#[test]
fn affinity_needs_a_matching_pod_or_the_pod_itself() {
    let mut loads = loads();
    let needs_db = pod("web", |p| set_affinity(p, term("db", "zone")));
    assert_eq!(check_nodes(&needs_db, &loads), "affinity affinity affinity");
    let needs_web = pod("web", |p| set_affinity(p, term("web", "zone")));
    assert_eq!(check_nodes(&needs_web, &loads), ". . .");
    loads[1].add(pod("db", |_| {}));
    assert_eq!(check_nodes(&needs_db, &loads), ". . affinity");
    loads[2].add(pod("web", |_| {}));
    assert_eq!(check_nodes(&needs_web, &loads), "affinity affinity .");
}

#[test]
fn one_pod_must_match_all_affinity_terms() {
    let mut loads = loads();
    let both = |app: &str| {
        pod(app, |p| {
            set_affinity(p, term("db", "zone"));
            let affinity = p.spec.affinity.as_mut().unwrap().pod_affinity.as_mut().unwrap();
            let labels = BTreeMap::from([("tier".to_owned(), "fast".to_owned())]);
            let selector = LabelSelector { match_labels: labels, ..LabelSelector::default() };
            let second = PodAffinityTerm { label_selector: Some(selector), ..term("db", "host") };
            affinity.required_during_scheduling_ignored_during_execution.push(second);
        })
    };
    let fast =
        |app: &str| pod(app, |p| drop(p.metadata.labels.insert("tier".into(), "fast".into())));
    loads[0].add(pod("db", |_| {}));
    loads[2].add(fast("web"));
    assert_eq!(
        check_nodes(&both("web"), &loads),
        "affinity affinity affinity",
        "each term matches a different pod"
    );
    assert_eq!(
        check_nodes(&both("db"), &loads),
        "affinity affinity affinity",
        "it does not match both terms itself"
    );
    loads[1].add(fast("db"));
    assert_eq!(check_nodes(&both("web"), &loads), "affinity . affinity");
}

#[test]
fn nodes_without_all_topology_keys_do_not_count() {
    let mut loads = loads();
    let mut bare = (*loads[2].node).clone();
    bare.labels.remove("host");
    loads[2].node = Arc::new(bare);
    loads[0].add(pod("web", |_| {}));
    let constraint = |topology_key: &str| TopologySpreadConstraint {
        max_skew: 1,
        topology_key: topology_key.into(),
        when_unsatisfiable: "DoNotSchedule".into(),
        label_selector: app("web"),
        ..TopologySpreadConstraint::default()
    };
    let both = pod("web", |p| {
        p.spec.topology_spread_constraints = vec![constraint("zone"), constraint("host")];
    });
    // Zone b has no node that counts, so that it is not too full.
    assert_eq!(check_nodes(&both, &loads), "skew . no key");
}

#[test]
fn other_namespaces_count_only_when_selected() {
    let mut loads = loads();
    loads[0].add(pod("db", |p| p.metadata.namespace = "other".into()));
    let with = |change: fn(&mut PodAffinityTerm)| {
        let mut term = term("db", "host");
        change(&mut term);
        check_nodes(&pod("db", |p| set_anti_affinity(p, term)), &loads)
    };
    let team = |value: &str| {
        let match_labels = BTreeMap::from([("team".to_owned(), value.to_owned())]);
        Some(LabelSelector { match_labels, ..LabelSelector::default() })
    };
    assert_eq!(with(|_| {}), ". . .");
    assert_eq!(with(|term| term.namespaces = vec!["other".into()]), "anti-affinity . .");
    assert_eq!(
        with(|term| term.namespace_selector = Some(LabelSelector::default())),
        "anti-affinity . ."
    );
    let mut by_team = term("db", "host");
    by_team.namespace_selector = team("x");
    assert_eq!(
        check_nodes(&pod("db", |p| set_anti_affinity(p, by_team.clone())), &loads),
        "anti-affinity . ."
    );
    by_team.namespace_selector = team("y");
    assert_eq!(check_nodes(&pod("db", |p| set_anti_affinity(p, by_team)), &loads), ". . .");
}

#[test]
fn spread_over_zones() {
    let mut loads = loads();
    let spread = |topology_key: &str, skew: i32| {
        let constraint = TopologySpreadConstraint {
            max_skew: skew,
            topology_key: topology_key.into(),
            when_unsatisfiable: "DoNotSchedule".into(),
            label_selector: app("web"),
            ..TopologySpreadConstraint::default()
        };
        pod("web", |p| p.spec.topology_spread_constraints.push(constraint))
    };
    assert_eq!(check_nodes(&spread("zone", 1), &loads), ". . .");
    loads[0].add(pod("web", |_| {}));
    assert_eq!(check_nodes(&spread("zone", 1), &loads), "skew skew .");
    assert_eq!(check_nodes(&spread("zone", 2), &loads), ". . .");
    loads[2].add(pod("web", |_| {}));
    assert_eq!(check_nodes(&spread("zone", 1), &loads), ". . .");
    assert_eq!(check_nodes(&spread("rack", 1), &loads), "no key no key no key");
    let mut terminating = pod("web", |_| {});
    terminating.phase = PodPhase::Terminating;
    loads[1].add(terminating);
    assert_eq!(
        check_nodes(&spread("zone", 1), &loads),
        ". . .",
        "a terminating pod does not count"
    );
}

/// A node is refused for the pod's own terms first, which no preemption changes.
#[test]
fn own_affinity_is_asked_before_the_anti_affinity_of_others() {
    let mut loads = loads();
    loads[2].add(pod("isolated", |p| set_anti_affinity(p, term("web", "zone"))));
    let needs_db = pod("web", |p| set_affinity(p, term("db", "zone")));
    assert_eq!(check_nodes(&needs_db, &loads), "affinity affinity affinity");
    let far = pod("web", |p| set_anti_affinity(p, term("isolated", "zone")));
    assert_eq!(check_nodes(&far, &loads), ". . anti-affinity");
}

fn spread_with(
    features: &[&str],
    change: impl FnOnce(&mut Pod, &mut TopologySpreadConstraint),
) -> PodInfo {
    let mut constraint = TopologySpreadConstraint {
        max_skew: 1,
        topology_key: "zone".into(),
        when_unsatisfiable: "DoNotSchedule".into(),
        label_selector: app("web"),
        ..TopologySpreadConstraint::default()
    };
    let mut pod = Pod::default();
    pod.metadata.namespace = "ns".into();
    pod.metadata.labels.insert("app".into(), "web".into());
    change(&mut pod, &mut constraint);
    pod.spec.topology_spread_constraints.push(constraint);
    let features = SchedulingFeatures::from_gates(|gate| features.contains(&gate));
    PodInfo::with_features(names(), &pod, features)
}

/// What belongs to a feature that is off counts as absent.
#[test]
fn fields_of_spread_constraints_count_only_with_their_gates() {
    let mut loads = loads();
    loads[0].add(pod("web", |_| {}));
    loads[1].add(pod("web", |_| {}));
    loads[2].add(pod("web", |p| drop(p.metadata.labels.insert("hash".into(), "old".into()))));
    let taint = proto_api::core::v1::Taint {
        key: "k".into(),
        effect: "NoSchedule".into(),
        ..Default::default()
    };
    let mut tainted = (*loads[2].node).clone();
    tainted.taints.push(taint);
    loads[2].node = Arc::new(tainted);
    type Change = fn(&mut Pod, &mut TopologySpreadConstraint);
    let cases: [(&str, Change, &str, &str); 4] = [
        (
            "MinDomainsInPodTopologySpread",
            |_, of| of.min_domains = Some(3),
            "skew skew .",
            "skew skew skew",
        ),
        (
            "MatchLabelKeysInPodTopologySpread",
            |pod, of| {
                pod.metadata.labels.insert("hash".into(), "old".into());
                of.match_label_keys = vec!["hash".into(), "none".into()];
            },
            "skew skew .",
            ". . skew",
        ),
        (
            // The pod of zone b, whose node does not match, counts as well.
            "NodeInclusionPolicyInPodTopologySpread",
            |pod, of| {
                pod.spec.node_selector.insert("zone".into(), "a".into());
                of.node_affinity_policy = Some("Ignore".into());
            },
            ". . .",
            "skew skew .",
        ),
        (
            // The pod of zone b, whose node has a taint, does not.
            "NodeInclusionPolicyInPodTopologySpread",
            |_, of| of.node_taints_policy = Some("Honor".into()),
            "skew skew .",
            ". . .",
        ),
    ];
    for (gate, change, without, with) in cases {
        assert_eq!(check_nodes(&spread_with(&[], change), &loads), without, "{gate} is off");
        assert_eq!(check_nodes(&spread_with(&[gate], change), &loads), with, "{gate} is on");
    }
}

/// Twice the terms cost at most twice the comparisons of a term with a pod, or of a key with a node.
#[test]
fn each_pod_is_compared_with_each_term_once() {
    let mut loads = loads();
    for load in &mut loads {
        let mut node = (*load.node).clone();
        node.labels.extend((0..400).map(|nth| (format!("k{nth}"), "v".to_owned())));
        load.node = Arc::new(node);
        (0..10).for_each(|_| load.add(pod("db", |_| {})));
    }
    let terms = |of: &str, count: usize| -> Vec<PodAffinityTerm> {
        (0..count).map(|nth| term(of, &format!("k{nth}"))).collect()
    };
    type Change = fn(&mut Pod, Vec<PodAffinityTerm>);
    let near: Change = |pod, terms| {
        set_affinity(pod, PodAffinityTerm::default());
        let near = pod.spec.affinity.as_mut().and_then(|all| all.pod_affinity.as_mut());
        near.unwrap().required_during_scheduling_ignored_during_execution = terms;
    };
    let far: Change = |pod, terms| {
        set_anti_affinity(pod, PodAffinityTerm::default());
        let far = pod.spec.affinity.as_mut().and_then(|all| all.pod_anti_affinity.as_mut());
        far.unwrap().required_during_scheduling_ignored_during_execution = terms;
    };
    let spread: Change = |pod, terms| {
        let constraint = |term: PodAffinityTerm| TopologySpreadConstraint {
            max_skew: 1,
            topology_key: term.topology_key,
            when_unsatisfiable: "DoNotSchedule".into(),
            label_selector: term.label_selector,
            ..TopologySpreadConstraint::default()
        };
        pod.spec.topology_spread_constraints = terms.into_iter().map(constraint).collect();
    };
    for (what, of, change) in [("near", "db", near), ("far", "web", far), ("spread", "db", spread)]
    {
        let steps = |count: usize| {
            let pod = pod("x", |pod| change(pod, terms(of, count)));
            assert_eq!(pod.constraints.excess, None);
            let namespaces = NamespaceLabels::new();
            let steps =
                count_during(|| drop(InterPodState::new(&pod, &loads, &namespaces, &profile())));
            assert!(steps >= count as u64 * 3, "{what}: {steps}");
            steps
        };
        let costs = [50, 100, 200, 400].map(steps);
        for pair in costs.windows(2) {
            assert!(pair[1] <= pair[0] * 2 + 100, "{what}: {costs:?}");
        }
    }
}
