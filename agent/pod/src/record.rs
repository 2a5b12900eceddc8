//! The record of a pod: what the agent must remember between two plans and across its own restarts.
//!
//! It is one journal record per pod. It holds what the runtime forgets (exits of removed containers), what only the agent decided
//! (admission, the end of the pod, back-off) and what must never go backwards for users (phase, restart counts).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::backoff::{CrashBackoff, MissedExits, RetryStep, StepFailure};
use crate::desired::{ContainerRole, DesiredContainer, DesiredPod, RestartPolicy};
use crate::observed::{Exit, InstanceState, Now, ObservedContainer, ObservedPod};
use crate::probe::ProbeKind;
use crate::termination::first_bytes;

pub use crate::phase::Phase;

/// How many bytes of a hook's failure are kept; the output of its command is part of it.
const HOOK_FAILURE_LEN_MAX: usize = 1024;

/// The record of a pod. Fields missing in an older record have their defaults.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PodRecord {
    /// Result of admission; `None` before it. Decided once per pod; the refusal of a static pod lapses with the agent's process.
    pub admission: Option<Admission>,
    /// Time of admission in seconds since 1970; 0 before.
    pub accepted_at: i64,
    /// The same time since boot, for the active deadline. For a pod admitted before this boot: when it was first planned.
    pub accepted_boot: Duration,
    /// Active time before `accepted_boot`.
    pub active_before: Duration,
    /// The most advanced phase shown so far.
    pub phase: Phase,
    /// Set once nothing of the pod may start again.
    pub ending: Option<Ending>,
    /// Highest attempt of a sandbox seen so far.
    pub sandbox_attempt: Option<u32>,
    /// Attempts of sandboxes that were stopped and whose network was torn down.
    pub sandboxes_stopped: BTreeSet<u32>,
    /// Addresses of the newest ready sandbox; kept for the status of a finished pod.
    pub ips: Vec<String>,
    /// Attempt of the sandbox in which all init containers have succeeded.
    pub initialized_in: Option<u32>,
    /// Per container, including init containers. Boxed because a B-tree node reserves room for eleven values.
    pub containers: BTreeMap<String, Box<ContainerRecord>>,
    /// Steps whose last attempt failed.
    pub troubles: Vec<StepFailure>,
    /// Status and last transition time (seconds since 1970) of each condition shown.
    pub conditions: BTreeMap<String, (String, i64)>,
    /// Whether the API accepted the deletion of the object.
    pub reported: bool,
}

/// Result of admission.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Admission {
    /// May run.
    Admitted,
    /// Rejected for good.
    Refused {
        /// Reason in the pod's status, such as `OutOfcpu`.
        reason: String,
        /// Message for users.
        message: String,
    },
}

/// The decision that nothing of the pod starts again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ending {
    /// Reason.
    pub why: TerminationReason,
    /// When running containers are killed, since boot.
    pub deadline: Duration,
}

/// Why a pod ends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TerminationReason {
    /// Deleted at its source.
    Deleted,
    /// All containers ended for good.
    Completed,
    /// It exceeded `activeDeadlineSeconds`.
    DeadlineExceeded,
    /// Its sandbox was lost after something had run in it, and its restart policy is `Never`.
    SandboxLost,
    /// Ended by the node: eviction, preemption or shutdown.
    Evicted {
        /// Reason in the pod's status, such as `Evicted`.
        reason: String,
        /// Message for users.
        message: String,
    },
}

/// What a restart must know of one container: attempts, back-off, probe results, hooks.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ContainerRecord {
    /// Highest attempt of an instance seen so far; equals the restart count.
    pub attempt: Option<u32>,
    /// Attempt of the sandbox that the newest instance was created in.
    pub sandbox_attempt: Option<u32>,
    /// Exit of the newest instance.
    pub ended: Option<EndedContainer>,
    /// Exit of the instance before it.
    pub previous: Option<EndedContainer>,
    /// Restart back-off.
    pub backoff: CrashBackoff,
    /// The last image pulled, and the attempt it was pulled for.
    pub pulled: Option<(u32, String)>,
    /// Attempt stopped because its definition changed; its successor starts without delay.
    pub replaced: Option<u32>,
    /// Attempt of the newest sandbox in which the container started up: running, `postStart` done, startup probe succeeded.
    pub came_up_in: Option<u32>,
    /// Results of probes and hooks of the newest instance.
    pub health: ContainerHealth,
    /// Why the last `postStart` hook failed, if it did.
    pub hook_failure: Option<String>,
    /// The newest instance that another agent created.
    pub taken_over: Option<AdoptedInstance>,
}

/// An instance that another agent created. It does not show its definition: it counts as created from the definition in force
/// when this agent first saw it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AdoptedInstance {
    /// Runtime id of the instance.
    pub id: String,
    /// Hash of that definition; see [`crate::desired::instance_hash`].
    pub hash: String,
}

/// Results of probes and hooks of one instance.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ContainerHealth {
    /// Runtime id of the instance that the other fields describe.
    pub id: String,
    /// Start of the instance, since boot.
    pub since: Option<Duration>,
    /// Result of the startup probe.
    pub startup: Option<bool>,
    /// Result of the readiness probe.
    pub readiness: Option<bool>,
    /// State of its `postStart` hook.
    pub post_start: PostStart,
    /// Why it has to be replaced although its pod continues.
    pub doomed: Option<KillReason>,
}

impl ContainerHealth {
    /// The results, and the instance they belong to.
    fn findings(&self) -> (&str, [Option<bool>; 2], PostStart, Option<KillReason>) {
        (&self.id, [self.startup, self.readiness], self.post_start, self.doomed)
    }

    fn has_findings(&self) -> bool {
        let (_, probes, post_start, doomed) = self.findings();
        probes != [None; 2] || post_start == PostStart::Done || doomed.is_some()
    }
}

/// State of a `postStart` hook. A hook that another agent may have run is not run again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum PostStart {
    /// There is none, or another agent started the instance.
    #[default]
    NotDue,
    /// To be run once the instance runs.
    Due,
    Done,
}

/// Why an instance has to be stopped and replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum KillReason {
    /// Liveness probe failed.
    Liveness,
    /// Startup probe failed.
    Startup,
    /// `postStart` hook failed.
    PostStart,
}

/// An exited instance, kept after the runtime removed it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndedContainer {
    /// Runtime id of the instance.
    pub id: String,
    /// Name of the image.
    pub image: String,
    pub image_id: String,
    pub exit: Exit,
}

/// Exit code reported for an instance that disappeared from the runtime, as in Kubernetes.
const VANISHED_CODE: i32 = 137;

impl PodRecord {
    /// The record after a reboot: points in time since boot are reset.
    pub fn after_reboot(mut self) -> Self {
        self.accepted_boot = Duration::ZERO;
        self.active_before = Duration::ZERO;
        if let Some(ending) = &mut self.ending {
            ending.deadline = Duration::ZERO;
        }
        for container in self.containers.values_mut() {
            container.backoff.after_reboot();
            container.health.since = None;
        }
        self.troubles.clear();
        self
    }

    /// Whether the pod was admitted and is not shown as over, so that its resources are not available to others; of a pod that has a plan its
    /// [stage](crate::plan::PodStage::holds_resources) says so.
    pub fn holds_resources(&self) -> bool {
        self.is_admitted() && !self.phase.is_terminal()
    }

    /// Whether the node has admitted the pod.
    pub fn is_admitted(&self) -> bool {
        self.admission == Some(Admission::Admitted)
    }

    /// Whether it holds probe or hook results that `earlier` does not. Losing them would make the pod look worse than it is until
    /// the thresholds are reached again.
    pub fn has_newer_results(&self, earlier: &Self) -> bool {
        self.containers.iter().any(|(name, known)| {
            let before = earlier.containers.get(name).map(|known| known.health.findings());
            known.health.has_findings() && before != Some(known.health.findings())
        })
    }

    /// Records the failure of a step at `now`, since boot.
    pub fn record_failure(&mut self, step: RetryStep, reason: &str, message: &str, now: Duration) {
        let next = StepFailure::next(self.last_failure(&step), step.clone(), reason, message, now);
        self.clear_failure(&step);
        self.troubles.push(next);
    }

    /// Records that a sandbox of this attempt may partly exist. Runtimes keep the name reserved when its network could not be set
    /// up, so the next sandbox needs another attempt.
    pub fn record_spoilt_sandbox(&mut self, attempt: u32) {
        self.sandbox_attempt = self.sandbox_attempt.max(Some(attempt));
    }

    /// Clears the failure of a step after a success or a change of its cause: it may be retried at once.
    pub fn clear_failure(&mut self, step: &RetryStep) {
        self.troubles.retain(|t| t.step != *step);
    }

    /// Records that a sandbox was created: containers that failed in the previous one may be retried at once.
    pub fn record_new_sandbox(&mut self) {
        self.troubles.retain(|t| !matches!(t.step, RetryStep::Container(_)));
    }

    /// The last failure of a step, if any.
    pub fn last_failure(&self, step: &RetryStep) -> Option<&StepFailure> {
        self.troubles.iter().find(|t| t.step == *step)
    }

    /// Records that an image was pulled for the next instance of a container.
    pub fn record_pull(&mut self, container: &str, image: &str) {
        let record = self.containers.entry(container.to_owned()).or_default();
        record.pulled = Some((record.next_attempt(), image.to_owned()));
    }

    /// Records that a sandbox was stopped.
    pub fn record_stopped_sandbox(&mut self, attempt: u32) {
        self.sandboxes_stopped.insert(attempt);
    }

    /// Records a probe result; returns `false` if `id` is not the newest instance.
    pub fn record_probe_result(
        &mut self,
        container: &str,
        id: &str,
        kind: ProbeKind,
        good: bool,
    ) -> bool {
        let Some(health) = self.health_of(container, id) else { return false };
        match (kind, good) {
            (ProbeKind::Readiness, good) => health.readiness = Some(good),
            (ProbeKind::Startup, true) => health.startup = Some(true),
            (ProbeKind::Startup, false) => _ = health.doomed.get_or_insert(KillReason::Startup),
            (ProbeKind::Liveness, false) => _ = health.doomed.get_or_insert(KillReason::Liveness),
            (ProbeKind::Liveness, true) => {}
        }
        true
    }

    /// Records the result of the `postStart` hook of an instance.
    pub fn record_post_start(&mut self, container: &str, id: &str, failure: Option<&str>) {
        let Some(health) = self.health_of(container, id) else { return };
        health.post_start = PostStart::Done;
        if failure.is_some() {
            health.doomed.get_or_insert(KillReason::PostStart);
        }
        if let Some(known) = self.containers.get_mut(container) {
            let kept = failure.map(|text| first_bytes(text, HOOK_FAILURE_LEN_MAX).to_owned());
            known.hook_failure = kept;
        }
    }

    fn health_of(&mut self, container: &str, id: &str) -> Option<&mut ContainerHealth> {
        let known = self.containers.get_mut(container)?;
        Some(&mut known.health).filter(|health| health.id == id)
    }

    /// Whether an init container or sidecar no longer delays its successors in that sandbox.
    pub(crate) fn lets_successors_start(
        &self,
        container: &DesiredContainer,
        sandbox_attempt: u32,
    ) -> bool {
        proto_api::count_steps!(1);
        self.containers.get(&container.name).is_some_and(|known| match container.role {
            ContainerRole::Sidecar => known.came_up_in == Some(sandbox_attempt),
            ContainerRole::Init | ContainerRole::Main | ContainerRole::Ephemeral => {
                known.succeeded_in(sandbox_attempt)
            }
        })
    }

    /// Updates the record from the observed state: newest attempts, exits, disappeared instances, addresses.
    pub(crate) fn observe(&mut self, desired: &DesiredPod, observed: &ObservedPod, now: Now) {
        let is_kept = |attempt: u32| !self.sandboxes_stopped.contains(&attempt);
        if self.admission.is_none() && observed.sandboxes.iter().any(|s| is_kept(s.attempt)) {
            // The sandbox proves that the pod was admitted, even if the journal missed it. One that is stopped may be of an earlier
            // admission of a static pod, after which its resources were released.
            self.admission = Some(Admission::Admitted);
            self.accept(now);
        }
        self.count_activity(now);
        if let Some(sandbox) = observed.newest_sandbox() {
            self.sandbox_attempt = self.sandbox_attempt.max(Some(sandbox.attempt));
            if sandbox.ready && !sandbox.ips.is_empty() && self.ips != sandbox.ips {
                self.ips.clone_from(&sandbox.ips);
            }
        }
        for container in desired.all_containers() {
            let record = self.containers.entry(container.name.clone()).or_default();
            record.observe(container, observed, now);
        }
        self.observe_init(desired, observed);
    }

    /// Records the time of admission, once.
    pub(crate) fn accept(&mut self, now: Now) {
        if self.admission.is_some() && self.accepted_at == 0 {
            self.accepted_at = now.unix_seconds;
            self.accepted_boot = now.boot;
        }
    }

    /// Computes the active time of a pod admitted before this boot, or by another agent, from the wall clock.
    fn count_activity(&mut self, now: Now) {
        if self.accepted_at != 0 && self.accepted_boot == Duration::ZERO {
            let secs = now.unix_seconds.saturating_sub(self.accepted_at);
            self.active_before = Duration::from_secs(u64::try_from(secs).unwrap_or(0));
            self.accepted_boot = now.boot;
        }
    }

    /// When a pod with the active deadline `limit` exceeds it, since boot.
    pub(crate) fn active_deadline(&self, limit: Duration) -> Option<Duration> {
        let left = limit.saturating_sub(self.active_before);
        (self.accepted_at != 0).then(|| self.accepted_boot.saturating_add(left))
    }

    /// Records that all init containers completed in the newest sandbox, because their instances may be removed.
    fn observe_init(&mut self, desired: &DesiredPod, observed: &ObservedPod) {
        let Some(sandbox) = observed.newest_sandbox() else { return };
        let done = desired.init.iter().all(|c| self.lets_successors_start(c, sandbox.attempt));
        // A main container in this sandbox is proof as well: it was created after the init containers.
        let proven = desired.containers.iter().any(|c| {
            observed.containers.iter().any(|s| s.name == c.name && s.sandbox_id == sandbox.id)
        });
        if done || proven {
            self.initialized_in = Some(sandbox.attempt);
        }
    }
}

impl ContainerRecord {
    /// Attempt of the next instance.
    pub fn next_attempt(&self) -> u32 {
        self.attempt.map_or(0, |a| a.saturating_add(1))
    }

    /// Whether this image was pulled for the next instance. The image in the pod's spec may have changed since.
    pub fn has_pulled(&self, image: &str) -> bool {
        let next = self.next_attempt();
        self.pulled.as_ref().is_some_and(|(attempt, pulled)| *attempt == next && pulled == image)
    }

    /// Whether the newest instance succeeded in that sandbox.
    pub fn succeeded_in(&self, sandbox_attempt: u32) -> bool {
        self.sandbox_attempt == Some(sandbox_attempt)
            && self.ended.as_ref().is_some_and(|e| e.exit.code == 0)
    }

    /// Whether the newest instance succeeded, but in another sandbox.
    pub(crate) fn succeeded_elsewhere(&self, sandbox_attempt: u32) -> bool {
        self.sandbox_attempt != Some(sandbox_attempt)
            && self.ended.as_ref().is_some_and(|e| e.exit.code == 0)
    }

    /// Whether the newest instance exited and will not be restarted.
    pub fn is_over(&self, policy: RestartPolicy) -> bool {
        let replaced = self.attempt.is_some() && self.replaced == self.attempt;
        // After a stop for its health an instance is restarted whatever its exit code.
        let doomed = self.health.doomed.is_some() && policy != RestartPolicy::Never;
        self.ended.as_ref().is_some_and(|e| !replaced && !doomed && !policy.restarts(e.exit.code))
    }

    /// Whether the newest instance runs but does not count as running, because its `postStart` hook is due or failed.
    pub(crate) fn awaits_hook(&self) -> bool {
        let ContainerHealth { post_start, doomed, .. } = &self.health;
        *post_start == PostStart::Due || *doomed == Some(KillReason::PostStart)
    }

    /// Whether the newest, running instance has started up.
    pub(crate) fn has_come_up(&self, container: &DesiredContainer) -> bool {
        !self.awaits_hook()
            && (container.probes.startup.is_none() || self.health.startup == Some(true))
    }

    /// Whether the newest, running instance is ready.
    pub(crate) fn is_ready(&self, container: &DesiredContainer) -> bool {
        let probed = container.probes.readiness.is_none() || self.health.readiness == Some(true);
        self.has_come_up(container) && probed
    }

    fn observe(&mut self, container: &DesiredContainer, observed: &ObservedPod, now: Now) {
        let newest = observed.newest(&container.name);
        if let Some(instance) = newest
            && self.attempt < Some(instance.attempt)
        {
            self.begin_instance(instance, observed);
        }
        match newest {
            Some(instance) if Some(instance.attempt) == self.attempt => {
                self.complete_newest(instance, observed);
                self.count_missed_exits(instance, now);
                if let Some(exit) = instance.exit() {
                    self.end_instance(ended_container(instance, exit), now.boot);
                }
                self.record_adopted(container, instance);
                if instance.is_live() && !self.is_made_from(instance, container) {
                    self.replaced = Some(instance.attempt);
                }
                self.observe_health(container, instance, observed, now);
            }
            _ if self.attempt.is_some() && self.ended.is_none() => {
                self.end_instance(vanished_container(), now.boot);
            }
            _ => {}
        }
    }

    fn observe_health(
        &mut self,
        container: &DesiredContainer,
        instance: &ObservedContainer,
        observed: &ObservedPod,
        now: Now,
    ) {
        if self.health.id != instance.id {
            self.health = ContainerHealth { id: instance.id.clone(), ..ContainerHealth::default() };
        }
        let InstanceState::Running { started_at } = instance.state else { return };
        // The runtime reports the start by the wall clock; only the elapsed time is used, once.
        let ran = now.unix_seconds.saturating_sub(started_at.div_euclid(1_000_000_000));
        let ran = Duration::from_secs(u64::try_from(ran).unwrap_or(0));
        self.health.since.get_or_insert(now.boot.saturating_sub(ran));
        if self.has_come_up(container) {
            self.came_up_in = observed.sandbox(&instance.sandbox_id).map(|s| s.attempt);
        }
    }

    /// Handles a newer instance: the state of the newest becomes the previous state.
    fn begin_instance(&mut self, instance: &ObservedContainer, observed: &ObservedPod) {
        let known = self.ended.take();
        // After the loss of the journal the runtime may still have an instance that this record has never seen.
        let last = previous_instance(instance, observed);
        let last = last.filter(|c| known.is_none() || self.attempt < Some(c.attempt));
        let last = last.and_then(|last| last.exit().map(|exit| ended_container(last, exit)));
        self.previous = last.or(known).or_else(|| self.previous.take());
        self.attempt = Some(instance.attempt);
        self.sandbox_attempt = observed.sandbox(&instance.sandbox_id).map(|s| s.attempt);
    }

    /// A record derived from the API status lacks what the runtime shows of the newest instance; fills it in.
    fn complete_newest(&mut self, newest: &ObservedContainer, observed: &ObservedPod) {
        if self.sandbox_attempt.is_none() {
            self.sandbox_attempt = observed.sandbox(&newest.sandbox_id).map(|s| s.attempt);
        }
        if self.previous.is_none()
            && let Some(last) = previous_instance(newest, observed)
        {
            self.previous = last.exit().map(|exit| ended_container(last, exit));
        }
    }

    /// Counts exits of instances before the newest that were not counted yet. Only the runtime's wall clock times date them.
    fn count_missed_exits(&mut self, newest: &ObservedContainer, now: Now) {
        let next = self.backoff.counted.map_or(0, |counted| counted.saturating_add(1));
        let count = newest.attempt.saturating_sub(next);
        if count == 0 {
            return;
        }
        let wall = nanoseconds(now.unix_seconds);
        let (started, until) = match &newest.state {
            InstanceState::Running { started_at } => (*started_at, wall),
            // An instance that failed to start has an end time only.
            InstanceState::Exited(exit) if exit.started_at == 0 => {
                (exit.finished_at, exit.finished_at)
            }
            InstanceState::Exited(exit) => (exit.started_at, exit.finished_at),
            InstanceState::Created | InstanceState::Unknown => (wall, wall),
        };
        let finished = self.previous.as_ref().map(|previous| previous.exit.finished_at);
        let since = |at: i64| {
            let nanoseconds = at.saturating_sub(finished.filter(|finished| *finished != 0)?);
            u64::try_from(nanoseconds).ok().map(Duration::from_nanos)
        };
        let ago = since(until).unwrap_or_default();
        self.backoff.record_missed_exits(MissedExits {
            count,
            paused: since(started),
            last: now.boot.saturating_sub(ago),
        });
        self.backoff.counted = newest.attempt.checked_sub(1);
    }

    /// Records the exit of the newest instance; counts it once.
    fn end_instance(&mut self, ended: EndedContainer, now: Duration) {
        self.ended.get_or_insert(ended);
        if self.backoff.counted >= self.attempt {
            return;
        }
        self.backoff.counted = self.attempt;
        match self.health.doomed {
            Some(_) => self.backoff.record_stop(now),
            None => self.backoff.record_exit(now),
        }
    }
}

/// The instance of the same container with the next lower attempt.
fn previous_instance<'a>(
    instance: &ObservedContainer,
    observed: &'a ObservedPod,
) -> Option<&'a ObservedContainer> {
    let older = observed.containers.iter().filter(|c| c.name == instance.name);
    older.filter(|c| c.attempt < instance.attempt).max_by_key(|c| c.attempt)
}

fn ended_container(instance: &ObservedContainer, exit: &Exit) -> EndedContainer {
    EndedContainer {
        id: instance.id.clone(),
        image: instance.image.clone(),
        image_id: instance.image_id.clone(),
        exit: exit.clone(),
    }
}

fn nanoseconds(seconds: i64) -> i64 {
    seconds.saturating_mul(1_000_000_000)
}

fn vanished_container() -> EndedContainer {
    let exit = Exit {
        code: VANISHED_CODE,
        reason: "ContainerStatusUnknown".to_owned(),
        message: "The container could not be located when the pod was looked at".to_owned(),
        ..Exit::default()
    };
    EndedContainer { exit, ..EndedContainer::default() }
}
