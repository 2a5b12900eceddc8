//! The life of a pod, and the plan for its next moment.
//!
//! ```text
//!            refused by the node
//!  (new) ──────────────────────────────────────────────────────────► Refused
//!    │ admitted                                                         │
//!    ▼              sandbox ready            init containers done       │ deleted
//!  Preparing ────────────────► Initializing ──────────────► Running     │
//!    ▲                              │                          │        │
//!    └────────── sandbox lost ──────┴──────────────────────────┤        │
//!                                                              │        │
//!  from any of the three: deleted, all containers over,        │        │
//!  active too long ────────────────────────────────────► Ending         │
//!                                      last container dead   │          │
//!                                                            ▼          │
//!                                                        Clearing ◄─────┘
//!                             nothing left on the node   │      │
//!                                    still in the API    ▼      ▼  deleted
//!                                                   Finished ─► Gone
//! ```
//!
//! `Ending` is a decision, not an observation: it is in the memory, it is durable before the first container is stopped, and
//! after it nothing of the pod is created or started, whatever is seen later.

use std::time::Duration;

use proto_api::core::v1::PodStatus;

use crate::backoff::Step;
use crate::memory::{Admission, Ending, Memory, Why};
use crate::seen::{PodSeen, VolumesSeen};
use crate::start;
use crate::status;
use crate::want::{PodWant, Presence, RestartPolicy, Source};

/// Where a pod is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// The node said no; nothing was ever made.
    Refused,
    /// Volumes, cgroup and sandbox are made, images looked up.
    Preparing,
    /// Init containers run, one after the other.
    Initializing,
    /// Containers run.
    Running,
    /// Nothing starts any more; what runs is being stopped.
    Ending,
    /// All containers are dead; sandbox, volumes and cgroup go.
    Clearing,
    /// Over, and still an object of the API: the dead containers are kept for their logs.
    Finished,
    /// Nothing is left on the node.
    Gone,
}

/// The time, both ways of telling it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Now {
    /// Seconds since 1970, for people; may jump.
    pub unix_seconds: i64,
    /// Time since boot, suspended time included; never jumps.
    pub boot: Duration,
}

/// What to do now.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// Where the pod is.
    pub stage: Stage,
    /// Its status, complete.
    pub status: PodStatus,
    /// What may be done now, in order; steps on different objects do not depend on each other.
    pub actions: Vec<Action>,
    /// When time alone changes the plan, since boot.
    pub wake_at: Option<Duration>,
    /// What the next call must be given.
    pub memory: Memory,
}

/// One thing to do. Each names its object, and doing it twice does no harm.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Ask the node whether the pod may run; the answer goes into [`Memory::admission`].
    Admit,
    /// Set up all volumes.
    MountVolumes,
    /// Create the pod's cgroup if need be, then a sandbox.
    CreateSandbox {
        /// Its attempt.
        attempt: u32,
    },
    /// Find out whether the node has an image.
    InspectImage {
        /// Image as the pod names it.
        image: String,
    },
    /// Pull an image.
    PullImage {
        /// Image as the pod names it.
        image: String,
        /// Container that waits for it.
        container: String,
    },
    /// Create an instance of a container.
    CreateContainer {
        /// Name of the container.
        container: String,
        /// Attempt of the instance.
        attempt: u32,
        /// Sandbox to create it in.
        sandbox_id: String,
        /// The runtime's id of its image.
        image_id: String,
    },
    /// Start a created instance.
    StartContainer {
        /// Name of the container.
        container: String,
        /// The runtime's id of the instance.
        id: String,
    },
    /// Stop an instance: politely, and by force at the deadline.
    StopContainer {
        /// Name of the container.
        container: String,
        /// The runtime's id of the instance.
        id: String,
        /// When it is killed, since boot.
        deadline: Duration,
        /// For the event.
        why: StopWhy,
    },
    /// Remove a dead instance and its log.
    RemoveContainer {
        /// The runtime's id of the instance.
        id: String,
    },
    /// Stop a sandbox and tear its network down.
    StopSandbox {
        /// The runtime's id.
        id: String,
        /// Its attempt, for [`Memory::sandbox_stopped`].
        attempt: u32,
    },
    /// Remove a sandbox with all that is in it.
    RemoveSandbox {
        /// The runtime's id.
        id: String,
    },
    /// Take all volumes down.
    UnmountVolumes,
    /// Remove the pod's cgroup.
    RemoveCgroup,
    /// Tell the API that the object may go: delete with no grace, for this uid only.
    ReportDeleted,
    /// End the pod's task and drop its memory.
    Forget,
}

/// Why a container is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StopWhy {
    /// Its pod ends.
    PodEnds,
    /// Its sandbox is gone.
    SandboxLost,
    /// Its definition changed.
    DefinitionChanged,
    /// The runtime lost track of it.
    StateUnknown,
}

impl Action {
    /// Whether the memory must be durable before this is done: the action destroys what the memory was made from, or acts on
    /// a decision that must not be forgotten.
    pub fn needs_durable_memory(&self) -> bool {
        match self {
            Self::StopContainer { .. }
            | Self::RemoveContainer { .. }
            | Self::StopSandbox { .. }
            | Self::RemoveSandbox { .. }
            | Self::UnmountVolumes
            | Self::RemoveCgroup
            | Self::ReportDeleted => true,
            // What is created carries its attempt in the runtime: it is found again without the journal.
            Self::Admit
            | Self::MountVolumes
            | Self::CreateSandbox { .. }
            | Self::InspectImage { .. }
            | Self::PullImage { .. }
            | Self::CreateContainer { .. }
            | Self::StartContainer { .. }
            | Self::Forget => false,
        }
    }
}

/// Decides what happens to a pod now. Total: every combination of inputs has an answer.
///
/// Calling it again with the returned memory and nothing else changed gives the same plan; applying the plan's actions and
/// showing their outcome makes progress.
pub fn plan(want: &PodWant, seen: &PodSeen, memory: &Memory, now: Now) -> Plan {
    let mut memory = memory.clone();
    memory.observe(want, seen, now.boot);
    if memory.admission.is_some() && memory.accepted_at == 0 {
        memory.accepted_at = now.unix_seconds;
        memory.accepted_boot = now.boot;
    }
    decide_end(want, seen, &mut memory, now.boot);
    let stage = stage(want, seen, &memory);
    let mut next = Next { want, seen, now: now.boot, actions: Vec::new(), wake_at: None };
    match stage {
        Stage::Preparing => start::prepare(&mut next, &memory),
        Stage::Initializing | Stage::Running => start::advance(&mut next, &memory, stage),
        Stage::Ending => next.stop_all(&memory),
        Stage::Clearing => next.clear(&memory),
        Stage::Gone => next.leave(&memory),
        Stage::Refused | Stage::Finished => {}
    }
    if stage != Stage::Gone {
        next.wake_for_deadline(&memory);
    }
    let Next { actions, wake_at, .. } = next;
    let status = status::status(want, seen, &mut memory, stage, now);
    Plan { stage, status, actions, wake_at, memory }
}

/// Decides whether the pod ends, or ends sooner than decided before.
fn decide_end(want: &PodWant, seen: &PodSeen, memory: &mut Memory, now: Duration) {
    let lost = is_lost_for_good(want, seen, memory);
    let wish = match want.presence {
        Presence::Deleting { grace } | Presence::Gone { grace } => Some((Why::Deleted, grace)),
        Presence::Present if deadline_passed(want, memory, now) => {
            Some((Why::DeadlineExceeded, want.grace))
        }
        Presence::Present if is_complete(want, memory) => Some((Why::Completed, Duration::ZERO)),
        Presence::Present if lost => Some((Why::SandboxLost, want.grace)),
        Presence::Present => want.verdict.as_ref().map(|verdict| {
            let (reason, message) = (verdict.reason.clone(), verdict.message.clone());
            (Why::Evicted { reason, message }, want.grace)
        }),
    };
    let Some((why, grace)) = wish else { return };
    // A node that ends the pod has less time than its source may have given.
    let bound = want.verdict.as_ref().and_then(|verdict| verdict.grace);
    let grace = bound.map_or(grace, |bound| bound.min(grace));
    let deadline = now + grace;
    match &mut memory.ending {
        None => memory.ending = Some(Ending { why, deadline }),
        Some(ending) => ending.deadline = ending.deadline.min(deadline),
    }
}

fn deadline_passed(want: &PodWant, memory: &Memory, now: Duration) -> bool {
    memory.accepted_at != 0
        && want.active_deadline.is_some_and(|limit| now >= memory.accepted_boot + limit)
}

/// Whether every container is over: an init container failed for good, or all containers ended for good.
fn is_complete(want: &PodWant, memory: &Memory) -> bool {
    let policy = want.restart_policy;
    let over = |name: &str, policy| memory.containers.get(name).is_some_and(|m| m.is_over(policy));
    let init_failed = want.init.iter().any(|c| {
        let failed = memory
            .containers
            .get(&c.name)
            .and_then(|m| m.ended.as_ref())
            .is_some_and(|e| e.exit.code != 0);
        failed && over(&c.name, policy.of_init())
    });
    let all_over = want.containers.iter().all(|c| over(&c.name, policy));
    init_failed || (!want.containers.is_empty() && all_over)
}

/// Whether a pod that runs nothing twice has lost its sandbox after it had run something.
fn is_lost_for_good(want: &PodWant, seen: &PodSeen, memory: &Memory) -> bool {
    want.restart_policy == RestartPolicy::Never
        && seen.ready_sandbox().is_none()
        && memory.containers.values().any(|c| c.attempt.is_some())
}

/// Where the pod is.
fn stage(want: &PodWant, seen: &PodSeen, memory: &Memory) -> Stage {
    let refused = matches!(memory.admission, Some(Admission::Refused { .. }));
    if refused && !want.is_leaving() {
        return Stage::Refused;
    }
    if memory.ending.is_some() {
        return ending_stage(want, seen, memory);
    }
    match seen.ready_sandbox() {
        None => Stage::Preparing,
        Some(sandbox) if memory.initialized_in == Some(sandbox.attempt) => Stage::Running,
        Some(_) if want.init.is_empty() => Stage::Running,
        Some(_) => Stage::Initializing,
    }
}

fn ending_stage(want: &PodWant, seen: &PodSeen, memory: &Memory) -> Stage {
    if seen.live().next().is_some() {
        return Stage::Ending;
    }
    let stopped = seen.sandboxes.iter().all(|s| !needs_stop(s.ready, s.attempt, memory));
    let bare = stopped && seen.volumes == VolumesSeen::Absent && !seen.cgroup;
    match (bare, want.is_leaving()) {
        (true, false) => Stage::Finished,
        (true, true) if seen.sandboxes.is_empty() && seen.containers.is_empty() => Stage::Gone,
        _ => Stage::Clearing,
    }
}

/// Whether a sandbox still has to be stopped: one that died by itself too, since its network is still set up.
fn needs_stop(ready: bool, attempt: u32, memory: &Memory) -> bool {
    ready || !memory.sandboxes_stopped.contains(&attempt)
}

/// The plan while it is made.
pub(crate) struct Next<'a> {
    /// What is wanted.
    pub want: &'a PodWant,
    /// What is seen.
    pub seen: &'a PodSeen,
    /// Time since boot.
    pub now: Duration,
    /// What is planned so far.
    pub actions: Vec<Action>,
    /// Earliest time at which the plan changes by itself.
    pub wake_at: Option<Duration>,
}

impl Next<'_> {
    /// Plans an action, once.
    pub fn act(&mut self, action: Action) {
        if !self.actions.contains(&action) {
            self.actions.push(action);
        }
    }

    /// Asks to be called again at `at`.
    pub fn wake(&mut self, at: Duration) {
        self.wake_at = Some(self.wake_at.map_or(at, |w| w.min(at)));
    }

    /// Whether a step may be tried now; asks to be called again when it may not.
    pub fn may_try(&mut self, step: &Step, memory: &Memory) -> bool {
        match memory.trouble(step) {
            Some(trouble) if self.now < trouble.until => {
                self.wake(trouble.until);
                false
            }
            _ => true,
        }
    }

    /// Plans a stop of an instance.
    pub fn stop(&mut self, container: &str, id: &str, deadline: Duration, why: StopWhy) {
        let (container, id) = (container.to_owned(), id.to_owned());
        self.act(Action::StopContainer { container, id, deadline, why });
    }

    /// When an instance that is stopped now, in a pod that goes on, is killed.
    pub fn stop_deadline(&self, why: StopWhy) -> Duration {
        match why {
            StopWhy::StateUnknown => self.now,
            StopWhy::PodEnds | StopWhy::SandboxLost | StopWhy::DefinitionChanged => {
                self.now + self.want.grace
            }
        }
    }

    fn stop_all(&mut self, memory: &Memory) {
        let Some(ending) = &memory.ending else { return };
        if !self.may_try(&Step::Cleanup, memory) {
            return;
        }
        let seen = self.seen;
        for instance in seen.live() {
            self.stop(&instance.name, &instance.id, ending.deadline, StopWhy::PodEnds);
        }
    }

    /// Sandboxes are stopped and, for a pod that leaves, removed; volumes go at the same time, the cgroup after the sandboxes.
    fn clear(&mut self, memory: &Memory) {
        if !self.may_try(&Step::Cleanup, memory) {
            return;
        }
        let seen = self.seen;
        for sandbox in &seen.sandboxes {
            let (id, attempt) = (sandbox.id.clone(), sandbox.attempt);
            if needs_stop(sandbox.ready, attempt, memory) {
                self.act(Action::StopSandbox { id, attempt });
            } else if self.want.is_leaving() {
                self.act(Action::RemoveSandbox { id });
            }
        }
        if seen.sandboxes.is_empty() {
            // Instances whose sandbox is gone already.
            for instance in &seen.containers {
                self.act(Action::RemoveContainer { id: instance.id.clone() });
            }
        }
        if seen.volumes != VolumesSeen::Absent {
            self.act(Action::UnmountVolumes);
        }
        let stopped = seen.sandboxes.iter().all(|s| !needs_stop(s.ready, s.attempt, memory));
        if seen.cgroup && stopped {
            self.act(Action::RemoveCgroup);
        }
    }

    fn leave(&mut self, memory: &Memory) {
        match (self.want.presence, self.want.source) {
            (Presence::Deleting { .. }, Source::Api) => {
                // Once accepted, the object goes when its finalizers have gone; its source will tell.
                if !memory.reported && self.may_try(&Step::Report, memory) {
                    self.act(Action::ReportDeleted);
                }
            }
            _ => self.act(Action::Forget),
        }
    }

    fn wake_for_deadline(&mut self, memory: &Memory) {
        if memory.ending.is_none()
            && memory.accepted_at != 0
            && let Some(limit) = self.want.active_deadline
        {
            self.wake(memory.accepted_boot + limit);
        }
    }
}

#[cfg(test)]
mod tests;
