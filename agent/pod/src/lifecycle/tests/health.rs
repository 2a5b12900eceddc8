//! Probes and hooks: which are run when, and the effect of a result.

use super::*;
use crate::handler::Handler;

fn probe(grace: Option<u64>) -> Option<DesiredProbe> {
    Some(DesiredProbe {
        handler: Handler::Tcp { host: String::new(), port: 80 },
        initial_delay: Duration::from_secs(3),
        period: Duration::from_secs(10),
        timeout: Duration::from_secs(1),
        successes: 1,
        failures: 3,
        grace: grace.map(Duration::from_secs),
    })
}

fn exec(word: &str) -> Option<Handler> {
    Some(Handler::Exec(vec![word.into()]))
}

fn of(container: DesiredContainer) -> DesiredPod {
    DesiredPod { containers: vec![container], ..desired() }
}

fn kinds(plan: &Plan) -> Vec<(&str, ProbeKind)> {
    plan.probes.iter().map(|order| (order.container.as_str(), order.kind)).collect()
}

fn shown(plan: &Plan) -> (bool, Option<bool>) {
    let status = &plan.status.container_statuses[0];
    (status.ready, status.started)
}

#[test]
fn the_startup_probe_gates_the_others_and_readiness_the_pod() {
    let probes = Probes { startup: probe(None), readiness: probe(None), liveness: probe(None) };
    let pod = of(DesiredContainer { probes, ..container("c") });
    let observed = with(vec![instance("c", 0, running())]);

    let first = plan(&pod, &observed, &admitted(), at(5));
    assert_eq!(kinds(&first), [("c", ProbeKind::Startup)]);
    let order = &first.probes[0];
    assert_eq!((order.ip.as_str(), order.id.as_str()), ("10.1.0.2", "c-0"));
    assert_eq!(shown(&first), (false, Some(false)));
    assert_eq!(first.status.phase, "Running");

    let mut record = first.record;
    assert!(record.record_probe_result("c", "c-0", ProbeKind::Startup, true));
    let second = plan(&pod, &observed, &record, at(6));
    assert_eq!(kinds(&second), [("c", ProbeKind::Readiness), ("c", ProbeKind::Liveness)]);
    assert_eq!(shown(&second), (false, Some(true)));
    assert_eq!(condition(&second.status, "Ready").reason, "ContainersNotReady");

    let mut record = second.record;
    assert!(record.record_probe_result("c", "c-0", ProbeKind::Readiness, true));
    let third = plan(&pod, &observed, &record, at(7));
    assert_eq!(shown(&third), (true, Some(true)));
    assert_eq!(condition(&third.status, "Ready").status, "True");
    assert_eq!(third.probes[0].result, Some(true));

    // The next instance has to become ready again.
    let next = with(vec![instance("c", 0, exited(1)), instance("c", 1, running())]);
    let mut record = third.record;
    assert!(
        !record.clone().record_probe_result("c", "c-1", ProbeKind::Readiness, true),
        "not seen yet"
    );
    let fourth = plan(&pod, &next, &record, at(8));
    assert_eq!(
        (kinds(&fourth), shown(&fourth)),
        (vec![("c", ProbeKind::Startup)], (false, Some(false)))
    );
    record = fourth.record;
    assert!(
        !record.record_probe_result("c", "c-0", ProbeKind::Readiness, true),
        "about an older instance"
    );
}

#[test]
fn a_dead_instance_is_stopped_with_the_probes_own_grace_and_followed_by_another() {
    let probes = Probes { liveness: probe(Some(5)), ..Probes::default() };
    let pod = of(DesiredContainer { probes, ..container("c") });
    let pod = DesiredPod { restart_policy: RestartPolicy::OnFailure, ..pod };
    let observed = with(vec![instance("c", 0, running())]);
    let mut record = plan(&pod, &observed, &admitted(), at(0)).record;
    record.record_probe_result("c", "c-0", ProbeKind::Liveness, false);
    let stop = plan(&pod, &observed, &record, at(1));
    let expect = Action::StopContainer {
        container: "c".into(),
        id: "c-0".into(),
        deadline: at(6).boot,
        why: StopReason::Unhealthy(KillReason::Liveness),
        hook: false,
    };
    assert_eq!((stop.actions.as_slice(), kinds(&stop)), ([expect].as_slice(), vec![]));
    // It exits with 0 after SIGTERM and is restarted nevertheless, without delay.
    let next = plan(&pod, &with(vec![instance("c", 0, exited(0))]), &stop.record, at(2));
    assert!(matches!(next.actions.as_slice(), [Action::CreateContainer { attempt: 1, .. }]));

    let never = DesiredPod { restart_policy: RestartPolicy::Never, ..pod };
    let over = plan(&never, &with(vec![instance("c", 0, exited(137))]), &stop.record, at(2));
    assert_eq!(over.status.phase, "Failed");
}

#[test]
fn a_terminating_pod_has_readiness_probes_and_no_restarts() {
    let probes = Probes { readiness: probe(None), liveness: probe(None), startup: None };
    let pod = of(DesiredContainer { probes, ..container("c") });
    let pod = DesiredPod { presence: Presence::Deleting { grace: Duration::from_secs(30) }, ..pod };
    let observed = with(vec![instance("c", 0, running())]);
    let mut record = plan(&pod, &observed, &admitted(), at(0)).record;
    record.record_probe_result("c", "c-0", ProbeKind::Readiness, true);
    let first = plan(&pod, &observed, &record, at(1));
    assert_eq!(kinds(&first), [("c", ProbeKind::Readiness)]);
    record = first.record;
    record.record_probe_result("c", "c-0", ProbeKind::Liveness, false);
    let second = plan(&pod, &observed, &record, at(1));
    assert!(matches!(
        second.actions.as_slice(),
        [Action::StopContainer { why: StopReason::PodEnds, .. }]
    ));
}

#[test]
fn a_container_runs_once_its_first_hook_is_done() {
    let pod = of(DesiredContainer { post_start: exec("a"), ..container("c") });
    let made = with(vec![instance("c", 0, InstanceState::Created)]);
    let start = plan(&pod, &made, &admitted(), at(0));
    let expect = Action::StartContainer { container: "c".into(), id: "c-0".into(), hook: true };
    assert_eq!(start.actions, [expect]);
    assert!(start.actions[0].needs_durable_record());

    let observed = with(vec![instance("c", 0, running())]);
    let hook = plan(&pod, &observed, &start.record, at(0));
    assert_eq!(hook.actions, [Action::RunPostStart { container: "c".into(), id: "c-0".into() }]);
    assert_eq!(waiting(&hook.status.container_statuses[0]), ("ContainerCreating", ""));
    assert_eq!(hook.status.phase, "Pending");

    let mut worked = hook.record.clone();
    worked.record_post_start("c", "c-0", None);
    let next = plan(&pod, &observed, &worked, at(1));
    assert_eq!((next.actions.as_slice(), shown(&next)), ([].as_slice(), (true, Some(true))));

    let mut failed = hook.record;
    failed.record_post_start("c", "c-0", Some("no"));
    let next = plan(&pod, &observed, &failed, at(1));
    assert!(matches!(
        next.actions.as_slice(),
        [Action::StopContainer { why: StopReason::Unhealthy(KillReason::PostStart), .. }]
    ));
    assert_eq!((shown(&next), next.status.phase.as_str()), ((false, Some(false)), "Pending"));

    // An instance started by another agent gets no hook.
    let adopted = plan(&pod, &observed, &admitted(), at(0));
    assert_eq!((adopted.actions.as_slice(), shown(&adopted)), ([].as_slice(), (true, Some(true))));
}

/// As in Kubernetes, also while the hook of the next instance runs.
#[test]
fn a_first_hook_that_fails_is_shown_until_one_succeeds() {
    let pod = of(DesiredContainer { post_start: exec("a"), ..container("c") });
    let mut record = admitted();
    let mut old = Vec::new();
    for (attempt, expect) in [(0_u32, "PostStartHookError"), (1, "CrashLoopBackOff")] {
        let id = format!("c-{attempt}");
        let seen = |state| with([old.clone(), vec![instance("c", attempt, state)]].concat());
        let start = plan(&pod, &seen(InstanceState::Created), &record, at(attempt.into()));
        let hook = plan(&pod, &seen(running()), &start.record, at(attempt.into()));
        let before = ["ContainerCreating", "PostStartHookError"];
        let reason = waiting(&hook.status.container_statuses[0]).0;
        assert_eq!(reason, before[attempt as usize], "while the hook runs");

        let mut worked = hook.record.clone();
        worked.record_post_start("c", &id, None);
        let works = plan(&pod, &seen(running()), &worked, at(attempt.into()));
        assert_eq!(shown(&works), (true, Some(true)));
        assert_eq!(works.record.containers["c"].hook_failure, None);

        record = hook.record;
        record.record_post_start("c", &id, Some("hook: no"));
        let failed = plan(&pod, &seen(running()), &record, at(attempt.into()));
        let expected = ("PostStartHookError", "hook: no");
        assert_eq!(waiting(&failed.status.container_statuses[0]), expected);

        let ended = plan(&pod, &seen(exited(137)), &failed.record, at(attempt.into()));
        let status = &ended.status.container_statuses[0];
        assert_eq!(waiting(status).0, expect);
        let last = status.last_state.terminated.as_ref().expect("the instance that was stopped");
        assert_eq!(last.exit_code, 137);
        (old, record) = (seen(exited(137)).containers, ended.record);
    }
    let never = DesiredPod { restart_policy: RestartPolicy::Never, ..pod };
    let over = plan(&never, &with(old), &record, at(9));
    assert!(over.status.container_statuses[0].state.terminated.is_some(), "nothing waits");
}

#[test]
fn a_first_hook_holds_up_the_containers_after_it() {
    let hooked = DesiredContainer { post_start: exec("a"), ..container("a") };
    let pod = DesiredPod { containers: vec![hooked, container("b")], ..desired() };
    let creates = |plan: &Plan| -> Vec<String> {
        let created = plan.actions.iter().filter_map(|a| match a {
            Action::CreateContainer { container, .. } => Some(container.clone()),
            _ => None,
        });
        created.collect()
    };
    let first = plan(&pod, &prepared(), &admitted(), at(0));
    assert_eq!(creates(&first), ["a"]);
    let made = with(vec![instance("a", 0, InstanceState::Created)]);
    let start = plan(&pod, &made, &first.record, at(0));
    assert_eq!(creates(&start), [""; 0]);
    let observed = with(vec![instance("a", 0, running())]);
    let hook = plan(&pod, &observed, &start.record, at(0));
    assert_eq!(creates(&hook), [""; 0]);
    let mut record = hook.record;
    record.record_post_start("a", "a-0", None);
    assert_eq!(creates(&plan(&pod, &observed, &record, at(0))), ["b"]);
    // A container that cannot start does not delay others.
    let mut record = first.record;
    record.record_failure(
        RetryStep::Container("a".into()),
        "CreateContainerError",
        "no",
        at(0).boot,
    );
    assert_eq!(creates(&plan(&pod, &prepared(), &record, at(0))), ["b"]);
}

#[test]
fn the_last_hook_is_run_where_there_is_time_for_it() {
    let pod = of(DesiredContainer { pre_stop: exec("a"), ..container("c") });
    let observed = with(vec![instance("c", 0, running())]);
    for (grace, expect) in [(30, true), (0, false)] {
        let grace = Duration::from_secs(grace);
        let pod = DesiredPod { presence: Presence::Deleting { grace }, ..pod.clone() };
        let next = plan(&pod, &observed, &admitted(), at(0));
        let hooks =
            next.actions.iter().map(|a| matches!(a, Action::StopContainer { hook: true, .. }));
        assert_eq!(hooks.collect::<Vec<_>>(), [expect]);
    }
}

#[test]
fn probe_results_in_the_status_are_adopted_from_another_agent() {
    let probes = Probes { startup: probe(None), readiness: probe(None), liveness: None };
    let pod = of(DesiredContainer { probes, ..container("c") });
    let observed = with(vec![instance("c", 0, running())]);
    let mut before = plan(&pod, &observed, &admitted(), at(0));
    before.record.record_probe_result("c", "c-0", ProbeKind::Startup, true);
    before.record.record_probe_result("c", "c-0", ProbeKind::Readiness, true);
    let shown = plan(&pod, &observed, &before.record, at(0)).status;
    let after = plan(&pod, &observed, &PodRecord::adopt(&shown), at(60));
    assert_eq!(after.status, shown);
    assert_eq!(after.actions, []);
}

#[test]
fn messages_share_what_a_pod_may_have() {
    let message = "x".repeat(4096);
    let exit = Exit { code: 1, message, ..Exit::default() };
    let bytes = |containers: usize| {
        let names: Vec<String> = (0..containers).map(|n| format!("c{n}")).collect();
        let ended = |name: &String| instance(name, 0, InstanceState::Exited(exit.clone()));
        let pod = DesiredPod {
            restart_policy: RestartPolicy::Never,
            containers: names.iter().map(|name| container(name)).collect(),
            ..desired()
        };
        let observed = with(names.iter().map(ended).collect());
        let status = plan(&pod, &observed, &admitted(), at(0)).status;
        let of = |s: &ContainerStatus| s.state.terminated.as_ref().map_or(0, |t| t.message.len());
        status.container_statuses.iter().map(of).max()
    };
    assert_eq!(bytes(1), Some(4096));
    assert_eq!(bytes(3), Some(4096));
    assert_eq!(bytes(6), Some(2048));
}
