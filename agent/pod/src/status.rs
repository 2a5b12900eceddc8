//! The status of a pod: phase, conditions and container states, as in Kubernetes.

use std::time::Duration;

use proto_api::core::v1::{
    ContainerState, ContainerStateRunning, ContainerStateTerminated, ContainerStateWaiting,
    ContainerStatus, PodCondition, PodIP, PodStatus,
};
use proto_api::{Time, duration};

use crate::backoff::{RetryStep, StepFailure};
use crate::desired::{ConfigState, ContainerRole, DesiredContainer, DesiredPod, PullPolicy};
use crate::observed::Now;
use crate::observed::{Exit, InstanceState, ObservedContainer, ObservedImage, ObservedPod};
use crate::plan::PodStage;
use crate::record::{
    Admission, ContainerRecord, EndedContainer, Phase, PodRecord, TerminationReason,
};
use crate::start::{is_backing_off, usable_image};
use crate::termination;

/// Builds the complete status of a pod; updates phase and transition times in `record`.
pub(crate) fn status(
    desired: &DesiredPod,
    observed: &ObservedPod,
    record: &mut PodRecord,
    stage: PodStage,
    now: Now,
) -> PodStatus {
    let over = matches!(stage, PodStage::Clearing | PodStage::Finished | PodStage::Gone);
    let view = ContainerView::new(desired, observed, record, now.boot, over);
    // A rejected pod has no container statuses, so tools show the reason of the rejection.
    let shown = !matches!(record.admission, Some(Admission::Refused { .. }));
    let statuses = |list: &[DesiredContainer]| -> Vec<ContainerStatus> {
        let numbered = list.iter().enumerate().filter(|_| shown);
        numbered.map(|(number, container)| view.status(number, container)).collect()
    };
    let (init, main) = (statuses(&desired.init), statuses(&desired.containers));
    let ephemeral = statuses(&desired.ephemeral);
    record.phase = record.phase.advance(phase(desired, record, stage, &main));
    let (reason, message) = pod_reason(record);
    let sidecars = desired.init.iter().zip(&init).filter(|(c, _)| c.role == ContainerRole::Sidecar);
    let serving: Vec<&ContainerStatus> = sidecars.map(|(_, s)| s).chain(&main).collect();
    let conditions = conditions(desired, record, &serving, now);
    let ips = if desired.host_network { desired.host_ips.clone() } else { record.ips.clone() };
    PodStatus {
        phase: record.phase.as_str().to_owned(),
        conditions,
        reason,
        message,
        host_ip: desired.host_ips.first().cloned().unwrap_or_default(),
        pod_ip: ips.first().cloned().unwrap_or_default(),
        pod_ips: ips.into_iter().map(|ip| PodIP { ip }).collect(),
        start_time: (record.accepted_at != 0).then(|| Time::from_unix(record.accepted_at)),
        init_container_statuses: init,
        container_statuses: main,
        ephemeral_container_statuses: ephemeral,
        qos_class: desired.qos_class.clone(),
        ..PodStatus::default()
    }
}

/// Reason and message of the pod.
fn pod_reason(record: &PodRecord) -> (String, String) {
    if let Some(Admission::Refused { reason, message }) = &record.admission {
        return (reason.clone(), message.clone());
    }
    match record.ending.as_ref().map(|e| &e.why) {
        Some(TerminationReason::DeadlineExceeded) => (
            "DeadlineExceeded".to_owned(),
            "Pod was active on the node longer than the specified deadline".to_owned(),
        ),
        Some(TerminationReason::Evicted { reason, message }) => (reason.clone(), message.clone()),
        Some(
            TerminationReason::Deleted
            | TerminationReason::Completed
            | TerminationReason::SandboxLost,
        )
        | None => Default::default(),
    }
}

// === phase ===

fn phase(
    desired: &DesiredPod,
    record: &PodRecord,
    stage: PodStage,
    main: &[ContainerStatus],
) -> Phase {
    match stage {
        PodStage::Refused => return Phase::Failed,
        PodStage::Clearing | PodStage::Finished | PodStage::Gone => {
            return final_phase(desired, record);
        }
        PodStage::Preparing | PodStage::Initializing | PodStage::Running | PodStage::Ending => {}
    }
    if !is_initialized(desired, record) {
        return Phase::Pending;
    }
    let started = |s: &ContainerStatus| {
        s.state.running.is_some()
            || s.state.terminated.is_some()
            || s.last_state.terminated.is_some()
    };
    // Pending until every container has started once.
    if main.iter().all(started) { Phase::Running } else { Phase::Pending }
}

/// Phase of a pod with no running container left.
fn final_phase(desired: &DesiredPod, record: &PodRecord) -> Phase {
    let why = record.ending.as_ref().map(|e| &e.why);
    let refused = matches!(record.admission, Some(Admission::Refused { .. }));
    let cut_off = matches!(
        why,
        Some(
            TerminationReason::DeadlineExceeded
                | TerminationReason::SandboxLost
                | TerminationReason::Evicted { .. }
        )
    );
    if refused || cut_off {
        return Phase::Failed;
    }
    let succeeded = |name: &str| {
        record
            .containers
            .get(name)
            .and_then(|m| m.ended.as_ref())
            .is_some_and(|ended| ended.exit.code == 0)
    };
    if desired.containers.iter().all(|c| succeeded(&c.name)) {
        Phase::Succeeded
    } else {
        Phase::Failed
    }
}

fn is_initialized(desired: &DesiredPod, record: &PodRecord) -> bool {
    desired.init.is_empty()
        || (record.initialized_in.is_some() && record.initialized_in == record.sandbox_attempt)
}

// === conditions ===

fn conditions(
    desired: &DesiredPod,
    record: &mut PodRecord,
    serving: &[&ContainerStatus],
    now: Now,
) -> Vec<PodCondition> {
    let containers_ready = containers_ready(record.phase, serving);
    let ready = match closed_gate(desired) {
        Some(value) if containers_ready.is_true => value,
        _ => containers_ready.clone(),
    };
    let values = [
        ("Initialized", initialized(desired, record)),
        ("Ready", ready),
        ("ContainersReady", containers_ready),
        ("PodScheduled", ConditionValue::yes()),
    ];
    values.into_iter().map(|(kind, value)| value.condition(kind, record, now)).collect()
}

#[derive(Clone, Debug, Default)]
struct ConditionValue {
    is_true: bool,
    reason: &'static str,
    message: String,
}

impl ConditionValue {
    fn yes() -> Self {
        Self { is_true: true, ..Self::default() }
    }

    fn no(reason: &'static str, message: String) -> Self {
        Self { is_true: false, reason, message }
    }

    fn condition(self, kind: &str, record: &mut PodRecord, now: Now) -> PodCondition {
        let status = if self.is_true { "True" } else { "False" };
        let since = match record.conditions.get(kind) {
            Some((before, since)) if before == status => *since,
            _ => now.unix_seconds,
        };
        record.conditions.insert(kind.to_owned(), (status.to_owned(), since));
        PodCondition {
            type_: kind.to_owned(),
            status: status.to_owned(),
            reason: self.reason.to_owned(),
            message: self.message,
            last_transition_time: Time::from_unix(since),
            ..PodCondition::default()
        }
    }
}

fn initialized(desired: &DesiredPod, record: &PodRecord) -> ConditionValue {
    if record.phase == Phase::Succeeded {
        return ConditionValue { is_true: true, reason: "PodCompleted", message: String::new() };
    }
    if is_initialized(desired, record) {
        return ConditionValue::yes();
    }
    let sandbox = record.sandbox_attempt.unwrap_or(0);
    let incomplete: Vec<&str> = desired
        .init
        .iter()
        .filter(|c| !record.lets_successors_start(c, sandbox))
        .map(|c| c.name.as_str())
        .collect();
    let message = format!("containers with incomplete status: [{}]", incomplete.join(" "));
    ConditionValue::no("ContainersNotInitialized", message)
}

fn containers_ready(phase: Phase, serving: &[&ContainerStatus]) -> ConditionValue {
    match phase {
        Phase::Succeeded => return ConditionValue::no("PodCompleted", String::new()),
        Phase::Failed => return ConditionValue::no("PodFailed", String::new()),
        Phase::Pending | Phase::Running => {}
    }
    let unready: Vec<&str> = serving.iter().filter(|s| !s.ready).map(|s| s.name.as_str()).collect();
    if unready.is_empty() {
        return ConditionValue::yes();
    }
    let message = format!("containers with unready status: [{}]", unready.join(" "));
    ConditionValue::no("ContainersNotReady", message)
}

/// The first readiness gate that is not true.
fn closed_gate(desired: &DesiredPod) -> Option<ConditionValue> {
    let closed: Vec<String> = desired
        .readiness_gates
        .iter()
        .filter_map(|gate| match desired.conditions.iter().find(|c| c.type_ == *gate) {
            None => Some(format!(
                "corresponding condition of pod readiness gate {gate:?} does not exist."
            )),
            Some(condition) if condition.status != "True" => Some(format!(
                "the status of pod readiness gate {gate:?} is not \"True\", but {}",
                condition.status
            )),
            Some(_) => None,
        })
        .collect();
    (!closed.is_empty()).then(|| ConditionValue::no("ReadinessGatesNotReady", closed.join(", ")))
}

// === containers ===

struct ContainerView<'a> {
    desired: &'a DesiredPod,
    observed: &'a ObservedPod,
    record: &'a PodRecord,
    now: Duration,
    /// Whether all containers of the pod have ended for good.
    over: bool,
    /// Number of leading init containers that no longer delay their successors.
    past: usize,
    /// Number of leading init containers that should have started: up to the last one that did, at least one.
    begun: usize,
}

/// Restart count of a container. A created instance counts only once it starts, because readers take a higher count for a restart
/// that happened.
/// new count for a container that runs again.
fn restarts(newest: Option<&ObservedContainer>, known: &ContainerRecord) -> u32 {
    let attempt = known.attempt.unwrap_or(0);
    match newest.map(|instance| &instance.state) {
        Some(InstanceState::Created) => attempt.saturating_sub(1),
        _ => attempt,
    }
}

impl<'a> ContainerView<'a> {
    fn new(
        desired: &'a DesiredPod,
        observed: &'a ObservedPod,
        record: &'a PodRecord,
        now: Duration,
        over: bool,
    ) -> Self {
        let sandbox = record.sandbox_attempt.unwrap_or(0);
        let past =
            desired.init.iter().take_while(|c| record.lets_successors_start(c, sandbox)).count();
        let has_run = |c: &DesiredContainer| {
            let known = record.containers.get(&c.name);
            known.is_some_and(|m| m.ended.is_some() || m.previous.is_some())
        };
        let begun = desired.init.iter().rposition(has_run).unwrap_or(0).saturating_add(1);
        Self { desired, observed, record, now, over, past, begun }
    }

    /// Status of the container at index `number` of its list.
    fn status(&self, number: usize, container: &DesiredContainer) -> ContainerStatus {
        let known = self.record.containers.get(&container.name).cloned().unwrap_or_default();
        let newest =
            self.observed.newest(&container.name).filter(|c| Some(c.attempt) == known.attempt);
        let running = running(newest, &known).is_some();
        let (state, last_state) = self.states((number, container), &known, newest);
        // A created instance has nothing to show yet: the runtime reports fields of the request differently before the start.
        let begun = newest.filter(|c| c.state != InstanceState::Created);
        let shown = begun.map(|c| (c.image.clone(), c.image_id.clone(), runtime_id(&c.id)));
        let (image, image_id, container_id) = shown
            .or_else(|| {
                let ended = known.ended.as_ref().or(known.previous.as_ref())?;
                Some((ended.image.clone(), ended.image_id.clone(), runtime_id(&ended.id)))
            })
            .unwrap_or_else(|| (container.image.clone(), String::new(), String::new()));
        let succeeded = known.ended.as_ref().is_some_and(|e| e.exit.code == 0);
        ContainerStatus {
            name: container.name.clone(),
            state,
            last_state,
            ready: match container.role {
                ContainerRole::Init => succeeded,
                ContainerRole::Main | ContainerRole::Sidecar => {
                    running && known.is_ready(container)
                }
                // Ephemeral containers have no readiness.
                ContainerRole::Ephemeral => false,
            },
            restart_count: i32::try_from(restarts(newest, &known)).unwrap_or(i32::MAX),
            image,
            image_id,
            container_id,
            started: container.role.serves().then(|| running && known.has_come_up(container)),
        }
    }

    /// `state` and `lastState` of a container.
    fn states(
        &self,
        (number, container): (usize, &DesiredContainer),
        known: &ContainerRecord,
        newest: Option<&ObservedContainer>,
    ) -> (ContainerState, ContainerState) {
        let terminated = |ended: &EndedContainer| terminated(ended, self.desired.message_bytes());
        let previous = known.previous.as_ref().map(terminated).unwrap_or_default();
        if let Some(started_at) = running(newest, known) {
            let started_at = time(started_at);
            let running = Some(ContainerStateRunning { started_at });
            return (ContainerState { running, ..ContainerState::default() }, previous);
        }
        let waiting = self.waiting(number, container, known);
        match (&known.ended, waiting) {
            (Some(ended), Some(waiting)) => (waiting, terminated(ended)),
            (Some(ended), None) => (terminated(ended), previous),
            (None, _) if self.counts_as_failed(number, container) => {
                (terminated(&never_ran()), previous)
            }
            (None, waiting) => (waiting.unwrap_or_else(|| self.not_yet(container)), previous),
        }
    }

    /// Whether a container that never ran counts as failed in a pod that ended: all of them if the pod was initialized, otherwise
    /// init containers up to the last that ran, at least the first. Others keep waiting, as tools expect of a pod that failed
    /// during initialization.
    fn counts_as_failed(&self, number: usize, container: &DesiredContainer) -> bool {
        self.over
            && match container.role {
                ContainerRole::Main => {
                    self.desired.init.is_empty() || self.record.initialized_in.is_some()
                }
                ContainerRole::Init | ContainerRole::Sidecar => number < self.begun,
                ContainerRole::Ephemeral => false,
            }
    }

    /// Reason and message for a container that should run but does not, if there is one to show.
    fn waiting(
        &self,
        number: usize,
        container: &DesiredContainer,
        known: &ContainerRecord,
    ) -> Option<ContainerState> {
        let policy = self.desired.restart_policy_of(container.role);
        let over = self.record.ending.is_some() || known.is_over(policy);
        if over || !self.has_turn(number, container) {
            return None;
        }
        if let Some(state) = self.crash_loop(container, known) {
            return Some(state);
        }
        if let ConfigState::Missing(message) = &container.config {
            return Some(waiting("CreateContainerConfigError", message));
        }
        let pull = self.record.last_failure(&RetryStep::Image(container.image.clone()));
        if let Some(trouble) =
            pull.filter(|_| usable_image(self.observed, container, known).is_none())
        {
            return Some(self.pull_failed(container, trouble));
        }
        let absent = matches!(
            self.observed.images.get(&container.image),
            Some(ObservedImage::Absent { .. })
        );
        if container.pull == PullPolicy::Never && absent {
            let image = &container.image;
            let message =
                format!("Container image {image:?} is not present with pull policy of Never");
            return Some(waiting("ErrImageNeverPull", &message));
        }
        match self.record.last_failure(&RetryStep::Container(container.name.clone())) {
            Some(trouble) => Some(waiting(&trouble.reason, &trouble.message)),
            // Until the hook of a later instance succeeds.
            None => known.hook_failure.as_ref().map(|why| waiting("PostStartHookError", why)),
        }
    }

    /// Whether the order of init containers has reached this one.
    fn has_turn(&self, number: usize, container: &DesiredContainer) -> bool {
        let initialized = is_initialized(self.desired, self.record);
        let sandbox = self.record.sandbox_attempt.unwrap_or(0);
        match container.role {
            ContainerRole::Main => initialized,
            ContainerRole::Ephemeral => true,
            ContainerRole::Init | ContainerRole::Sidecar => {
                let past = self.record.lets_successors_start(container, sandbox);
                let done = container.role == ContainerRole::Init && (initialized || past);
                number <= self.past && !done
            }
        }
    }

    fn crash_loop(
        &self,
        container: &DesiredContainer,
        known: &ContainerRecord,
    ) -> Option<ContainerState> {
        let sandbox = self.observed.ready_sandbox()?;
        let longest = self.desired.crash_delay_max;
        if !is_backing_off(known, sandbox, longest, self.now) {
            return None;
        }
        let DesiredPod { namespace, name, uid, .. } = self.desired;
        let delay = duration::format(known.backoff.delay.min(longest));
        let container = &container.name;
        let message = format!(
            "back-off {delay} restarting failed container={container} pod={name}_{namespace}({uid})"
        );
        Some(waiting("CrashLoopBackOff", &message))
    }

    fn pull_failed(&self, container: &DesiredContainer, trouble: &StepFailure) -> ContainerState {
        // An invalid name stays invalid.
        let stays = matches!(trouble.reason.as_str(), "InvalidImageName" | "ImageInspectError");
        if stays || self.now < trouble.shows_error_until() {
            return waiting(&trouble.reason, &trouble.message);
        }
        waiting("ImagePullBackOff", &format!("Back-off pulling image {:?}", container.image))
    }

    /// State of a container whose predecessors are not done.
    fn not_yet(&self, _container: &DesiredContainer) -> ContainerState {
        let initializing = !is_initialized(self.desired, self.record);
        waiting(if initializing { "PodInitializing" } else { "ContainerCreating" }, "")
    }
}

/// Start time of the newest instance if it counts as running, which it does after its `postStart` hook.
fn running(newest: Option<&ObservedContainer>, known: &ContainerRecord) -> Option<i64> {
    match newest?.state {
        InstanceState::Running { .. } if known.awaits_hook() => None,
        InstanceState::Running { started_at } => Some(started_at),
        InstanceState::Created | InstanceState::Exited(_) | InstanceState::Unknown => None,
    }
}

fn waiting(reason: &str, message: &str) -> ContainerState {
    let (reason, message) = (reason.to_owned(), message.to_owned());
    let waiting = Some(ContainerStateWaiting { reason, message });
    ContainerState { waiting, ..ContainerState::default() }
}

/// State of a container that never ran in a pod that ended, as the kubelet reports it.
fn never_ran() -> EndedContainer {
    let exit = Exit {
        code: 137,
        reason: "ContainerStatusUnknown".to_owned(),
        message: "The container could not be located when the pod was terminated".to_owned(),
        ..Exit::default()
    };
    EndedContainer { exit, ..EndedContainer::default() }
}

fn terminated(ended: &EndedContainer, message_bytes: usize) -> ContainerState {
    let exit = &ended.exit;
    let reason = match (exit.reason.as_str(), exit.code) {
        ("", 0) => "Completed",
        ("", _) => "Error",
        (reason, _) => reason,
    };
    let terminated = Some(ContainerStateTerminated {
        exit_code: exit.code,
        reason: reason.to_owned(),
        message: termination::first_bytes(&exit.message, message_bytes).to_owned(),
        started_at: time(exit.started_at),
        finished_at: time(exit.finished_at),
        container_id: runtime_id(&ended.id),
        ..ContainerStateTerminated::default()
    });
    ContainerState { terminated, ..ContainerState::default() }
}

/// A runtime id in the form `containerd://<id>`.
fn runtime_id(id: &str) -> String {
    if id.is_empty() { String::new() } else { format!("containerd://{id}") }
}

/// A runtime's time in nanoseconds as whole seconds; 0 is unset.
fn time(nanoseconds: i64) -> Time {
    match nanoseconds.div_euclid(1_000_000_000) {
        0 => Time::default(),
        secs => Time::from_unix(secs),
    }
}
