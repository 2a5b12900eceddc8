//! io: interfaces through which a pod's task acts, except the container runtime
//! (`agent_runtime::Runtime`), with their values. What implements them depends on this crate, and so
//! does the task; neither depends on the other.

pub mod objects;
#[cfg(feature = "testing")]
pub mod testing;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use agent_host::cgroups::CgroupUsage;
use agent_pod::desired::PodSource;
use agent_pod::env::ServiceEnv;
use agent_pod::events::{PodEvent, VolumeStep};
use agent_pod::volume_mounts::{AllReadOnly, VolumeOnHost};
use agent_volume::persistent::KnownObjects;
use futures_util::future::BoxFuture;
use proto_api::core::v1::{ConfigMap, Pod, PodStatus, Secret};
use tokio::sync::watch;

/// An error message of one line, for events and the log.
pub type ErrorText = String;

/// A change reported by a pod source.
#[derive(Clone, Debug)]
pub enum PodSourceEvent {
    /// The pod exists in this form; it may be marked for deletion.
    Wants(PodSource, Arc<Pod>),
    /// The source no longer has the pod of this uid.
    Dropped(String),
    /// The source has reported all of its pods once.
    Synced(PodSource),
}

/// The API server as seen by a pod's task.
pub trait Reports: Send + Sync {
    /// Changes the pod's status in the API. Returns the status that the server shows then.
    fn status<'a>(
        &'a self,
        pod: &'a Pod,
        change: StatusChange<'a>,
    ) -> BoxFuture<'a, Result<Reported, ReportError>>;

    /// Deletes the pod object, if it still has this uid.
    fn deleted<'a>(&'a self, pod: &'a Pod) -> BoxFuture<'a, Result<(), ReportError>>;

    /// Records an event; never blocks.
    fn event(&self, pod: &Pod, event: PodEvent);
}

/// A change of the status that the API shows of a pod.
#[derive(Clone, Copy, Debug)]
pub struct StatusChange<'a> {
    /// The status that the API is known to show.
    pub from: &'a PodStatus,
    /// The status that it is to show.
    pub to: &'a PodStatus,
    /// Whether the patch states all fields, since `from` may be wrong.
    pub whole: bool,
}

/// A status as stored by the server.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ServerStatus {
    /// The whole status, with the fields of other clients.
    pub status: PodStatus,
    /// `metadata.resourceVersion` of the object; empty without an API server.
    pub version: String,
}

/// Outcome of a status write.
#[derive(Clone, Debug, PartialEq)]
pub enum Reported {
    /// The server shows this status now.
    Shown(Box<ServerStatus>),
    /// The object no longer exists.
    NoObject,
}

/// A write to the API server failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ReportError(pub ErrorText);

/// The cgroups of pods.
pub trait PodCgroups: Send + Sync {
    /// Creates the pod's cgroup or updates its values. Returns the cgroup parent for the runtime.
    fn make_cgroup(&self, pod: &Pod) -> Result<String, ErrorText>;
    /// Passes the pod's limits to systemd if it manages the cgroups. Idempotent.
    fn settle_cgroup<'a>(&'a self, _: &'a Pod) -> BoxFuture<'a, Result<(), ErrorText>> {
        Box::pin(std::future::ready(Ok(())))
    }
    /// The cgroup parent for the runtime, whether or not it exists.
    fn cgroup_parent(&self, pod: &Pod) -> String;
    /// Adopts the cgroup that an earlier agent created for this uid. Returns whether there is one.
    fn adopt_cgroup(&self, pod: &Pod) -> bool;
    /// Uids of all pods that have a cgroup.
    fn uids(&self) -> Vec<String>;
    /// Resource usage of the pod, where it can be measured.
    fn usage(&self, _pod: &Pod) -> Option<CgroupUsage> {
        None
    }
    /// Memory used by all pods together in bytes, where it can be measured.
    fn pods_memory(&self) -> Option<u64> {
        None
    }
    /// Kills what is left in the pod's cgroup and removes it.
    fn remove_cgroup<'a>(&'a self, pod: &'a Pod) -> BoxFuture<'a, Result<(), ErrorText>>;
}

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
    ) -> BoxFuture<'a, Result<BTreeMap<usize, String>, ErrorText>>;
    /// Notes that a container has started with the parts that were bound for it.
    fn started<'a>(&'a self, _: &'a Pod, _: &'a str) -> BoxFuture<'a, ()> {
        Box::pin(std::future::ready(()))
    }
    /// Whether the pod has any volume directory on disk.
    fn exist(&self, pod: &Pod) -> bool;
    /// Tears down all volumes of the pod.
    fn tear_down<'a>(&'a self, pod: &'a Pod) -> BoxFuture<'a, Result<(), ErrorText>>;
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
    pub message: ErrorText,
}

impl VolumeError {
    /// A failure of the set-up of the volumes, by no operation that has an event of its own.
    pub fn mount(message: ErrorText) -> Self {
        Self { step: VolumeStep::Mount, message }
    }
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

/// API objects that a pod refers to, in their latest version.
#[derive(Clone, Debug, Default)]
pub struct PodObjects {
    /// ConfigMaps by name; `None` is known not to exist.
    pub config_maps: BTreeMap<String, Option<Arc<ConfigMap>>>,
    /// Secrets by name; `None` is known not to exist.
    pub secrets: BTreeMap<String, Option<Arc<Secret>>>,
    /// Claims, volumes, drivers and attachments of persistent volumes.
    pub persistent: KnownObjects,
    /// Services for the environment variables of containers.
    pub services: Vec<ServiceEnv>,
}

impl agent_pod::env::EnvObjects for PodObjects {
    fn config_map(&self, name: &str) -> Option<&ConfigMap> {
        self.config_maps.get(name)?.as_deref()
    }

    fn secret(&self, name: &str) -> Option<&Secret> {
        self.secrets.get(name)?.as_deref()
    }
}
