//! State and interfaces that all pod tasks share.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use agent_images::{Images, PodImages};
use agent_interfaces::objects::ObjectCache;
use agent_interfaces::{PodCgroups, Reports, Volumes};
use agent_journal::Journal;
use agent_journal::active_pods::ActivePods;
use agent_logs::log_links;
use agent_node::pressure::Pressure;
use agent_node::qos::qos_class;
use agent_pod::events::{PodEvent, Severity};
use agent_pod::node_facts::NodeFacts;
use agent_pod::plan::Action;
use agent_pod::translate::log_directory;
use agent_resources::pod_environment::PodEnvironment;
use agent_runtime::Runtime;
use agent_telemetry::metrics::AgentMetrics;
use agent_telemetry::timeline::{Outcome, Timelines};
use proto_api::core::v1::Pod;
use proto_api::names::Names;
use tokio::sync::watch;

use super::node_pods::NodePods;
pub use super::node_pods::{HoldsResources, PodSnapshot};
use super::probes::NodeProbes;
use super::restart_limiter::RestartLimiter;
use super::runtime_limiter::RuntimeLimiter;

/// The node as seen by pod tasks, and the interfaces through which they act.
pub struct PodContext {
    /// The container runtime.
    pub runtime: Arc<dyn Runtime>,
    /// Status writes, deletions and events.
    pub reports: Arc<dyn Reports>,
    /// Cgroups of the pods.
    pub cgroups: Arc<dyn PodCgroups>,
    /// Volumes of the pods.
    pub volumes: Arc<dyn Volumes>,
    /// ConfigMaps, Secrets, Services and objects of persistent volumes.
    pub object_cache: Arc<dyn ObjectCache>,
    /// What a restart must not forget.
    pub journal: Journal,
    /// What does not change while the agent runs.
    pub settings: NodeSettings,
    /// Devices, DNS configuration and runtime classes for pods.
    pub environment: PodEnvironment,
    /// The Node and its pods.
    pub pods: NodePods,
    /// Image pulls and image garbage collection.
    pub images: Arc<Images>,
    /// Pressure on the node's resources, and whether it is shutting down.
    pub node_pressure: watch::Sender<NodePressure>,
    /// Recent steps of each pod.
    pub timelines: Timelines,
    pub metrics: AgentMetrics,
    /// State that all probes share.
    pub probes: NodeProbes,
    /// Bounds concurrent runtime calls.
    pub runtime_limiter: Arc<RuntimeLimiter>,
    /// Bounds the share of restarts in them.
    pub restart_limiter: RestartLimiter,
    /// Pods whose tasks are running code at this moment.
    pub active_pods: ActivePods,
}

/// Settings of the agent and facts of the node, as the tasks of pods need them.
pub struct NodeSettings {
    /// Facts of the node for the translation of specs to CRI configurations.
    pub facts: NodeFacts,
    /// Addresses of the node, at most one of each family.
    pub host_ips: Vec<String>,
    /// The agent's root directory.
    pub root_dir: PathBuf,
    /// Dead instances kept per container in addition to the newest.
    pub dead_kept: u32,
    /// Longest delay between restarts of a container that crashes.
    pub crash_delay_max: Duration,
    /// Name of the sandbox image.
    pub sandbox_image: String,
    /// Names of the naming profile.
    pub names: &'static Names,
}

/// A file or directory of a pod cannot be made or removed; the action is tried again after its back-off.
#[derive(Debug, thiserror::Error)]
#[error("cannot {verb} {}", path.display())]
pub struct PodFileError {
    /// What was to be done with it.
    pub verb: &'static str,
    pub path: PathBuf,
    /// Cause.
    pub source: std::io::Error,
}

/// Conditions of the node that keep pods from starting.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodePressure {
    /// Resources that are short.
    pub pressure: Pressure,
    /// Whether the node is shutting down.
    pub shutting_down: bool,
}

impl PodContext {
    /// Publishes a pod's snapshot.
    pub fn update_snapshot(&self, known: PodSnapshot) {
        self.metrics.observe_pod(&known.pod, &known.status);
        let is_over = matches!(known.status.phase.as_str(), "Succeeded" | "Failed");
        if is_over && known.holds_resources == HoldsResources::No {
            self.environment.release(&known.pod.metadata.uid);
        }
        self.pods.insert(known);
    }

    /// Dead instances to keep now: none while the disk is short.
    pub fn dead_kept(&self) -> u32 {
        if self.node_pressure.borrow().pressure.disk { 0 } else { self.settings.dead_kept }
    }

    /// Records an event of type Warning about a pod.
    pub fn warn(&self, pod: &Pod, reason: &'static str, message: String) {
        self.reports.event(pod, PodEvent::new(Severity::Warning, reason, message));
    }

    /// Drops everything that is known of a pod whose task has ended.
    pub fn forget(&self, uid: &str) {
        self.environment.release(uid);
        self.metrics.forget_pod(uid);
        self.timelines.mark_deleted(uid);
        self.pods.remove(uid);
        self.probes.forget(uid);
        self.active_pods.forget(uid);
    }

    /// Records a successful step.
    pub fn step_done(&self, pod: &Pod, action: &Action, took: Duration) {
        self.step(pod, format!("{action:?}"), took, Outcome::Done);
    }

    /// Records a failed step with its error.
    pub fn step_failed(&self, pod: &Pod, action: &Action, took: Duration, why: &str) {
        self.step(pod, format!("{action:?}"), took, Outcome::Failed(why.to_owned()));
    }

    fn step(&self, pod: &Pod, what: String, took: Duration, outcome: Outcome) {
        self.metrics.record_step(&what, took, outcome == Outcome::Done);
        self.timelines.step(pod, what, took, outcome);
    }

    /// Uids of pods that have a directory or a cgroup. Does blocking IO.
    pub fn leftover_uids(&self) -> BTreeSet<String> {
        let entries = std::fs::read_dir(self.settings.root_dir.join("pods"));
        let names = entries.into_iter().flatten().flatten().map(|entry| entry.file_name());
        let on_disk = names.map(|name| name.to_string_lossy().into_owned());
        on_disk.chain(self.cgroups.uids()).collect()
    }

    /// Directory of the pod below the root directory.
    pub fn pod_dir(&self, uid: &str) -> PathBuf {
        self.settings.root_dir.join("pods").join(uid)
    }

    /// The termination message file of an instance. It lies in the pod's own directory: a directory
    /// for each instance would cost more than the file.
    pub fn termination_file(&self, uid: &str, container: &str, attempt: u32) -> PathBuf {
        self.pod_dir(uid).join(format!("{container}-{attempt}.termination-message"))
    }

    /// Parent cgroup of the pod's sandbox, for the runtime.
    pub fn cgroup_parent(&self, pod: &Pod) -> String {
        self.cgroups.cgroup_parent(pod)
    }

    /// Removes the pod's directory, its logs and the links to them. Its volumes must have been torn
    /// down.
    pub fn remove_directories(&self, pod: &Pod) -> Result<(), PodFileError> {
        let uid = &pod.metadata.uid;
        let logs = PathBuf::from(log_directory(&self.settings.facts.pod_logs_dir, pod));
        ignore_missing(std::fs::remove_dir_all(&logs), &logs)?;
        let meta = &pod.metadata;
        let names = [&*meta.namespace, &meta.name, uid];
        log_links::remove_all(Path::new(&self.settings.facts.pod_logs_dir), names);
        let own = self.pod_dir(uid);
        // An earlier version kept termination messages here.
        let containers = own.join("containers");
        ignore_missing(std::fs::remove_dir_all(&containers), &containers)?;
        for file in files(&own) {
            ignore_missing(std::fs::remove_file(&file), &file)?;
        }
        // `volumes` belongs to agent-volume, which removes it once no mount is left below;
        // otherwise this fails.
        ignore_missing(std::fs::remove_dir(&own), &own)
    }

    /// QoS class of a pod: from its status, else computed.
    pub fn qos(&self, pod: &Pod) -> String {
        match pod.status.qos_class.as_str() {
            "" => qos_class(pod).as_str().to_owned(),
            known => known.to_owned(),
        }
    }
}

impl PodImages for PodContext {
    fn image_names(&self) -> Vec<String> {
        let mut images = self.pods.image_names();
        images.push(self.settings.sandbox_image.clone());
        images
    }

    fn wake_pods(&self) {
        self.pods.wake_all();
    }
}

/// The regular files directly in a directory; none if it cannot be read.
fn files(directory: &Path) -> impl Iterator<Item = PathBuf> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let is_file = |entry: &std::fs::DirEntry| entry.file_type().is_ok_and(|kind| kind.is_file());
    entries.filter(is_file).map(|entry| entry.path())
}

/// Treats a path that does not exist as removed.
fn ignore_missing(removed: std::io::Result<()>, path: &Path) -> Result<(), PodFileError> {
    match removed {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(PodFileError { verb: "remove", path: path.to_owned(), source: error })
        }
        _ => Ok(()),
    }
}
