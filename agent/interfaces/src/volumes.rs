//! The volumes of pods.

use std::collections::BTreeMap;
use std::error::Error;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use agent_pod::events::VolumeStep;
use agent_pod::volume_mounts::{AllReadOnly, VolumeOnHost};
use agent_volume::pod_volumes::TearDownError;
use agent_volume::sub_path::SubPathError;
use futures_util::future::BoxFuture;
use proto_api::core::v1::Pod;
use tokio::sync::watch;

use crate::objects::PodObjects;

/// The volumes of pods, for their tasks.
pub trait PodVolumes: Send + Sync {
    /// Sets up all volumes, or refreshes those that follow API objects. Idempotent; a failure never
    /// tears down a mounted volume.
    fn set_up<'a>(
        &'a self,
        pod: &'a Arc<Pod>,
        sources: &'a PodObjects,
    ) -> BoxFuture<'a, Result<MountedVolumes, VolumeError>>;
    /// Cancels hanging driver calls of a set-up for a terminating pod; the set-up then fails.
    /// Affects nothing else.
    fn give_up(&self, _: &Pod) {}
    /// Bind-mounts the parts of volumes that a container mounts. Returns the host path of each, by
    /// index of the container's mount.
    fn bind_parts<'a>(
        &'a self,
        pod: &'a Pod,
        container: &'a str,
        parts: Vec<WantedPart>,
    ) -> BoxFuture<'a, Result<BTreeMap<usize, String>, BindError>>;
    /// Notes that a container has started with the parts that were bound for it.
    fn started<'a>(&'a self, _: &'a Pod, _: &'a str) -> BoxFuture<'a, ()> {
        Box::pin(std::future::ready(()))
    }
    /// Whether the pod has any volume directory on disk.
    fn exist(&self, pod: &Pod) -> bool;
    /// Tears down all volumes of the pod.
    fn tear_down<'a>(&'a self, pod: &'a Pod) -> BoxFuture<'a, Result<(), UnmountError>>;
}

/// Volumes that are attached to the node, for the Node's `volumesInUse`.
pub trait AttachedVolumes: Send + Sync {
    /// Names of attached volumes in use, for `volumesInUse` of the Node.
    fn in_use(&self) -> Vec<String> {
        Vec::new()
    }
    /// Notified when they may have changed.
    fn in_use_changes(&self) -> Option<watch::Receiver<u64>> {
        None
    }
    /// Notes which volumes the Node object lists as in use.
    fn listed(&self, _: &[String]) {}
}

/// Usage of volumes, for statistics.
pub trait VolumeUsage: Send + Sync {
    /// Usage of the pod's volumes whose drivers report it.
    fn fill<'a>(&'a self, _: &'a Pod) -> BoxFuture<'a, Vec<VolumeFill>> {
        Box::pin(std::future::ready(Vec::new()))
    }
}

/// The node's volumes, for what needs the whole of them; a user of a part takes that part's trait.
pub trait Volumes: PodVolumes + AttachedVolumes + VolumeUsage {}

impl<V: PodVolumes + AttachedVolumes + VolumeUsage> Volumes for V {}

/// Why the volumes of a pod cannot be set up.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct VolumeError {
    /// The step that failed.
    pub step: VolumeStep,
    /// The message for users, worded as the kubelet's event.
    pub message: String,
}

impl VolumeError {
    /// A failure of the set-up of the volumes, by no operation that has an event of its own.
    pub fn mount(message: impl Into<String>) -> Self {
        Self { step: VolumeStep::Mount, message: message.into() }
    }
}

/// Why parts of volumes are not bound: the container that mounts them is not created and is tried again after its back-off.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// A part of a volume cannot be provided.
    #[error(transparent)]
    Part(#[from] SubPathError),
    /// The work panicked or was cancelled.
    #[error("binding subPath mounts was interrupted")]
    Interrupted(#[source] io::Error),
}

/// Why volumes of a pod are still there. The pod is kept and its teardown retried.
#[derive(Debug, thiserror::Error)]
pub enum UnmountError {
    /// A directory or mount of the agent cannot be removed.
    #[error(transparent)]
    Directory(#[from] TearDownError),
    /// The volume's driver or program failed, in the kubelet's words.
    #[error(transparent)]
    Driver(Box<dyn Error + Send + Sync>),
    /// The work panicked or was cancelled.
    #[error("teardown of volumes was interrupted")]
    Interrupted(#[source] io::Error),
}

/// A volume, or a part of one, that a container gets through a bind mount of the agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WantedPart {
    /// Index of the mount in the container's `volumeMounts`.
    pub index: usize,
    /// Name of the volume in the pod.
    pub name: String,
    /// The volume on the host.
    pub volume: VolumeOnHost,
    /// Path below the volume's root; empty for the whole volume.
    pub path: String,
    /// Whether mounts below it are read-only too.
    pub all_read_only: Option<AllReadOnly>,
    /// Whether it is refreshed while containers use it.
    pub follows: bool,
}

/// Usage of a volume as reported by its driver.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VolumeFill {
    /// Name of the volume in the pod.
    pub name: String,
    /// The PersistentVolumeClaim that it comes from.
    pub claim: Option<String>,
    /// Bytes: capacity, used, available.
    pub bytes: (u64, u64, u64),
    /// Inodes: total, used, free; zero if the driver does not report them.
    pub inodes: (u64, u64, u64),
}

/// Volumes that are set up.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MountedVolumes {
    /// The volumes on the host, by name.
    pub on_host: BTreeMap<String, VolumeOnHost>,
    /// When one must be refreshed (a token before it expires), since boot.
    pub refresh_at: Option<Duration>,
}
