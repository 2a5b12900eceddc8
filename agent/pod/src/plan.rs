//! The parts of a plan: stages, actions, and the draft filled in while planning.

use std::time::Duration;

use proto_api::core::v1::PodStatus;

use crate::backoff::RetryStep;
use crate::desired::DesiredPod;
use crate::observed::{InstanceState, ObservedContainer, ObservedPod};
use crate::probe::{DesiredProbe, ProbeOrder, Probes};
use crate::record::{KillReason, PodRecord};

/// Stage of a pod's lifecycle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PodStage {
    /// Rejected at admission; nothing was created.
    Refused,
    /// Volumes, cgroup and sandbox are created, images looked up.
    Preparing,
    /// Init containers run one at a time.
    Initializing,
    /// Containers run.
    Running,
    /// Nothing is started any more; running containers are being stopped.
    Ending,
    /// All containers have exited; sandboxes, volumes and cgroup are removed.
    Clearing,
    /// Ended but still in the API: exited containers are kept for their logs.
    Finished,
    /// Nothing is left on the node.
    Gone,
}

impl PodStage {
    /// Whether an admitted pod in this stage has or gets containers: its resources are not available to others. Another client may have shown the pod as over
    /// before its containers have stopped.
    pub fn holds_resources(self) -> bool {
        match self {
            Self::Preparing | Self::Initializing | Self::Running | Self::Ending => true,
            Self::Refused | Self::Clearing | Self::Finished | Self::Gone => false,
        }
    }
}

/// The result of planning.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// Stage of the pod.
    pub stage: PodStage,
    /// The complete status to show.
    pub status: PodStatus,
    /// Actions to execute now, in order; actions on different objects are independent.
    pub actions: Vec<Action>,
    /// All probes that should be running now.
    pub probes: Vec<ProbeOrder>,
    /// Time since boot at which the plan changes without any other input.
    pub wake_at: Option<Duration>,
    /// The record to pass to the next call.
    pub record: PodRecord,
}

/// An action. Each names its object and is idempotent.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Ask the node whether the pod may run; the result goes into [`PodRecord::admission`].
    Admit,
    /// Set up all volumes.
    MountVolumes,
    /// Create the pod's cgroup if it does not exist, then a sandbox.
    CreateSandbox {
        /// Attempt of the sandbox.
        attempt: u32,
    },
    /// Look up an image on the node.
    InspectImage {
        /// Image reference as in the pod.
        image: String,
    },
    PullImage {
        /// Image reference as in the pod.
        image: String,
        /// Container that needs it.
        container: String,
    },
    /// Create an instance of a container.
    CreateContainer {
        /// Name of the container.
        container: String,
        /// Attempt of the instance.
        attempt: u32,
        /// Id of the sandbox to create it in.
        sandbox_id: String,
        /// Runtime id of the image.
        image_id: String,
    },
    /// Start a created instance.
    StartContainer {
        /// Name of the container.
        container: String,
        /// Runtime id of the instance.
        id: String,
        /// Whether a `postStart` hook follows, which has to run exactly for the instances that this agent starts.
        hook: bool,
    },
    /// Run the `postStart` hook of an instance.
    RunPostStart {
        /// Name of the container.
        container: String,
        /// Runtime id of the instance.
        id: String,
    },
    /// Stop an instance: SIGTERM, and SIGKILL at the deadline.
    StopContainer {
        /// Name of the container.
        container: String,
        /// Runtime id of the instance.
        id: String,
        /// Time of SIGKILL, since boot.
        deadline: Duration,
        /// Reason, for the event.
        why: StopReason,
        /// Whether to run the `preStop` hook first, within the same deadline.
        hook: bool,
    },
    /// Remove an exited instance, its log and its termination message.
    RemoveContainer {
        /// Runtime id of the instance.
        id: String,
        /// Name of the container.
        container: String,
        /// Attempt of the instance.
        attempt: u32,
    },
    /// Stop a sandbox and tear down its network.
    StopSandbox {
        /// Runtime id.
        id: String,
        /// Attempt, for [`PodRecord::sandbox_stopped`].
        attempt: u32,
    },
    /// Remove a sandbox and everything in it.
    RemoveSandbox {
        /// Runtime id.
        id: String,
    },
    /// Unmount and remove all volumes.
    UnmountVolumes,
    /// Remove the pod's cgroup.
    RemoveCgroup,
    /// Delete the API object with a grace period of 0, with the uid as precondition.
    ReportDeleted,
    /// End the pod's task and drop its record.
    Forget,
}

/// Why a container is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StopReason {
    PodEnds,
    /// Its sandbox no longer runs.
    SandboxLost,
    DefinitionChanged,
    /// The runtime reports an unknown state.
    StateUnknown,
    /// A probe or the `postStart` hook failed.
    Unhealthy(KillReason),
}

impl Action {
    /// Whether it may make something of the pod run that did not run before.
    pub fn is_start(&self) -> bool {
        matches!(
            self,
            Self::CreateSandbox { .. } | Self::CreateContainer { .. } | Self::StartContainer { .. }
        )
    }

    /// Whether the record has to be durable before this action: it destroys what the record was derived from, or depends on a
    /// decision that must not be lost.
    pub fn needs_durable_record(&self) -> bool {
        match self {
            Self::StopContainer { .. }
            | Self::RemoveContainer { .. }
            | Self::StopSandbox { .. }
            | Self::RemoveSandbox { .. }
            | Self::UnmountVolumes
            | Self::RemoveCgroup
            | Self::ReportDeleted => true,
            // Nothing but the record shows that the hook is still due.
            Self::StartContainer { hook, .. } => *hook,
            // After the wall clock was set, the runtime no longer shows when the previous instance ended.
            Self::CreateContainer { attempt, .. } => *attempt > 0,
            // A created object carries its attempt in the runtime and is found again without the journal.
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

/// A plan in the making.
pub(crate) struct PlanDraft<'a> {
    /// Desired state.
    pub desired: &'a DesiredPod,
    /// Observed state.
    pub observed: &'a ObservedPod,
    /// Time since boot.
    pub now: Duration,
    /// Actions planned so far.
    pub actions: Vec<Action>,
    /// Earliest time at which the plan changes by itself, since boot.
    pub wake_at: Option<Duration>,
}

impl PlanDraft<'_> {
    /// Adds an action unless it is planned already.
    pub fn add_action(&mut self, action: Action) {
        if !self.actions.contains(&action) {
            self.actions.push(action);
        }
    }

    /// Requests a new plan at `at`, since boot.
    pub fn request_wake(&mut self, at: Duration) {
        self.wake_at = Some(self.wake_at.map_or(at, |w| w.min(at)));
    }

    /// Whether a step may be tried now; if not, requests a new plan for when it may.
    pub fn may_try(&mut self, step: &RetryStep, record: &PodRecord) -> bool {
        match record.last_failure(step) {
            Some(trouble) if self.now < trouble.until => {
                self.request_wake(trouble.until);
                false
            }
            _ => true,
        }
    }

    /// Adds the stop of an instance, with its `preStop` hook if it runs and there is time for one.
    pub fn stop(&mut self, instance: &ObservedContainer, deadline: Duration, why: StopReason) {
        let runs = matches!(instance.state, InstanceState::Running { .. });
        let container = self.desired.container(&instance.name);
        let hook = runs && deadline > self.now && container.is_some_and(|c| c.pre_stop.is_some());
        let (container, id) = (instance.name.clone(), instance.id.clone());
        self.add_action(Action::StopContainer { container, id, deadline, why, hook });
    }

    /// Deadline for stopping an instance now, in a pod that continues.
    pub fn stop_deadline(&self, instance: &ObservedContainer, why: StopReason) -> Duration {
        let probes = self.desired.container(&instance.name).map(|c| &c.probes);
        let of_probe = |pick: fn(&Probes) -> &Option<DesiredProbe>| {
            probes.and_then(|probes| pick(probes).as_ref()).and_then(|probe| probe.grace)
        };
        let own = match why {
            StopReason::StateUnknown => Some(Duration::ZERO),
            StopReason::Unhealthy(KillReason::Liveness) => of_probe(|p| &p.liveness),
            StopReason::Unhealthy(KillReason::Startup) => of_probe(|p| &p.startup),
            StopReason::Unhealthy(KillReason::PostStart)
            | StopReason::PodEnds
            | StopReason::SandboxLost
            | StopReason::DefinitionChanged => None,
        };
        self.now.saturating_add(own.unwrap_or(self.desired.grace))
    }

    /// Adds the removal of an exited instance.
    pub fn remove(&mut self, instance: &ObservedContainer) {
        let (id, container) = (instance.id.clone(), instance.name.clone());
        self.add_action(Action::RemoveContainer { id, container, attempt: instance.attempt });
    }
}
