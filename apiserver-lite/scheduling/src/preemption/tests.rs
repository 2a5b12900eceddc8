use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::examples::{node, pod, profile};
use crate::filter::check;

fn running(name: &str, cpu: i64, priority: i32, started: i64) -> PodInfo {
    let labels = BTreeMap::from([("app".to_owned(), name.chars().take(1).collect())]);
    PodInfo { priority, started: Some(started), labels, node: "n".into(), ..pod(name, cpu, 0) }
}

fn loaded(pods: &[PodInfo]) -> NodeLoad {
    let mut load = NodeLoad::empty(Arc::new(node("n")));
    pods.iter().for_each(|pod| load.add(pod.clone()));
    load
}

fn budget(app: &str, allowed: i64) -> Arc<DisruptionBudget> {
    let pods = format!("app={app}").parse().ok();
    assert!(pods.is_some());
    let disrupted = BTreeSet::new();
    Arc::new(DisruptionBudget { namespace: "ns".into(), pods, allowed, disrupted })
}

fn victims(
    pod: &PodInfo,
    load: &NodeLoad,
    budgets: &[Arc<DisruptionBudget>],
) -> Option<(Vec<String>, usize)> {
    let found = select_victims(pod, 0, load, budgets, |load| check(pod, load, &profile()).is_ok())?;
    Some((found.victims.iter().map(|pod| pod.key.name.clone()).collect(), found.violations))
}

fn wanting(cpu: i64, priority: i32) -> PodInfo {
    PodInfo { priority, ..pod("p", cpu, 0) }
}

#[test]
fn the_least_important_pods_end() {
    let pods = [running("a", 2000, 5, 10), running("b", 1000, 1, 10), running("c", 1000, 1, 20)];
    let load = loaded(&pods);
    let names = |all: &[&str]| all.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    // Of equal ones the younger.
    assert_eq!(victims(&wanting(1000, 10), &load, &[]), Some((names(&["c"]), 0)));
    assert_eq!(victims(&wanting(2000, 10), &load, &[]), Some((names(&["b", "c"]), 0)));
    assert_eq!(victims(&wanting(4000, 10), &load, &[]), Some((names(&["a", "b", "c"]), 0)));
    assert_eq!(victims(&wanting(5000, 10), &load, &[]), None, "more than the node has");
    assert_eq!(victims(&wanting(3000, 5), &load, &[]), None, "an equal one stays");
    assert_eq!(victims(&wanting(100, 0), &load, &[]), None);
}

#[test]
fn a_pod_without_labels_has_no_budget() {
    let pods: Option<Selector> = "!app".parse().ok();
    assert!(pods.is_some());
    let none =
        DisruptionBudget { namespace: "ns".into(), pods, allowed: 0, disrupted: BTreeSet::new() };
    let labelled = |labels: &[&str]| {
        let labels = labels.iter().map(|key| ((*key).to_owned(), "x".to_owned())).collect();
        loaded(&[PodInfo { labels, ..running("a", 4000, 1, 10) }])
    };
    for (labels, violations) in [(&[][..], 0), (&["other"], 1), (&["app"], 0)] {
        let found = victims(&wanting(1000, 10), &labelled(labels), &[Arc::new(none.clone())]);
        assert_eq!(found, Some((vec!["a".to_owned()], violations)), "{labels:?}");
    }
}

#[test]
fn budgets_are_kept_where_others_can_end() {
    let pods = [running("a1", 1000, 1, 20), running("a2", 1000, 1, 30), running("b", 2000, 2, 10)];
    let load = loaded(&pods);
    let names = |all: &[&str]| all.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    assert_eq!(victims(&wanting(2000, 10), &load, &[]), Some((names(&["a1", "a2"]), 0)));
    // One may be disrupted: the other counts as protected, and the more important pod ends instead.
    assert_eq!(victims(&wanting(2000, 10), &load, &[budget("a", 1)]), Some((names(&["b"]), 0)));
    assert_eq!(
        victims(&wanting(2000, 10), &load, &[budget("b", 0)]),
        Some((names(&["a1", "a2"]), 0))
    );
    assert_eq!(
        victims(&wanting(4000, 10), &load, &[budget("a", 0)]),
        Some((names(&["b", "a1", "a2"]), 2))
    );
    let other =
        Arc::new(DisruptionBudget { namespace: "other".into(), ..(*budget("a", 0)).clone() });
    assert_eq!(victims(&wanting(2000, 10), &load, &[other]), Some((names(&["a1", "a2"]), 0)));
}

#[test]
fn the_node_with_the_least_harm_is_taken() {
    let candidate = |nth, pods: Vec<PodInfo>, violations| Candidate {
        nth,
        victims: pods.into_iter().map(Arc::new).collect(),
        violations,
    };
    let chosen = |all| select_candidate(all).map(|candidate: Candidate| candidate.nth);
    let one = |priority, started| running("x", 100, priority, started);
    assert_eq!(
        chosen(vec![candidate(0, vec![one(1, 1)], 1), candidate(1, vec![one(9, 1)], 0)]),
        Some(1)
    );
    assert_eq!(
        chosen(vec![candidate(0, vec![one(5, 1)], 0), candidate(1, vec![one(4, 1)], 0)]),
        Some(1)
    );
    assert_eq!(
        chosen(vec![
            candidate(0, vec![one(5, 1), one(-7, 1)], 0),
            candidate(1, vec![one(5, 1)], 0)
        ]),
        Some(1),
        "more pods are more harm, whatever their priority"
    );
    assert_eq!(
        chosen(vec![candidate(0, vec![one(5, 1)], 0), candidate(1, vec![one(5, 2)], 0)]),
        Some(1)
    );
    assert_eq!(
        chosen(vec![candidate(0, vec![one(5, 1)], 0), candidate(1, vec![one(5, 1)], 0)]),
        Some(0)
    );
    assert_eq!(chosen(Vec::new()), None);
}

#[test]
fn pods_that_may_not_preempt_have_a_reason() {
    let mut wanting = wanting(100, 10);
    let mut load = loaded(&[running("a", 100, 1, 1)]);
    assert_eq!(why_not_eligible(&wanting, Some(&load), false), None);
    load.add(PodInfo { phase: PodPhase::Terminating, ..running("b", 100, 1, 1) });
    let why = why_not_eligible(&wanting, Some(&load), false);
    assert_eq!(why, Some("not eligible due to a terminating pod on the nominated node."));
    assert_eq!(
        why_not_eligible(&wanting, Some(&load), true),
        None,
        "the node is of no use any more"
    );
    assert_eq!(why_not_eligible(&wanting, None, false), None);
    wanting.may_preempt = false;
    assert!(why_not_eligible(&wanting, None, false).is_some());
    assert!(might_help(&[Refusal::Insufficient("cpu".into()), Refusal::TooManyPods]));
    assert!(!might_help(&[Refusal::NodeAffinity]) && !might_help(&[Refusal::PodAffinity]));
}

proptest! {
    /// Without its victims the pod fits, with any of them back it does not, and none is as important as it.
    #[test]
    fn victims_are_enough_and_none_too_many(
        pods in proptest::collection::vec((1..2000i64, 0..4i32, 0..5i64), 0..12),
        cpu in 1..4500i64,
        priority in 0..5i32,
        allowed in -1..3i64,
    ) {
        let pods: Vec<PodInfo> = pods.into_iter().enumerate()
            .map(|(nth, (cpu, priority, started))| running(&format!("a{nth}"), cpu, priority, started))
            .collect();
        let (load, wanting) = (loaded(&pods), wanting(cpu, priority));
        let fits = |load: &NodeLoad| check(&wanting, load, &profile()).is_ok();
        let found = select_victims(&wanting, 0, &load, &[budget("a", allowed)], fits);
        let Some(found) = found else {
            let none_lower = pods.iter().all(|pod| pod.priority >= priority);
            prop_assert!(none_lower || fits(&load) || !fits(&load.without(|pod| pod.priority < priority)));
            return Ok(());
        };
        let is_victim = |pod: &PodInfo| found.victims.iter().any(|victim| victim.uid == pod.uid);
        prop_assert!(found.victims.iter().all(|victim| victim.priority < priority));
        let left = load.without(is_victim);
        prop_assert!(fits(&left));
        for victim in &found.victims {
            let mut with = left.clone();
            with.add(victim.clone());
            prop_assert!(!fits(&with));
        }
    }
}
