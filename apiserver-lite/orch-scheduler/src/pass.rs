//! A pass: every pod that waits for a node, most important first, is given the best node that it fits on, or is
//! told why there is none.

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

use crate::company::{NamespaceLabels, Neighbours};
use crate::facts::{Life, NodeFacts, PodFacts, add};
use crate::filter::{Refusal, check, summary};
use crate::metrics::{Attempt, Counters};
use crate::nodes::{NodeLoad, load};
use crate::score::best;
use crate::stores::Stores;
use crate::volumes::{Choice, Marks, Needs, Storage};
use crate::waiting::{Due, Failure, Waiting};

/// How long a binding counts before the watch has shown it. Longer means that it was undone.
const ASSUMED: Duration = Duration::from_secs(30);
/// The same while the watch shows nothing new of the pod at all: it is behind, and the pod has its room.
const ASSUMED_UNSEEN: Duration = Duration::from_secs(15 * 60);

/// When more pods than that have a node and are yet to run, their nodes have better to do than to store what nobody worries about.
const MANY_BEGIN: usize = 8;

/// Tells the loop that a pass may have something to do. Cheap to clone.
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
    want_company: AtomicUsize,
    /// Pods that have a node and are yet to run.
    beginning: AtomicUsize,
}

impl Signal {
    /// A pod is new, has changed or is gone.
    pub fn pod(&self, change: &Change<PodFacts>) {
        self.count(change);
        match change {
            Change::Applied { new, old, .. } => {
                let frees = new.life == Life::Ended && !new.node.is_empty();
                let ended_now = frees && old.as_ref().is_none_or(|old| old.life != Life::Ended);
                let was = old.as_ref().filter(|old| !old.node.is_empty());
                let stays = new.life == Life::Active && !new.node.is_empty();
                if ended_now || stays && was.is_some_and(|was| was.labels != new.labels) {
                    self.helpful();
                } else if stays && was.is_none() {
                    self.arrived();
                } else if new.node.is_empty() && old.as_ref().is_none_or(|old| asks_anew(old, new))
                {
                    self.0.poked.notify_one();
                }
            }
            Change::Deleted { old, .. } if !old.node.is_empty() => self.helpful(),
            Change::Deleted { .. } => {}
            Change::Synced => self.0.poked.notify_one(),
        }
    }

    fn count(&self, change: &Change<PodFacts>) {
        let (old, new) = match change {
            Change::Applied { new, old, .. } => (old.as_ref(), Some(new)),
            Change::Deleted { old, .. } => (Some(old), None),
            Change::Synced => return,
        };
        let begins = |pod: Option<&Arc<PodFacts>>| pod.is_some_and(|pod| pod.begins());
        match (begins(old), begins(new)) {
            (false, true) => drop(self.0.beginning.fetch_add(1, Ordering::Relaxed)),
            (true, false) => drop(self.0.beginning.fetch_sub(1, Ordering::Relaxed)),
            _ => {}
        }
    }

    /// Whether many pods begin on their nodes now.
    pub fn many_begin(&self) -> bool {
        self.0.beginning.load(Ordering::Relaxed) > MANY_BEGIN
    }

    /// A node is new, has changed or is gone.
    pub fn node(&self, change: &Change<NodeFacts>) {
        match change {
            // Most changes of a node are reports that nothing here looks at.
            Change::Applied { new, old: Some(old), .. } if new == old => {}
            _ => self.helpful(),
        }
    }

    /// A pod came to a node. Most bindings are our own, and a pass for each would be for nothing.
    fn arrived(&self) {
        self.0.arrived.store(true, Ordering::SeqCst);
        if self.0.want_company.load(Ordering::SeqCst) > 0 {
            self.0.poked.notify_one();
        }
    }

    /// Says how many pods wait for others to come.
    fn want_company(&self, count: usize) {
        self.0.want_company.store(count, Ordering::SeqCst);
        // Who came during the pass was not told.
        if count > 0 && self.0.arrived.load(Ordering::SeqCst) {
            self.0.poked.notify_one();
        }
    }

    /// Something has changed that could help a pod that waits.
    pub fn helpful(&self) {
        self.0.helpful.store(true, Ordering::Relaxed);
        self.0.poked.notify_one();
    }
}

/// Whether a pod has changed in more than what we ourselves have written about it.
fn asks_anew(old: &PodFacts, new: &PodFacts) -> bool {
    let ours = |pod: &PodFacts| {
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
    pub pods: Store<PodFacts>,
    /// All nodes.
    pub nodes: Store<NodeFacts>,
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
    pub assumed: BTreeMap<String, (Arc<PodFacts>, Instant)>,
    /// By uid, pods whose node is chosen and whose volumes are not bound yet: their place is kept.
    pub held: BTreeMap<String, Held>,
    /// Pods that have failed.
    pub waiting: Waiting,
}

/// A pod that keeps a place.
#[derive(Clone, Debug)]
pub struct Held {
    /// The pod, on its node.
    pod: Arc<PodFacts>,
    /// Since when.
    since: Instant,
}

impl Scheduler {
    /// Makes a pass whenever there may be something to do, until drained.
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
                self.waiting.something_changed();
            }
            if signal.0.arrived.swap(false, Ordering::SeqCst) {
                self.waiting.somebody_came();
            }
            next = self.pass().await;
            signal.want_company(self.waiting.want_company());
        }
    }

    /// One pass; when the next is due if nothing changes.
    async fn pass(&mut self) -> Option<Instant> {
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
            match self.waiting.due(&pod.key, &pod.uid, Instant::now()) {
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
                Err(Failure::Unschedulable | Failure::Company | Failure::Volumes) => {
                    Attempt::Unschedulable
                }
                Err(Failure::Error) => Attempt::Error,
            };
            self.counters.attempt(attempt, begun.elapsed());
            match outcome {
                Ok(()) => add(&mut bound, 1),
                Err(failure) => {
                    add(&mut failed, 1);
                    self.waiting.failed(&pod.key, &pod.uid, failure, Instant::now());
                    if let Due::At(at) = self.waiting.due(&pod.key, &pod.uid, Instant::now()) {
                        next = Some(next.map_or(at, |earlier| earlier.min(at)));
                    }
                }
            }
        }
        self.counters.pending(self.waiting.len());
        if (bound, failed) != (0, 0) {
            self.status.done(format!("{bound} bound, {failed} waiting"));
        }
        next
    }

    /// All pods, those that we have bound on their node.
    fn observe(&mut self) -> Vec<Arc<PodFacts>> {
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
        self.waiting.retain(|key, uid| {
            self.pods.get(key).is_some_and(|pod| pod.uid == uid && pod.node.is_empty())
        });
        let assumed = |pod: Arc<PodFacts>| match self.assumed.get(&pod.uid) {
            Some((assumed, _)) => assumed.clone(),
            None => pod,
        };
        shown.into_iter().map(|(_, pod)| assumed(pod)).collect()
    }

    /// The pods that wait for us, most important and then oldest first.
    fn pending(&self, pods: &[Arc<PodFacts>]) -> Vec<Arc<PodFacts>> {
        let ours = |pod: &&Arc<PodFacts>| {
            pod.node.is_empty() && pod.life == Life::Active && pod.scheduler == self.name
        };
        let mut pending: Vec<Arc<PodFacts>> = pods.iter().filter(ours).cloned().collect();
        pending.sort_by(|a, b| {
            let by_priority = b.priority.cmp(&a.priority);
            by_priority.then_with(|| (a.created, &a.key).cmp(&(b.created, &b.key)))
        });
        pending
    }

    async fn schedule(
        &mut self,
        pod: &Arc<PodFacts>,
        loads: &mut [NodeLoad],
        namespaces: &NamespaceLabels,
        storage: &mut Storage,
    ) -> Result<(), Failure> {
        let shelves = Shelves { storage, marks: &self.marks };
        let placed = alone(pod, || place(pod, loads, namespaces, shelves));
        let Place { nth, choices } = match placed {
            Ok(place) => place,
            Err(why) => {
                self.held.remove(&pod.uid);
                let Some(why) = why else { return Err(Failure::Error) };
                self.tell(pod, &why).await;
                let company = pod.company.is_wanted();
                return Err(if company { Failure::Company } else { Failure::Unschedulable });
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
        let placed = Arc::new(PodFacts { node: node.clone(), ..(**pod).clone() });
        load.add(placed.clone());
        self.assumed.insert(pod.uid.clone(), (placed, Instant::now()));
        self.waiting.succeeded(&pod.key);
        let message = format!("Successfully assigned {} to {node}", pod.key);
        self.events.event(&pod.reference, EventKind::Normal, "Scheduled", message);
        tracing::info!(pod = %pod.key, node, "bound");
        Ok(())
    }

    async fn bind(&self, pod: &PodFacts, node: &str) -> Result<(), ClientError> {
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
    async fn tell(&self, pod: &PodFacts, why: &str) {
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
fn is_assumed(bound: &PodFacts, shown: &PodFacts, age: Duration) -> bool {
    let unseen = shown.reference.resource_version == bound.reference.resource_version;
    let limit = if unseen { ASSUMED_UNSEEN } else { ASSUMED };
    shown.uid == bound.uid && shown.node.is_empty() && age < limit
}

/// Looks for a place with a boundary around the pod: a panic is its own failure, without a reason that people are told.
fn alone<T>(pod: &PodFacts, look: impl FnOnce() -> Result<T, String>) -> Result<T, Option<String>> {
    match isolate_sync(look) {
        Ok(found) => found.map_err(Some),
        Err(panicked) => {
            tracing::error!(pod = %pod.key, %panicked, "no place looked for, retried after its back-off");
            Err(None)
        }
    }
}

/// A node for a pod.
#[derive(Clone, Debug, PartialEq)]
struct Place {
    /// Which, by its place among the loads.
    nth: usize,
    /// How the claims that wait for the node get their volumes; empty when none waits.
    choices: Vec<Choice>,
}

/// The volumes that there are.
#[derive(Clone, Copy)]
struct Shelves<'a> {
    storage: &'a Storage,
    marks: &'a Marks,
}

/// The best node for the pod, or why there is none.
fn place(
    pod: &PodFacts,
    loads: &[NodeLoad],
    namespaces: &NamespaceLabels,
    shelves: Shelves<'_>,
) -> Result<Place, String> {
    let Shelves { storage, marks } = shelves;
    let nowhere =
        |refusal: Refusal| summary(loads.len(), loads.iter().map(|_| vec![refusal.clone()]));
    let needs = Needs::of(pod, storage, marks).map_err(nowhere)?;
    if needs.is_shared(pod, loads) {
        let why = "node has pod using PersistentVolumeClaim with the same name and ReadWriteOncePod access mode";
        return Err(nowhere(Refusal::Claims(why.to_owned())));
    }
    let neighbours = Neighbours::of(pod, loads, namespaces);
    let mut fitting: Vec<(Place, &NodeLoad)> = Vec::new();
    let mut refusals: Vec<Vec<Refusal>> = Vec::new();
    for (nth, load) in loads.iter().enumerate() {
        let checked = check(pod, load).and_then(|()| {
            let choices = needs.check(pod, load, storage, marks).map_err(|r| vec![r])?;
            neighbours.refusal(&load.node).map_or(Ok(choices), |r| Err(vec![r]))
        });
        match checked {
            Ok(choices) => fitting.push((Place { nth, choices }, load)),
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
    use crate::facts::examples::{node, pod};
    use crate::facts::{CPU, MEMORY, PODS};

    fn none() -> NamespaceLabels {
        NamespaceLabels::new()
    }

    /// Where a pod without claims is put.
    fn put(pod: &PodFacts, loads: &[NodeLoad]) -> Result<usize, String> {
        let marks = Marks::new(crate::facts::examples::names());
        let shelves = Shelves { storage: &Storage::default(), marks: &marks };
        place(pod, loads, &none(), shelves).map(|place| place.nth)
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
        assert_eq!(alone(&poor, || -> Result<(), String> { panic!("hostile") }), Err(None));
        assert_eq!(alone(&poor, || Ok(1)), Ok(1));
        assert_eq!(alone(&poor, || Err::<(), _>("no".into())), Err(Some("no".into())));
    }

    #[test]
    fn a_binding_counts_while_the_watch_is_behind() {
        let mut bound = pod("p", 1, 1);
        bound.reference.resource_version = "5".into();
        let shown = bound.clone();
        bound.node = "n".into();
        let counts = |shown: &PodFacts, secs| is_assumed(&bound, shown, Duration::from_secs(secs));
        assert!(counts(&shown, 1) && counts(&shown, 600) && !counts(&shown, 900));
        let mut newer = shown.clone();
        newer.reference.resource_version = "9".into();
        assert!(counts(&newer, 29) && !counts(&newer, 30), "it was undone");
        assert!(!counts(&PodFacts { uid: "another".into(), ..shown }, 1));
        assert!(!counts(&bound.clone(), 1), "it is shown");
    }

    #[test]
    fn pods_that_come_to_nodes_wake_those_that_want_company() {
        let pokes = |signal: &Signal| {
            let poked = signal.0.poked.notified();
            tokio::pin!(poked);
            poked.enable()
        };
        let come = |signal: &Signal, old: Option<PodFacts>, new: PodFacts| {
            let (key, new) = (new.key.clone(), Arc::new(new));
            signal.pod(&Change::Applied { key, new, old: old.map(Arc::new) });
        };
        let there = || PodFacts { node: "n".into(), ..pod("db", 1, 1) };
        let signal = Signal::default();
        come(&signal, Some(pod("db", 1, 1)), there());
        assert!(!pokes(&signal), "nobody cares");
        signal.want_company(1);
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
        let bound = |nth: usize| PodFacts { node: "n".into(), ..pod(&format!("p{nth}"), 1, 1) };
        let key = |pod: &PodFacts| pod.key.clone();
        let apply = |old: Option<PodFacts>, new: PodFacts| {
            signal.pod(&Change::Applied {
                key: key(&new),
                new: Arc::new(new),
                old: old.map(Arc::new),
            });
        };
        // Who has no node yet does not count.
        for nth in 0..=MANY_BEGIN {
            apply(None, pod(&format!("p{nth}"), 1, 1));
        }
        assert!(!signal.many_begin());
        for nth in 0..=MANY_BEGIN {
            assert!(!signal.many_begin(), "{nth}");
            apply(Some(pod(&format!("p{nth}"), 1, 1)), bound(nth));
        }
        assert!(signal.many_begin());
        // A report that changes nothing of it; one that runs; one that goes without.
        apply(Some(bound(0)), bound(0));
        assert!(signal.many_begin());
        let runs = PodFacts { has_begun: true, ..bound(0) };
        apply(Some(bound(0)), runs.clone());
        assert!(!signal.many_begin());
        signal.pod(&Change::Deleted { key: key(&runs), old: Arc::new(runs) });
        apply(None, bound(0));
        assert!(signal.many_begin());
        signal.pod(&Change::Deleted { key: key(&bound(1)), old: Arc::new(bound(1)) });
        assert!(!signal.many_begin());
    }

    #[test]
    fn our_own_reports_are_no_news() {
        let quiet = pod("p", 1, 1);
        let mut told = quiet.clone();
        told.unscheduled = Some(Default::default());
        told.reference.resource_version = "9".into();
        assert!(!asks_anew(&quiet, &told));
        told.tolerations.push(Default::default());
        assert!(asks_anew(&quiet, &told));
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
