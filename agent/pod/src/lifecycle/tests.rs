//! Single plans: actions, and the status that users see.

use std::time::Duration;

use proto_api::core::v1::{ContainerStatus, PodCondition, PodStatus};

mod adopted;
mod health;
mod journal_lost;
mod sidecars;

use super::*;
use crate::backoff::CRASH_DELAY_MAX;
use crate::desired::{
    ConfigState, ContainerRole, DesiredContainer, Disruption, PodSource, Presence, PullPolicy,
    RestartPolicy,
};
use crate::observed::{Exit, InstanceState, ObservedContainer, ObservedImage, ObservedSandbox};
use crate::plan::StopReason;
use crate::probe::Probes;
use crate::record::{KillReason, Phase};

const BOOT: Duration = Duration::from_secs(1000);

fn at(secs: u64) -> Now {
    Now { unix_seconds: 1_700_000_000, boot: BOOT + Duration::from_secs(secs) }
}

fn container(name: &str) -> DesiredContainer {
    DesiredContainer {
        name: name.into(),
        image: "image:1".into(),
        pull: PullPolicy::IfNotPresent,
        hash: "h".into(),
        config: ConfigState::Ready,
        role: ContainerRole::Main,
        probes: Probes::default(),
        post_start: None,
        pre_stop: None,
    }
}

fn init_container(name: &str) -> DesiredContainer {
    DesiredContainer { role: ContainerRole::Init, ..container(name) }
}

fn desired() -> DesiredPod {
    DesiredPod {
        namespace: "ns".into(),
        name: "p".into(),
        uid: "u".into(),
        source: PodSource::Api,
        presence: Presence::Present,
        restart_policy: RestartPolicy::Always,
        init: Vec::new(),
        containers: vec![container("c")],
        ephemeral: Vec::new(),
        grace: Duration::from_secs(30),
        active_deadline: None,
        host_network: false,
        host_ips: vec!["10.0.0.1".into()],
        qos_class: "BestEffort".into(),
        readiness_gates: Vec::new(),
        conditions: Vec::new(),
        disruption: None,
        dead_kept: 1,
        crash_delay_max: CRASH_DELAY_MAX,
    }
}

fn admitted() -> PodRecord {
    PodRecord { admission: Some(Admission::Admitted), ..PodRecord::default() }
}

/// Sandbox, volumes and image exist, no container runs.
fn prepared() -> ObservedPod {
    let image = ObservedImage::Present { id: "sha256:1".into() };
    ObservedPod {
        sandboxes: vec![ObservedSandbox {
            id: "s".into(),
            attempt: 0,
            ready: true,
            ips: vec!["10.1.0.2".into()],
        }],
        images: [("image:1".to_owned(), image)].into(),
        volumes: ObservedVolumes::Mounted,
        cgroup: true,
        ..ObservedPod::default()
    }
}

fn instance(name: &str, attempt: u32, state: InstanceState) -> ObservedContainer {
    ObservedContainer {
        id: format!("{name}-{attempt}"),
        name: name.into(),
        attempt,
        sandbox_id: "s".into(),
        image: "image:1".into(),
        image_id: "sha256:1".into(),
        hash: "h".into(),
        message_file: None,
        state,
    }
}

fn running() -> InstanceState {
    InstanceState::Running { started_at: 1_700_000_001_000_000_000 }
}

fn exited(code: i32) -> InstanceState {
    InstanceState::Exited(Exit { code, ..Exit::default() })
}

fn with(containers: Vec<ObservedContainer>) -> ObservedPod {
    ObservedPod { containers, ..prepared() }
}

fn waiting(status: &ContainerStatus) -> (&str, &str) {
    status.state.waiting.as_ref().map_or(("", ""), |w| (&w.reason, &w.message))
}

fn condition<'a>(status: &'a PodStatus, kind: &str) -> &'a PodCondition {
    status.conditions.iter().find(|c| c.type_ == kind).expect("condition")
}

#[test]
fn admission_comes_first_and_a_rejection_is_final() {
    let first = plan(&desired(), &ObservedPod::default(), &PodRecord::default(), at(0));
    assert_eq!(first.actions, [Action::Admit]);
    assert_eq!(first.status.start_time, None);
    let refused = Admission::Refused { reason: "OutOfcpu".into(), message: "full".into() };
    let record = PodRecord { admission: Some(refused), ..first.record };
    let second = plan(&desired(), &ObservedPod::default(), &record, at(0));
    assert_eq!(second.stage, PodStage::Refused);
    assert_eq!(
        (second.status.phase.as_str(), second.status.reason.as_str()),
        ("Failed", "OutOfcpu")
    );
    assert!(second.status.container_statuses.is_empty(), "nothing to wait for");
    assert_eq!(second.actions, []);
    assert_eq!(
        (second.status.phase.as_str(), second.status.reason.as_str()),
        ("Failed", "OutOfcpu")
    );
}

#[test]
fn sandbox_volumes_and_image_are_prepared_side_by_side() {
    let next = plan(&desired(), &ObservedPod::default(), &admitted(), at(0));
    let expect = [
        Action::MountVolumes,
        Action::InspectImage { image: "image:1".into() },
        Action::CreateSandbox { attempt: 0 },
    ];
    assert_eq!(next.actions, expect);
    assert_eq!(waiting(&next.status.container_statuses[0]), ("ContainerCreating", ""));
}

#[test]
fn a_running_pod_is_ready_and_has_nothing_to_do() {
    let next = plan(&desired(), &with(vec![instance("c", 0, running())]), &admitted(), at(0));
    assert_eq!((next.actions.as_slice(), next.wake_at), ([].as_slice(), None));
    let status = &next.status;
    assert_eq!(status.phase, "Running");
    assert_eq!((status.pod_ip.as_str(), status.host_ip.as_str()), ("10.1.0.2", "10.0.0.1"));
    for kind in ["Initialized", "Ready", "ContainersReady", "PodScheduled"] {
        assert_eq!(condition(status, kind).status, "True", "{kind}");
    }
    let container = &status.container_statuses[0];
    assert_eq!(container.container_id, "containerd://c-0");
    assert_eq!((container.ready, container.started), (true, Some(true)));
}

#[test]
fn the_first_crash_restarts_at_once_and_the_second_waits() {
    let crashed = with(vec![instance("c", 0, exited(1))]);
    let first = plan(&desired(), &crashed, &admitted(), at(0));
    let create = Action::CreateContainer {
        container: "c".into(),
        attempt: 1,
        sandbox_id: "s".into(),
        image_id: "sha256:1".into(),
    };
    assert_eq!(first.actions, [create]);
    let again = with(vec![instance("c", 0, exited(1)), instance("c", 1, exited(1))]);
    let second = plan(&desired(), &again, &first.record, at(1));
    assert_eq!(second.actions, []);
    assert_eq!(second.wake_at, Some(at(11).boot));
    let status = &second.status.container_statuses[0];
    let message = "back-off 10s restarting failed container=c pod=p_ns(u)";
    assert_eq!(waiting(status), ("CrashLoopBackOff", message));
    assert_eq!(status.restart_count, 1);
    assert_eq!(status.last_state.terminated.as_ref().map(|t| t.exit_code), Some(1));
    assert_eq!(condition(&second.status, "Ready").reason, "ContainersNotReady");
    assert_eq!(second.status.phase, "Running");
    let due = plan(&desired(), &again, &second.record, at(11));
    assert_eq!(due.actions.len(), 1);
}

#[test]
fn a_restart_counts_from_when_it_runs() {
    let one = instance("c", 0, exited(1));
    let first = plan(&desired(), &with(vec![one.clone()]), &admitted(), at(0));
    let mut record = first.record;
    let states = [(InstanceState::Created, 0, false), (running(), 1, true), (exited(1), 1, false)];
    for (state, restarts, ready) in states {
        let observed = with(vec![one.clone(), instance("c", 1, state.clone())]);
        let next = plan(&desired(), &observed, &record, at(1));
        let status = &next.status.container_statuses[0];
        assert_eq!((status.restart_count, status.ready), (restarts, ready), "{state:?}");
        record = next.record;
    }
}

#[test]
fn a_created_container_has_the_same_status_under_any_image_name() {
    // Created by image id, shown by the runtime under a name or a digest: the agent that created it and one that adopts it report
    // the same.
    let found = ObservedContainer {
        image: "registry/image:1".into(),
        image_id: "registry/image@sha256:2".into(),
        ..instance("c", 0, InstanceState::Created)
    };
    let made = instance("c", 0, InstanceState::Created);
    let status = |observed: ObservedContainer| {
        let next = plan(&desired(), &with(vec![observed]), &admitted(), at(0));
        next.status.container_statuses[0].clone()
    };
    assert_eq!(status(made), status(found.clone()));
    let runs = status(ObservedContainer { state: running(), ..found });
    assert_eq!(runs.image, "registry/image:1");
    assert_eq!(runs.container_id, "containerd://c-0");
}

#[test]
fn containers_of_an_ended_pod_that_never_ran_count_as_failed_after_initialization() {
    let unknown = |status: &ContainerStatus| {
        let terminated = status.state.terminated.as_ref();
        terminated
            .is_some_and(|t| (t.exit_code, t.reason.as_str()) == (137, "ContainerStatusUnknown"))
    };
    let init = vec![init_container("i0"), init_container("i1"), init_container("i2")];
    let pod =
        DesiredPod { init, presence: Presence::Deleting { grace: Duration::ZERO }, ..desired() };
    // Exits of i0, i1 and so on; which of them count as failed; whether c counts as failed.
    let cases: [(&[i32], [bool; 3], bool); 4] = [
        (&[], [true, false, false], false),
        (&[0], [false, false, false], false),
        (&[0, 1], [false, false, false], false),
        (&[0, 0, 0], [false, false, false], true),
    ];
    for (exits, failed, main) in cases {
        let ran = pod.init.iter().zip(exits).map(|(c, code)| instance(&c.name, 0, exited(*code)));
        let next = plan(&pod, &with(ran.collect()), &admitted(), at(0));
        assert_eq!(next.stage, PodStage::Clearing);
        let shown: Vec<bool> = next.status.init_container_statuses.iter().map(unknown).collect();
        assert_eq!(
            (shown.as_slice(), unknown(&next.status.container_statuses[0])),
            (failed.as_slice(), main),
            "{exits:?}"
        );
    }
    let alive = plan(&desired(), &prepared(), &admitted(), at(0));
    assert_eq!(waiting(&alive.status.container_statuses[0]).0, "ContainerCreating");
}

#[test]
fn missing_images_are_waited_for_with_a_reason() {
    let absent = |pull| {
        let mut observed = prepared();
        observed.images.insert("image:1".into(), ObservedImage::Absent { at: BOOT });
        let containers = vec![DesiredContainer { pull, ..container("c") }];
        (DesiredPod { containers, ..desired() }, observed)
    };
    let (desired, observed) = absent(PullPolicy::Never);
    let next = plan(&desired, &observed, &admitted(), at(0));
    assert_eq!((next.actions.as_slice(), next.wake_at), ([].as_slice(), Some(at(10).boot)));
    assert_eq!(waiting(&next.status.container_statuses[0]).0, "ErrImageNeverPull");

    let (desired, observed) = absent(PullPolicy::IfNotPresent);
    let pull = Action::PullImage { image: "image:1".into(), container: "c".into() };
    let next = plan(&desired, &observed, &admitted(), at(0));
    assert_eq!(next.actions, std::slice::from_ref(&pull));
    let mut record = next.record;
    record.record_failure(
        RetryStep::Image("image:1".into()),
        "ErrImagePull",
        "no such image",
        at(0).boot,
    );
    let cases = [
        (0, ("ErrImagePull", "no such image")),
        (6, ("ImagePullBackOff", "Back-off pulling image \"image:1\"")),
    ];
    for (secs, expect) in cases {
        let next = plan(&desired, &observed, &record, at(secs));
        assert_eq!(waiting(&next.status.container_statuses[0]), expect, "{secs}");
        assert_eq!(next.actions, []);
        assert!(next.wake_at.is_some());
    }
    assert_eq!(plan(&desired, &observed, &record, at(10)).actions, [pull]);
}

#[test]
fn a_missing_object_holds_the_container_and_is_named() {
    let missing = ConfigState::Missing("configmap \"m\" not found".into());
    let containers = vec![DesiredContainer { config: missing, ..container("c") }];
    let next = plan(&DesiredPod { containers, ..desired() }, &prepared(), &admitted(), at(0));
    assert_eq!(next.actions, []);
    let expect = ("CreateContainerConfigError", "configmap \"m\" not found");
    assert_eq!(waiting(&next.status.container_statuses[0]), expect);
}

#[test]
fn init_containers_go_first_one_by_one() {
    let pod = DesiredPod { init: vec![init_container("i1"), init_container("i2")], ..desired() };
    let next = plan(&pod, &prepared(), &admitted(), at(0));
    let created: Vec<_> = next
        .actions
        .iter()
        .filter(|a| matches!(a, Action::CreateContainer { container, .. } if container == "i1"))
        .collect();
    assert_eq!((created.len(), next.actions.len()), (1, 1));
    let initialized = condition(&next.status, "Initialized");
    assert_eq!(initialized.reason, "ContainersNotInitialized");
    assert_eq!(initialized.message, "containers with incomplete status: [i1 i2]");
    assert_eq!(waiting(&next.status.container_statuses[0]).0, "PodInitializing");

    let pod = DesiredPod { restart_policy: RestartPolicy::Never, ..pod };
    let failed = plan(&pod, &with(vec![instance("i1", 0, exited(2))]), &admitted(), at(0));
    assert_eq!(failed.record.phase, Phase::Failed);
    assert_eq!(failed.stage, PodStage::Clearing);
}

#[test]
fn a_finished_pod_keeps_its_dead_containers_until_it_is_deleted() {
    let pod = DesiredPod { restart_policy: RestartPolicy::Never, ..desired() };
    let over = plan(&pod, &with(vec![instance("c", 0, exited(0))]), &admitted(), at(0));
    assert_eq!(over.status.phase, "Succeeded");
    assert_eq!(condition(&over.status, "Ready").reason, "PodCompleted");
    let stop = Action::StopSandbox { id: "s".into(), attempt: 0 };
    assert_eq!(over.actions, [stop, Action::UnmountVolumes]);
    assert!(over.actions.iter().all(Action::needs_durable_record));

    let mut record = over.record;
    record.record_stopped_sandbox(0);
    let mut bare = with(vec![instance("c", 0, exited(0))]);
    bare.sandboxes[0].ready = false;
    (bare.volumes, bare.cgroup) = (ObservedVolumes::Absent, false);
    let kept = plan(&pod, &bare, &record, at(0));
    assert_eq!((kept.stage, kept.actions.as_slice()), (PodStage::Finished, [].as_slice()));
    let deleted = DesiredPod { presence: Presence::Deleting { grace: Duration::ZERO }, ..pod };
    let next = plan(&deleted, &bare, &kept.record, at(0));
    assert_eq!(next.actions, [Action::RemoveSandbox { id: "s".into() }]);
    let gone = plan(&deleted, &ObservedPod::default(), &next.record, at(0));
    assert_eq!(gone.actions, [Action::ReportDeleted]);
    assert_eq!(gone.status.container_statuses[0].container_id, "containerd://c-0");
}

#[test]
fn a_created_container_delays_the_end_until_its_sandbox_is_stopped() {
    let presence = Presence::Deleting { grace: Duration::ZERO };
    let pod = DesiredPod { presence, ..desired() };
    let mut observed = with(vec![instance("c", 0, InstanceState::Created)]);
    let next = plan(&pod, &observed, &admitted(), at(0));
    let stop = Action::StopSandbox { id: "s".into(), attempt: 0 };
    assert_eq!((next.stage, next.actions.as_slice()), (PodStage::Ending, [stop].as_slice()));
    assert_eq!(next.status.phase, "Pending");
    observed.sandboxes[0].ready = false;
    let mut record = next.record;
    record.record_stopped_sandbox(0);
    let next = plan(&pod, &observed, &record, at(0));
    assert_eq!((next.stage, next.status.phase.as_str()), (PodStage::Clearing, "Failed"));
    assert!(next.actions.contains(&Action::UnmountVolumes));
}

#[test]
fn a_shorter_grace_brings_the_deadline_forward_and_a_longer_one_does_not() {
    let observed = with(vec![instance("c", 0, running())]);
    let deleting = |secs| DesiredPod {
        presence: Presence::Deleting { grace: Duration::from_secs(secs) },
        ..desired()
    };
    let deadline = |plan: &Plan| match plan.actions.as_slice() {
        [Action::StopContainer { deadline, .. }] => *deadline,
        other => panic!("{other:?}"),
    };
    let first = plan(&deleting(30), &observed, &admitted(), at(0));
    assert_eq!(deadline(&first), at(30).boot);
    let longer = plan(&deleting(60), &observed, &first.record, at(5));
    assert_eq!(deadline(&longer), at(30).boot);
    let shorter = plan(&deleting(1), &observed, &first.record, at(5));
    assert_eq!(deadline(&shorter), at(6).boot);
}

#[test]
fn a_changed_definition_replaces_the_instance_without_back_off() {
    let containers = vec![DesiredContainer { hash: "new".into(), ..container("c") }];
    let pod = DesiredPod { containers, restart_policy: RestartPolicy::Never, ..desired() };
    let stop = plan(&pod, &with(vec![instance("c", 0, running())]), &admitted(), at(0));
    assert!(matches!(
        stop.actions.as_slice(),
        [Action::StopContainer { why: StopReason::DefinitionChanged, .. }]
    ));
    let next = plan(&pod, &with(vec![instance("c", 0, exited(143))]), &stop.record, at(1));
    assert!(matches!(next.actions.as_slice(), [Action::CreateContainer { attempt: 1, .. }]));
}

#[test]
fn a_pod_that_is_active_too_long_fails() {
    let pod = DesiredPod { active_deadline: Some(Duration::from_secs(60)), ..desired() };
    let observed = with(vec![instance("c", 0, running())]);
    let first = plan(&pod, &observed, &admitted(), at(0));
    assert_eq!(first.wake_at, Some(at(60).boot));
    let late = plan(&pod, &observed, &first.record, at(60));
    assert_eq!((late.stage, late.status.reason.as_str()), (PodStage::Ending, "DeadlineExceeded"));
    let over = plan(&pod, &with(vec![instance("c", 0, exited(0))]), &late.record, at(61));
    assert_eq!(over.status.phase, "Failed");
}

#[test]
fn an_instance_that_vanished_counts_as_ended() {
    let observed = with(vec![instance("c", 0, running())]);
    let first = plan(&desired(), &observed, &admitted(), at(0));
    let next = plan(&desired(), &prepared(), &first.record, at(1));
    assert!(matches!(next.actions.as_slice(), [Action::CreateContainer { attempt: 1, .. }]));
    let ended = next.status.container_statuses[0].state.terminated.clone().expect("ended");
    assert_eq!((ended.exit_code, ended.reason.as_str()), (137, "ContainerStatusUnknown"));
}

#[test]
fn a_closed_readiness_gate_keeps_the_pod_unready() {
    let pod = DesiredPod { readiness_gates: vec!["x/y".into()], ..desired() };
    let observed = with(vec![instance("c", 0, running())]);
    let next = plan(&pod, &observed, &admitted(), at(0));
    assert_eq!(condition(&next.status, "ContainersReady").status, "True");
    assert_eq!(condition(&next.status, "Ready").reason, "ReadinessGatesNotReady");
    let open =
        PodCondition { type_: "x/y".into(), status: "True".into(), ..PodCondition::default() };
    let pod = DesiredPod { conditions: vec![open], ..pod };
    let next = plan(&pod, &observed, &admitted(), at(0));
    assert_eq!(condition(&next.status, "Ready").status, "True");
}

#[test]
fn a_verdict_of_the_node_ends_the_pod_in_failure_whatever_its_policy() {
    let observed = with(vec![instance("c", 0, running())]);
    let disruption = |grace: Option<u64>| Disruption {
        reason: "Evicted".into(),
        message: "low on memory".into(),
        grace: grace.map(Duration::from_secs),
    };
    let deadline = |desired: &DesiredPod| {
        let next = plan(desired, &observed, &admitted(), at(0));
        assert_eq!(next.stage, PodStage::Ending);
        next.record.ending.map(|ending| ending.deadline - at(0).boot)
    };
    let hard = DesiredPod { disruption: Some(disruption(Some(0))), ..desired() };
    assert_eq!(deadline(&hard), Some(Duration::ZERO));
    let soft = DesiredPod { disruption: Some(disruption(None)), ..desired() };
    assert_eq!(deadline(&soft), Some(Duration::from_secs(30)));
    let hurried = DesiredPod {
        presence: Presence::Deleting { grace: Duration::from_secs(600) },
        disruption: Some(disruption(Some(5))),
        ..desired()
    };
    assert_eq!(deadline(&hurried), Some(Duration::from_secs(5)));

    // The decision is kept after the disruption is no longer passed, and a container that succeeds does not change it.
    let record = plan(&hard, &observed, &admitted(), at(0)).record;
    let over = with(vec![instance("c", 0, exited(0))]);
    let next = plan(&desired(), &over, &record, at(1));
    assert_eq!(next.stage, PodStage::Clearing);
    let status = &next.status;
    let shown = (status.phase.as_str(), status.reason.as_str(), status.message.as_str());
    assert_eq!(shown, ("Failed", "Evicted", "low on memory"));
}

#[test]
fn the_time_before_this_boot_counts_for_the_deadline() {
    let pod = DesiredPod { active_deadline: Some(Duration::from_secs(60)), ..desired() };
    let observed = with(vec![instance("c", 0, running())]);
    let record = PodRecord { accepted_at: at(0).unix_seconds - 50, ..admitted() };
    let first = plan(&pod, &observed, &record, at(0));
    assert_eq!((first.stage, first.wake_at), (PodStage::Running, Some(at(10).boot)));
    // From here on only time since boot counts: the wall clock may jump.
    let jumped = Now { unix_seconds: 0, ..at(9) };
    assert_eq!(plan(&pod, &observed, &first.record, jumped).stage, PodStage::Running);
    assert_eq!(plan(&pod, &observed, &first.record, at(10)).stage, PodStage::Ending);
}

#[test]
fn a_pod_that_is_over_keeps_its_status_when_its_remains_go() {
    let done = DesiredPod { restart_policy: RestartPolicy::Never, ..desired() };
    let over = ObservedPod {
        sandboxes: vec![ObservedSandbox { id: "s".into(), ..ObservedSandbox::default() }],
        volumes: ObservedVolumes::Absent,
        cgroup: false,
        ..with(vec![instance("c", 0, exited(0))])
    };
    let mut record =
        plan(&done, &with(vec![instance("c", 0, running())]), &admitted(), at(0)).record;
    record.record_stopped_sandbox(0);
    let kept = plan(&done, &over, &record, at(1));
    assert_eq!((kept.stage, kept.actions.len()), (PodStage::Finished, 0));
    let short = DesiredPod { dead_kept: 0, ..done };
    let next = plan(&short, &over, &kept.record, at(2));
    assert_eq!(next.actions, [Action::RemoveSandbox { id: "s".into() }]);
    let bare = ObservedPod::default();
    let after = plan(&short, &bare, &next.record, at(3));
    assert_eq!((after.stage, after.actions.len()), (PodStage::Finished, 0));
    assert_eq!(after.status, next.status);
}

#[test]
fn a_pod_of_many_containers_is_planned_in_proportion() {
    let number: u64 = 3000;
    let many = |role: fn(&str) -> DesiredContainer| -> Vec<DesiredContainer> {
        (0..number)
            .map(|n| {
                let name = format!("c{n}");
                DesiredContainer { image: format!("image:{n}"), ..role(&name) }
            })
            .collect()
    };
    let sidecar = |name: &str| DesiredContainer { role: ContainerRole::Sidecar, ..container(name) };
    for desired in [
        DesiredPod { init: many(init_container), ..desired() },
        DesiredPod { init: many(sidecar), ..desired() },
        DesiredPod { containers: many(container), ..desired() },
    ] {
        let mut record = admitted();
        for container in &desired.init {
            let known = record.containers.entry(container.name.clone()).or_default();
            let ended = crate::record::EndedContainer::default();
            (known.attempt, known.sandbox_attempt) = (Some(0), Some(0));
            (known.ended, known.came_up_in) = (Some(ended), Some(0));
        }
        // A step is a question about one container: whether it lets others start, or what its newest instance is.
        let steps = proto_api::steps::count_during(|| {
            let next = plan(&desired, &prepared(), &record, at(0));
            assert_eq!(next.stage, PodStage::Running);
        });
        assert!((number..=20 * number).contains(&steps), "{steps}");
    }
}

#[test]
fn failures_of_former_images_and_sandboxes_are_forgotten() {
    let mut record = admitted();
    // A user tries one image after another, and the sandbox is lost repeatedly.
    for n in 0..1000 {
        record.record_failure(RetryStep::Image(format!("none:{n}")), "ErrImagePull", "no", BOOT);
        record.record_stopped_sandbox(n);
    }
    record.record_failure(RetryStep::Image("image:1".into()), "ErrImagePull", "no", BOOT);
    record.record_failure(RetryStep::Container("c".into()), "RunContainerError", "no", BOOT);
    record.record_failure(RetryStep::Sandbox, "", "no", BOOT);
    let sandbox = |attempt, ready| ObservedSandbox {
        id: format!("s{attempt}"),
        attempt,
        ready,
        ..ObservedSandbox::default()
    };
    let observed =
        ObservedPod { sandboxes: vec![sandbox(1000, true), sandbox(999, false)], ..prepared() };
    let record = plan(&desired(), &observed, &record, at(0)).record;
    let steps: Vec<&RetryStep> = record.troubles.iter().map(|trouble| &trouble.step).collect();
    let image = RetryStep::Image("image:1".into());
    assert_eq!(steps, [&image, &RetryStep::Container("c".into()), &RetryStep::Sandbox]);
    assert_eq!(record.sandboxes_stopped, [999].into());
}
