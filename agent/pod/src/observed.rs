//! What the runtime and the node show of one pod, and the time.
//!
//! The pod's task keeps this value complete: it starts from a full listing, applies the outcome of each of its own actions
//! and of each event, and replaces the whole by a new listing when it may have missed something.

use std::collections::BTreeMap;
use std::time::Duration;

/// One pod as the node shows it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PodSeen {
    /// All sandboxes of the pod, any order.
    pub sandboxes: Vec<SandboxSeen>,
    /// All instances of all containers of the pod, any order.
    pub containers: Vec<ContainerSeen>,
    /// Images by the name that the pod uses; one not in the map has not been looked up.
    pub images: BTreeMap<String, ImageSeen>,
    /// The pod's volumes.
    pub volumes: VolumesSeen,
    /// Whether the pod's cgroup exists.
    pub cgroup: bool,
    /// Whether something may run that is not shown: a start is under way, or nobody knows what came of it.
    pub unsure: bool,
}

/// A sandbox.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SandboxSeen {
    /// The runtime's id.
    pub id: String,
    /// 0 for the pod's first.
    pub attempt: u32,
    /// Whether its process runs and its network is set up.
    pub ready: bool,
    /// Addresses, the primary first; empty with the host's network.
    pub ips: Vec<String>,
}

/// An instance of a container.
#[derive(Clone, Debug, PartialEq)]
pub struct ContainerSeen {
    /// The runtime's id.
    pub id: String,
    /// Name of the container in the pod.
    pub name: String,
    /// 0 for the first instance.
    pub attempt: u32,
    /// Id of the sandbox that it was created in.
    pub sandbox_id: String,
    /// Name of the image, for people.
    pub image: String,
    /// Id or digest of the image that runs.
    pub image_id: String,
    /// [`crate::desired::instance_hash`] of the container that it was created from; empty when another agent created it.
    pub hash: String,
    /// File of the node that its last words are written to, when the runtime tells.
    pub message_file: Option<String>,
    /// Where the instance is in its life.
    pub state: InstanceState,
}

/// Where an instance is in its life. Times are nanoseconds since 1970 as the runtime gives them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InstanceState {
    /// Made, not started.
    Created,
    /// Started, not exited.
    Running {
        /// Start.
        started_at: i64,
    },
    /// Ended; never changes again.
    Exited(Exit),
    /// The runtime cannot tell; treated as something that may run.
    Unknown,
}

/// How an instance ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Exit {
    /// Exit code; 128 + n when a signal n ended it.
    pub code: i32,
    /// The runtime's reason (`Completed`, `Error`, `OOMKilled`, `StartError`), or empty.
    pub reason: String,
    /// Termination message.
    pub message: String,
    /// Start; 0 if it never started.
    pub started_at: i64,
    /// End.
    pub finished_at: i64,
}

/// An image name on this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ImageSeen {
    /// There, under the runtime's id.
    Present {
        /// The runtime's id of the image.
        id: String,
    },
    /// Not there at that time since boot.
    Absent {
        /// When it was looked up.
        at: Duration,
    },
}

/// The volumes of a pod.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum VolumesSeen {
    /// Nothing of them on the node.
    #[default]
    Absent,
    /// Something on disk that this process has not checked yet.
    Unverified,
    /// All set up.
    Mounted,
}

impl PodSeen {
    /// The newest sandbox.
    pub fn newest_sandbox(&self) -> Option<&SandboxSeen> {
        self.sandboxes.iter().max_by_key(|s| s.attempt)
    }

    /// The newest sandbox if it is ready.
    pub fn ready_sandbox(&self) -> Option<&SandboxSeen> {
        self.newest_sandbox().filter(|s| s.ready)
    }

    /// The sandbox of that id.
    pub fn sandbox(&self, id: &str) -> Option<&SandboxSeen> {
        self.sandboxes.iter().find(|s| s.id == id)
    }

    /// The newest instance of a container.
    pub fn newest(&self, container: &str) -> Option<&ContainerSeen> {
        self.containers.iter().filter(|c| c.name == container).max_by_key(|c| c.attempt)
    }

    /// Instances that run or may run.
    pub fn live(&self) -> impl Iterator<Item = &ContainerSeen> {
        self.containers.iter().filter(|c| c.is_live())
    }
}

impl ContainerSeen {
    /// Whether the instance runs or may run.
    pub fn is_live(&self) -> bool {
        matches!(self.state, InstanceState::Running { .. } | InstanceState::Unknown)
    }

    /// How it ended, if it has.
    pub fn exit(&self) -> Option<&Exit> {
        match &self.state {
            InstanceState::Exited(exit) => Some(exit),
            _ => None,
        }
    }
}

/// The time, both ways of telling it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Now {
    /// Seconds since 1970, for people; may jump.
    pub unix_seconds: i64,
    /// Time since boot, suspended time included; never jumps.
    pub boot: Duration,
}
