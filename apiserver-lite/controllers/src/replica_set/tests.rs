//! Creation, adoption and deletion of pods.

use std::sync::Arc;

use proto_api::core::v1::{Container, ContainerStatus};
use proto_api::meta::v1::LabelSelector;
use proto_api::names::Profile;

use super::*;
use crate::addresses::examples;
use crate::api_writes::WrittenObject;
use crate::owners::controlled_by;
use std::time::Duration;

const NOW: i64 = 2000;

fn names() -> &'static Names {
    Names::new(Profile::Kubernetes)
}

fn set(replicas: i32) -> ReplicaSet {
    let mut set = ReplicaSet::default();
    set.metadata.name = "web-abc".into();
    set.metadata.namespace = "ns".into();
    set.metadata.uid = "set".into();
    set.metadata.generation = 3;
    let labels = std::collections::BTreeMap::from([("app".to_owned(), "web".to_owned())]);
    set.spec.replicas = Some(replicas);
    set.spec.selector = Some(LabelSelector { match_labels: labels.clone(), ..Default::default() });
    set.spec.template.metadata.labels = labels;
    set
}

/// A running, ready pod of the set.
fn pod(nth: u8) -> Pod {
    let mut pod = examples::pod(nth);
    pod.metadata.owner_references =
        vec![controlled_by("apps/v1".into(), "ReplicaSet", &set(1).metadata)];
    pod
}

fn planned(set: &ReplicaSet, pods: Vec<Pod>) -> Plan {
    let pods: Vec<Arc<Pod>> = pods.into_iter().map(Arc::new).collect();
    plan(names(), set, &pods, Time::from_unix(NOW))
}

/// The plan in short form: `+` created, `-name` deleted, `=name` adopted.
fn acts(plan: &Plan) -> Vec<String> {
    let act = |write: &ApiWrite| match write {
        ApiWrite::Create(WrittenObject::Pod(_)) => Some("+".to_owned()),
        ApiWrite::Delete { key, .. } => Some(format!("-{}", key.name)),
        ApiWrite::Patch { key, .. } => Some(format!("={}", key.name)),
        _ => None,
    };
    plan.writes.iter().filter_map(act).collect()
}

fn reported(plan: &Plan) -> (i32, i32, i32) {
    match plan.writes.last() {
        Some(ApiWrite::UpdateStatus(WrittenObject::ReplicaSet(set))) => {
            let status = &set.status;
            assert_eq!(status.observed_generation, 3);
            (status.replicas, status.ready_replicas, status.available_replicas)
        }
        other => unreachable!("{other:?}"),
    }
}

#[test]
fn pods_are_made_from_the_template() {
    let plan = planned(&set(2), vec![]);
    assert_eq!(acts(&plan), ["+", "+"]);
    let ApiWrite::Create(WrittenObject::Pod(made)) = &plan.writes[0] else { unreachable!("a pod") };
    assert_eq!(made.metadata.generate_name, "web-abc-");
    let owner = &made.metadata.owner_references[0];
    assert_eq!((&*owner.api_version, &*owner.kind, &*owner.uid), ("apps/v1", "ReplicaSet", "set"));
    assert!(
        Selector::from_map(&set(1).spec.template.metadata.labels).matches(&made.metadata.labels)
    );
}

#[test]
fn ended_and_terminating_pods_do_not_count_and_others_are_not_ours() {
    let (mut ended, mut terminating, mut other) = (pod(1), pod(2), pod(3));
    ended.status.phase = "Failed".into();
    terminating.metadata.deletion_timestamp = Some(Time::from_unix(1));
    other.metadata.owner_references[0].uid = "another".into();
    let plan = planned(&set(2), vec![ended, terminating, other, pod(4)]);
    assert_eq!(acts(&plan), ["+"]);
    assert_eq!(reported(&plan), (1, 1, 1));
}

#[test]
fn a_matching_orphan_pod_is_adopted() {
    let orphan = examples::pod(7);
    let plan = planned(&set(2), vec![orphan.clone(), pod(1)]);
    assert_eq!(acts(&plan), ["=web-7"]);
    let adopter = plan.adopter.map(|adopter| adopter.uid);
    assert_eq!(adopter, Some(set(2).metadata.uid), "the server is asked whether it stays");
    let mut unlike = orphan;
    unlike.metadata.labels.clear();
    assert_eq!(acts(&planned(&set(1), vec![unlike, pod(1)])), [] as [&str; 0]);
}

#[test]
fn a_pod_that_is_not_selected_any_more_is_given_up_and_replaced() {
    let mut strayed = pod(1);
    strayed.metadata.labels.insert("app".into(), "other".into());
    let plan = planned(&set(1), vec![strayed.clone()]);
    assert_eq!(acts(&plan), ["=web-1", "+"]);
    let ApiWrite::Patch { patch, .. } = &plan.writes[0] else { unreachable!("a patch") };
    assert_eq!(patch["metadata"]["ownerReferences"], serde_json::json!([]));
    let mut gone = set(1);
    gone.metadata.deletion_timestamp = Some(Time::from_unix(1));
    assert_eq!(acts(&planned(&gone, vec![strayed])), [] as [&str; 0]);
}

#[test]
fn the_least_valuable_pod_goes_first() {
    let mut unscheduled = pod(1);
    unscheduled.spec.node_name.clear();
    let mut pending = pod(2);
    pending.status.phase = "Pending".into();
    let mut unready = pod(3);
    examples::set_ready(&mut unready, "False");
    let mut cheap = pod(4);
    let cost = "controller.kubernetes.io/pod-deletion-cost".to_owned();
    cheap.metadata.annotations.insert(cost, "-5".into());
    let mut young = pod(5);
    young.status.conditions[0].last_transition_time = Time::from_unix(1500);
    let all = vec![pod(6), young, cheap, unready, pending, unscheduled];
    let order = ["-web-1", "-web-2", "-web-3", "-web-4", "-web-5", "-web-6"];
    for keep in 0..=6 {
        let plan = planned(&set(keep), all.clone());
        assert_eq!(acts(&plan), order[..6 - usize::try_from(keep).unwrap()]);
    }
}

/// What is left of a set is spread over nodes as before, whichever pods are older.
#[test]
fn pods_on_the_node_with_the_most_of_them_go_first() {
    let on = |nth: u8, node: &str, ready_since: i64| {
        let mut pod = pod(nth);
        pod.spec.node_name = node.into();
        pod.status.conditions[0].last_transition_time = Time::from_unix(ready_since);
        pod
    };
    let all = vec![on(1, "a", 10), on(2, "a", 1200), on(3, "a", 1800), on(4, "b", 1900)];
    assert_eq!(acts(&planned(&set(3), all.clone())), ["-web-3"]);
    assert_eq!(acts(&planned(&set(2), all.clone())), ["-web-3", "-web-2"]);
    let cost = "controller.kubernetes.io/pod-deletion-cost".to_owned();
    let mut cheap = all;
    cheap[3].metadata.annotations.insert(cost, "-1".into());
    assert_eq!(acts(&planned(&set(3), cheap)), ["-web-4"], "what users say comes first");
}

/// In a rollout the pods of the old set go first from the nodes that have the most pods of both sets.
#[test]
fn pods_beside_those_of_a_sibling_set_go_first() {
    let owned = |mut set: ReplicaSet, uid: &str, deployment: Option<&str>| {
        set.metadata.uid = uid.into();
        let owner = ReplicaSet { metadata: set.metadata.clone(), ..ReplicaSet::default() };
        let mut owner = controlled_by("apps/v1".into(), "Deployment", &owner.metadata);
        owner.uid = deployment.unwrap_or_default().into();
        set.metadata.owner_references = deployment.map(|_| owner).into_iter().collect();
        Arc::new(set)
    };
    let old = owned(set(1), "set", Some("d"));
    let sets = vec![
        old.clone(),
        owned(set(2), "new", Some("d")),
        owned(set(2), "unrelated", Some("e")),
        owned(set(2), "orphan", None),
    ];
    let on = |nth: u8, node: &str, owner: &ReplicaSet| {
        let mut pod = pod(nth);
        pod.spec.node_name = node.into();
        pod.metadata.owner_references =
            vec![controlled_by("apps/v1".into(), "ReplicaSet", &owner.metadata)];
        Arc::new(pod)
    };
    for (crowded, expected) in [("a", "-web-1"), ("b", "-web-2")] {
        let own = [on(1, "a", &old), on(2, "b", &old)];
        let found = siblings(&old, &own, || sets.clone());
        let uids: Vec<&str> = found.iter().map(|set| set.metadata.uid.as_str()).collect();
        assert_eq!(uids, ["new"]);
        let mut ended = (*on(5, if crowded == "a" { "b" } else { "a" }, &sets[1])).clone();
        ended.status.phase = "Succeeded".into();
        let ended = Arc::new(ended);
        let theirs = [
            on(3, crowded, &sets[1]),
            on(4, crowded, &sets[1]),
            ended.clone(),
            ended.clone(),
            ended,
        ];
        let beside = replicas::count_by_node(&theirs);
        let plan = plan_beside(names(), &old, &own, &beside, Time::from_unix(NOW));
        assert_eq!(acts(&plan), [expected], "{crowded}");
    }
    let own = [on(1, "a", &old)];
    assert!(siblings(&old, &own, || sets.clone()).is_empty(), "nothing is to be deleted");
    let orphan = sets[3].clone();
    let own = [on(1, "a", &orphan), on(2, "b", &orphan), on(3, "b", &orphan)];
    assert!(siblings(&orphan, &own, || sets).is_empty(), "it has no controller");
}

#[test]
fn of_pods_of_about_the_same_age_those_that_restarted_go_first() {
    let on = |nth: u8, ready_since: i64, restart_count: i32| {
        let mut pod = pod(nth);
        pod.spec.node_name = format!("n{nth}");
        pod.status.conditions[0].last_transition_time = Time::from_unix(ready_since);
        pod.status.container_statuses =
            vec![ContainerStatus { restart_count, ..ContainerStatus::default() }];
        pod
    };
    // For 2000, 1200, 1990 and 100 s: the first three are about the same.
    let all = vec![on(1, 0, 0), on(2, 800, 3), on(3, 10, 1), on(4, 1900, 0)];
    assert_eq!(acts(&planned(&set(0), all)), ["-web-4", "-web-2", "-web-3", "-web-1"]);
}

#[test]
fn availability_waits_for_min_ready_seconds() {
    let mut slow = set(1);
    slow.spec.min_ready_seconds = 1200; // ready since 1000
    let plan = planned(&slow, vec![pod(1)]);
    assert_eq!(reported(&plan), (1, 1, 0));
    assert_eq!(plan.requeue_after, Some(Duration::from_secs(200)));
    slow.spec.min_ready_seconds = 1000;
    assert_eq!(reported(&planned(&slow, vec![pod(1)])), (1, 1, 1));
}

#[test]
fn a_deleted_set_makes_nothing_and_a_second_plan_is_empty() {
    let mut gone = set(3);
    gone.metadata.deletion_timestamp = Some(Time::from_unix(1));
    assert!(acts(&planned(&gone, vec![pod(1)])).is_empty());
    let plan = planned(&set(1), vec![pod(1)]);
    let Some(ApiWrite::UpdateStatus(WrittenObject::ReplicaSet(told))) = plan.writes.last() else {
        unreachable!("a status")
    };
    assert_eq!(planned(told, vec![pod(1)]), Plan::default());
}

/// The plan is made before a quota refuses its first pod.
#[test]
fn a_plan_of_large_pods_has_few_of_them_and_the_next_goes_on() {
    let created = |args: usize, there: u8| {
        let mut large = set(600);
        let container = Container { args: vec![String::new(); args], ..Container::default() };
        large.spec.template.spec.containers = vec![container];
        let plan = planned(&large, (1..=there).map(pod).collect());
        acts(&plan).len()
    };
    assert_eq!(created(0, 0), 500);
    assert_eq!(created(100_000, 0), 5, "200 KB each");
    assert_eq!(created(100_000, 5), 5);
    assert_eq!(created(980_000, 0), 1, "larger than what fits");
}
