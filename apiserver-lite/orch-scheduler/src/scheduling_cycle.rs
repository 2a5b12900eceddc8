//! A scheduling cycle: selects a node for every pending pod in order of priority, and binds it. For a pod without a feasible node pods of lower
//! priority may have to end; it gets an event and waits.

mod bind;
mod bind_volumes;
mod end_victim;
mod preempt;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use proto_api::ObjectKey;
use proto_api::core::v1::ObjectReference;
use proto_api::event_report::EventKind;
use proto_client::events::Recorder;
use proto_client::{Client, Store};
use proto_daemon::drain::DrainWatch;
use proto_daemon::exit::chain;
use proto_daemon::statusz::TaskStatus;

use crate::backoff_queue::{BackoffQueue, Due, Failure, RetryTimes};
use crate::cycle_trigger::CycleTrigger;
use crate::extenders::Extenders;
use crate::isolate_pod::isolate_pod;
use crate::metrics::{Attempt, SchedulerMetrics};
use crate::selector_informers::SelectorInformers;
use crate::storage_informers::StorageInformers;
use apiserver_scheduling::default_spread::spread_by_default;
use apiserver_scheduling::node_info::NodeInfo;
use apiserver_scheduling::nodes::{NodeLoad, load};
use apiserver_scheduling::nominations::{NominatedLoads, Nominations};
use apiserver_scheduling::pod_affinity::NamespaceLabels;
use apiserver_scheduling::pod_info::{PodInfo, PodPhase};
use apiserver_scheduling::preemption::DisruptionBudget;
use apiserver_scheduling::profile::Profile;
use apiserver_scheduling::reservations::Reservations;
use apiserver_scheduling::resource_amounts::add;
use apiserver_scheduling::select_node::{
    FitError, NodeChoice, NodeView, SelectError, SelectionRules, StorageView, find_feasible,
    select_feasible, select_node,
};
use apiserver_scheduling::selected_counts::SelectedCounts;
use apiserver_scheduling::volumes::{BindingAnnotations, StorageSnapshot};
use bind::FailureReason;
use preempt::Nomination;

/// Bindings that are written at the same time. Their pods are due in order, the nodes selected one after the other.
const BINDINGS_MAX: usize = 32;
/// How long a cycle takes up pods. The next one begins at once with those that are left, unless the program ends; what has changed meanwhile counts.
const CYCLE_MAX: Duration = Duration::from_secs(1);
/// How long a binding is assumed before the watch shows it. After that it must have been undone.
const ASSUMED: Duration = Duration::from_secs(30);
/// The same while the watch shows no newer version of the pod: the watch is behind, and the pod occupies its node.
const ASSUMED_UNSEEN: Duration = Duration::from_secs(15 * 60);

/// Assigns pods to nodes.
pub struct Scheduler {
    client: Client,
    storage: StorageInformers,
    annotations: BindingAnnotations,
    extenders: Extenders,
    caches: ClusterCaches,
    /// How pods are scheduled, by their `schedulerName`.
    profiles: BTreeMap<String, ProfileInUse>,
    counters: SchedulerMetrics,
    status: TaskStatus,
    /// Pods bound by this scheduler that the watch shows without a node, by uid.
    assumed: BTreeMap<String, (Arc<PodInfo>, Instant)>,
    reserved: Reservations,
    nominations: Nominations,
    backoff: BackoffQueue,
}

/// A profile, and the events of its pods.
pub struct ProfileInUse {
    pub profile: Arc<Profile>,
    pub events: Recorder,
}

/// The caches of pods, nodes, namespaces and disruption budgets, and of the selectors of default spread constraints.
pub struct ClusterCaches {
    /// All pods.
    pub pods: Store<PodInfo>,
    /// All nodes.
    pub nodes: Store<NodeInfo>,
    /// The labels of all namespaces.
    pub namespaces: Store<BTreeMap<String, String>>,
    /// All PodDisruptionBudgets.
    pub budgets: Store<DisruptionBudget>,
    pub selectors: SelectorInformers,
}

impl ClusterCaches {
    /// Waits until they are complete.
    pub async fn synced(&self) {
        self.pods.synced().await;
        self.nodes.synced().await;
        self.namespaces.synced().await;
        self.budgets.synced().await;
        self.selectors.synced().await;
    }
}

/// Where a scheduler reports.
pub struct SchedulerReports {
    /// Metrics.
    pub counters: SchedulerMetrics,
    /// The status page.
    pub status: TaskStatus,
}

impl Scheduler {
    /// A scheduler of the pods of these profiles, which waits so long after a failure.
    pub fn new(
        client: Client,
        profiles: Vec<ProfileInUse>,
        extenders: Extenders,
        retry: RetryTimes,
        caches: ClusterCaches,
        storage: StorageInformers,
        reporting: SchedulerReports,
    ) -> Self {
        let annotations = BindingAnnotations::new(client.names());
        let SchedulerReports { counters, status } = reporting;
        let profiles = profiles.into_iter().map(|of| (of.profile.name.clone(), of)).collect();
        Self {
            client,
            storage,
            annotations,
            extenders,
            caches,
            profiles,
            counters,
            status,
            assumed: BTreeMap::new(),
            reserved: Reservations::default(),
            nominations: Nominations::default(),
            backoff: BackoffQueue::new(retry),
        }
    }

    /// How a pod is scheduled; none for pods of other schedulers.
    fn profile_of(&self, pod: &PodInfo) -> Option<Arc<Profile>> {
        self.profiles.get(&pod.scheduler).map(|of| of.profile.clone())
    }

    /// The pod with the default spread constraints of its profile, unless it has its own.
    fn spread_by_default(&self, pod: Arc<PodInfo>) -> Arc<PodInfo> {
        let selectors = &self.caches.selectors;
        match self.profile_of(&pod) {
            Some(profile) => spread_by_default(pod, &profile, |pod| selectors.selector_of(pod)),
            None => pod,
        }
    }

    /// Records an event that scheduling `pod` has led to.
    fn record(
        &self,
        pod: &PodInfo,
        about: &ObjectReference,
        kind: EventKind,
        reason: &'static str,
        message: &str,
    ) {
        if let Some(of) = self.profiles.get(&pod.scheduler) {
            of.events.event(about, kind, reason, message);
        }
    }

    /// Runs a scheduling cycle whenever one is triggered or due, until drained.
    pub async fn run(mut self, trigger: CycleTrigger, drain: DrainWatch) {
        let mut next: Option<Instant> = None;
        loop {
            let due = async {
                match next {
                    Some(next) => tokio::time::sleep_until(next.into()).await,
                    None => std::future::pending().await,
                }
            };
            // Cancel safe: see CycleTrigger::triggered.
            tokio::select! {
                biased;
                () = drain.asked() => return,
                () = trigger.triggered() => {}
                () = due => {}
            }
            take_changes(&trigger, &mut self.backoff);
            next = self.run_cycle().await;
            trigger.set_affinity_waits(self.backoff.count_affinity_waits());
        }
    }

    /// Runs one cycle. Returns when the next is due if nothing changes.
    async fn run_cycle(&mut self) -> Option<Instant> {
        let pods = self.list_pods();
        let mut loads = load(&self.caches.nodes.objects(), &pods);
        self.reserved.add_to(&mut loads);
        let namespaces = self.caches.namespaces.list().into_iter();
        let namespaces: NamespaceLabels =
            namespaces.map(|(key, labels)| (key.name, labels)).collect();
        let mut tally = Tally::default();
        let mut due = Vec::new();
        let pending = self.pending(&pods);
        let mut nominated = self.list_nominated(&pending);
        let mut selected = SelectedCounts::default();
        for pod in pending {
            match self.backoff.due(&pod.key, &pod.uid, Instant::now()) {
                Due::Now => due.push(pod),
                Due::At(at) => tally.is_due(at),
            }
        }
        let is_reserved = |pod: &PodInfo| self.reserved.contains(pod);
        order_due(&mut due, is_reserved, |pod| self.backoff.is_left_over(&pod.uid));
        self.backoff.set_left_over(BTreeSet::new());
        let needed = due.iter().any(|pod| pod.needs_storage());
        let mut storage = if needed { self.storage.snapshot() } else { StorageSnapshot::default() };
        let mut placed = Vec::new();
        let cycle_began = Instant::now();
        let mut due = due.into_iter();
        while let Some(pod) = due.next() {
            if cycle_began.elapsed() > CYCLE_MAX {
                let left = std::iter::once(pod).chain(due);
                self.backoff.set_left_over(left.map(|pod| pod.uid.clone()).collect());
                tally.is_due(Instant::now());
                break;
            }
            let pod = self.spread_by_default(pod);
            if placed.is_empty() && (tally.bound, tally.failed) == (0, 0) {
                self.status.started(format!("pod {}", pod.key));
            }
            let begun = Instant::now();
            let view = CycleView {
                namespaces: &namespaces,
                nominated: &mut nominated,
                selected: &mut selected,
            };
            match self.schedule(&pod, &mut loads, view, &mut storage).await {
                Ok((nth, assigned)) => placed.push(Placement { pod, nth, assigned, begun }),
                Err(failure) => {
                    // What is placed does not wait for the writes of those that are not.
                    self.bind_all(std::mem::take(&mut placed), &mut loads, &mut tally).await;
                    self.note_failure(&pod, failure, begun, &mut tally);
                }
            }
            if placed.len() >= self.bindings_max() {
                self.bind_all(std::mem::take(&mut placed), &mut loads, &mut tally).await;
            }
            // Renewals of the leader's lease and requests for pages are answered between two pods.
            tokio::task::yield_now().await;
        }
        self.bind_all(placed, &mut loads, &mut tally).await;
        if self.reserved.take_freed() {
            // Others may fit there.
            self.backoff.note_cluster_change();
            tally.is_due(Instant::now());
        }
        self.counters.set_pending(self.backoff.count_pending(Instant::now()));
        self.counters.set_cached(loads.len(), pods.len(), self.assumed.len());
        let Tally { bound, failed, next } = tally;
        if (bound, failed) != (0, 0) {
            self.status.done(format!("{bound} bound, {failed} waiting"));
        }
        next
    }

    /// With extenders each pod may wait for seconds: those before it are bound, and the next ones see the cluster as it is by then.
    fn bindings_max(&self) -> usize {
        if self.extenders.is_empty() { BINDINGS_MAX } else { 1 }
    }

    /// Notes that a pod was not scheduled. It is due again after its back-off.
    fn note_failure(&mut self, pod: &PodInfo, failure: Failure, begun: Instant, tally: &mut Tally) {
        let attempt = match failure {
            Failure::Unschedulable | Failure::PodAffinity | Failure::Volumes => {
                Attempt::Unschedulable
            }
            Failure::Error => Attempt::Error,
        };
        self.counters.count_attempt(&pod.scheduler, attempt, begun.elapsed());
        add(&mut tally.failed, 1);
        self.backoff.note_failure(&pod.key, &pod.uid, failure, Instant::now());
        if let Due::At(at) = self.backoff.due(&pod.key, &pod.uid, Instant::now()) {
            tally.is_due(at);
        }
    }

    /// Lists all pods; assumed ones have their node.
    fn list_pods(&mut self) -> Vec<Arc<PodInfo>> {
        let pods = &self.caches.pods;
        let now = Instant::now();
        self.assumed.retain(|_, (pod, since)| {
            let found = pods.get(&pod.key);
            found.is_some_and(|f| is_assumed(pod, &f, now.saturating_duration_since(*since)))
        });
        self.reserved.retain_pending(|key| pods.get(key));
        forget_ended(&mut self.backoff, |key| pods.get(key));
        let assumed = |pod: Arc<PodInfo>| match self.assumed.get(&pod.uid) {
            Some((assumed, _)) => assumed.clone(),
            None => pod,
        };
        // Listed last: a pod whose binding the watch shows meanwhile is no longer pending here either.
        pods.objects().into_iter().map(assumed).collect()
    }

    /// The pods of this scheduler without a node, by priority and then by age.
    fn pending(&self, pods: &[Arc<PodInfo>]) -> Vec<Arc<PodInfo>> {
        list_pending(pods, |pod| self.profiles.contains_key(&pod.scheduler))
    }

    /// The pending pods that wait on a node for the end of others, each with that node.
    fn list_nominated(&mut self, pending: &[Arc<PodInfo>]) -> Vec<Arc<PodInfo>> {
        self.nominations.forget_shown(pending);
        let on_node = |pod: &Arc<PodInfo>| {
            // One whose volumes are being bound is counted with its reservation.
            let node = self.nominations.node_of(pod);
            (!node.is_empty() && !self.reserved.contains(pod)).then(|| on_node(pod, node))
        };
        pending.iter().filter_map(on_node).collect()
    }

    /// Tries to make room for a pod without a feasible node, and reports it.
    async fn fail(
        &mut self,
        pod: &Arc<PodInfo>,
        loads: &[NodeLoad],
        view: CycleView<'_>,
        storage: &StorageSnapshot,
        why: &FitError,
    ) -> Failure {
        self.counters.count_preemption();
        let (preemption, nomination) =
            Box::pin(self.preempt(pod, loads, view.namespaces, storage, why)).await;
        if let Nomination::Node(node) = &nomination {
            view.nominated.retain(|other| {
                other.uid != pod.uid && (other.node != *node || other.priority >= pod.priority)
            });
            if !node.is_empty() {
                view.nominated.push(on_node(pod, node));
            }
        }
        let mut message = why.message();
        if let Some(preemption) = preemption {
            message.push_str(" preemption: ");
            message.push_str(&preemption);
        }
        self.report_failure(pod, FailureReason::Unschedulable, &message, nomination).await;
        match pod.constraints.can_be_helped_by_pods() {
            true => Failure::PodAffinity,
            false => Failure::Unschedulable,
        }
    }

    /// Selects a node for a pod. Returns its index and the pod with it, which counts for the pods after it from now on.
    async fn schedule(
        &mut self,
        pod: &Arc<PodInfo>,
        loads: &mut [NodeLoad],
        view: CycleView<'_>,
        storage: &mut StorageSnapshot,
    ) -> Result<(usize, Arc<PodInfo>), Failure> {
        let begun = Instant::now();
        let Some(profile) = self.profile_of(pod) else { return Err(Failure::Error) };
        let prepared = self.reserved.prepare(pod, loads);
        let mut nominated = NominatedLoads::new(pod, loads, view.nominated);
        let rules = SelectionRules { profile: &profile, namespaces: view.namespaces };
        let selected = &mut *view.selected;
        let nodes = NodeView { loads: &mut *loads, nominated: &mut nominated, selected };
        // The node of a pod whose volumes are being bound stands; extenders have agreed to it.
        let asks = self.extenders.concern_nodes(pod) && !self.reserved.contains(pod);
        let selected = match asks {
            true => self.select_with_extenders(pod, nodes, rules, storage).await?,
            false => {
                let storage_view = StorageView { storage, annotations: &self.annotations };
                isolate_pod(pod, || select_node(&prepared, nodes, rules, storage_view))
            }
        };
        self.counters.observe_selection(begun.elapsed());
        nominated.remove_loads(loads);
        let NodeChoice { nth, volumes } = match selected {
            Ok(choice) => choice,
            Err(why) => {
                self.reserved.end(pod, "");
                let SelectError::NoFeasibleNode(why) = why else { return Err(Failure::Error) };
                nominated.put(loads);
                let failure = self.fail(pod, loads, view, storage, &why).await;
                nominated.remove_loads(loads);
                return Err(failure);
            }
        };
        let Some(load) = loads.get_mut(nth) else { return Err(Failure::Error) };
        let node = load.node.name.clone();
        if !volumes.is_empty() {
            load.add(self.bind_volumes(pod, &node, &volumes, storage).await?);
            view.nominated.retain(|other| other.uid != pod.uid);
            return Err(Failure::Volumes);
        }
        self.reserved.end(pod, &node);
        let assigned = on_node(pod, &node);
        load.add(assigned.clone());
        view.nominated.retain(|other| other.uid != pod.uid);
        Ok((nth, assigned))
    }
}

impl Scheduler {
    /// Selects a node that extenders have not refused, with their points.
    ///
    /// # Errors
    /// An extender that is not ignorable failed; the pod has an event.
    async fn select_with_extenders(
        &mut self,
        pod: &PodInfo,
        mut nodes: NodeView<'_>,
        rules: SelectionRules<'_>,
        storage: &StorageSnapshot,
    ) -> Result<Result<NodeChoice, SelectError>, Failure> {
        let storage_view = StorageView { storage, annotations: &self.annotations };
        let found = isolate_pod(pod, || find_feasible(pod, &mut nodes, rules, storage_view));
        nodes.nominated.remove_loads(nodes.loads);
        let mut feasible = match found {
            Ok(feasible) => feasible,
            Err(error) => return Ok(Err(error)),
        };
        match self.extenders.filter_and_score(pod, &mut feasible, nodes.loads).await {
            Ok(points) => {
                Ok(isolate_pod(pod, || select_feasible(pod, nodes, feasible, rules, &points)))
            }
            Err(error) => {
                let why = chain(&error);
                tracing::warn!(pod = %pod.key, uid = pod.uid, error = why, "an extender failed; the pod is retried after its back-off");
                let (reason, stays) = (FailureReason::SchedulerError, Nomination::Unchanged);
                self.report_failure(pod, reason, &why, stays).await;
                Err(Failure::Error)
            }
        }
    }
}

/// A pod with the node that was selected for it.
struct Placement {
    pod: Arc<PodInfo>,
    /// Index of the node in the loads.
    nth: usize,
    /// The pod on its node.
    assigned: Arc<PodInfo>,
    /// When the selection began.
    begun: Instant,
}

/// What came of a cycle.
#[derive(Default)]
struct Tally {
    bound: i64,
    failed: i64,
    /// When the next cycle is due if nothing changes.
    next: Option<Instant>,
}

impl Tally {
    fn is_due(&mut self, at: Instant) {
        self.next = Some(self.next.map_or(at, |earlier| earlier.min(at)));
    }
}

/// What a cycle knows besides the nodes and the storage.
struct CycleView<'a> {
    namespaces: &'a NamespaceLabels,
    /// Pending pods, each with the node that is nominated for it.
    nominated: &'a mut Vec<Arc<PodInfo>>,
    /// The pods that spread constraints select on each node.
    selected: &'a mut SelectedCounts,
}

/// Notes in the queue what has changed since it was asked last.
fn take_changes(trigger: &CycleTrigger, backoff: &mut BackoffQueue) {
    if trigger.take_cluster_change() {
        backoff.note_cluster_change();
    }
    if trigger.take_assigned_pod() {
        backoff.note_assigned_pod();
    }
    trigger.take_changed_pods().iter().for_each(|key| backoff.note_pod_change(key));
}

fn is_pending(pod: &PodInfo) -> bool {
    pod.node.is_empty() && pod.phase == PodPhase::Active
}

/// The pods without a node for which `is_own` holds, by priority and then by age.
fn list_pending(pods: &[Arc<PodInfo>], is_own: impl Fn(&PodInfo) -> bool) -> Vec<Arc<PodInfo>> {
    let own = pods.iter().filter(|pod| is_pending(pod) && is_own(pod));
    let mut pending: Vec<Arc<PodInfo>> = own.cloned().collect();
    pending.sort_by(|a, b| {
        let by_priority = b.priority.cmp(&a.priority);
        by_priority.then_with(|| (a.created, &a.key).cmp(&(b.created, &b.key)))
    });
    pending
}

/// Forgets the failures of pods that the cache does not show as pending.
fn forget_ended(backoff: &mut BackoffQueue, find: impl Fn(&ObjectKey) -> Option<Arc<PodInfo>>) {
    backoff.retain(|key, uid| find(key).is_some_and(|pod| pod.uid == uid && is_pending(&pod)));
}

/// Puts the due pods, which are in order of priority and age, into the order of the cycle: first those with a reservation, which need no other node, and of
/// one priority those for which the last cycle had no time.
fn order_due(
    due: &mut [Arc<PodInfo>],
    is_reserved: impl Fn(&PodInfo) -> bool,
    is_left_over: impl Fn(&PodInfo) -> bool,
) {
    due.sort_by_key(|pod| (!is_reserved(pod), Reverse(pod.priority), !is_left_over(pod)));
}

fn on_node(pod: &PodInfo, node: &str) -> Arc<PodInfo> {
    Arc::new(PodInfo { node: node.to_owned(), ..pod.clone() })
}

/// Whether a pod that was bound `age` ago counts as bound although the cache shows it without a node.
fn is_assumed(bound: &PodInfo, shown: &PodInfo, age: Duration) -> bool {
    let unseen = shown.reference.resource_version == bound.reference.resource_version;
    let limit = if unseen { ASSUMED_UNSEEN } else { ASSUMED };
    shown.uid == bound.uid && shown.node.is_empty() && age < limit
}

#[cfg(test)]
mod tests;
