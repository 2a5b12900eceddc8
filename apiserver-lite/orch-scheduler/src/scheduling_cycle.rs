//! A scheduling cycle: every pod that waits for a node, most important first, is given the best node that it
//! fits on, or an event that says why there is none.

mod volumes;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use proto_api::Time;
use proto_api::core::v1::{Binding, ObjectReference, Pod};
use proto_api::meta::v1::ObjectMeta;
use proto_client::events::{EventKind, Recorder};
use proto_client::{Change, Client, ClientError, ObjectKey, Patch, Store, WriteParams};
use proto_daemon::drain::DrainWatch;
use proto_daemon::exit::chain;
use proto_daemon::panics::isolate_sync;
use proto_daemon::statusz::TaskStatus;
use serde_json::json;
use tokio::sync::Notify;

use crate::backoff_queue::{BackoffQueue, Due, Failure};
use crate::filter::{Refusal, check, summary};
use crate::metrics::{Attempt, Counters};
use crate::node_info::NodeInfo;
use crate::nodes::{NodeLoad, load};
use crate::pod_affinity::{InterPodState, NamespaceLabels};
use crate::pod_info::{PodInfo, PodPhase, add};
use crate::score::best;
use crate::stores::Stores;
use crate::volumes::{Choice, Marks, Needs, Storage};

/// How long a binding counts before the watch has shown it. Longer means that it was undone.
const ASSUMED: Duration = Duration::from_secs(30);
/// The same while the watch shows nothing new of the pod at all: it is behind, and the pod has its room.
const ASSUMED_UNSEEN: Duration = Duration::from_secs(15 * 60);

/// When more pods than that have a node and are yet to run, their nodes have better to do than to store what nobody worries about.
const MANY_BEGIN: usize = 8;

/// Tells the loop that a scheduling cycle may have something to do. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Signal(Arc<SignalState>);

#[derive(Debug, Default)]
struct SignalState {
    poked: Notify,
    /// Something changed that could help a pod that fitted nowhere.
    helpful: AtomicBool,
    /// A pod came to a node.
    arrived: AtomicBool,
    /// Pods that fitted nowhere and that such a pod may help.
    affinity_waits: AtomicUsize,
    /// Pods that have a node and are yet to run.
    beginning: AtomicUsize,
}

impl Signal {
    /// A pod is new, has changed or is gone.
    pub fn pod_changed(&self, change: &Change<PodInfo>) {
        self.count(change);
        match change {
            Change::Applied { new, old, .. } => {
                let frees = new.phase == PodPhase::Ended && !new.node.is_empty();
                let ended_now =
                    frees && old.as_ref().is_none_or(|old| old.phase != PodPhase::Ended);
                let was = old.as_ref().filter(|old| !old.node.is_empty());
                let stays = new.phase == PodPhase::Active && !new.node.is_empty();
                if ended_now || stays && was.is_some_and(|was| was.labels != new.labels) {
                    self.retry_pending();
                } else if stays && was.is_none() {
                    self.pod_assigned();
                } else if new.node.is_empty()
                    && old.as_ref().is_none_or(|old| changed_beyond_status(old, new))
                {
                    self.0.poked.notify_one();
                }
            }
            Change::Deleted { old, .. } if !old.node.is_empty() => self.retry_pending(),
            Change::Deleted { .. } => {}
            Change::Synced => self.0.poked.notify_one(),
        }
    }

    fn count(&self, change: &Change<PodInfo>) {
        let (old, new) = match change {
            Change::Applied { new, old, .. } => (old.as_ref(), Some(new)),
            Change::Deleted { old, .. } => (Some(old), None),
            Change::Synced => return,
        };
        let is_starting = |pod: Option<&Arc<PodInfo>>| pod.is_some_and(|pod| pod.is_starting());
        match (is_starting(old), is_starting(new)) {
            (false, true) => drop(self.0.beginning.fetch_add(1, Ordering::Relaxed)),
            (true, false) => drop(self.0.beginning.fetch_sub(1, Ordering::Relaxed)),
            _ => {}
        }
    }

    /// Whether many pods begin on their nodes now.
    pub fn many_starting(&self) -> bool {
        self.0.beginning.load(Ordering::Relaxed) > MANY_BEGIN
    }

    /// A node is new, has changed or is gone.
    pub fn node_changed(&self, change: &Change<NodeInfo>) {
        match change {
            // Most changes of a node are reports that nothing here looks at.
            Change::Applied { new, old: Some(old), .. } if new == old => {}
            _ => self.retry_pending(),
        }
    }

    /// A pod came to a node. Most bindings are our own, and a cycle for each would be for nothing.
    fn pod_assigned(&self) {
        self.0.arrived.store(true, Ordering::SeqCst);
        if self.0.affinity_waits.load(Ordering::SeqCst) > 0 {
            self.0.poked.notify_one();
        }
    }

    /// Says how many pods wait for others to come.
    fn set_affinity_waits(&self, count: usize) {
        self.0.affinity_waits.store(count, Ordering::SeqCst);
        // Who came during the pass was not told.
        if count > 0 && self.0.arrived.load(Ordering::SeqCst) {
            self.0.poked.notify_one();
        }
    }

    /// Something has changed that could help a pod that waits.
    pub fn retry_pending(&self) {
        self.0.helpful.store(true, Ordering::Relaxed);
        self.0.poked.notify_one();
    }
}

/// Whether a pod has changed in more than what we ourselves have written about it.
fn changed_beyond_status(old: &PodInfo, new: &PodInfo) -> bool {
    let ours = |pod: &PodInfo| {
        let mut pod = pod.clone();
        pod.unscheduled = None;
        pod.reference = ObjectReference::default();
        pod
    };
    ours(old) != ours(new)
}

/// Gives pods their nodes.
pub struct Scheduler {
    /// Where bindings go.
    pub client: Client,
    /// All about storage.
    pub stores: Stores,
    /// The annotations of claims.
    pub marks: Marks,
    /// All pods.
    pub pods: Store<PodInfo>,
    /// All nodes.
    pub nodes: Store<NodeInfo>,
    /// The labels of all namespaces.
    pub namespaces: Store<BTreeMap<String, String>>,
    /// Tells people.
    pub events: Recorder,
    /// The name by which pods ask for this scheduler.
    pub name: String,
    /// Counts.
    pub counters: Counters,
    /// Where the loop shows what it does.
    pub status: TaskStatus,
    /// By uid, pods bound by us that the watch does not show with their node yet.
    pub assumed: BTreeMap<String, (Arc<PodInfo>, Instant)>,
    /// By uid, pods whose node is chosen and whose volumes are not bound yet: their place is kept.
    pub held: BTreeMap<String, Reservation>,
    /// Pods that have failed.
    pub backoff: BackoffQueue,
}

/// A pod that keeps a place.
#[derive(Clone, Debug)]
pub struct Reservation {
    /// The pod, on its node.
    pod: Arc<PodInfo>,
    /// Since when.
    since: Instant,
}

impl Scheduler {
    /// Runs a scheduling cycle whenever there may be something to do, until drained.
    pub async fn run(mut self, signal: Signal, drain: DrainWatch) {
        let mut next: Option<Instant> = None;
        loop {
            let due = async {
                match next {
                    Some(next) => tokio::time::sleep_until(next.into()).await,
                    None => std::future::pending().await,
                }
            };
            // Cancel safe: a poke that is not taken stays.
            tokio::select! {
                biased;
                () = drain.asked() => return,
                () = signal.0.poked.notified() => {}
                () = due => {}
            }
            if signal.0.helpful.swap(false, Ordering::Relaxed) {
                self.backoff.note_cluster_change();
            }
            if signal.0.arrived.swap(false, Ordering::SeqCst) {
                self.backoff.note_assigned_pod();
            }
            next = self.run_cycle().await;
            signal.set_affinity_waits(self.backoff.count_affinity_waits());
        }
    }

    /// One scheduling cycle; when the next is due if nothing changes.
    async fn run_cycle(&mut self) -> Option<Instant> {
        let pods = self.observe();
        let nodes = self.nodes.list().into_iter().map(|(_, node)| node).collect();
        let mut loads = load(nodes, &pods);
        let labels =
            |(key, labels): (ObjectKey, Arc<BTreeMap<_, _>>)| (key.name, (*labels).clone());
        let namespaces: NamespaceLabels = self.namespaces.list().into_iter().map(labels).collect();
        let mut next: Option<Instant> = None;
        let (mut bound, mut failed) = (0, 0);
        let mut due = Vec::new();
        for pod in self.pending(&pods) {
            match self.backoff.due(&pod.key, &pod.uid, Instant::now()) {
                Due::Now => due.push(pod),
                Due::At(at) => {
                    next = Some(next.map_or(at, |earlier| earlier.min(at)));
                    self.keep_place(&pod, &mut loads);
                }
            }
        }
        // Who has a place already comes first: nobody is to take it meanwhile.
        due.sort_by_key(|pod| !self.held.contains_key(&pod.uid));
        let claims = due.iter().any(|pod| !pod.claims.is_empty());
        let mut storage = if claims { self.stores.snapshot() } else { Storage::default() };
        for pod in due {
            if (bound, failed) == (0, 0) {
                self.status.started(format!("pod {}", pod.key));
            }
            let begun = Instant::now();
            let outcome = self.schedule(&pod, &mut loads, &namespaces, &mut storage).await;
            let attempt = match outcome {
                Ok(()) => Attempt::Scheduled,
                Err(Failure::Unschedulable | Failure::PodAffinity | Failure::Volumes) => {
                    Attempt::Unschedulable
                }
                Err(Failure::Error) => Attempt::Error,
            };
            self.counters.attempt(attempt, begun.elapsed());
            match outcome {
                Ok(()) => add(&mut bound, 1),
                Err(failure) => {
                    add(&mut failed, 1);
                    self.backoff.note_failure(&pod.key, &pod.uid, failure, Instant::now());
                    if let Due::At(at) = self.backoff.due(&pod.key, &pod.uid, Instant::now()) {
                        next = Some(next.map_or(at, |earlier| earlier.min(at)));
                    }
                }
            }
        }
        self.counters.pending(self.backoff.len());
        if (bound, failed) != (0, 0) {
            self.status.done(format!("{bound} bound, {failed} waiting"));
        }
        next
    }

    /// All pods, those that we have bound on their node.
    fn observe(&mut self) -> Vec<Arc<PodInfo>> {
        let shown = self.pods.list();
        let now = Instant::now();
        self.assumed.retain(|_, (pod, since)| {
            let found = self.pods.get(&pod.key);
            found.is_some_and(|f| is_assumed(pod, &f, now.saturating_duration_since(*since)))
        });
        self.held.retain(|uid, held| {
            let found = self.pods.get(&held.pod.key);
            found.is_some_and(|found| found.uid == *uid && found.node.is_empty())
        });
        self.backoff.retain(|key, uid| {
            self.pods.get(key).is_some_and(|pod| pod.uid == uid && pod.node.is_empty())
        });
        let assumed = |pod: Arc<PodInfo>| match self.assumed.get(&pod.uid) {
            Some((assumed, _)) => assumed.clone(),
            None => pod,
        };
        shown.into_iter().map(|(_, pod)| assumed(pod)).collect()
    }

    /// The pods that wait for us, most important and then oldest first.
    fn pending(&self, pods: &[Arc<PodInfo>]) -> Vec<Arc<PodInfo>> {
        let ours = |pod: &&Arc<PodInfo>| {
            pod.node.is_empty() && pod.phase == PodPhase::Active && pod.scheduler == self.name
        };
        let mut pending: Vec<Arc<PodInfo>> = pods.iter().filter(ours).cloned().collect();
        pending.sort_by(|a, b| {
            let by_priority = b.priority.cmp(&a.priority);
            by_priority.then_with(|| (a.created, &a.key).cmp(&(b.created, &b.key)))
        });
        pending
    }

    async fn schedule(
        &mut self,
        pod: &Arc<PodInfo>,
        loads: &mut [NodeLoad],
        namespaces: &NamespaceLabels,
        storage: &mut Storage,
    ) -> Result<(), Failure> {
        let storage_view = StorageView { storage, marks: &self.marks };
        let placed = isolate_pod(pod, || choose_node(pod, loads, namespaces, storage_view));
        let NodeChoice { nth, choices } = match placed {
            Ok(place) => place,
            Err(why) => {
                self.held.remove(&pod.uid);
                let Some(why) = why else { return Err(Failure::Error) };
                self.tell(pod, &why).await;
                let has_affinity = pod.constraints.is_wanted();
                return Err(if has_affinity {
                    Failure::PodAffinity
                } else {
                    Failure::Unschedulable
                });
            }
        };
        let Some(load) = loads.get_mut(nth) else { return Err(Failure::Error) };
        let node = load.node.name.clone();
        if !choices.is_empty() {
            let held = self.bind_volumes(pod, &node, &choices, storage).await;
            if let Some(held) = held {
                load.add(held);
            }
            return Err(Failure::Volumes);
        }
        self.held.remove(&pod.uid);
        if let Err(error) = self.bind(pod, &node).await {
            tracing::warn!(pod = %pod.key, node, error = chain(&error), "not bound");
            return Err(Failure::Error);
        }
        let placed = Arc::new(PodInfo { node: node.clone(), ..(**pod).clone() });
        load.add(placed.clone());
        self.assumed.insert(pod.uid.clone(), (placed, Instant::now()));
        self.backoff.remove(&pod.key);
        let message = format!("Successfully assigned {} to {node}", pod.key);
        self.events.event(&pod.reference, EventKind::Normal, "Scheduled", message);
        tracing::info!(pod = %pod.key, node, "bound");
        Ok(())
    }

    async fn bind(&self, pod: &PodInfo, node: &str) -> Result<(), ClientError> {
        let ObjectKey { namespace, name } = &pod.key;
        let metadata = ObjectMeta {
            name: name.clone(),
            namespace: namespace.clone(),
            uid: pod.uid.clone(),
            ..ObjectMeta::default()
        };
        let target = ObjectReference {
            kind: "Node".to_owned(),
            name: node.to_owned(),
            ..ObjectReference::default()
        };
        let binding = Binding { metadata, target };
        self.client.within::<Pod>(namespace).post_sub(name, "binding", &binding).await
    }

    /// Says that a pod fits nowhere: as an event, and as a condition if it does not say so already.
    async fn tell(&self, pod: &PodInfo, why: &str) {
        self.events.event(&pod.reference, EventKind::Warning, "FailedScheduling", why);
        let told = pod.unscheduled.as_ref();
        if told.is_some_and(|told| told.reason == "Unschedulable" && told.message == why) {
            return;
        }
        let since = told.map(|told| told.last_transition_time).filter(|time| time.is_set());
        let condition = json!({
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": why,
            "lastProbeTime": null,
            "lastTransitionTime": since.unwrap_or_else(now),
        });
        let patch = Patch::Strategic(json!({
            "metadata": { "uid": pod.uid },
            "status": { "conditions": [condition] },
        }));
        let api = self.client.within::<Pod>(&pod.key.namespace);
        if let Err(error) = api.patch_status(&pod.key.name, &patch, &WriteParams::default()).await {
            tracing::debug!(pod = %pod.key, error = chain(&error), "condition not written");
        }
    }
}

/// Whether a pod that was bound `age` ago counts as bound although it is shown without a node.
fn is_assumed(bound: &PodInfo, shown: &PodInfo, age: Duration) -> bool {
    let unseen = shown.reference.resource_version == bound.reference.resource_version;
    let limit = if unseen { ASSUMED_UNSEEN } else { ASSUMED };
    shown.uid == bound.uid && shown.node.is_empty() && age < limit
}

/// Looks for a place with a boundary around the pod: a panic is its own failure, without a reason that people are told.
fn isolate_pod<T>(
    pod: &PodInfo,
    look: impl FnOnce() -> Result<T, String>,
) -> Result<T, Option<String>> {
    match isolate_sync(look) {
        Ok(found) => found.map_err(Some),
        Err(panicked) => {
            tracing::error!(pod = %pod.key, %panicked, "scheduling the pod panicked, retried after its back-off");
            Err(None)
        }
    }
}

/// A node for a pod.
#[derive(Clone, Debug, PartialEq)]
struct NodeChoice {
    /// Which, by its place among the loads.
    nth: usize,
    /// How the claims that wait for the node get their volumes; empty when none waits.
    choices: Vec<Choice>,
}

/// The volumes that there are.
#[derive(Clone, Copy)]
struct StorageView<'a> {
    storage: &'a Storage,
    marks: &'a Marks,
}

/// The best node for the pod, or why there is none.
fn choose_node(
    pod: &PodInfo,
    loads: &[NodeLoad],
    namespaces: &NamespaceLabels,
    storage_view: StorageView<'_>,
) -> Result<NodeChoice, String> {
    let StorageView { storage, marks } = storage_view;
    let nowhere =
        |refusal: Refusal| summary(loads.len(), loads.iter().map(|_| vec![refusal.clone()]));
    let needs = Needs::of(pod, storage, marks).map_err(nowhere)?;
    if needs.is_shared(pod, loads) {
        let why = "node has pod using PersistentVolumeClaim with the same name and ReadWriteOncePod access mode";
        return Err(nowhere(Refusal::Claims(why.to_owned())));
    }
    let inter_pod = InterPodState::of(pod, loads, namespaces);
    let mut fitting: Vec<(NodeChoice, &NodeLoad)> = Vec::new();
    let mut refusals: Vec<Vec<Refusal>> = Vec::new();
    for (nth, load) in loads.iter().enumerate() {
        let checked = check(pod, load).and_then(|()| {
            let choices = needs.check(pod, load, storage, marks).map_err(|r| vec![r])?;
            inter_pod.refusal(&load.node).map_or(Ok(choices), |r| Err(vec![r]))
        });
        match checked {
            Ok(choices) => fitting.push((NodeChoice { nth, choices }, load)),
            Err(refusal) => refusals.push(refusal),
        }
    }
    let candidates: Vec<&NodeLoad> = fitting.iter().map(|(_, load)| *load).collect();
    match best(pod, &candidates) {
        Some(nth) if nth < fitting.len() => Ok(fitting.swap_remove(nth).0),
        _ => Err(summary(loads.len(), refusals)),
    }
}

fn now() -> Time {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Time::from_unix(i64::try_from(since.as_secs()).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::pod_info::examples::{node, pod};
    use crate::pod_info::{CPU, MEMORY, PODS};

    fn none() -> NamespaceLabels {
        NamespaceLabels::new()
    }

    /// Where a pod without claims is put.
    fn put(pod: &PodInfo, loads: &[NodeLoad]) -> Result<usize, String> {
        let marks = Marks::new(crate::pod_info::examples::names());
        let storage_view = StorageView { storage: &Storage::default(), marks: &marks };
        choose_node(pod, loads, &none(), storage_view).map(|place| place.nth)
    }

    fn loads(count: usize) -> Vec<NodeLoad> {
        (0..count).map(|nth| NodeLoad::empty(Arc::new(node(&format!("n{nth}"))))).collect()
    }

    #[test]
    fn says_why_there_is_no_node() {
        let mut loads = loads(2);
        loads[0].add(pod("x", 4000, 0));
        assert_eq!(put(&pod("p", 100, 0), &loads), Ok(1));
        assert_eq!(
            put(&pod("p", 5000, 0), &loads).unwrap_err(),
            "0/2 nodes are available: 2 Insufficient cpu."
        );
        assert_eq!(put(&pod("p", 1, 0), &[]).unwrap_err(), "no nodes available to schedule pods");
    }

    #[test]
    fn a_pod_whose_handling_panics_fails_alone() {
        let poor = pod("p", 1, 1);
        assert_eq!(isolate_pod(&poor, || -> Result<(), String> { panic!("hostile") }), Err(None));
        assert_eq!(isolate_pod(&poor, || Ok(1)), Ok(1));
        assert_eq!(isolate_pod(&poor, || Err::<(), _>("no".into())), Err(Some("no".into())));
    }

    #[test]
    fn a_binding_counts_while_the_watch_is_behind() {
        let mut bound = pod("p", 1, 1);
        bound.reference.resource_version = "5".into();
        let shown = bound.clone();
        bound.node = "n".into();
        let counts = |shown: &PodInfo, secs| is_assumed(&bound, shown, Duration::from_secs(secs));
        assert!(counts(&shown, 1) && counts(&shown, 600) && !counts(&shown, 900));
        let mut newer = shown.clone();
        newer.reference.resource_version = "9".into();
        assert!(counts(&newer, 29) && !counts(&newer, 30), "it was undone");
        assert!(!counts(&PodInfo { uid: "another".into(), ..shown }, 1));
        assert!(!counts(&bound.clone(), 1), "it is shown");
    }

    #[test]
    fn assigned_pods_wake_pods_with_affinity() {
        let pokes = |signal: &Signal| {
            let poked = signal.0.poked.notified();
            tokio::pin!(poked);
            poked.enable()
        };
        let come = |signal: &Signal, old: Option<PodInfo>, new: PodInfo| {
            let (key, new) = (new.key.clone(), Arc::new(new));
            signal.pod_changed(&Change::Applied { key, new, old: old.map(Arc::new) });
        };
        let there = || PodInfo { node: "n".into(), ..pod("db", 1, 1) };
        let signal = Signal::default();
        come(&signal, Some(pod("db", 1, 1)), there());
        assert!(!pokes(&signal), "nobody cares");
        signal.set_affinity_waits(1);
        assert!(pokes(&signal), "it came while the pass was under way");
        signal.0.arrived.store(false, Ordering::SeqCst);
        come(&signal, Some(there()), there());
        assert!(!pokes(&signal), "no news");
        come(&signal, None, there());
        assert!(pokes(&signal) && signal.0.arrived.load(Ordering::SeqCst));
        let mut renamed = there();
        renamed.labels.insert("app".into(), "other".into());
        come(&signal, Some(there()), renamed);
        assert!(pokes(&signal) && signal.0.helpful.load(Ordering::Relaxed));
    }

    #[test]
    fn many_begin_while_more_than_a_few_have_a_node_and_do_not_run() {
        let signal = Signal::default();
        let bound = |nth: usize| PodInfo { node: "n".into(), ..pod(&format!("p{nth}"), 1, 1) };
        let key = |pod: &PodInfo| pod.key.clone();
        let apply = |old: Option<PodInfo>, new: PodInfo| {
            signal.pod_changed(&Change::Applied {
                key: key(&new),
                new: Arc::new(new),
                old: old.map(Arc::new),
            });
        };
        // Who has no node yet does not count.
        for nth in 0..=MANY_BEGIN {
            apply(None, pod(&format!("p{nth}"), 1, 1));
        }
        assert!(!signal.many_starting());
        for nth in 0..=MANY_BEGIN {
            assert!(!signal.many_starting(), "{nth}");
            apply(Some(pod(&format!("p{nth}"), 1, 1)), bound(nth));
        }
        assert!(signal.many_starting());
        // A report that changes nothing of it; one that runs; one that goes without.
        apply(Some(bound(0)), bound(0));
        assert!(signal.many_starting());
        let runs = PodInfo { has_begun: true, ..bound(0) };
        apply(Some(bound(0)), runs.clone());
        assert!(!signal.many_starting());
        signal.pod_changed(&Change::Deleted { key: key(&runs), old: Arc::new(runs) });
        apply(None, bound(0));
        assert!(signal.many_starting());
        signal.pod_changed(&Change::Deleted { key: key(&bound(1)), old: Arc::new(bound(1)) });
        assert!(!signal.many_starting());
    }

    #[test]
    fn our_own_reports_are_no_news() {
        let quiet = pod("p", 1, 1);
        let mut told = quiet.clone();
        told.unscheduled = Some(Default::default());
        told.reference.resource_version = "9".into();
        assert!(!changed_beyond_status(&quiet, &told));
        told.tolerations.push(Default::default());
        assert!(changed_beyond_status(&quiet, &told));
    }

    proptest! {
        /// Whatever is asked for, no node gets more than it has.
        #[test]
        fn no_node_is_overbooked(asked in proptest::collection::vec((0..3000i64, 0..6i64), 1..60)) {
            let mut loads = loads(4);
            for (nth, (cpu, gib)) in asked.into_iter().enumerate() {
                let pod = pod(&nth.to_string(), cpu, gib << 30);
                match put(&pod, &loads) {
                    Ok(nth) => loads[nth].add(pod),
                    Err(_) => prop_assert!(loads.iter().all(|load| check(&pod, load).is_err())),
                }
            }
            for load in loads {
                for resource in [CPU, MEMORY] {
                    let requested = load.requested.get(resource).copied().unwrap_or(0);
                    prop_assert!(requested <= load.node.allocatable[resource]);
                }
                prop_assert!(load.pods <= load.node.allocatable[PODS]);
            }
        }
    }
}
