//! The observed state of one pod on the node, and the time.
//!
//! The pod's task keeps it complete: it starts from a full list, applies the result of each of its own actions and each event,
//! and replaces it with a new list when it may have missed something.

use std::collections::BTreeMap;
use std::time::Duration;

/// The observed state of a pod.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ObservedPod {
    /// All sandboxes of the pod, any order.
    pub sandboxes: Vec<ObservedSandbox>,
    /// All instances of all containers of the pod, any order.
    pub containers: Vec<ObservedContainer>,
    /// Images by the name that the pod uses; a name not in the map has not been looked up.
    pub images: BTreeMap<String, ObservedImage>,
    /// The pod's volumes.
    pub volumes: ObservedVolumes,
    /// Whether the pod's cgroup exists.
    pub cgroup: bool,
    /// Whether a container may run that is not shown: a start is in progress or its result is unknown.
    pub unsure: bool,
}

/// A pod sandbox.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObservedSandbox {
    /// Runtime id.
    pub id: String,
    /// 0 for the pod's first sandbox.
    pub attempt: u32,
    /// Whether its process runs and its network is set up.
    pub ready: bool,
    /// Addresses, primary first; empty on the host network.
    pub ips: Vec<String>,
}

/// An instance of a container.
#[derive(Clone, Debug, PartialEq)]
pub struct ObservedContainer {
    /// Runtime id.
    pub id: String,
    /// Name of the container in the pod.
    pub name: String,
    /// 0 for the first instance.
    pub attempt: u32,
    /// Id of the sandbox that it was created in.
    pub sandbox_id: String,
    /// Name of the image, for display.
    pub image: String,
    /// Id or digest of the image that runs.
    pub image_id: String,
    /// [`crate::desired::instance_hash`] of the container it was created from; empty if another agent created it.
    pub hash: String,
    /// Path on the node of its termination message file, if the runtime reports it.
    pub message_file: Option<String>,
    /// State of the instance.
    pub state: InstanceState,
}

/// State of an instance. Times are the runtime's, in nanoseconds since 1970.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InstanceState {
    /// Created, not started.
    Created,
    /// Started, not exited.
    Running {
        /// Start time.
        started_at: i64,
    },
    /// Exited; final.
    Exited(Exit),
    /// Unknown to the runtime; treated as possibly running.
    Unknown,
}

/// Exit of an instance.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Exit {
    /// Exit code; 128 + n after signal n.
    pub code: i32,
    /// The runtime's reason (`Completed`, `Error`, `OOMKilled`, `StartError`) or empty.
    pub reason: String,
    /// Termination message.
    pub message: String,
    /// Start time; 0 if it never started.
    pub started_at: i64,
    /// Exit time.
    pub finished_at: i64,
}

/// An image name on this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ObservedImage {
    Present {
        /// Runtime id of the image.
        id: String,
    },
    /// Absent when it was last looked up.
    Absent {
        /// Time of the lookup, since boot.
        at: Duration,
    },
}

/// The volumes of a pod.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ObservedVolumes {
    /// None of them exists on the node.
    #[default]
    Absent,
    /// They may exist on disk; this process has not checked them yet.
    Unverified,
    /// All set up.
    Mounted,
}

impl ObservedPod {
    /// The sandbox with the highest attempt number.
    pub fn newest_sandbox(&self) -> Option<&ObservedSandbox> {
        self.sandboxes.iter().max_by_key(|s| s.attempt)
    }

    /// The newest sandbox, if it is ready.
    pub fn ready_sandbox(&self) -> Option<&ObservedSandbox> {
        self.newest_sandbox().filter(|s| s.ready)
    }

    /// Finds a sandbox by id.
    pub fn sandbox(&self, id: &str) -> Option<&ObservedSandbox> {
        self.sandboxes.iter().find(|s| s.id == id)
    }

    /// The newest instance of a container.
    pub fn newest(&self, container: &str) -> Option<&ObservedContainer> {
        proto_api::count_steps!(self.containers.len().saturating_add(1));
        self.containers.iter().filter(|c| c.name == container).max_by_key(|c| c.attempt)
    }

    /// Instances that run or may run.
    pub fn live(&self) -> impl Iterator<Item = &ObservedContainer> {
        self.containers.iter().filter(|c| c.is_live())
    }
}

impl ObservedContainer {
    /// Whether the instance runs or may run.
    pub fn is_live(&self) -> bool {
        matches!(self.state, InstanceState::Running { .. } | InstanceState::Unknown)
    }

    /// The exit, if it has exited.
    pub fn exit(&self) -> Option<&Exit> {
        match &self.state {
            InstanceState::Exited(exit) => Some(exit),
            _ => None,
        }
    }
}

/// The current time by both clocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Now {
    /// Wall clock, in seconds since 1970; may jump.
    pub unix_seconds: i64,
    /// Time since boot including suspend; monotonic.
    pub boot: Duration,
}
