//! What a pod's task needs from the outside, each as narrow as it uses it. The runtime's own seam is `agent_runtime::Runtime`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use agent_host::cgroups::CgroupUsage;
use agent_pod::env::ServiceEnv;
use agent_pod::events::PodEvent;
use agent_pod::volume_mounts::{AllReadOnly, VolumeOnHost};
use agent_volume::persistent::Known;
use futures_util::future::BoxFuture;
use proto_api::core::v1::{ConfigMap, Pod, PodStatus, Secret};
use tokio::sync::watch;

use super::shown::Answer;

/// An error that goes to users and into the log as one line.
pub type Line = String;

/// The API server, as far as a pod's task talks to it.
pub trait Reports: Send + Sync {
    /// Changes the status that the API shows of a pod; what it shows then.
    fn status<'a>(
        &'a self,
        pod: &'a Pod,
        change: StatusChange<'a>,
    ) -> BoxFuture<'a, Result<Reported, ReportError>>;

    /// Lets the object go: only this uid.
    fn deleted<'a>(&'a self, pod: &'a Pod) -> BoxFuture<'a, Result<(), ReportError>>;

    /// Tells an event; never waits.
    fn event(&self, pod: &Pod, event: PodEvent);
}

/// A change of the status that the API shows of a pod.
#[derive(Clone, Copy, Debug)]
pub struct StatusChange<'a> {
    /// What is known to be shown.
    pub from: &'a PodStatus,
    /// What is to be shown.
    pub to: &'a PodStatus,
    /// Whether all fields are stated, since what is known may not be true.
    pub whole: bool,
}

/// What became of a status.
#[derive(Clone, Debug, PartialEq)]
pub enum Reported {
    /// The object shows this now.
    Shown(Box<Answer>),
    /// There is no such object any more.
    NoObject,
}

/// Why something could not be reported.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ReportError(pub Line);

/// The node's share of a pod: cgroup and directories.
pub trait PodPlace: Send + Sync {
    /// Makes the pod's cgroup, or brings its values up to date; what the runtime is given as the parent.
    fn make_cgroup(&self, pod: &Pod) -> Result<String, Line>;
    /// Has whoever manages the host's cgroups know the pod's bounds. Safe to repeat.
    fn settle_cgroup<'a>(&'a self, _: &'a Pod) -> BoxFuture<'a, Result<(), Line>> {
        Box::pin(std::future::ready(Ok(())))
    }
    /// Where the pod's cgroup is or would be, as the runtime is told.
    fn cgroup_parent(&self, pod: &Pod) -> String;
    /// Takes in the cgroup that an earlier agent may have made for the pod, whatever is known of the pod beside its uid; whether there
    /// is one.
    fn adopt_cgroup(&self, pod: &Pod) -> bool;
    /// Uids of all pods that have one.
    fn uids(&self) -> Vec<String>;
    /// What the pod uses, where that can be told.
    fn usage(&self, _pod: &Pod) -> Option<CgroupUsage> {
        None
    }
    /// Memory in use by all pods together, where that can be told, in bytes.
    fn pods_memory(&self) -> Option<u64> {
        None
    }
    /// Removes the pod's cgroup with what is left in it.
    fn remove_cgroup<'a>(&'a self, pod: &'a Pod) -> BoxFuture<'a, Result<(), Line>>;
}

/// The pod's volumes.
pub trait PodVolumes: Send + Sync {
    /// Sets all volumes up, or brings those that follow a source up to date. Safe to repeat; a live volume is never taken down
    /// by a failure.
    fn set_up<'a>(
        &'a self,
        pod: &'a Arc<Pod>,
        sources: &'a Sources,
    ) -> BoxFuture<'a, Result<MountedVolumes, Line>>;
    /// Gives up what hangs while volumes are being set up for a pod that ends; the set-up then fails soon. Nothing else is touched.
    fn give_up(&self, _: &Pod) {}
    /// Binds what a container is given through bindings of the agent's; where each is, by number of its mount.
    fn bind_parts<'a>(
        &'a self,
        pod: &'a Pod,
        container: &'a str,
        parts: Vec<WantedPart>,
    ) -> BoxFuture<'a, Result<BTreeMap<usize, String>, Line>>;
    /// How full the volumes of a pod are whose drivers tell.
    fn fill<'a>(&'a self, _: &'a Pod) -> BoxFuture<'a, Vec<VolumeFill>> {
        Box::pin(std::future::ready(Vec::new()))
    }
    /// A container has started with the parts that were bound for it.
    fn started<'a>(&'a self, _: &'a Pod, _: &'a str) -> BoxFuture<'a, ()> {
        Box::pin(std::future::ready(()))
    }
    /// Names of attached volumes that pods of the node have, as the Node object lists them.
    fn in_use(&self) -> Vec<String> {
        Vec::new()
    }
    /// Tells when those may have changed.
    fn in_use_changes(&self) -> Option<watch::Receiver<u64>> {
        None
    }
    /// Takes in what the Node object lists.
    fn listed(&self, _: &[String]) {}
    /// Whether anything of the pod's volumes is on disk.
    fn exist(&self, pod: &Pod) -> bool;
    /// Takes all volumes down.
    fn tear_down<'a>(&'a self, pod: &'a Pod) -> BoxFuture<'a, Result<(), Line>>;
}

/// A volume, or a part of one, that a container is given through a binding of the agent's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WantedPart {
    /// Number of the mount among the container's.
    pub index: usize,
    /// Name of the volume.
    pub name: String,
    /// The volume.
    pub volume: VolumeOnHost,
    /// Path below its root; empty for all of it.
    pub path: String,
    /// Whether what is mounted below is read-only too.
    pub all_read_only: Option<AllReadOnly>,
    /// Whether it is brought up to date while containers have it.
    pub follows: bool,
}

/// How full a volume is, as its driver tells.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VolumeFill {
    /// Name of the volume in the pod.
    pub name: String,
    /// The claim that it comes from.
    pub claim: Option<String>,
    /// Bytes: all, used, available.
    pub bytes: (u64, u64, u64),
    /// Inodes: all, used, free; zeros when the driver does not say.
    pub inodes: (u64, u64, u64),
}

/// Volumes that are set up.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MountedVolumes {
    /// Each on the host, by name.
    pub on_host: BTreeMap<String, VolumeOnHost>,
    /// When one has to be made anew (a token before it expires), since boot.
    pub refresh_at: Option<Duration>,
}

/// Objects of the API that a pod refers to, as they are now.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    /// Config maps by name; `None` is known not to exist.
    pub config_maps: BTreeMap<String, Option<Arc<ConfigMap>>>,
    /// Secrets by name; `None` is known not to exist.
    pub secrets: BTreeMap<String, Option<Arc<Secret>>>,
    /// What persistent volumes lead to.
    pub persistent: Known,
    /// Services that show in environments.
    pub services: Vec<ServiceEnv>,
}

impl agent_pod::env::Objects for Sources {
    fn config_map(&self, name: &str) -> Option<&ConfigMap> {
        self.config_maps.get(name)?.as_deref()
    }

    fn secret(&self, name: &str) -> Option<&Secret> {
        self.secrets.get(name)?.as_deref()
    }
}
