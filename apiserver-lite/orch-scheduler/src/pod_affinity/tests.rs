//! Three nodes in two zones, and pods that care for each other.

use std::sync::Arc;

use proto_api::core::v1::{Affinity, PodAffinity, PodAntiAffinity};
use proto_api::meta::v1::LabelSelector;

use super::*;
use crate::pod_info::examples::{names, node};

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

fn term(of: &str, place: &str) -> PodAffinityTerm {
    let (label_selector, topology_key) = (app(of), place.to_owned());
    PodAffinityTerm { label_selector, topology_key, ..PodAffinityTerm::default() }
}

fn pod(app: &str, change: impl FnOnce(&mut Pod)) -> PodInfo {
    let mut pod = Pod::default();
    pod.metadata.namespace = "ns".into();
    pod.metadata.labels.insert("app".into(), app.into());
    change(&mut pod);
    PodInfo::of(names(), &pod)
}

fn near(pod: &mut Pod, term: PodAffinityTerm) {
    let required_during_scheduling_ignored_during_execution = vec![term];
    let wish =
        PodAffinity { required_during_scheduling_ignored_during_execution, ..Default::default() };
    pod.spec.affinity = Some(Affinity { pod_affinity: Some(wish), ..Affinity::default() });
}

fn apart(pod: &mut Pod, term: PodAffinityTerm) {
    let required_during_scheduling_ignored_during_execution = vec![term];
    let wish = PodAntiAffinity {
        required_during_scheduling_ignored_during_execution,
        ..Default::default()
    };
    pod.spec.affinity = Some(Affinity { pod_anti_affinity: Some(wish), ..Affinity::default() });
}

/// For each node: `.` if the pod may go there, else why not in two words.
fn map(pod: &PodInfo, loads: &[NodeLoad]) -> String {
    let namespaces =
        NamespaceLabels::from([("other".into(), BTreeMap::from([("team".into(), "x".into())]))]);
    let inter_pod = InterPodState::of(pod, loads, &namespaces);
    let mark = |load: &NodeLoad| match inter_pod.refusal(&load.node) {
        None => ".",
        Some(Refusal::NotApart) => "apart",
        Some(Refusal::OthersKeepApart) => "closed",
        Some(Refusal::NotNear) => "far",
        Some(Refusal::Uneven) => "uneven",
        Some(Refusal::NoPlace) => "no place",
        Some(other) => unreachable!("{other}"),
    };
    loads.iter().map(mark).collect::<Vec<_>>().join(" ")
}

#[test]
fn apart_by_host_and_by_zone() {
    let mut loads = loads();
    loads[0].add(pod("db", |_| {}));
    assert_eq!(map(&pod("db", |p| apart(p, term("db", "host"))), &loads), "apart . .");
    assert_eq!(map(&pod("db", |p| apart(p, term("db", "zone"))), &loads), "apart apart .");
    assert_eq!(map(&pod("db", |p| apart(p, term("web", "zone"))), &loads), ". . .");
    assert_eq!(map(&pod("db", |_| {}), &loads), ". . .");
}

#[test]
fn who_is_there_may_keep_others_away() {
    let mut loads = loads();
    loads[2].add(pod("hermit", |p| apart(p, term("web", "zone"))));
    assert_eq!(map(&pod("web", |_| {}), &loads), ". . closed");
    assert_eq!(map(&pod("db", |_| {}), &loads), ". . .");
}

#[test]
fn near_others_or_first_of_its_kind() {
    let mut loads = loads();
    let wants_db = pod("web", |p| near(p, term("db", "zone")));
    assert_eq!(map(&wants_db, &loads), "far far far");
    let wants_its_like = pod("web", |p| near(p, term("web", "zone")));
    assert_eq!(map(&wants_its_like, &loads), ". . .");
    loads[1].add(pod("db", |_| {}));
    assert_eq!(map(&wants_db, &loads), ". . far");
    loads[2].add(pod("web", |_| {}));
    assert_eq!(map(&wants_its_like, &loads), "far far .");
}

#[test]
fn one_pod_must_be_meant_by_all_terms() {
    let mut loads = loads();
    let both = |app: &str| {
        pod(app, |p| {
            near(p, term("db", "zone"));
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
    assert_eq!(map(&both("web"), &loads), "far far far", "each term has a pod, but another one");
    assert_eq!(map(&both("db"), &loads), "far far far", "it would not be meant by both itself");
    loads[1].add(fast("db"));
    assert_eq!(map(&both("web"), &loads), "far . far");
}

#[test]
fn nodes_without_all_labels_do_not_count_for_the_spread() {
    let mut loads = loads();
    let mut bare = (*loads[2].node).clone();
    bare.labels.remove("host");
    loads[2].node = Arc::new(bare);
    loads[0].add(pod("web", |_| {}));
    let constraint = |place: &str| TopologySpreadConstraint {
        max_skew: 1,
        topology_key: place.into(),
        when_unsatisfiable: "DoNotSchedule".into(),
        label_selector: app("web"),
        ..TopologySpreadConstraint::default()
    };
    let both = pod("web", |p| {
        p.spec.topology_spread_constraints = vec![constraint("zone"), constraint("host")];
    });
    // Zone b has no node that counts, so that zone a is not too full.
    assert_eq!(map(&both, &loads), "uneven . no place");
}

#[test]
fn other_namespaces_count_only_when_named() {
    let mut loads = loads();
    loads[0].add(pod("db", |p| p.metadata.namespace = "other".into()));
    let with = |change: fn(&mut PodAffinityTerm)| {
        let mut term = term("db", "host");
        change(&mut term);
        map(&pod("db", |p| apart(p, term)), &loads)
    };
    let team = |value: &str| {
        let match_labels = BTreeMap::from([("team".to_owned(), value.to_owned())]);
        Some(LabelSelector { match_labels, ..LabelSelector::default() })
    };
    assert_eq!(with(|_| {}), ". . .");
    assert_eq!(with(|term| term.namespaces = vec!["other".into()]), "apart . .");
    assert_eq!(with(|term| term.namespace_selector = Some(LabelSelector::default())), "apart . .");
    let mut by_team = term("db", "host");
    by_team.namespace_selector = team("x");
    assert_eq!(map(&pod("db", |p| apart(p, by_team.clone())), &loads), "apart . .");
    by_team.namespace_selector = team("y");
    assert_eq!(map(&pod("db", |p| apart(p, by_team)), &loads), ". . .");
}

#[test]
fn spread_over_zones() {
    let mut loads = loads();
    let spread = |place: &str, skew: i32| {
        let constraint = TopologySpreadConstraint {
            max_skew: skew,
            topology_key: place.into(),
            when_unsatisfiable: "DoNotSchedule".into(),
            label_selector: app("web"),
            ..TopologySpreadConstraint::default()
        };
        pod("web", |p| p.spec.topology_spread_constraints.push(constraint))
    };
    assert_eq!(map(&spread("zone", 1), &loads), ". . .");
    loads[0].add(pod("web", |_| {}));
    assert_eq!(map(&spread("zone", 1), &loads), "uneven uneven .");
    assert_eq!(map(&spread("zone", 2), &loads), ". . .");
    loads[2].add(pod("web", |_| {}));
    assert_eq!(map(&spread("zone", 1), &loads), ". . .");
    assert_eq!(map(&spread("rack", 1), &loads), "no place no place no place");
    let mut gone = pod("web", |_| {});
    gone.phase = PodPhase::Terminating;
    loads[1].add(gone);
    assert_eq!(map(&spread("zone", 1), &loads), ". . .", "who leaves does not count");
}
