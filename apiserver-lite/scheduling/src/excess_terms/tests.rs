use std::sync::Arc;

use proto_api::core::v1::{
    Affinity, PersistentVolumeClaimVolumeSource, PodAffinity, PodAntiAffinity,
    TopologySpreadConstraint, Volume,
};

use super::*;
use crate::examples::{names, node, profile};
use crate::nodes::NodeLoad;
use crate::nominations::NominatedLoads;
use crate::pod_affinity::{InterPodState, NamespaceLabels};
use crate::pod_info::PodInfo;
use crate::refusal::Refusal;
use crate::select_node::{NodeView, SelectError, SelectionRules, StorageView, select_node};
use crate::selected_counts::SelectedCounts;
use crate::volumes::{BindingAnnotations, StorageSnapshot};

/// A term that selects `app=none`, with this many requirements.
fn term(requirements: usize) -> PodAffinityTerm {
    let labels = (0..requirements).map(|nth| (format!("app{nth}"), "none".to_owned()));
    PodAffinityTerm {
        label_selector: Some(LabelSelector {
            match_labels: labels.collect(),
            ..LabelSelector::default()
        }),
        topology_key: "zone".into(),
        ..PodAffinityTerm::default()
    }
}

/// A pod with this many terms of each kind: required and preferred affinity, the same of anti-affinity, spread constraints.
fn pod_with([near, nearer, far, farther, spread]: [usize; 5], requirements: usize) -> Pod {
    let terms = |count: usize| vec![term(requirements); count];
    let weighted = |count: usize| {
        let one = WeightedPodAffinityTerm { weight: 1, pod_affinity_term: term(requirements) };
        vec![one; count]
    };
    let constraint = TopologySpreadConstraint {
        max_skew: 1,
        topology_key: "zone".into(),
        label_selector: term(requirements).label_selector,
        when_unsatisfiable: "ScheduleAnyway".into(),
        ..TopologySpreadConstraint::default()
    };
    let mut pod = Pod::default();
    pod.metadata.namespace = "ns".into();
    pod.spec.topology_spread_constraints = vec![constraint; spread];
    pod.spec.affinity = Some(Affinity {
        pod_affinity: Some(PodAffinity {
            required_during_scheduling_ignored_during_execution: terms(near),
            preferred_during_scheduling_ignored_during_execution: weighted(nearer),
        }),
        pod_anti_affinity: Some(PodAntiAffinity {
            required_during_scheduling_ignored_during_execution: terms(far),
            preferred_during_scheduling_ignored_during_execution: weighted(farther),
        }),
        ..Affinity::default()
    });
    pod
}

fn loads() -> Vec<NodeLoad> {
    ["a", "b"].map(|name| NodeLoad::empty(Arc::new(node(name)))).into()
}

/// The message to users of a pod without claims that is not scheduled; empty if it is.
fn why(pod: &PodInfo) -> String {
    let (mut loads, namespaces, profile) = (loads(), NamespaceLabels::new(), profile());
    let (storage, annotations) = (StorageSnapshot::default(), BindingAnnotations::new(names()));
    let storage_view = StorageView { storage: &storage, annotations: &annotations };
    let rules = SelectionRules { profile: &profile, namespaces: &namespaces };
    let (nominated, selected) = (&mut NominatedLoads::default(), &mut SelectedCounts::default());
    let nodes = NodeView { loads: &mut loads, nominated, selected };
    match select_node(pod, nodes, rules, storage_view) {
        Ok(_) => String::new(),
        Err(SelectError::NoFeasibleNode(why)) => why.message(),
        Err(other) => panic!("{other:?}"),
    }
}

#[test]
fn a_pod_with_too_many_terms_is_not_scheduled_and_says_so() {
    let info = |pod: &Pod| PodInfo::from_pod(names(), pod);
    assert_eq!(why(&info(&pod_with([0, 100, 100, 100, 200], 10))), "");
    for counts in [
        [501, 0, 0, 0, 0],
        [0, 501, 0, 0, 0],
        [0, 0, 501, 0, 0],
        [0, 0, 0, 501, 0],
        [0, 0, 0, 0, 501],
        [100, 100, 100, 100, 101],
    ] {
        let pod = info(&pod_with(counts, 2));
        assert_eq!(
            why(&pod),
            "0/2 nodes are available: 2 node(s) were not tried: the pod has 501 pod affinity terms and topology spread constraints with 1002 requirements, at most 500 with 5000 are supported."
        );
        assert!(!pod.constraints.can_be_helped_by_pods(), "it waits for no pod");
    }
    let text = why(&info(&pod_with([0, 0, 1, 0, 0], 5001)));
    assert!(text.contains("has 1 pod affinity terms") && text.contains("with 5001"), "{text}");
}

#[test]
fn a_running_pod_with_too_many_terms_keeps_all_pods_of_its_namespaces_off() {
    let excluded = |change: fn(&mut PodAffinityTerm), counts, namespace: &str| {
        let mut running = pod_with(counts, 1);
        let far = running.spec.affinity.as_mut().and_then(|all| all.pod_anti_affinity.as_mut());
        let far = far.expect("anti-affinity");
        if let Some(one) = far.required_during_scheduling_ignored_during_execution.last_mut() {
            change(one);
        }
        let mut loads = loads();
        loads[1].add(PodInfo::from_pod(names(), &running));
        let mut pod = Pod::default();
        pod.metadata.namespace = namespace.into();
        let pod = PodInfo::from_pod(names(), &pod);
        let namespaces = NamespaceLabels::from([("other".into(), Arc::default())]);
        let state = InterPodState::new(&pod, &loads, &namespaces, &profile());
        let refusals = loads.iter().map(|load| state.refusal(&load.node));
        refusals.map(|refusal| refusal == Some(Refusal::ExistingAntiAffinity)).collect::<Vec<_>>()
    };
    let (many, few) = ([0, 0, 501, 0, 0], [0, 0, 500, 0, 0]);
    assert_eq!(excluded(|_| {}, many, "ns"), [false, true]);
    assert_eq!(excluded(|_| {}, few, "ns"), [false, false], "no term selects it");
    assert_eq!(excluded(|_| {}, many, "other"), [false, false]);
    assert_eq!(
        excluded(|term| term.namespaces = vec!["other".into()], many, "other"),
        [false, true]
    );
    let by_label = |term: &mut PodAffinityTerm| {
        term.namespace_selector = Some(LabelSelector::default());
    };
    assert_eq!(excluded(by_label, many, "other"), [false, true]);
    assert_eq!(excluded(|term| term.topology_key = "rack".into(), many, "ns"), [false, true]);
    assert_eq!(excluded(|_| {}, [501, 0, 0, 0, 0], "ns"), [false, false], "it keeps none off");
}

/// A pod with volumes of these claims.
fn pod_of_claims(claims: impl Iterator<Item = String>) -> Pod {
    let mut pod = Pod::default();
    pod.metadata.namespace = "ns".into();
    for (nth, name) in claims.enumerate() {
        let mut volume = Volume { name: format!("v{nth}"), ..Volume::default() };
        let source = PersistentVolumeClaimVolumeSource { claim_name: name, read_only: false };
        volume.volume_source.persistent_volume_claim = Some(source);
        pod.spec.volumes.push(volume);
    }
    pod
}

#[test]
fn a_claim_that_a_pod_names_often_is_one() {
    let pod = pod_of_claims((0..40_000).map(|_| "c".to_owned()));
    let info = PodInfo::from_pod(names(), &pod);
    assert_eq!(info.claims.len(), 1);
    assert!(why(&info).contains("\"c\" not found"), "{}", why(&info));
}

#[test]
fn a_pod_with_too_many_claims_is_not_scheduled_and_says_so() {
    let pod = |count: usize| {
        PodInfo::from_pod(
            names(),
            &pod_of_claims((0..count * 2).map(|nth| format!("c{}", nth / 2))),
        )
    };
    assert!(why(&pod(256)).contains("\"c0\" not found"), "{}", why(&pod(256)));
    assert_eq!(
        why(&pod(257)),
        "0/2 nodes are available: 2 node(s) were not tried: the pod has 257 persistent volume claims, at most 256 are supported."
    );
}
