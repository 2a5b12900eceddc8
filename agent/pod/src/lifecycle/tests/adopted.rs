//! Instances created by another agent.

use super::*;
use crate::observed::ObservedVolumes;
use crate::record::AdoptedInstance;

fn foreign(state: InstanceState) -> ObservedContainer {
    ObservedContainer { hash: String::new(), ..instance("c", 0, state) }
}

fn newer() -> DesiredPod {
    let containers = vec![DesiredContainer { hash: "h2".into(), ..container("c") }];
    DesiredPod { containers, ..desired() }
}

#[test]
fn an_instance_of_another_agent_runs_on_until_its_definition_changes() {
    let observed = with(vec![foreign(running())]);
    // Only the API status is known, or a journal from before the other agent ran the pod.
    let memories = [admitted(), PodRecord { phase: Phase::Running, ..admitted() }];
    for record in memories {
        let first = plan(&desired(), &observed, &record, at(0));
        assert_eq!(first.actions, []);
        let taken = Some(AdoptedInstance { id: "c-0".into(), hash: "h".into() });
        assert_eq!(first.record.containers["c"].taken_over, taken);
        let again = plan(&desired(), &observed, &first.record, at(1));
        assert_eq!((again.actions.as_slice(), &again.record), ([].as_slice(), &first.record));
        let changed = plan(&newer(), &observed, &first.record, at(2));
        assert!(
            matches!(
                changed.actions[..],
                [Action::StopContainer { why: StopReason::DefinitionChanged, .. }]
            ),
            "{:?}",
            changed.actions
        );
    }
}

#[test]
fn containers_of_another_agent_are_continued_from_their_state() {
    let create = Action::CreateContainer {
        container: "c".into(),
        attempt: 1,
        sandbox_id: "s".into(),
        image_id: "sha256:1".into(),
    };
    let start = Action::StartContainer { container: "c".into(), id: "c-0".into(), hook: false };
    let cases =
        [(InstanceState::Created, vec![start]), (running(), vec![]), (exited(1), vec![create])];
    for (state, expect) in cases {
        let next = plan(&desired(), &with(vec![foreign(state.clone())]), &admitted(), at(0));
        assert_eq!(next.actions, expect, "{state:?}");
    }
}

#[test]
fn an_instance_of_ours_after_one_of_theirs_is_judged_by_its_own_hash() {
    let observed = with(vec![foreign(exited(1)), instance("c", 1, running())]);
    let first = plan(&desired(), &observed, &admitted(), at(0));
    assert_eq!(first.actions, []);
    let changed = plan(&newer(), &observed, &first.record, at(1));
    assert!(matches!(changed.actions[..], [Action::StopContainer { .. }]), "{:?}", changed.actions);
}

#[test]
fn a_pod_that_was_over_before_keeps_all_that_it_showed() {
    let pod = DesiredPod { restart_policy: RestartPolicy::Never, ..desired() };
    let over = plan(&pod, &with(vec![instance("c", 0, exited(0))]), &admitted(), at(0));
    assert_eq!(
        (over.status.phase.as_str(), over.status.pod_ip.as_str()),
        ("Succeeded", "10.1.0.2")
    );
    let gone = ObservedPod { volumes: ObservedVolumes::Absent, ..ObservedPod::default() };
    let next = plan(&pod, &gone, &PodRecord::adopt(&over.status), at(9));
    assert_eq!((&next.status, next.actions.as_slice()), (&over.status, [].as_slice()));
}

#[test]
fn newer_statuses_of_another_agent_are_kept() {
    let observed = with(vec![instance("c", 0, running())]);
    let first = plan(&desired(), &observed, &admitted(), at(0));
    let own = first.record;
    let unchanged = |record: &PodRecord, status: &PodStatus| {
        let mut heeded = record.clone();
        heeded.apply_status(status);
        heeded == *record
    };
    assert!(unchanged(&own, &first.status), "its own words change nothing");
    let older = plan(&desired(), &prepared(), &admitted(), Now { unix_seconds: 1, ..at(0) }).status;
    let mut newer = own.clone();
    newer.conditions.insert("Ready".into(), ("True".into(), 1_700_000_100));
    assert!(unchanged(&newer, &older), "what it has not shown yet stays");

    // The other agent showed the pod as not ready for a while.
    let mut theirs = first.status.clone();
    let later = proto_api::Time::from_unix(1_700_000_500);
    for condition in theirs.conditions.iter_mut().filter(|c| c.type_.ends_with("Ready")) {
        condition.last_transition_time = later;
    }
    let mut heeded = own.clone();
    heeded.apply_status(&theirs);
    let next = plan(&desired(), &observed, &heeded, at(900));
    assert_eq!((&next.status, next.actions.as_slice()), (&theirs, [].as_slice()));

    // The other agent restarted a container, or ended the pod.
    let again = with(vec![instance("c", 0, exited(1)), instance("c", 3, running())]);
    let theirs = plan(&desired(), &again, &PodRecord::adopt(&first.status), at(9)).status;
    let mut heeded = own.clone();
    heeded.apply_status(&theirs);
    assert_eq!(heeded.containers["c"].attempt, Some(3));
    let mut failed = first.status.clone();
    failed.phase = "Failed".into();
    let mut heeded = own;
    heeded.apply_status(&failed);
    assert_eq!(plan(&desired(), &prepared(), &heeded, at(9)).record.phase, Phase::Failed);
}
