//! Selectors from Services and controllers, and the constraints of pods that have none.

use proto_api::core::v1::{Pod, TopologySpreadConstraint};
use proto_api::meta::v1::{ObjectMeta, OwnerReference};

use super::*;
use crate::examples::{self, names, node};
use crate::nodes::NodeLoad;
use crate::pod_affinity::{InterPodState, NamespaceLabels};
use crate::pod_controller::{ControllerKind, PodController};
use crate::profile::{DefaultSpread, ScoredNodes};

fn labels(text: &str) -> BTreeMap<String, String> {
    let pairs = text.split(',').filter_map(|pair| pair.split_once('='));
    pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
}

fn pod(name: &str, text: &str) -> PodInfo {
    PodInfo { labels: labels(text), ..examples::pod(name, 100, 1 << 20) }
}

#[test]
fn pods_are_selected_by_services_and_the_controller_together() {
    let pod = pod("p", "app=web,tier=front,hash=1");
    for (services, controller, expected) in [
        ("", None, ""),
        ("app=db;", None, ""),
        ("app=web", None, "app=web"),
        ("app=web;tier=front,app=web;app=web,tier=back", None, "app=web,tier=front"),
        ("", Some("app in (web,api),hash=1"), "app in (api,web),hash=1"),
        ("tier=front", Some("hash=1"), "hash=1,tier=front"),
        ("app=db", Some("hash=1"), "hash=1"),
    ] {
        let services: Vec<_> = services.split(';').map(|text| Arc::new(labels(text))).collect();
        let controller = controller.map(|text: &str| text.parse::<Selector>().expect("valid"));
        let found = default_selector(&pod, &services, controller.as_ref());
        let found = found.map(|selector| selector.to_string());
        assert_eq!(found.unwrap_or_default(), expected, "{services:?} {controller:?}");
    }
}

#[test]
fn controllers_are_known_by_version_and_kind() {
    let of = |api_version: &str, kind: &str, controller: Option<bool>| {
        let owner = OwnerReference {
            api_version: api_version.into(),
            kind: kind.into(),
            name: "a".into(),
            controller,
            ..OwnerReference::default()
        };
        let metadata = ObjectMeta { owner_references: vec![owner], ..ObjectMeta::default() };
        PodController::from_pod(names(), &metadata).map(|found| found.kind)
    };
    use ControllerKind::{ReplicaSet, ReplicationController, StatefulSet};
    for (api_version, kind, expected) in [
        ("v1", "ReplicationController", Some(ReplicationController)),
        ("apps/v1", "ReplicaSet", Some(ReplicaSet)),
        ("apps/v1", "StatefulSet", Some(StatefulSet)),
        ("example.com/v1", "ReplicaSet", None),
        ("v1", "StatefulSet", None),
        ("batch/v1", "Job", None),
        ("apps/v1", "DaemonSet", None),
    ] {
        assert_eq!(of(api_version, kind, Some(true)), expected, "{api_version} {kind}");
        assert_eq!(of(api_version, kind, None), None, "an owner is no controller");
    }
}

/// A profile with these constraints: topology key, maximum skew, and what becomes of a pod beyond it.
fn listed(constraints: &[(&str, i64, WhenUnsatisfiable)]) -> Profile {
    let constraint = |(key, max_skew, when): &(&str, i64, WhenUnsatisfiable)| DefaultConstraint {
        topology_key: (*key).to_owned(),
        max_skew: *max_skew,
        min_domains: 1,
        when_unsatisfiable: *when,
    };
    let constraints = constraints.iter().map(constraint).collect();
    let default_spread = DefaultSpread { constraints, scored: ScoredNodes::WithAllKeys };
    Profile { default_spread, ..examples::profile() }
}

fn spread(pod: PodInfo, profile: &Profile, selector: &str) -> Arc<PodInfo> {
    let selector = |_: &PodInfo| {
        let selector = selector.parse::<Selector>().expect("valid");
        (!selector.is_everything()).then_some(selector)
    };
    spread_by_default(Arc::new(pod), profile, selector)
}

#[test]
fn pods_without_constraints_have_those_of_the_profile() {
    use WhenUnsatisfiable::{DoNotSchedule, ScheduleAnyway};
    let hard = listed(&[("zone", 1, DoNotSchedule), ("rack", 2, ScheduleAnyway)]);
    let found = spread(pod("p", "app=web"), &hard, "app=web").constraints.clone();
    let keys = |spreads: &[Spread]| -> Vec<(String, i64)> {
        spreads.iter().map(|spread| (spread.topology_key.clone(), spread.max_skew)).collect()
    };
    assert_eq!(keys(&found.topology_spread), [("zone".to_owned(), 1)]);
    assert_eq!(keys(&found.preferred_spread), [("rack".to_owned(), 2)]);
    assert_eq!(found.scored, ScoredNodes::WithAllKeys);
    assert!(found.can_be_helped_by_pods() && hard.default_spread.is_hard());
    // Those of the system are soft.
    let system = examples::profile();
    let found = spread(pod("p", "app=web"), &system, "app=web").constraints.clone();
    let hosts_and_zones = [("kubernetes.io/hostname", 3_i64), ("topology.kubernetes.io/zone", 5)];
    let expected = hosts_and_zones.map(|(key, skew)| (key.to_owned(), skew));
    assert_eq!(keys(&found.preferred_spread), expected);
    assert_eq!((found.topology_spread.len(), found.scored), (0, ScoredNodes::All));
    assert!(!found.can_be_helped_by_pods() && !system.default_spread.is_hard());
    // Without a selector, or with constraints of its own, it is as it was.
    let plain = pod("p", "app=web");
    assert_eq!(*spread(plain.clone(), &hard, ""), plain);
    let mut own = Pod::default();
    own.spec.topology_spread_constraints = vec![TopologySpreadConstraint {
        when_unsatisfiable: "ScheduleAnyway".into(),
        topology_key: "host".into(),
        ..TopologySpreadConstraint::default()
    }];
    let own = PodInfo::from_pod(names(), &own);
    assert_eq!(*spread(own.clone(), &hard, "app=web"), own);
    let none = |_: &PodInfo| -> Option<Selector> { panic!("there is no constraint") };
    let unspread = spread_by_default(Arc::new(plain.clone()), &listed(&[]), none);
    assert_eq!(*unspread, plain);
}

#[test]
fn a_hard_default_constraint_refuses_nodes() {
    let hard = listed(&[("zone", 1, WhenUnsatisfiable::DoNotSchedule)]);
    let mut loads: Vec<NodeLoad> =
        ["a", "b"].iter().map(|name| NodeLoad::empty(Arc::new(node(name)))).collect();
    loads[0].add(pod("w", "app=web"));
    let allowed = |pod: &PodInfo, loads: &[NodeLoad]| -> Vec<bool> {
        let state = InterPodState::new(pod, loads, &NamespaceLabels::new(), &hard);
        loads.iter().map(|load| state.refusal(&load.node).is_none()).collect()
    };
    let web = spread(pod("p", "app=web"), &hard, "app=web");
    assert_eq!(allowed(&web, &loads), [false, true]);
    assert_eq!(allowed(&pod("p", "app=web"), &loads), [true, true]);
    assert_eq!(allowed(&spread(pod("p", "app=db"), &hard, "app=db"), &loads), [true, true]);
    loads[1].add(pod("x", "app=web"));
    assert_eq!(allowed(&web, &loads), [true, true]);
}
