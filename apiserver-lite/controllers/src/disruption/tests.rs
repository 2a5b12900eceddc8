use proptest::prelude::*;
use proto_api::meta::v1::LabelSelector;
use proto_api::names::Profile;

use super::*;
use crate::addresses::examples;
use crate::api_writes::WrittenObject;

const NOW: i64 = 10_000;

fn budget(min: Option<IntOrString>, max: Option<IntOrString>) -> PodDisruptionBudget {
    let mut budget = PodDisruptionBudget::default();
    budget.metadata.name = "one".into();
    budget.metadata.namespace = "ns".into();
    budget.metadata.generation = 3;
    budget.spec.min_available = min;
    budget.spec.max_unavailable = max;
    budget.spec.selector = Some(LabelSelector {
        match_labels: BTreeMap::from([("app".into(), "web".into())]),
        ..LabelSelector::default()
    });
    budget
}

fn pods(count: u8) -> Vec<Pod> {
    let owned = |nth| {
        let mut pod = examples::pod(nth);
        pod.metadata.owner_references = vec![OwnerReference {
            kind: "ReplicaSet".into(),
            name: "web".into(),
            uid: "set".into(),
            controller: Some(true),
            ..OwnerReference::default()
        }];
        pod
    };
    (1..=count).map(owned).collect()
}

fn planned(budget: &PodDisruptionBudget, pods: &[Pod], replicas: Option<i32>) -> Plan {
    let pods: Vec<std::sync::Arc<Pod>> = pods.iter().cloned().map(Into::into).collect();
    let scale = |_: &OwnerReference| {
        replicas.map(|replicas| OwnerScale { uid: "deployment".into(), replicas })
    };
    let names = Names::new(Profile::Kubernetes);
    plan(names, budget, &covered(budget, &pods), scale, Time::from_unix(NOW))
}

fn shown(plan: &Plan) -> PodDisruptionBudgetStatus {
    match &plan.writes[..] {
        [ApiWrite::UpdateStatus(WrittenObject::PodDisruptionBudget(budget))] => {
            budget.status.clone()
        }
        other => unreachable!("{other:?}"),
    }
}

/// Expected, healthy, desired, allowed.
fn numbers(plan: &Plan) -> (i32, i32, i32, i32) {
    let status = shown(plan);
    (
        status.expected_pods,
        status.current_healthy,
        status.desired_healthy,
        status.disruptions_allowed,
    )
}

fn percent(text: &str) -> Option<IntOrString> {
    Some(IntOrString::from(text))
}

#[test]
fn numbers_and_shares() {
    let int = |number| Some(IntOrString::Int(number));
    let table = [
        // minAvailable, maxUnavailable, pods, replicas -> expected, healthy, desired, allowed
        (int(2), None, 3, None, (3, 3, 2, 1)),
        (int(5), None, 3, None, (3, 3, 5, 0)),
        (int(0), None, 3, None, (3, 3, 0, 3)),
        (int(0), None, 0, None, (0, 0, 0, 0)),
        (int(-7), None, 3, None, (3, 3, 0, 3)),
        (int(i32::MIN), None, 3, None, (3, 3, 0, 3)),
        (int(i32::MAX), None, 3, None, (3, 3, i32::MAX, 0)),
        (percent("50%"), None, 3, Some(3), (3, 3, 2, 1)),
        (percent("100%"), None, 3, Some(3), (3, 3, 3, 0)),
        (percent("0%"), None, 3, Some(3), (3, 3, 0, 3)),
        (None, int(1), 3, Some(3), (3, 3, 2, 1)),
        (None, int(1), 3, Some(5), (5, 3, 4, 0)),
        (None, int(9), 3, Some(3), (3, 3, 0, 3)),
        (None, percent("34%"), 3, Some(3), (3, 3, 1, 2)),
        (None, percent("9223372036854775807%"), 3, Some(i32::MAX), (i32::MAX, 3, 0, 3)),
        (None, int(1), 3, Some(i32::MIN), (0, 3, 0, 0)),
        (None, None, 3, Some(3), (0, 3, 0, 0)),
    ];
    for (min, max, count, replicas, expected) in table {
        let budget = budget(min, max);
        assert_eq!(numbers(&planned(&budget, &pods(count), replicas)), expected, "{budget:?}");
    }
}

/// What a budget expects is the sum of the scales of all controllers of its pods, each counted once, whatever the number of its pods.
#[test]
fn a_budget_covers_the_pods_of_several_controllers() {
    let budget = |max: &str| budget(None, Some(max.parse().map_or(max.into(), IntOrString::Int)));
    let mut all = pods(5);
    for (pod, (set, ready)) in
        all.iter_mut().zip([("a", true), ("a", true), ("a", false), ("b", true), ("b", true)])
    {
        let owner = &mut pod.metadata.owner_references[0];
        (owner.name, owner.uid) = (set.to_owned(), format!("set-{set}"));
        examples::set_ready(pod, if ready { "True" } else { "False" });
    }
    let table = [
        // maxUnavailable, scales of a and b -> expected, healthy, desired, allowed
        ("1", [3, 2], (5, 4, 4, 0)),
        ("2", [3, 2], (5, 4, 3, 1)),
        ("2", [10, 2], (12, 4, 10, 0)),
        // The share is of the sum, not of each: 1.25 and 0.5 would be rounded up to 3.
        ("25%", [5, 2], (7, 4, 5, 0)),
        ("40%", [3, 2], (5, 4, 3, 1)),
        ("100%", [i32::MAX, i32::MAX], (i32::MAX, 4, 0, 4)),
    ];
    for (max, [a, b], expected) in table {
        let pods: Vec<std::sync::Arc<Pod>> = all.iter().cloned().map(Into::into).collect();
        let scale = |owner: &OwnerReference| {
            let replicas = if owner.name == "a" { a } else { b };
            // Their deployments.
            Some(OwnerScale { uid: format!("deployment-{}", owner.name), replicas })
        };
        let (names, budget) = (Names::new(Profile::Kubernetes), budget(max));
        let plan = plan(names, &budget, &covered(&budget, &pods), scale, Time::from_unix(NOW));
        assert_eq!(numbers(&plan), expected, "{max} {a} {b}");
    }
}

#[test]
fn the_disruption_condition_follows_the_allowed_disruptions() {
    let of = |min| shown(&planned(&budget(Some(IntOrString::Int(min)), None), &pods(3), None));
    let condition = &of(2).conditions[0];
    assert_eq!((condition.status.as_str(), condition.reason.as_str()), ("True", "SufficientPods"));
    assert_eq!((condition.observed_generation, of(2).observed_generation), (3, 3));
    let condition = &of(3).conditions[0];
    let text = (condition.status.as_str(), condition.reason.as_str());
    assert_eq!(text, ("False", "InsufficientPods"));
}

#[test]
fn only_what_is_ready_and_stays_is_healthy() {
    let mut three = pods(3);
    examples::set_ready(&mut three[0], "False");
    three[1].metadata.deletion_timestamp = Some(Time::from_unix(NOW));
    let plan = planned(&budget(Some(IntOrString::Int(1)), None), &three, None);
    assert_eq!(numbers(&plan), (3, 1, 1, 0));
}

#[test]
fn an_eviction_is_believed_for_two_minutes() {
    let noted = |age: i64| {
        let mut budget = budget(Some(IntOrString::Int(1)), None);
        budget.status.disrupted_pods.insert("web-1".into(), Time::from_unix(NOW - age));
        budget
    };
    let plan = planned(&noted(20), &pods(3), None);
    assert_eq!(numbers(&plan), (3, 2, 1, 1));
    assert_eq!(plan.requeue_after, Some(Duration::from_secs(100)));
    assert!(shown(&plan).disrupted_pods.contains_key("web-1"));
    let plan = planned(&noted(120), &pods(3), None);
    assert_eq!((numbers(&plan), plan.requeue_after), ((3, 3, 1, 2), None));
    assert!(shown(&plan).disrupted_pods.is_empty());
    assert_eq!(plan.reports.len(), 1, "{:?}", plan.reports);
    // The pod is deleted or terminating, and is no longer noted.
    let mut two = pods(2);
    two[0].metadata.deletion_timestamp = Some(Time::from_unix(NOW));
    assert!(shown(&planned(&noted(20), &two, None)).disrupted_pods.is_empty());
    for extreme in [i64::MIN, i64::MAX] {
        let mut budget = budget(Some(IntOrString::Int(1)), None);
        budget.status.disrupted_pods.insert("web-1".into(), Time::from_unix(extreme));
        planned(&budget, &pods(3), None);
    }
}

#[test]
fn without_a_scale_nothing_is_allowed() {
    let mut budget = budget(None, Some(IntOrString::Int(1)));
    budget.status.disruptions_allowed = 2;
    let plan = planned(&budget, &pods(3), None);
    let status = shown(&plan);
    assert_eq!(status.disruptions_allowed, 0);
    let condition = &status.conditions[0];
    assert_eq!((condition.status.as_str(), condition.reason.as_str()), ("False", "SyncFailed"));
    assert_eq!(condition.message, "found no controllers for pod \"web-1\"");
    let words = IntOrString::from("some");
    let plan = planned(
        &PodDisruptionBudget {
            spec: proto_api::policy::v1::PodDisruptionBudgetSpec {
                max_unavailable: Some(words),
                ..budget.spec.clone()
            },
            ..budget.clone()
        },
        &pods(3),
        Some(3),
    );
    assert_eq!(shown(&plan).conditions[0].reason, "SyncFailed");
}

#[test]
fn pods_without_a_controller_make_an_event() {
    let mut two = pods(2);
    two[0].metadata.owner_references.clear();
    let plan = planned(&budget(None, Some(IntOrString::Int(1))), &two, Some(2));
    assert_eq!(numbers(&plan), (2, 2, 1, 1));
    assert_eq!(plan.reports[0].reason, "UnmanagedPods");
}

#[test]
fn no_selector_covers_nothing_and_an_empty_one_everything() {
    let mut budget = budget(Some(IntOrString::Int(1)), None);
    let count = |budget: &PodDisruptionBudget| {
        let pods: Vec<std::sync::Arc<Pod>> = pods(3).into_iter().map(Into::into).collect();
        covered(budget, &pods).len()
    };
    budget.spec.selector = Some(LabelSelector::default());
    assert_eq!(count(&budget), 3);
    budget.spec.selector = None;
    assert_eq!(count(&budget), 0);
}

proptest! {
    /// A written status is stable, and allowed evictions never leave fewer healthy pods than desired.
    #[test]
    fn allowed_disruptions_leave_the_desired_number_of_healthy_pods(
        min in any::<Option<i32>>(),
        unavailable in any::<i32>(),
        share in any::<i64>(),
        by_share in any::<bool>(),
        ready in prop::collection::vec(any::<bool>(), 0..6),
        replicas in any::<i32>(),
    ) {
        let max = if by_share {
            IntOrString::from(format!("{share}%").as_str())
        } else {
            IntOrString::Int(unavailable)
        };
        let budget = match min {
            Some(min) => budget(Some(IntOrString::Int(min)), None),
            None => budget(None, Some(max)),
        };
        let mut all = pods(u8::try_from(ready.len()).unwrap());
        for (pod, ready) in all.iter_mut().zip(&ready) {
            examples::set_ready(pod, if *ready { "True" } else { "False" });
        }
        let status = shown(&planned(&budget, &all, Some(replicas)));
        let left = status.current_healthy - status.disruptions_allowed;
        prop_assert!(status.disruptions_allowed >= 0);
        prop_assert!(status.disruptions_allowed == 0 || left >= status.desired_healthy);
        let again = PodDisruptionBudget { status, ..budget };
        prop_assert_eq!(planned(&again, &all, Some(replicas)).writes, vec![]);
    }
}
