//! What a plan for a pod is made of: where the pod is, what may be done, and the draft that is filled while deciding.

use std::time::Duration;

use proto_api::core::v1::PodStatus;

use crate::backoff::Step;
use crate::desired::PodWant;
use crate::observed::{ContainerSeen, InstanceState, PodSeen};
use crate::probe::{ProbeOrder, ProbeWant, Probes};
use crate::record::{KillReason, Memory};

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

/// What to do now.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// Where the pod is.
    pub stage: Stage,
    /// Its status, complete.
    pub status: PodStatus,
    /// What may be done now, in order; steps on different objects do not depend on each other.
    pub actions: Vec<Action>,
    /// The probes that have to be running now, all of them.
    pub probes: Vec<ProbeOrder>,
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
        /// Whether a hook follows that must be run exactly for instances that we start.
        hook: bool,
    },
    /// Run the hook that follows an instance's start.
    RunPostStart {
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
        /// Whether its hook is run first, within the same deadline.
        hook: bool,
    },
    /// Remove a dead instance, its log and its last words.
    RemoveContainer {
        /// The runtime's id of the instance.
        id: String,
        /// Name of the container.
        container: String,
        /// Attempt of the instance.
        attempt: u32,
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
    /// A probe or hook failed.
    Unhealthy(KillReason),
}

impl Action {
    /// Whether something of the pod runs after it that did not before.
    pub fn begins(&self) -> bool {
        matches!(
            self,
            Self::CreateSandbox { .. } | Self::CreateContainer { .. } | Self::StartContainer { .. }
        )
    }

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
            // That the hook is still to be run is known from nothing else.
            Self::StartContainer { hook, .. } => *hook,
            // When the one before it ended is not told by the runtime once the clock has been set.
            Self::CreateContainer { attempt, .. } => *attempt > 0,
            // What is created carries its attempt in the runtime: it is found again without the journal.
            Self::Admit
            | Self::MountVolumes
            | Self::CreateSandbox { .. }
            | Self::InspectImage { .. }
            | Self::PullImage { .. }
            | Self::RunPostStart { .. }
            | Self::Forget => false,
        }
    }
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
    pub fn stop(&mut self, instance: &ContainerSeen, deadline: Duration, why: StopWhy) {
        let runs = matches!(instance.state, InstanceState::Running { .. });
        let container = self.want.container(&instance.name);
        let hook = runs && deadline > self.now && container.is_some_and(|c| c.pre_stop.is_some());
        let (container, id) = (instance.name.clone(), instance.id.clone());
        self.act(Action::StopContainer { container, id, deadline, why, hook });
    }

    /// When an instance that is stopped now, in a pod that goes on, is killed.
    pub fn stop_deadline(&self, instance: &ContainerSeen, why: StopWhy) -> Duration {
        let probes = self.want.container(&instance.name).map(|c| &c.probes);
        let of_probe = |pick: fn(&Probes) -> &Option<ProbeWant>| {
            probes.and_then(|probes| pick(probes).as_ref()).and_then(|probe| probe.grace)
        };
        let own = match why {
            StopWhy::StateUnknown => Some(Duration::ZERO),
            StopWhy::Unhealthy(KillReason::Liveness) => of_probe(|p| &p.liveness),
            StopWhy::Unhealthy(KillReason::Startup) => of_probe(|p| &p.startup),
            StopWhy::Unhealthy(KillReason::PostStart)
            | StopWhy::PodEnds
            | StopWhy::SandboxLost
            | StopWhy::DefinitionChanged => None,
        };
        self.now.saturating_add(own.unwrap_or(self.want.grace))
    }

    /// Plans to remove a dead instance.
    pub fn remove(&mut self, instance: &ContainerSeen) {
        let (id, container) = (instance.id.clone(), instance.name.clone());
        self.act(Action::RemoveContainer { id, container, attempt: instance.attempt });
    }
}
