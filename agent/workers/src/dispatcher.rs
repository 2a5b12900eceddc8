//! The dispatcher of the node's pods. It delivers updates of pod sources and events of the container
//! runtime to the right task, and starts tasks for new pods and for orphaned pods that no source
//! wants.

#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

mod quarantine;
mod static_pod_queue;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use agent_pod::desired::{PodSource, grace_period};
use agent_pod::events::{PodEvent, Severity};
use agent_pod::record::PodRecord;
use agent_runtime::events::RuntimeEvent;
use agent_runtime::runtime::PodOnNode;
use proto_api::core::v1::{Container, Pod};
use proto_daemon::panics::{self, Panicked};
use proto_daemon::ready::ReadyGuard;
use proto_daemon::statusz::StatusBoard;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use self::quarantine::Suspects;
use self::static_pod_queue::{OverduePod, StaticPodQueue, is_api_uid};
use crate::inbox::{Full, Inbox};
use crate::pod_context::PodContext;
use crate::worker::{InitialState, PodUpdate, SourcePresence, Worker};
use agent_clock as clock;
use agent_interfaces::PodSourceEvent;
use agent_journal::Record;
use agent_journal::active_pods::{self, ActivityMark};
use agent_telemetry::timeline::Outcome;

/// Runtime events queued for one pod. More than a pod has containers; a full queue is replaced by
/// one relist.
const EVENTS_LEN: usize = 64;

/// Extra relists after the start: a CRI call that an earlier agent left in flight may still create
/// an object of a deleted pod.
const EARLY_RELISTS: [Duration; 4] = [
    Duration::from_secs(2),
    Duration::from_secs(10),
    Duration::from_secs(40),
    Duration::from_secs(125),
];

/// All pods of the node.
pub struct Pods {
    shared: Arc<PodContext>,
    board: StatusBoard,
    tasks: BTreeMap<String, Task>,
    ended: JoinSet<(String, Result<(), Panicked>)>,
    unclaimed: Unclaimed,
    sources: SourceSync,
    relist: Relist,
    /// Static pods that start after another static pod of the same name, or their own previous
    /// instance, has ended.
    waiting: StaticPodQueue,
    /// Pods that are quarantined, on trial or waiting for a retry.
    suspects: Suspects,
}

/// Pods of an earlier agent that no source has reported yet, by uid.
struct Unclaimed {
    /// Those found in the runtime.
    on_node: BTreeMap<String, PodOnNode>,
    /// Their journal records.
    records: BTreeMap<String, Record>,
}

/// How far the sources of pods are.
struct SourceSync {
    /// Sources that have not reported all their pods yet.
    unsynced: Vec<PodSource>,
    /// Keeps the readiness check failing until all of them have.
    unready: Option<ReadyGuard>,
    /// New pods of a source that is not synced, by uid: they are admitted after the pods that were
    /// on the node before.
    deferred: BTreeMap<String, (Instant, PodUpdate)>,
}

/// Lists of the pods that have no task.
#[derive(Default)]
struct Relist {
    /// Uids of pods without a task whose recorded state is outdated. Bounded by the pods of the
    /// runtime.
    stale: BTreeSet<String>,
    /// Those of them that the relist in flight refreshes if it succeeds.
    refreshing: BTreeSet<String>,
    /// The relist in flight.
    running: JoinSet<Option<Vec<PodOnNode>>>,
    /// Whether events were lost since it started.
    again: bool,
}

struct Task {
    name: FullName,
    update: watch::Sender<PodUpdate>,
    news: Arc<Inbox<RuntimeEvent>>,
    mark: ActivityMark,
    /// The record that the task last put into the journal.
    last: Arc<Mutex<Option<PodRecord>>>,
}

impl Task {
    /// Whether the pod with this uid is a static one, or the remains of one.
    fn is_static(&self, uid: &str) -> bool {
        let update = self.update.borrow();
        match update.source {
            PodSource::Static => true,
            // Of remains the source is not known, but which uids it gives.
            PodSource::Api => update.presence == SourcePresence::Dropped && !is_api_uid(uid),
        }
    }
}

/// Namespace and name of a pod.
type FullName = (String, String);

fn full_name(pod: &Pod) -> FullName {
    (pod.metadata.namespace.clone(), pod.metadata.name.clone())
}

/// What the agent finds at its start.
#[derive(Debug, Default)]
pub struct FoundAtStart {
    /// Pods of the runtime, and pods of which only directories or cgroups are left.
    pub pods: Vec<PodOnNode>,
    /// Journal records by uid.
    pub records: BTreeMap<String, Record>,
}

impl FoundAtStart {
    /// Combines the runtime's list, the journal's records, and the uids in `left`, of which only
    /// directories or cgroups exist.
    pub fn new(
        listed: Vec<PodOnNode>,
        records: BTreeMap<String, Record>,
        left: BTreeSet<String>,
    ) -> Self {
        let known =
            |uid: &String| records.contains_key(uid) || listed.iter().any(|pod| pod.uid == *uid);
        let bare = left.into_iter().filter(|uid| !known(uid));
        let bare: Vec<PodOnNode> =
            bare.map(|uid| PodOnNode { uid, ..PodOnNode::default() }).collect();
        Self { pods: listed.into_iter().chain(bare).collect(), records }
    }
}

impl Pods {
    /// `sources` must have synced before orphaned pods are removed; `unready` is dropped when all
    /// of them have.
    pub fn new(
        shared: Arc<PodContext>,
        board: StatusBoard,
        found: FoundAtStart,
        sources: Vec<PodSource>,
        unready: ReadyGuard,
    ) -> Self {
        let on_node = found.pods.into_iter().map(|pod| (pod.uid.clone(), pod)).collect();
        let unready = Some(unready).filter(|_| !sources.is_empty());
        Self {
            shared,
            board,
            tasks: BTreeMap::new(),
            ended: JoinSet::new(),
            unclaimed: Unclaimed { on_node, records: found.records },
            sources: SourceSync { unsynced: sources, unready, deferred: BTreeMap::new() },
            relist: Relist::default(),
            waiting: StaticPodQueue::default(),
            suspects: Suspects::new(),
        }
    }

    /// Handles source events and runtime events until both channels are closed.
    pub async fn run(
        mut self,
        mut said: mpsc::Receiver<PodSourceEvent>,
        mut happened: mpsc::Receiver<RuntimeEvent>,
    ) {
        let began = tokio::time::Instant::now();
        let mut early = EARLY_RELISTS.map(clock::after).into_iter().peekable();
        loop {
            let (due, overdue) = (early.peek().copied(), self.waiting.next_overdue());
            let suspects = self.suspects.next_due();
            // All arms are cancel safe: a message not received now is received in the next turn.
            // The order is fixed so that a test's schedule determines its history.
            tokio::select! {
                biased;
                Some(ended) = self.ended.join_next(), if !self.ended.is_empty() => {
                    if let Ok((uid, outcome)) = ended {
                        match outcome {
                            Ok(()) => drop(self.tasks.remove(&uid)),
                            Err(panicked) => self.task_panicked(&uid, &panicked),
                        }
                        self.start_waiting();
                    }
                }
                Some(looked) = self.relist.running.join_next(), if !self.relist.running.is_empty() => {
                    let before = std::mem::take(&mut self.relist.refreshing);
                    match looked {
                        Ok(Some(found)) => self.apply_relist(found),
                        Ok(None) | Err(_) => self.relist.stale.extend(before),
                    }
                    if std::mem::take(&mut self.relist.again) {
                        self.start_relist();
                    }
                }
                Some(said) = said.recv() => self.apply_source_event(said),
                Some(happened) = happened.recv() => self.dispatch(happened),
                () = tokio::time::sleep_until(due.unwrap_or(began)), if due.is_some() => {
                    early.next();
                    self.start_relist();
                }
                () = tokio::time::sleep_until(overdue.unwrap_or(began)), if overdue.is_some() => {
                    self.report_overdue();
                }
                () = tokio::time::sleep_until(suspects) => self.process_suspects(),
                else => return,
            }
        }
    }

    fn apply_source_event(&mut self, said: PodSourceEvent) {
        match said {
            PodSourceEvent::Wants(source, pod) => {
                self.update_pod(
                    PodUpdate { pod, source, presence: SourcePresence::Present },
                    Instant::now(),
                );
            }
            PodSourceEvent::Dropped(uid) => {
                self.waiting.remove(&uid);
                self.sources.deferred.remove(&uid);
                self.drop_suspect(&uid);
                if let Some(task) = self.tasks.get(&uid) {
                    task.update.send_modify(|update| update.presence = SourcePresence::Dropped);
                }
                if self.sources.unsynced.is_empty() {
                    // Anything that an earlier instance left is orphaned now.
                    self.remove_orphans();
                }
            }
            PodSourceEvent::Synced(source) => {
                self.sources.unsynced.retain(|s| *s != source);
                self.start_deferred(source);
                if self.sources.unsynced.is_empty() {
                    self.sources.unready = None;
                    self.remove_orphans();
                }
            }
        }
    }

    fn update_pod(&mut self, update: PodUpdate, asked: Instant) {
        let uid = update.pod.metadata.uid.clone();
        let update = self.restrict_quarantined(update);
        if self.is_deferred(&update) {
            self.sources.deferred.insert(uid, (asked, update));
            return;
        }
        if update.source == PodSource::Static {
            self.remove_namesakes(&update.pod);
        }
        if let Some((before, grace)) = self.predecessor_of(&update) {
            self.waiting.insert(update, asked, before, grace);
            return;
        }
        match self.tasks.get(&uid) {
            Some(task) => {
                task.update.send_if_modified(|known| {
                    let news = *known.pod != *update.pod || known.presence != update.presence;
                    if news {
                        *known = update;
                    }
                    news
                });
            }
            None => {
                if !self.hold_back(&update, asked) {
                    self.start_task(update, asked);
                }
            }
        }
    }

    /// Whether a pod is new while its source is not synced. If it were admitted now, resources held
    /// by pods that the source reports later would not count; a list is not ordered by age.
    fn is_deferred(&self, update: &PodUpdate) -> bool {
        let uid = &update.pod.metadata.uid;
        let is_new = !self.unclaimed.records.contains_key(uid)
            && !self.unclaimed.on_node.contains_key(uid)
            && !self.tasks.contains_key(uid);
        is_new && self.sources.unsynced.contains(&update.source)
    }

    fn start_deferred(&mut self, source: PodSource) {
        let (of_it, others): (BTreeMap<_, _>, _) = std::mem::take(&mut self.sources.deferred)
            .into_iter()
            .partition(|(_, (_, update))| update.source == source);
        self.sources.deferred = others;
        of_it.into_values().for_each(|(asked, update)| self.update_pod(update, asked));
    }

    /// The pod that must end before a static pod may start, by uid, and its grace period: a static
    /// one of the same name, or its own previous instance after the manifest was dropped and
    /// restored. A pod of the API neither waits for its namesakes nor holds them up: a user who may
    /// create pods could otherwise keep a static pod from starting.
    fn predecessor_of(&self, update: &PodUpdate) -> Option<(String, Duration)> {
        if update.source != PodSource::Static {
            return None;
        }
        let (uid, name) = (&update.pod.metadata.uid, full_name(&update.pod));
        let is_before = |(known, task): &(&String, &Task)| match *known == uid {
            true => task.update.borrow().presence == SourcePresence::Dropped,
            false => task.name == name && task.is_static(known),
        };
        let (before, task) = self.tasks.iter().find(is_before)?;
        Some((before.clone(), grace_period(&task.update.borrow().pod)))
    }

    /// Reports static pods that have waited too long, and what they wait for.
    fn report_overdue(&mut self) {
        for OverduePod { update, before, waited } in self.waiting.take_overdue() {
            let secs = waited.as_secs();
            let why = self.shared.timelines.trouble(&before);
            let why = why.map(|why| format!(": {why}")).unwrap_or_default();
            let message = format!(
                "waiting for pod {before} of the same name, which has not ended within {secs} s{why}"
            );
            let meta = &update.pod.metadata;
            tracing::warn!(
                pod = meta.name,
                namespace = meta.namespace,
                message,
                "static pod is not started yet"
            );
            let outcome = Outcome::Failed(message.clone());
            self.shared.timelines.step(&update.pod, "WaitForPredecessor".into(), waited, outcome);
            let event = PodEvent::new(Severity::Warning, "FailedSync", message);
            self.shared.reports.event(&update.pod, event);
        }
    }

    /// Removes orphaned static pods with the name of a static pod: they are its versions before the
    /// manifest was edited, and no source will report them. The API may still report its own.
    fn remove_namesakes(&mut self, pod: &Pod) {
        let name = full_name(pod);
        let other = |uid: &String| *uid != pod.metadata.uid && !is_api_uid(uid);
        let of_runtime =
            self.unclaimed.on_node.iter().filter(|(uid, found)| {
                other(uid) && found.namespace == name.0 && found.name == name.1
            });
        let of_journal = self.unclaimed.records.iter().filter(|(uid, record)| {
            other(uid) && record.namespace == name.0 && record.name == name.1
        });
        let uids: BTreeSet<String> =
            of_runtime.map(|(uid, _)| uid).chain(of_journal.map(|(uid, _)| uid)).cloned().collect();
        uids.iter().for_each(|uid| self.remove_orphan(uid));
    }

    fn start_waiting(&mut self) {
        for (asked, update) in self.waiting.drain() {
            self.update_pod(update, asked);
        }
    }

    fn start_task(&mut self, update: PodUpdate, asked: Instant) {
        let uid = update.pod.metadata.uid.clone();
        // A relist in flight skips pods that have a task by the time it ends.
        let is_old = self.relist.stale.remove(&uid) || !self.relist.running.is_empty();
        let start = InitialState {
            on_node: self.unclaimed.on_node.remove(&uid).unwrap_or_default(),
            memory: self.unclaimed.records.remove(&uid).map(|record| record.memory),
        };
        if start.memory.as_ref().is_some_and(PodRecord::holds_resources) {
            self.shared.pods.reserve(&update.pod);
        }
        let name = full_name(&update.pod);
        let meta = &update.pod.metadata;
        let page = self.board.task(format!("pod {}/{}", meta.namespace, meta.name));
        page.started("order");
        let (update, updates) = watch::channel(update);
        let news = Arc::new(Inbox::default());
        let mark =
            self.shared.active_pods.mark(&uid, active_pods::content_hash(&update.borrow().pod));
        let (shared, receiver, memory) = (self.shared.clone(), news.clone(), start.memory.clone());
        let made = panics::isolate_sync(|| {
            let _guard = mark.set();
            Box::new(Worker::new(shared, updates, receiver, page, start))
        });
        let worker = match made {
            Ok(worker) => worker,
            Err(panicked) => return self.retry_later(update.borrow().clone(), memory, &panicked),
        };
        let (done, metrics, last) =
            (uid.clone(), self.shared.metrics.clone(), worker.last_record());
        self.ended.spawn(mark.clone().wrap(async move {
            metrics.record_worker_start(asked.elapsed());
            // Panics of its operations are returned as errors.
            let outcome = panics::isolate(worker.run()).await.and_then(|outcome| outcome);
            (done, outcome)
        }));
        let task = Task { name, update, news, mark, last };
        if is_old {
            deliver(&task, RuntimeEvent::Missed);
        }
        self.tasks.insert(uid, task);
    }

    /// Terminates and removes pods of the runtime and the journal that no source wants. A static
    /// pod that waits for a namesake is kept: an earlier agent may already have started it.
    fn remove_orphans(&mut self) {
        let known = self.unclaimed.records.keys().chain(self.unclaimed.on_node.keys());
        let unwanted =
            known.filter(|uid| !self.waiting.contains(uid) && !self.suspects.holds_back(uid));
        let uids: BTreeSet<String> = unwanted.cloned().collect();
        uids.iter().for_each(|uid| self.remove_orphan(uid));
    }

    fn remove_orphan(&mut self, uid: &str) {
        let pod = match (self.unclaimed.on_node.get(uid), self.unclaimed.records.get(uid)) {
            (Some(found), _) if !found.name.is_empty() => {
                pod_from_remains(uid, &found.namespace, &found.name, &container_names(found))
            }
            (_, Some(record)) => pod_from_remains(uid, &record.namespace, &record.name, &[]),
            _ => pod_from_remains(uid, "", "", &[]),
        };
        tracing::info!(
            uid,
            name = pod.metadata.name,
            "pod is in no source; its containers are stopped and removed"
        );
        let update = PodUpdate {
            pod: Arc::new(pod),
            source: PodSource::Api,
            presence: SourcePresence::Dropped,
        };
        self.start_task(update, Instant::now());
    }

    /// Lists the pods of the runtime that have no task, since a lost event may concern one.
    fn start_relist(&mut self) {
        if !self.relist.running.is_empty() {
            self.relist.again = true;
            return;
        }
        self.relist.refreshing = std::mem::take(&mut self.relist.stale);
        let (runtime, metrics) = (self.shared.runtime.clone(), self.shared.metrics.clone());
        let known: BTreeSet<String> = self.tasks.keys().cloned().collect();
        self.relist.running.spawn(async move {
            let began = Instant::now();
            match runtime.list_unmanaged(&known).await {
                Ok(found) => {
                    metrics.operations.record_relist(began.elapsed());
                    Some(found)
                }
                Err(error) => {
                    tracing::warn!(
                        error = proto_daemon::exit::chain(&error),
                        "cannot list pods of the container runtime; retried at the next relist"
                    );
                    None
                }
            }
        });
    }

    /// Records the pods without a task, and removes them once all sources have synced. A pod that
    /// ended since the relist started is removed again, which finds nothing.
    fn apply_relist(&mut self, found: Vec<PodOnNode>) {
        for pod in self.unclaimed.on_node.values_mut() {
            (pod.sandboxes, pod.containers) = (Vec::new(), Vec::new());
        }
        for pod in found.into_iter().filter(|pod| !self.tasks.contains_key(&pod.uid)) {
            self.unclaimed.on_node.insert(pod.uid.clone(), pod);
        }
        if self.sources.unsynced.is_empty() {
            self.remove_orphans();
            let is_known = |uid: &str| {
                self.tasks.contains_key(uid)
                    || self.waiting.contains(uid)
                    || self.suspects.holds_back(uid)
            };
            self.shared.environment.retain(is_known);
        }
    }

    fn dispatch(&mut self, happened: RuntimeEvent) {
        let uid = match &happened {
            RuntimeEvent::Missed => {
                self.tasks.values().for_each(|task| _ = deliver(task, RuntimeEvent::Missed));
                self.relist.stale.extend(self.unclaimed.on_node.keys().cloned());
                self.start_relist();
                return;
            }
            RuntimeEvent::Container { pod_uid, .. } | RuntimeEvent::Sandbox { pod_uid, .. } => {
                pod_uid
            }
        };
        if let Some(task) = self.tasks.get(uid) {
            self.shared.metrics.operations.record_event();
            if deliver(task, happened) == Full::Yes {
                self.shared.metrics.operations.record_dropped_event();
            }
        } else if !self.sources.unsynced.is_empty() || self.unclaimed.on_node.contains_key(uid) {
            // Its source may still report it.
            self.relist.stale.insert(uid.clone());
        }
    }
}

/// Queues an event; if the queue is full, its events are replaced by one that makes the task
/// relist.
fn deliver(task: &Task, news: RuntimeEvent) -> Full {
    task.news.add(news, EVENTS_LEN, || RuntimeEvent::Missed)
}

fn container_names(found: &PodOnNode) -> Vec<String> {
    let mut names: Vec<String> = found.containers.iter().map(|c| c.name.clone()).collect();
    names.sort();
    names.dedup();
    names
}

/// A pod whose API object no longer exists, from what the runtime or the journal recorded.
fn pod_from_remains(uid: &str, namespace: &str, name: &str, containers: &[String]) -> Pod {
    let mut pod = Pod::default();
    pod.metadata.uid = uid.to_owned();
    pod.metadata.namespace = namespace.to_owned();
    pod.metadata.name = name.to_owned();
    pod.spec.containers =
        containers.iter().map(|n| Container { name: n.clone(), ..Container::default() }).collect();
    pod
}

#[cfg(test)]
mod tests;
