//! What a pod's machine remembers between two looks, and across restarts of the agent.
//!
//! The whole value is one journal record per pod: what the runtime forgets (exits of removed containers), what only the agent
//! decided (admission, the end of the pod, back-off) and what users must never see move backwards (phase, restart counts).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::backoff::{CrashBackoff, MissedExits, Step, StepFailure};
use crate::desired::{ContainerWant, PodWant, RestartPolicy, Role};
use crate::observed::{ContainerSeen, Exit, InstanceState, Now, PodSeen};
use crate::probe::ProbeKind;

/// The machine's memory of one pod. A field that an older record lacks is as in a new memory.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Memory {
    /// The node's answer to the pod; `None` before it was asked. Asked once in a pod's life.
    pub admission: Option<Admission>,
    /// When the pod was accepted, seconds since 1970; 0 before.
    pub accepted_at: i64,
    /// The same moment since boot, for the active deadline; the first look of this boot for a pod that is older.
    pub accepted_boot: Duration,
    /// How long the pod had been active before `accepted_boot`.
    pub active_before: Duration,
    /// The furthest phase shown so far.
    pub phase: Phase,
    /// Set once nothing of this pod may start again.
    pub ending: Option<Ending>,
    /// Attempt of the newest sandbox ever seen.
    pub sandbox_attempt: Option<u32>,
    /// Attempts of sandboxes that were stopped and whose network is torn down.
    pub sandboxes_stopped: BTreeSet<u32>,
    /// Addresses of the newest sandbox that was ready; kept for the status of a finished pod.
    pub ips: Vec<String>,
    /// Attempt of the sandbox in which all init containers have succeeded.
    pub initialized_in: Option<u32>,
    /// Per container, init containers included. Boxed: a map keeps room for eleven in each of its nodes.
    pub containers: BTreeMap<String, Box<ContainerMemory>>,
    /// Steps whose last attempt failed.
    pub troubles: Vec<StepFailure>,
    /// Status and time of the last change (seconds since 1970) of each condition shown.
    pub conditions: BTreeMap<String, (String, i64)>,
    /// Whether the API has accepted that the object may go.
    pub reported: bool,
}

/// The node's answer to a pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Admission {
    /// It may run here.
    Admitted,
    /// It never runs here.
    Refused {
        /// Reason of the failed pod, such as `OutOfcpu`.
        reason: String,
        /// Text for users.
        message: String,
    },
}

/// Phase of a pod. The order is the order of life; a pod never goes back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Phase {
    /// Accepted, not all containers have started.
    #[default]
    Pending,
    /// At least one container has started.
    Running,
    /// All containers ended with 0 and none runs again.
    Succeeded,
    /// All containers ended, one of them in failure, or the pod was refused or stopped.
    Failed,
}

impl Phase {
    /// As the API writes it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "Pending",
            Self::Running => "Running",
            Self::Succeeded => "Succeeded",
            Self::Failed => "Failed",
        }
    }

    /// Reads the API's word; an unknown one counts as `Pending`.
    pub fn parse(text: &str) -> Self {
        match text {
            "Running" => Self::Running,
            "Succeeded" => Self::Succeeded,
            "Failed" => Self::Failed,
            _ => Self::Pending,
        }
    }

    /// Whether the pod is over.
    pub fn is_terminal(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed)
    }

    /// The phase shown after `self` when `next` is computed: never backwards, and a terminal phase never changes.
    pub fn advance(self, next: Self) -> Self {
        if self.is_terminal() { self } else { self.max(next) }
    }
}

/// The decision that nothing of a pod starts again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ending {
    /// Why.
    pub why: Why,
    /// When what still runs is killed, since boot.
    pub deadline: Duration,
}

/// Why a pod ends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Why {
    /// Deleted at its source.
    Deleted,
    /// All containers have ended for good.
    Completed,
    /// It was active longer than its `activeDeadlineSeconds`.
    DeadlineExceeded,
    /// Its sandbox went away after it had run something, and its policy is to run nothing twice.
    SandboxLost,
    /// The node ended it; reason and message are the failed pod's.
    Evicted {
        /// Reason, such as `Evicted`.
        reason: String,
        /// Text for users.
        message: String,
    },
}

/// What is remembered of one container.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ContainerMemory {
    /// Attempt of the newest instance ever seen; also the restart count.
    pub attempt: Option<u32>,
    /// Attempt of the sandbox that the newest instance was created in.
    pub sandbox_attempt: Option<u32>,
    /// How the newest instance ended.
    pub ended: Option<Ended>,
    /// How the one before it ended.
    pub previous: Option<Ended>,
    /// Restart back-off.
    pub backoff: CrashBackoff,
    /// The image that was pulled last, and the attempt that it was pulled for.
    pub pulled: Option<(u32, String)>,
    /// Attempt that is stopped because its definition changed; what follows it starts at once.
    pub replaced: Option<u32>,
    /// Attempt of the newest sandbox in which it has come up: running, its first hook done, its startup probe passed.
    pub came_up_in: Option<u32>,
    /// What probes and hooks found of the newest instance.
    pub health: Health,
    /// The newest instance that another agent created.
    pub taken_over: Option<TakenOver>,
}

/// An instance that another agent created. Which definition it was made from cannot be read off it: it counts as made from the
/// one that was in force when this agent saw it first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TakenOver {
    /// The runtime's id of the instance.
    pub id: String,
    /// Hash of that definition; see [`crate::desired::instance_hash`].
    pub hash: String,
}

/// What probes and hooks found of one instance.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Health {
    /// The runtime's id of the instance; what follows is about no other.
    pub id: String,
    /// When it began to run, since boot.
    pub since: Option<Duration>,
    /// Verdict of the startup probe.
    pub startup: Option<bool>,
    /// Verdict of the readiness probe.
    pub readiness: Option<bool>,
    /// Where its first hook is.
    pub post_start: PostStart,
    /// Why it has to be stopped though its pod goes on.
    pub doomed: Option<KillReason>,
}

impl Health {
    /// What was found, and of which instance.
    fn findings(&self) -> (&str, [Option<bool>; 2], PostStart, Option<KillReason>) {
        (&self.id, [self.startup, self.readiness], self.post_start, self.doomed)
    }

    fn has_findings(&self) -> bool {
        let (_, probes, post_start, doomed) = self.findings();
        probes != [None; 2] || post_start == PostStart::Done || doomed.is_some()
    }
}

/// Where the hook after a start is. One that was not seen through by this agent is not run behind another's back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum PostStart {
    /// There is none, or it is not ours to run.
    #[default]
    NotDue,
    /// To be run once the instance runs.
    Due,
    /// Done.
    Done,
}

/// Why an instance has to be stopped and replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum KillReason {
    /// Its liveness probe failed.
    Liveness,
    /// Its startup probe failed.
    Startup,
    /// Its first hook failed.
    PostStart,
}

/// An ended instance, kept after the runtime has forgotten it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ended {
    /// The runtime's id of the instance.
    pub id: String,
    /// Name of the image.
    pub image: String,
    /// Id of the image.
    pub image_id: String,
    /// How it ended.
    pub exit: Exit,
}

/// Exit code reported for an instance that vanished from the runtime.
const VANISHED_CODE: i32 = 137;

impl Memory {
    /// The memory as it holds after the machine was booted again: points in time since boot mean nothing any more.
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

    /// Whether the pod was admitted and is not over: what it asks for is not there for others.
    pub fn takes_of_the_node(&self) -> bool {
        self.admission == Some(Admission::Admitted) && !self.phase.is_terminal()
    }

    /// Whether it holds what probes or hooks found of an instance, and `earlier` does not. Neither can be learnt anew without a time
    /// in which the pod looks worse than it is.
    pub fn has_found_more_than(&self, earlier: &Self) -> bool {
        self.containers.iter().any(|(name, known)| {
            let before = earlier.containers.get(name).map(|known| known.health.findings());
            known.health.has_findings() && before != Some(known.health.findings())
        })
    }

    /// Notes that a step failed at `now` (since boot).
    pub fn failed(&mut self, step: Step, reason: &str, message: &str, now: Duration) {
        let next = StepFailure::next(self.trouble(&step), step.clone(), reason, message, now);
        self.forget_trouble(&step);
        self.troubles.push(next);
    }

    /// Notes that a sandbox of this attempt may half exist: runtimes keep the name of one whose network could not be set up,
    /// so that the next one must be another attempt.
    pub fn sandbox_spoilt(&mut self, attempt: u32) {
        self.sandbox_attempt = self.sandbox_attempt.max(Some(attempt));
    }

    /// Notes that a step succeeded, or that what it failed on has changed: it may be tried at once.
    pub fn forget_trouble(&mut self, step: &Step) {
        self.troubles.retain(|t| t.step != *step);
    }

    /// Notes that a sandbox was made: what could not be begun in the one before may be tried in it at once.
    pub fn sandbox_made(&mut self) {
        self.troubles.retain(|t| !matches!(t.step, Step::Container(_)));
    }

    /// The last failure of a step.
    pub fn trouble(&self, step: &Step) -> Option<&StepFailure> {
        self.troubles.iter().find(|t| t.step == *step)
    }

    /// Notes that an image was pulled for a container's next instance.
    pub fn pulled(&mut self, container: &str, image: &str) {
        let memory = self.containers.entry(container.to_owned()).or_default();
        memory.pulled = Some((memory.next_attempt(), image.to_owned()));
    }

    /// Notes that a sandbox was stopped.
    pub fn sandbox_stopped(&mut self, attempt: u32) {
        self.sandboxes_stopped.insert(attempt);
    }

    /// Notes a verdict about an instance; `false` when it is about one that is not the newest any more.
    pub fn probed(&mut self, container: &str, id: &str, kind: ProbeKind, good: bool) -> bool {
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

    /// Notes how the hook after an instance's start went.
    pub fn post_started(&mut self, container: &str, id: &str, worked: bool) {
        let Some(health) = self.health_of(container, id) else { return };
        health.post_start = PostStart::Done;
        if !worked {
            health.doomed.get_or_insert(KillReason::PostStart);
        }
    }

    fn health_of(&mut self, container: &str, id: &str) -> Option<&mut Health> {
        let known = self.containers.get_mut(container)?;
        Some(&mut known.health).filter(|health| health.id == id)
    }

    /// Whether an init container or sidecar holds up what comes after it no more, in that sandbox.
    pub(crate) fn is_past(&self, container: &ContainerWant, sandbox_attempt: u32) -> bool {
        self.containers.get(&container.name).is_some_and(|known| match container.role {
            Role::Sidecar => known.came_up_in == Some(sandbox_attempt),
            Role::Init | Role::Main | Role::Ephemeral => known.succeeded_in(sandbox_attempt),
        })
    }

    /// Takes in what is seen: newest attempts, exits, vanished instances, addresses.
    pub(crate) fn observe(&mut self, want: &PodWant, seen: &PodSeen, now: Now) {
        if self.admission.is_none() && !seen.sandboxes.is_empty() {
            // Its sandbox is proof that the node had said yes, though that was not on disk in time.
            self.admission = Some(Admission::Admitted);
            self.accept(now);
        }
        self.count_activity(now);
        if let Some(sandbox) = seen.newest_sandbox() {
            self.sandbox_attempt = self.sandbox_attempt.max(Some(sandbox.attempt));
            if sandbox.ready && !sandbox.ips.is_empty() && self.ips != sandbox.ips {
                self.ips.clone_from(&sandbox.ips);
            }
        }
        for container in want.all() {
            let memory = self.containers.entry(container.name.clone()).or_default();
            memory.observe(container, seen, now);
        }
        self.observe_init(want, seen);
    }

    /// Notes when the pod was accepted, once.
    pub(crate) fn accept(&mut self, now: Now) {
        if self.admission.is_some() && self.accepted_at == 0 {
            self.accepted_at = now.unix_seconds;
            self.accepted_boot = now.boot;
        }
    }

    /// A pod that was accepted before this boot, or by another agent, has been active since the wall clock said so.
    fn count_activity(&mut self, now: Now) {
        if self.accepted_at != 0 && self.accepted_boot == Duration::ZERO {
            let secs = now.unix_seconds.saturating_sub(self.accepted_at);
            self.active_before = Duration::from_secs(u64::try_from(secs).unwrap_or(0));
            self.accepted_boot = now.boot;
        }
    }

    /// When a pod with this limit has been active for long enough, since boot.
    pub(crate) fn active_until(&self, limit: Duration) -> Option<Duration> {
        let left = limit.saturating_sub(self.active_before);
        (self.accepted_at != 0).then(|| self.accepted_boot.saturating_add(left))
    }

    /// All init containers done in the newest sandbox: remembered, since their instances may be removed.
    fn observe_init(&mut self, want: &PodWant, seen: &PodSeen) {
        let Some(sandbox) = seen.newest_sandbox() else { return };
        let done = want.init.iter().all(|c| self.is_past(c, sandbox.attempt));
        // A main container of this sandbox is proof as well: it was created after the init containers.
        let proven = want.containers.iter().any(|c| {
            seen.containers.iter().any(|s| s.name == c.name && s.sandbox_id == sandbox.id)
        });
        if done || proven {
            self.initialized_in = Some(sandbox.attempt);
        }
    }
}

impl ContainerMemory {
    /// Attempt of the next instance.
    pub fn next_attempt(&self) -> u32 {
        self.attempt.map_or(0, |a| a.saturating_add(1))
    }

    /// Whether this image was pulled for the next instance. The pod may have been given another one meanwhile.
    pub fn has_pulled(&self, image: &str) -> bool {
        let next = self.next_attempt();
        self.pulled.as_ref().is_some_and(|(attempt, pulled)| *attempt == next && pulled == image)
    }

    /// Whether the newest instance succeeded in that sandbox.
    pub fn succeeded_in(&self, sandbox_attempt: u32) -> bool {
        self.sandbox_attempt == Some(sandbox_attempt)
            && self.ended.as_ref().is_some_and(|e| e.exit.code == 0)
    }

    /// Whether the newest instance succeeded, in another sandbox than that.
    pub(crate) fn succeeded_elsewhere(&self, sandbox_attempt: u32) -> bool {
        self.sandbox_attempt != Some(sandbox_attempt)
            && self.ended.as_ref().is_some_and(|e| e.exit.code == 0)
    }

    /// Whether the newest instance ended and none will follow it.
    pub fn is_over(&self, policy: RestartPolicy) -> bool {
        let replaced = self.attempt.is_some() && self.replaced == self.attempt;
        // One that was stopped for its health is followed by another whatever code it ended with.
        let doomed = self.health.doomed.is_some() && policy != RestartPolicy::Never;
        self.ended.as_ref().is_some_and(|e| !replaced && !doomed && !policy.restarts(e.exit.code))
    }

    /// Whether the newest instance, which runs, does not count as running: its first hook is not done, or has failed.
    pub(crate) fn awaits_hook(&self) -> bool {
        let Health { post_start, doomed, .. } = &self.health;
        *post_start == PostStart::Due || *doomed == Some(KillReason::PostStart)
    }

    /// Whether the newest instance, which runs, has come up.
    pub(crate) fn has_come_up(&self, container: &ContainerWant) -> bool {
        !self.awaits_hook()
            && (container.probes.startup.is_none() || self.health.startup == Some(true))
    }

    /// Whether the newest instance, which runs, is ready.
    pub(crate) fn is_ready(&self, container: &ContainerWant) -> bool {
        let probed = container.probes.readiness.is_none() || self.health.readiness == Some(true);
        self.has_come_up(container) && probed
    }

    fn observe(&mut self, container: &ContainerWant, seen: &PodSeen, now: Now) {
        let newest = seen.newest(&container.name);
        if let Some(instance) = newest
            && self.attempt < Some(instance.attempt)
        {
            self.begin(instance, seen);
        }
        match newest {
            Some(instance) if Some(instance.attempt) == self.attempt => {
                self.complete(instance, seen);
                self.catch_up(instance, now);
                if let Some(exit) = instance.exit() {
                    self.end(ended(instance, exit), now.boot);
                }
                self.take_over(container, instance);
                if instance.is_live() && !self.is_made_from(instance, container) {
                    self.replaced = Some(instance.attempt);
                }
                self.observe_health(container, instance, seen, now);
            }
            _ if self.attempt.is_some() && self.ended.is_none() => {
                self.end(vanished(), now.boot);
            }
            _ => {}
        }
    }

    fn observe_health(
        &mut self,
        container: &ContainerWant,
        instance: &ContainerSeen,
        seen: &PodSeen,
        now: Now,
    ) {
        if self.health.id != instance.id {
            self.health = Health { id: instance.id.clone(), ..Health::default() };
        }
        let InstanceState::Running { started_at } = instance.state else { return };
        // The runtime tells the start by the wall clock: only how long ago it was is taken from it, once.
        let ran = now.unix_seconds.saturating_sub(started_at.div_euclid(1_000_000_000));
        let ran = Duration::from_secs(u64::try_from(ran).unwrap_or(0));
        self.health.since.get_or_insert(now.boot.saturating_sub(ran));
        if self.has_come_up(container) {
            self.came_up_in = seen.sandbox(&instance.sandbox_id).map(|s| s.attempt);
        }
    }

    /// A newer instance was seen: what was known of the newest becomes the previous.
    fn begin(&mut self, instance: &ContainerSeen, seen: &PodSeen) {
        let known = self.ended.take();
        // After the journal was lost the runtime may still hold one that this memory has never seen.
        let last = before(instance, seen);
        let last = last.filter(|c| known.is_none() || self.attempt < Some(c.attempt));
        let last = last.and_then(|last| last.exit().map(|exit| ended(last, exit)));
        self.previous = last.or(known).or_else(|| self.previous.take());
        self.attempt = Some(instance.attempt);
        self.sandbox_attempt = seen.sandbox(&instance.sandbox_id).map(|s| s.attempt);
    }

    /// What is remembered only from what was shown to users lacks what the runtime can tell of the newest instance.
    fn complete(&mut self, newest: &ContainerSeen, seen: &PodSeen) {
        if self.sandbox_attempt.is_none() {
            self.sandbox_attempt = seen.sandbox(&newest.sandbox_id).map(|s| s.attempt);
        }
        if self.previous.is_none()
            && let Some(last) = before(newest, seen)
        {
            self.previous = last.exit().map(|exit| ended(last, exit));
        }
    }

    /// Counts the exits of instances before the newest that nobody has counted. When they were is told by the runtime's clock alone.
    fn catch_up(&mut self, newest: &ContainerSeen, now: Now) {
        let next = self.backoff.counted.map_or(0, |counted| counted.saturating_add(1));
        let count = newest.attempt.saturating_sub(next);
        if count == 0 {
            return;
        }
        let wall = nanoseconds(now.unix_seconds);
        let (started, until) = match &newest.state {
            InstanceState::Running { started_at } => (*started_at, wall),
            // One that could not be started has an end alone.
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
        self.backoff.missed(MissedExits {
            count,
            paused: since(started),
            last: now.boot.saturating_sub(ago),
        });
        self.backoff.counted = newest.attempt.checked_sub(1);
    }

    /// The newest instance has ended: its exit counts once.
    fn end(&mut self, ended: Ended, now: Duration) {
        self.ended.get_or_insert(ended);
        if self.backoff.counted >= self.attempt {
            return;
        }
        self.backoff.counted = self.attempt;
        match self.health.doomed {
            Some(_) => self.backoff.stopped(now),
            None => self.backoff.exited(now),
        }
    }
}

/// The instance before that one of its container.
fn before<'a>(instance: &ContainerSeen, seen: &'a PodSeen) -> Option<&'a ContainerSeen> {
    let older = seen.containers.iter().filter(|c| c.name == instance.name);
    older.filter(|c| c.attempt < instance.attempt).max_by_key(|c| c.attempt)
}

fn ended(instance: &ContainerSeen, exit: &Exit) -> Ended {
    Ended {
        id: instance.id.clone(),
        image: instance.image.clone(),
        image_id: instance.image_id.clone(),
        exit: exit.clone(),
    }
}

/// Nanoseconds since 1970 of so many seconds.
fn nanoseconds(seconds: i64) -> i64 {
    seconds.saturating_mul(1_000_000_000)
}

fn vanished() -> Ended {
    let exit = Exit {
        code: VANISHED_CODE,
        reason: "ContainerStatusUnknown".to_owned(),
        message: "The container could not be located when the pod was looked at".to_owned(),
        ..Exit::default()
    };
    Ended { exit, ..Ended::default() }
}
