//! State and interfaces that all pod tasks share.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use agent_images::{Images, PodImages};
use agent_interfaces::objects::ObjectCache;
use agent_interfaces::{ErrorText, PodCgroups, Reports, Volumes};
use agent_journal::Journal;
use agent_journal::active_pods::ActivePods;
use agent_logs::log_links;
use agent_node::admission::NodeLoad;
use agent_node::pressure::Pressure;
use agent_node::qos::qos_class;
use agent_pod::desired::{Disruption, PodSource};
use agent_pod::events::{PodEvent, Severity};
use agent_pod::node_facts::NodeFacts;
use agent_pod::plan::Action;
use agent_pod::translate::log_directory;
use agent_resources::pod_environment::PodEnvironment;
use agent_runtime::Runtime;
use agent_telemetry::metrics::AgentMetrics;
use agent_telemetry::timeline::{Outcome, Timelines};
use proto_api::Quantity;
use proto_api::core::v1::{Node, Pod, PodStatus};
use proto_api::names::Names;
use tokio::sync::{Notify, watch};

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
    /// The latest known Node object.
    pub node: RwLock<Node>,
    /// Snapshots of the node's pods, published by their tasks, by uid.
    pub pods: Mutex<BTreeMap<String, PodSnapshot>>,
    /// Decisions of the node to end pods.
    pub decisions: PodDecisions,
    /// Image pulls and image garbage collection.
    pub images: Arc<Images>,
    /// Pressure on the node's resources, and whether it is shutting down.
    pub node_pressure: watch::Sender<NodePressure>,
    /// Recent steps of each pod.
    pub timelines: Timelines,
    /// Metrics.
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

/// Conditions of the node that keep pods from starting.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodePressure {
    /// Resources that are short.
    pub pressure: Pressure,
    /// Whether the node is shutting down.
    pub shutting_down: bool,
}

/// Decisions of the node to end pods, by uid. A decision wakes the pod's task, and holds until
/// nothing of the pod is left.
#[derive(Debug, Default)]
pub struct PodDecisions(Mutex<BTreeMap<String, PodDecision>>);

#[derive(Debug, Default)]
struct PodDecision {
    verdict: Option<Disruption>,
    /// The pod from its admission until its task publishes a snapshot that counts it.
    reserved: Option<Arc<Pod>>,
    poke: Arc<Notify>,
}

impl PodContext {
    /// The Node, and the resources that pods other than `uid` hold of it.
    pub fn node_and_load(&self, uid: &str) -> (Node, NodeLoad) {
        let node = self.node.read().unwrap_or_else(PoisonError::into_inner).clone();
        let mut load = NodeLoad::default();
        let pods = self.pods.lock().unwrap_or_else(PoisonError::into_inner);
        let others = pods
            .iter()
            .filter(|(other, known)| *other != uid && known.holds_resources == HoldsResources::Yes);
        others.for_each(|(_, known)| load.add(&known.pod));
        let is_counted = |uid: &str| {
            pods.get(uid).is_some_and(|known| known.holds_resources == HoldsResources::Yes)
        };
        for (other, decision) in &*self.decisions.lock() {
            if let Some(pod) = decision.reserved.as_ref().filter(|_| other != uid)
                && !is_counted(other)
            {
                load.add(pod);
            }
        }
        (node, load)
    }

    /// Releases the reservation of a pod that was refused after all.
    pub fn release_reservation(&self, uid: &str) {
        if let Some(decision) = self.decisions.lock().get_mut(uid) {
            decision.reserved = None;
        }
    }

    /// Reserves resources for an admitted pod until its task publishes a snapshot.
    pub fn reserve(&self, pod: &Arc<Pod>) {
        let mut decisions = self.decisions.lock();
        decisions.entry(pod.metadata.uid.clone()).or_default().reserved = Some(pod.clone());
    }

    /// Publishes a pod's snapshot.
    pub fn update_snapshot(&self, known: PodSnapshot) {
        self.metrics.observe_pod(&known.pod, &known.status);
        if matches!(known.status.phase.as_str(), "Succeeded" | "Failed") {
            self.environment.release(&known.pod.metadata.uid);
        }
        let mut pods = self.pods.lock().unwrap_or_else(PoisonError::into_inner);
        if known.holds_resources == HoldsResources::Yes
            && let Some(decision) = self.decisions.lock().get_mut(&known.pod.metadata.uid)
        {
            decision.reserved = None;
        }
        pods.insert(known.pod.metadata.uid.clone(), known);
    }

    /// The handle that wakes the pod's task.
    pub fn waker(&self, uid: &str) -> Arc<Notify> {
        self.decisions.lock().entry(uid.to_owned()).or_default().poke.clone()
    }

    /// The node's decision to end a pod, if any.
    pub fn decision(&self, uid: &str) -> Option<Disruption> {
        self.decisions.lock().get(uid)?.verdict.clone()
    }

    /// Ends a pod. The first decision stays; a later one can only shorten its grace period.
    pub fn end_pod(&self, uid: &str, verdict: Disruption) {
        let mut decisions = self.decisions.lock();
        let decision = decisions.entry(uid.to_owned()).or_default();
        match &mut decision.verdict {
            None => decision.verdict = Some(verdict),
            Some(known) => {
                known.grace = match (known.grace, verdict.grace) {
                    (Some(a), Some(b)) => Some(a.min(b)),
                    (a, b) => a.or(b),
                };
            }
        }
        decision.poke.notify_one();
    }

    /// Uids of pods that have a task.
    pub fn known_uids(&self) -> BTreeSet<String> {
        self.decisions.lock().keys().cloned().collect()
    }

    /// Snapshots of pods that hold resources of the node.
    pub fn current_pods(&self) -> Vec<PodSnapshot> {
        let pods = self.pods.lock().unwrap_or_else(PoisonError::into_inner);
        pods.values()
            .filter(|known| known.holds_resources == HoldsResources::Yes)
            .cloned()
            .collect()
    }

    /// Dead instances to keep now: none while the disk is short.
    pub fn dead_kept(&self) -> u32 {
        if self.node_pressure.borrow().pressure.disk { 0 } else { self.settings.dead_kept }
    }

    /// Waits until none of these pods holds resources, or until `deadline`. Returns whether they
    /// all ended. Cancel safe.
    pub async fn wait_until_ended(&self, uids: &[String], deadline: tokio::time::Instant) -> bool {
        let over = || {
            let pods = self.pods.lock().unwrap_or_else(PoisonError::into_inner);
            uids.iter().all(|uid| {
                pods.get(uid).is_none_or(|known| known.holds_resources == HoldsResources::No)
            })
        };
        while !over() {
            if tokio::time::Instant::now() >= deadline {
                return false;
            }
            tokio::time::sleep(END_POLL).await;
        }
        true
    }

    /// Records an event of type Warning about a pod.
    pub fn warn(&self, pod: &Pod, reason: &'static str, message: String) {
        self.reports.event(pod, PodEvent::new(Severity::Warning, reason, message));
    }

    /// Drops everything that is known of a pod whose task has ended.
    pub fn forget(&self, uid: &str) {
        self.environment.release(uid);
        self.decisions.lock().remove(uid);
        self.metrics.forget_pod(uid);
        self.timelines.gone(uid);
        self.pods.lock().unwrap_or_else(PoisonError::into_inner).remove(uid);
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

    /// The node's pods with the status that the agent computed.
    pub fn shown_pods(&self) -> Vec<Pod> {
        let pods = self.pods.lock().unwrap_or_else(PoisonError::into_inner);
        let shown =
            |known: &PodSnapshot| Pod { status: (*known.status).clone(), ..(*known.pod).clone() };
        pods.values().map(shown).collect()
    }

    /// The node's allocatable resources.
    pub fn allocatable(&self) -> BTreeMap<String, Quantity> {
        let node = self.node.read().unwrap_or_else(PoisonError::into_inner);
        node.status.allocatable.clone()
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
    pub fn remove_directories(&self, pod: &Pod) -> Result<(), ErrorText> {
        let uid = &pod.metadata.uid;
        let logs = PathBuf::from(log_directory(&self.settings.facts.pod_logs_dir, pod));
        gone(std::fs::remove_dir_all(&logs), &logs)?;
        let meta = &pod.metadata;
        let names = [&*meta.namespace, &meta.name, uid];
        log_links::remove_all(Path::new(&self.settings.facts.pod_logs_dir), names);
        let own = self.pod_dir(uid);
        // An earlier version kept termination messages here.
        let containers = own.join("containers");
        gone(std::fs::remove_dir_all(&containers), &containers)?;
        for file in files(&own) {
            gone(std::fs::remove_file(&file), &file)?;
        }
        // `volumes` belongs to agent-volume, which removes it once no mount is left below;
        // otherwise this fails.
        gone(std::fs::remove_dir(&own), &own)
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
        let pods = self.pods.lock().unwrap_or_else(PoisonError::into_inner);
        let current = pods.values().filter(|known| known.holds_resources == HoldsResources::Yes);
        let images = current.flat_map(|known| {
            let spec = &known.pod.spec;
            let own = spec.init_containers.iter().chain(&spec.containers).map(|c| &c.image);
            let ephemeral = spec.ephemeral_containers.iter();
            own.chain(ephemeral.map(|c| &c.ephemeral_container_common.image))
        });
        images.chain([&self.settings.sandbox_image]).cloned().collect()
    }

    fn wake_pods(&self) {
        self.decisions.lock().values().for_each(|decision| decision.poke.notify_one());
    }
}

/// The regular files directly in a directory; none if it cannot be read.
fn files(directory: &Path) -> impl Iterator<Item = PathBuf> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let is_file = |entry: &std::fs::DirEntry| entry.file_type().is_ok_and(|kind| kind.is_file());
    entries.filter(is_file).map(|entry| entry.path())
}

/// Treats a path that does not exist as removed.
fn gone(removed: std::io::Result<()>, path: &Path) -> Result<(), ErrorText> {
    match removed {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(format!("remove {}: {error}", path.display()))
        }
        _ => Ok(()),
    }
}

/// Poll interval while waiting for pods to end.
const END_POLL: Duration = Duration::from_millis(50);

impl PodDecisions {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, PodDecision>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A pod as last published by its task.
#[derive(Clone, Debug)]
pub struct PodSnapshot {
    /// The pod as its source has it.
    pub pod: Arc<Pod>,
    /// Its status as the agent computed it.
    pub status: Arc<PodStatus>,
    /// Whether it holds resources of the node.
    pub holds_resources: HoldsResources,
    /// Where it comes from.
    pub source: PodSource,
}

/// Whether a pod holds resources of the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HoldsResources {
    /// Admitted and not terminated.
    Yes,
    /// Refused or terminated.
    No,
}
