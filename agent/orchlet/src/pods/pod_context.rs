//! What all pod tasks share.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use agent_node::admission::Load;
use agent_node::pressure::Pressure;
use agent_node::qos::qos_class;
use agent_pod::desired::{Source, Verdict};
use agent_pod::node_facts::NodeFacts;
use agent_pod::plan::Action;
use agent_pod::translate::log_directory;
use agent_runtime::Runtime;
use proto_api::Quantity;
use proto_api::core::v1::{Node, Pod, PodStatus};
use proto_api::names::Names;
use tokio::sync::{Notify, watch};

use super::in_hand::InHand;
use super::ports::{Line, PodPlace, PodVolumes, Reports};
use super::probes::NodeProbes;
use super::restart_limiter::Restarts;
use super::runtime_limiter::Turns;
use crate::images::Images;
use crate::journal::Journal;
use crate::log_links;
use crate::metrics::AgentMetrics;
use crate::object_cache::Subscribe;
use crate::pod_environment::Provision;
use crate::timeline::{Outcome, Timelines};

/// The node as pods see it, and the seams through which tasks act.
pub struct Parts {
    /// The container runtime.
    pub runtime: Arc<dyn Runtime>,
    /// The API server.
    pub reports: Arc<dyn Reports>,
    /// Cgroups.
    pub place: Arc<dyn PodPlace>,
    /// Volumes.
    pub volumes: Arc<dyn PodVolumes>,
    /// Config maps, secrets and services.
    pub objects: Arc<dyn Subscribe>,
    /// The journal.
    pub journal: Journal,
    /// What translation needs of the node.
    pub facts: NodeFacts,
    /// What pods are given of the node beside these.
    pub provision: Provision,
    /// Addresses of the node, the primary first.
    pub host_ips: Vec<String>,
    /// Directory below which the agent keeps pods.
    pub root_dir: PathBuf,
    /// The Node object as far as it is known.
    pub node: RwLock<Node>,
    /// The pods of the node by uid, as their tasks know them.
    pub pods: Mutex<BTreeMap<String, Known>>,
    /// What the node decided about its pods.
    pub verdicts: Verdicts,
    /// Images: pulls, and what removes them.
    pub images: Arc<Images>,
    /// Dead instances kept for each container beside its newest.
    pub dead_kept: u32,
    /// Longest delay between restarts of a container that crashes.
    pub crash_delay_max: Duration,
    /// Sandbox image, as the runtime knows it.
    pub sandbox_image: String,
    /// Names of the naming profile.
    pub names: &'static Names,
    /// What is short on the node, and whether it is shutting down.
    pub strain: watch::Sender<NodePressure>,
    /// What was done for each pod.
    pub timelines: Timelines,
    /// What is counted.
    pub metrics: AgentMetrics,
    /// What probes share.
    pub probes: NodeProbes,
    /// Turns at the runtime.
    pub turns: Arc<Turns>,
    /// The share of restarts in them.
    pub restarts: Restarts,
    /// Which pods are in hand at this moment.
    pub in_hand: InHand,
}

/// What keeps pods from beginning on the node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodePressure {
    /// What is short.
    pub pressure: Pressure,
    /// Whether the node is shutting down.
    pub shutting_down: bool,
}

/// What the node decided about pods, by uid: reaches each pod's task as a poke, and holds until nothing of the pod is left.
#[derive(Debug, Default)]
pub struct Verdicts(Mutex<BTreeMap<String, PodDecision>>);

#[derive(Debug, Default)]
struct PodDecision {
    verdict: Option<Verdict>,
    /// The pod, from its admission until its task counts it itself.
    promised: Option<Arc<Pod>>,
    poke: Arc<Notify>,
}

impl Parts {
    /// The Node, and what pods other than `uid` take of it.
    pub fn node_and_load(&self, uid: &str) -> (Node, Load) {
        let node = self.node.read().unwrap_or_else(PoisonError::into_inner).clone();
        let mut load = Load::default();
        let pods = self.pods.lock().unwrap_or_else(PoisonError::into_inner);
        let others =
            pods.iter().filter(|(other, known)| *other != uid && known.counts == Counts::Yes);
        others.for_each(|(_, known)| load.add(&known.pod));
        let is_counted = |uid: &str| pods.get(uid).is_some_and(|known| known.counts == Counts::Yes);
        for (other, sentence) in &*self.verdicts.lock() {
            if let Some(pod) = sentence.promised.as_ref().filter(|_| other != uid)
                && !is_counted(other)
            {
                load.add(pod);
            }
        }
        (node, load)
    }

    /// Takes back what was promised to a pod that was refused after all.
    pub fn take_back(&self, uid: &str) {
        if let Some(sentence) = self.verdicts.lock().get_mut(uid) {
            sentence.promised = None;
        }
    }

    /// Notes that a pod was admitted: it takes of the node before its own task has heard of it.
    pub fn promise(&self, pod: &Arc<Pod>) {
        let mut sentences = self.verdicts.lock();
        sentences.entry(pod.metadata.uid.clone()).or_default().promised = Some(pod.clone());
    }

    /// Takes in what a pod's task knows now.
    pub fn know(&self, known: Known) {
        self.metrics.know(&known.pod, &known.status);
        if matches!(known.status.phase.as_str(), "Succeeded" | "Failed") {
            self.provision.release(&known.pod.metadata.uid);
        }
        let mut pods = self.pods.lock().unwrap_or_else(PoisonError::into_inner);
        if known.counts == Counts::Yes
            && let Some(sentence) = self.verdicts.lock().get_mut(&known.pod.metadata.uid)
        {
            sentence.promised = None;
        }
        pods.insert(known.pod.metadata.uid.clone(), known);
    }

    /// Where the task of a pod hears that something about it has changed.
    pub fn poke(&self, uid: &str) -> Arc<Notify> {
        self.verdicts.lock().entry(uid.to_owned()).or_default().poke.clone()
    }

    /// The node's decision about a pod.
    pub fn verdict(&self, uid: &str) -> Option<Verdict> {
        self.verdicts.lock().get(uid)?.verdict.clone()
    }

    /// Ends a pod. The first decision stays; a later one can only shorten its grace.
    pub fn end(&self, uid: &str, verdict: Verdict) {
        let mut sentences = self.verdicts.lock();
        let sentence = sentences.entry(uid.to_owned()).or_default();
        match &mut sentence.verdict {
            None => sentence.verdict = Some(verdict),
            Some(known) => {
                known.grace = match (known.grace, verdict.grace) {
                    (Some(a), Some(b)) => Some(a.min(b)),
                    (a, b) => a.or(b),
                };
            }
        }
        sentence.poke.notify_one();
    }

    /// Tells all pods' tasks that something which they share has changed.
    pub fn poke_all(&self) {
        self.verdicts.lock().values().for_each(|sentence| sentence.poke.notify_one());
    }

    /// Images that pods of the node are made of, as they name them.
    pub fn image_names(&self) -> Vec<String> {
        let pods = self.pods.lock().unwrap_or_else(PoisonError::into_inner);
        let current = pods.values().filter(|known| known.counts == Counts::Yes);
        let images = current.flat_map(|known| {
            let spec = &known.pod.spec;
            let own = spec.init_containers.iter().chain(&spec.containers).map(|c| &c.image);
            let ephemeral = spec.ephemeral_containers.iter();
            own.chain(ephemeral.map(|c| &c.ephemeral_container_common.image))
        });
        images.cloned().collect()
    }

    /// The pods that have a task.
    pub fn known_uids(&self) -> BTreeSet<String> {
        self.verdicts.lock().keys().cloned().collect()
    }

    /// The pods that take of the node: with status, and whether they come from a manifest.
    pub fn current_pods(&self) -> Vec<Known> {
        let pods = self.pods.lock().unwrap_or_else(PoisonError::into_inner);
        pods.values().filter(|known| known.counts == Counts::Yes).cloned().collect()
    }

    /// Dead instances kept for each container beside its newest now: none while the disk is short.
    pub fn dead_kept(&self) -> u32 {
        if self.strain.borrow().pressure.disk { 0 } else { self.dead_kept }
    }

    /// Waits until nothing of these pods runs any more, or until `deadline`; whether that is so. Cancel safe.
    pub async fn ended(&self, uids: &[String], deadline: tokio::time::Instant) -> bool {
        let over = || {
            let pods = self.pods.lock().unwrap_or_else(PoisonError::into_inner);
            uids.iter().all(|uid| pods.get(uid).is_none_or(|known| known.counts == Counts::No))
        };
        while !over() {
            if tokio::time::Instant::now() >= deadline {
                return false;
            }
            tokio::time::sleep(ENDED_LOOK).await;
        }
        true
    }

    /// Forgets a pod of which nothing is left.
    pub fn forget(&self, uid: &str) {
        self.provision.release(uid);
        self.verdicts.lock().remove(uid);
        self.metrics.gone(uid);
        self.timelines.gone(uid);
        self.pods.lock().unwrap_or_else(PoisonError::into_inner).remove(uid);
        self.probes.forget(uid);
        self.in_hand.forget(uid);
    }

    /// Writes down a step that has worked.
    pub fn step_done(&self, pod: &Pod, action: &Action, took: Duration) {
        self.step(pod, format!("{action:?}"), took, Outcome::Done);
    }

    /// Writes down a step that has failed, and why.
    pub fn step_failed(&self, pod: &Pod, action: &Action, took: Duration, why: &str) {
        self.step(pod, format!("{action:?}"), took, Outcome::Failed(why.to_owned()));
    }

    fn step(&self, pod: &Pod, what: String, took: Duration, outcome: Outcome) {
        self.metrics.step(&what, took, outcome == Outcome::Done);
        self.timelines.step(pod, what, took, outcome);
    }

    /// The pods of the node with the status that their tasks give them.
    pub fn shown_pods(&self) -> Vec<Pod> {
        let pods = self.pods.lock().unwrap_or_else(PoisonError::into_inner);
        let shown = |known: &Known| Pod { status: (*known.status).clone(), ..(*known.pod).clone() };
        pods.values().map(shown).collect()
    }

    /// What the node can give to pods.
    pub fn allocatable(&self) -> BTreeMap<String, Quantity> {
        let node = self.node.read().unwrap_or_else(PoisonError::into_inner);
        node.status.allocatable.clone()
    }

    /// Uids of pods that have a directory or a cgroup. Blocks.
    pub fn left(&self) -> BTreeSet<String> {
        let entries = std::fs::read_dir(self.root_dir.join("pods"));
        let names = entries.into_iter().flatten().flatten().map(|entry| entry.file_name());
        let on_disk = names.map(|name| name.to_string_lossy().into_owned());
        on_disk.chain(self.place.uids()).collect()
    }

    /// The directory of a pod.
    pub fn pod_dir(&self, uid: &str) -> PathBuf {
        self.root_dir.join("pods").join(uid)
    }

    /// The file for the last words of an instance, in the pod's own directory: one more for each instance would cost more than the
    /// file does.
    pub fn termination_file(&self, uid: &str, container: &str, attempt: u32) -> PathBuf {
        self.pod_dir(uid).join(format!("{container}-{attempt}.last-words"))
    }

    /// Parent cgroup of the pod's sandbox, as the runtime is told.
    pub fn place_of(&self, pod: &Pod) -> String {
        self.place.cgroup_parent(pod)
    }

    /// Removes the pod's own directory, its logs and the links to them; volumes have been taken down before.
    pub fn remove_directories(&self, pod: &Pod) -> Result<(), Line> {
        let uid = &pod.metadata.uid;
        let logs = PathBuf::from(log_directory(&self.facts.pod_logs_dir, pod));
        gone(std::fs::remove_dir_all(&logs), &logs)?;
        let meta = &pod.metadata;
        let names = [&*meta.namespace, &meta.name, uid];
        log_links::remove_all(Path::new(&self.facts.pod_logs_dir), names);
        let own = self.pod_dir(uid);
        // Where an agent before this one had the last words.
        let containers = own.join("containers");
        gone(std::fs::remove_dir_all(&containers), &containers)?;
        for file in files(&own) {
            gone(std::fs::remove_file(&file), &file)?;
        }
        // `volumes` is the volume crate's, which removes it only when it is empty of mounts: what is left of it fails here.
        gone(std::fs::remove_dir(&own), &own)
    }

    /// Quality-of-service class of a pod: as the API says, else as computed.
    pub fn qos(&self, pod: &Pod) -> String {
        match pod.status.qos_class.as_str() {
            "" => qos_class(pod).as_str().to_owned(),
            known => known.to_owned(),
        }
    }
}

/// The files that lie in a directory itself; none of one that is not there or cannot be read.
fn files(directory: &Path) -> impl Iterator<Item = PathBuf> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let is_file = |entry: &std::fs::DirEntry| entry.file_type().is_ok_and(|kind| kind.is_file());
    entries.filter(is_file).map(|entry| entry.path())
}

/// What is not there has been removed.
fn gone(removed: std::io::Result<()>, path: &Path) -> Result<(), Line> {
    match removed {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(format!("remove {}: {error}", path.display()))
        }
        _ => Ok(()),
    }
}

/// Between two looks at pods that are ending.
const ENDED_LOOK: Duration = Duration::from_millis(50);

impl Verdicts {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, PodDecision>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A pod as its task knows it.
#[derive(Clone, Debug)]
pub struct Known {
    /// The pod.
    pub pod: Arc<Pod>,
    /// Its status now.
    pub status: Arc<PodStatus>,
    /// Whether it takes of the node.
    pub counts: Counts,
    /// Where it comes from.
    pub source: Source,
}

/// Whether a pod takes of the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counts {
    /// Admitted and not over.
    Yes,
    /// Refused or over.
    No,
}
