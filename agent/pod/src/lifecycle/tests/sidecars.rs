//! Sidecars and ephemeral containers: the order of starts and stops.

use super::*;
use crate::handler::Handler;

fn sidecar(name: &str) -> DesiredContainer {
    DesiredContainer { role: ContainerRole::Sidecar, ..container(name) }
}

fn probed(mut container: DesiredContainer) -> DesiredContainer {
    container.probes.startup = Some(DesiredProbe {
        handler: Handler::Exec(vec!["true".into()]),
        initial_delay: Duration::ZERO,
        period: Duration::from_secs(1),
        timeout: Duration::from_secs(1),
        successes: 1,
        failures: 3,
        grace: None,
    });
    container
}

fn acts(plan: &Plan) -> Vec<String> {
    let act = |action: &Action| match action {
        Action::CreateContainer { container, .. } => Some(format!("create {container}")),
        Action::StartContainer { container, .. } => Some(format!("start {container}")),
        Action::StopContainer { container, .. } => Some(format!("stop {container}")),
        _ => None,
    };
    plan.actions.iter().filter_map(act).collect()
}

fn pod() -> DesiredPod {
    let init = vec![sidecar("s1"), init_container("i"), probed(sidecar("s2"))];
    DesiredPod { init, ..desired() }
}

#[test]
fn sidecars_start_in_their_turn_and_run_on() {
    let first = plan(&pod(), &prepared(), &admitted(), at(0));
    assert_eq!(acts(&first), ["create s1"]);
    let message = "containers with incomplete status: [s1 i s2]";
    assert_eq!(condition(&first.status, "Initialized").message, message);
    let up = vec![instance("s1", 0, running())];
    let second = plan(&pod(), &with(up.clone()), &first.record, at(1));
    assert_eq!(acts(&second), ["create i"]);
    assert_eq!(second.status.phase, "Pending");
    let s1 = &second.status.init_container_statuses[0];
    assert_eq!((s1.ready, s1.started), (true, Some(true)));

    // A sidecar that crashes while an init container runs is restarted alongside it.
    let crashed = vec![instance("s1", 0, exited(0)), instance("i", 0, running())];
    let beside = plan(&pod(), &with(crashed), &second.record, at(1));
    assert_eq!(acts(&beside), ["create s1"]);

    let mut observed = up;
    observed.push(instance("i", 0, exited(0)));
    let third = plan(&pod(), &with(observed.clone()), &second.record, at(2));
    assert_eq!(acts(&third), ["create s2"]);
    observed.push(instance("s2", 0, running()));
    let fourth = plan(&pod(), &with(observed.clone()), &third.record, at(3));
    assert_eq!((acts(&fourth).len(), fourth.stage), (0, PodStage::Initializing));
    let mut record = fourth.record;
    record.record_probe_result("s2", "s2-0", ProbeKind::Startup, true);
    let fifth = plan(&pod(), &with(observed), &record, at(4));
    assert_eq!((acts(&fifth), fifth.stage), (vec!["create c".to_owned()], PodStage::Running));
}

#[test]
fn a_sidecar_is_restarted_and_counts_for_readiness_under_every_policy() {
    let pod =
        DesiredPod { init: vec![sidecar("s1")], restart_policy: RestartPolicy::Never, ..desired() };
    let observed = with(vec![instance("s1", 0, exited(0)), instance("c", 0, running())]);
    let next = plan(&pod, &observed, &admitted(), at(0));
    assert_eq!(acts(&next), ["create s1"]);
    assert_eq!(condition(&next.status, "Ready").message, "containers with unready status: [s1]");
}

#[test]
fn sidecars_stop_last_and_in_reverse() {
    let deleted = |grace| DesiredPod {
        presence: Presence::Deleting { grace: Duration::from_secs(grace) },
        ..pod()
    };
    let all = vec![
        instance("s1", 0, running()),
        instance("s2", 0, running()),
        instance("c", 0, running()),
    ];
    let first = plan(&deleted(30), &with(all.clone()), &admitted(), at(0));
    assert_eq!(acts(&first), ["stop c"]);
    let late = plan(&deleted(30), &with(all[..2].to_vec()), &first.record, at(40));
    let [Action::StopContainer { container, deadline, .. }] = late.actions.as_slice() else {
        panic!("{:?}", late.actions)
    };
    // The containers used up the grace period; a short time for SIGTERM is left.
    assert_eq!((container.as_str(), *deadline), ("s2", at(42).boot));
    let last = plan(&deleted(30), &with(all[..1].to_vec()), &late.record, at(41));
    assert_eq!(acts(&last), ["stop s1"]);
}

/// Seed 600 of the simulation: the result of another container's start was still unknown.
#[test]
fn sidecars_serve_what_may_run_unseen_up_to_the_deadline() {
    let pod =
        DesiredPod { presence: Presence::Deleting { grace: Duration::from_secs(30) }, ..pod() };
    let observed = |unsure| ObservedPod { unsure, ..with(vec![instance("s1", 0, running())]) };
    let first = plan(&pod, &observed(true), &admitted(), at(0));
    assert_eq!((acts(&first).len(), first.wake_at), (0, Some(at(30).boot)));
    assert_eq!(acts(&plan(&pod, &observed(false), &first.record, at(1))), ["stop s1"]);
    assert_eq!(acts(&plan(&pod, &observed(true), &first.record, at(30))), ["stop s1"]);
}

#[test]
fn a_finished_pod_ends_when_its_sidecars_have() {
    let pod = DesiredPod { restart_policy: RestartPolicy::OnFailure, ..pod() };
    let mut observed = vec![instance("s1", 0, running()), instance("c", 0, exited(0))];
    let ending = plan(&pod, &with(observed.clone()), &admitted(), at(0));
    assert_eq!((acts(&ending), ending.stage), (vec!["stop s1".to_owned()], PodStage::Ending));
    assert_eq!(ending.status.phase, "Running");
    observed[0] = instance("s1", 0, exited(143));
    let over = plan(&pod, &with(observed), &ending.record, at(1));
    assert_eq!(over.status.phase, "Succeeded");
}

#[test]
fn an_ephemeral_container_runs_once_and_has_no_part_in_the_pods_life() {
    let debug = DesiredContainer { role: ContainerRole::Ephemeral, ..container("debug") };
    let pod = DesiredPod {
        ephemeral: vec![debug],
        restart_policy: RestartPolicy::OnFailure,
        ..desired()
    };
    let mut observed = vec![instance("c", 0, running())];
    let first = plan(&pod, &with(observed.clone()), &admitted(), at(0));
    assert_eq!(acts(&first), ["create debug"]);
    assert_eq!(condition(&first.status, "Ready").status, "True");
    let status = &first.status.ephemeral_container_statuses[0];
    assert_eq!(
        (waiting(status).0, status.ready, status.started),
        ("ContainerCreating", false, None)
    );
    observed.push(instance("debug", 0, running()));
    let second = plan(&pod, &with(observed.clone()), &first.record, at(1));
    assert_eq!(acts(&second), [""; 0]);
    assert!(second.status.ephemeral_container_statuses[0].state.running.is_some());
    observed[1] = instance("debug", 0, exited(1));
    let third = plan(&pod, &with(observed.clone()), &second.record, at(2));
    assert_eq!(acts(&third), [""; 0]);
    observed[0] = instance("c", 0, exited(0));
    observed[1] = instance("debug", 0, running());
    let ending = plan(&pod, &with(observed), &first.record, at(3));
    assert_eq!(acts(&ending), ["stop debug"]);
}
