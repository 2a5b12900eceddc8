//! Which pods this node has, one task each: brings what sources and the runtime say to the right task, makes tasks for new pods
//! and for remains that nobody wants any more.

#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

pub mod act;
pub mod action_context;
pub mod action_result;
mod admit;
pub mod hooks;
pub mod in_flight;
pub mod in_hand;
mod inbox;
pub mod pod_context;
pub mod ports;
pub mod probe_worker;
pub mod probes;
pub mod pulling;
mod quarantine;
pub mod restart_limiter;
pub mod runtime_limiter;
pub mod shown;
mod static_pod_queue;
pub mod status_patch;
pub mod termination_message;
pub mod worker;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use agent_pod::desired::{Source, grace_of};
use agent_pod::events::{PodEvent, Severity};
use agent_pod::record::Memory;
use agent_runtime::events::RuntimeEvent;
use agent_runtime::runtime::PodOnNode;
use proto_api::core::v1::{Container, Pod};
use proto_daemon::panics::{self, Panicked};
use proto_daemon::ready::ReadyGuard;
use proto_daemon::statusz::StatusBoard;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use crate::clock;
use crate::journal::Record;
use crate::timeline::Outcome;
use in_hand::Hand;
use inbox::{Full, Inbox};
use pod_context::Parts;
use quarantine::Suspects;
use static_pod_queue::{Overdue, Waiting};
use worker::{Held, Order, Start, Worker};

/// News of one pod's runtime objects that wait for its task. More than a pod has containers; a full queue becomes one look.
const NEWS_LEN: usize = 64;

/// When the whole runtime is looked at after the start, beside the usual: a call that an earlier agent left under way may make
/// something of a pod that is gone by then.
const EARLY_LOOKS: [Duration; 4] = [
    Duration::from_secs(2),
    Duration::from_secs(10),
    Duration::from_secs(40),
    Duration::from_secs(125),
];

/// What a source says of its pods.
#[derive(Clone, Debug)]
pub enum PodSourceEvent {
    /// The pod is wanted as it is now, or marked for deletion.
    Wants(Source, Arc<Pod>),
    /// The pod of this uid is not wanted any more.
    Dropped(String),
    /// Everything that the source has has been said once.
    Synced(Source),
}

/// All pods of the node.
pub struct Pods {
    parts: Arc<Parts>,
    board: StatusBoard,
    tasks: BTreeMap<String, Task>,
    ended: JoinSet<(String, Result<(), Panicked>)>,
    /// Pods found in the runtime at the start that no source has asked for yet.
    unclaimed: BTreeMap<String, PodOnNode>,
    /// Pods without a task that news came of: what was found of them is old. At most those of the runtime.
    overheard: BTreeSet<String>,
    /// Those of them that the look under way will show as they are, if it works.
    looked_for: BTreeSet<String>,
    /// Journal records that no source has asked for yet.
    records: BTreeMap<String, Record>,
    /// Sources that have not said everything yet.
    silent: Vec<Source>,
    /// Held until all of them have.
    unready: Option<ReadyGuard>,
    /// Static pods that begin once another of their name, or themselves from before, has ended.
    waiting: Waiting,
    /// Pods that are new to a source's first word, by uid: they begin when all that were here before take of the node again.
    early: BTreeMap<String, (Instant, Order)>,
    /// A look at the whole runtime, for pods that have no task.
    looks: JoinSet<Option<Vec<PodOnNode>>>,
    /// Whether something was missed since that look began.
    look_again: bool,
    /// Pods that are kept from being handled.
    suspects: Suspects,
}

struct Task {
    name: FullName,
    order: watch::Sender<Order>,
    news: Arc<Inbox<RuntimeEvent>>,
    hand: Hand,
    /// What it last gave the journal.
    last: Arc<Mutex<Option<Memory>>>,
}

/// Namespace and name of a pod.
type FullName = (String, String);

fn full_name(pod: &Pod) -> FullName {
    (pod.metadata.namespace.clone(), pod.metadata.name.clone())
}

/// What is there when the agent starts.
#[derive(Debug, Default)]
pub struct Found {
    /// What the runtime, the disk and the cgroups have.
    pub pods: Vec<PodOnNode>,
    /// What the journal has.
    pub records: BTreeMap<String, Record>,
}

impl Found {
    /// What the runtime lists and the journal has, and pods of which only what is in `left` is there.
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
    /// `sources` are those to hear before remains are removed; `unready` is dropped when all of them have said everything.
    pub fn new(
        parts: Arc<Parts>,
        board: StatusBoard,
        found: Found,
        sources: Vec<Source>,
        unready: ReadyGuard,
    ) -> Self {
        let unclaimed = found.pods.into_iter().map(|pod| (pod.uid.clone(), pod)).collect();
        Self {
            parts,
            board,
            tasks: BTreeMap::new(),
            ended: JoinSet::new(),
            unclaimed,
            overheard: BTreeSet::new(),
            looked_for: BTreeSet::new(),
            records: found.records,
            unready: Some(unready).filter(|_| !sources.is_empty()),
            silent: sources,
            waiting: Waiting::default(),
            early: BTreeMap::new(),
            looks: JoinSet::new(),
            look_again: false,
            suspects: Suspects::new(),
        }
    }

    /// Takes what sources say and what happens until both are gone.
    pub async fn run(
        mut self,
        mut said: mpsc::Receiver<PodSourceEvent>,
        mut happened: mpsc::Receiver<RuntimeEvent>,
    ) {
        let began = tokio::time::Instant::now();
        let mut early = EARLY_LOOKS.map(clock::after).into_iter().peekable();
        loop {
            let (due, overdue) = (early.peek().copied(), self.waiting.next());
            let suspects = self.suspects.due();
            // All arms are cancel safe: a message not taken now is taken in the next turn. In one order, so that one schedule
            // of a test is one history.
            tokio::select! {
                biased;
                Some(ended) = self.ended.join_next(), if !self.ended.is_empty() => {
                    if let Ok((uid, outcome)) = ended {
                        match outcome {
                            Ok(()) => drop(self.tasks.remove(&uid)),
                            Err(panicked) => self.broke_off(&uid, &panicked),
                        }
                        self.begin_waiting();
                    }
                }
                Some(looked) = self.looks.join_next(), if !self.looks.is_empty() => {
                    let before = std::mem::take(&mut self.looked_for);
                    match looked {
                        Ok(Some(found)) => self.looked(found),
                        Ok(None) | Err(_) => self.overheard.extend(before),
                    }
                    if std::mem::take(&mut self.look_again) {
                        self.look();
                    }
                }
                Some(said) = said.recv() => self.hear(said),
                Some(happened) = happened.recv() => self.pass_on(happened),
                () = tokio::time::sleep_until(due.unwrap_or(began)), if due.is_some() => {
                    early.next();
                    self.look();
                }
                () = tokio::time::sleep_until(overdue.unwrap_or(began)), if overdue.is_some() => {
                    self.tell_overdue();
                }
                () = tokio::time::sleep_until(suspects) => self.judge_suspects(),
                else => return,
            }
        }
    }

    fn hear(&mut self, said: PodSourceEvent) {
        match said {
            PodSourceEvent::Wants(source, pod) => {
                self.wants(Order { pod, source, held: Held::Yes }, Instant::now());
            }
            PodSourceEvent::Dropped(uid) => {
                self.waiting.remove(&uid);
                self.early.remove(&uid);
                self.drop_suspect(&uid);
                if let Some(task) = self.tasks.get(&uid) {
                    task.order.send_modify(|order| order.held = Held::No);
                }
                if self.silent.is_empty() {
                    // What it may have left before it had to wait is nobody's now.
                    self.remove_remains();
                }
            }
            PodSourceEvent::Synced(source) => {
                self.silent.retain(|s| *s != source);
                self.begin_early(source);
                if self.silent.is_empty() {
                    self.unready = None;
                    self.remove_remains();
                }
            }
        }
    }

    fn wants(&mut self, order: Order, asked: Instant) {
        let uid = order.pod.metadata.uid.clone();
        let order = self.as_handled(order);
        if self.is_early(&order) {
            self.early.insert(uid, (asked, order));
            return;
        }
        if order.source == Source::Static {
            self.retire_namesakes(&order.pod);
        }
        if let Some((before, grace)) = self.waits_for(&order) {
            self.waiting.insert(order, asked, before, grace);
            return;
        }
        match self.tasks.get(&uid) {
            Some(task) => {
                task.order.send_if_modified(|known| {
                    let news = *known.pod != *order.pod || known.held != order.held;
                    if news {
                        *known = order;
                    }
                    news
                });
            }
            None => {
                if !self.keeps_back(&order, asked) {
                    self.begin(order, asked);
                }
            }
        }
    }

    /// Whether a pod is new while its source still tells those that were here before: if it were admitted now, what they take would not
    /// count. A list is in no order of age.
    fn is_early(&self, order: &Order) -> bool {
        let uid = &order.pod.metadata.uid;
        let is_new = !self.records.contains_key(uid)
            && !self.unclaimed.contains_key(uid)
            && !self.tasks.contains_key(uid);
        is_new && self.silent.contains(&order.source)
    }

    fn begin_early(&mut self, source: Source) {
        let (of_it, others): (BTreeMap<_, _>, _) = std::mem::take(&mut self.early)
            .into_iter()
            .partition(|(_, (_, order))| order.source == source);
        self.early = others;
        of_it.into_values().for_each(|(asked, order)| self.wants(order, asked));
    }

    /// The pod that a static pod has to wait for, by uid, and how long that may take to end: one of its name still runs, or it was
    /// dropped and comes again before its end. A pod of the API has a uid of its own each time, and does not wait for what another of
    /// its name takes to end.
    fn waits_for(&self, order: &Order) -> Option<(String, Duration)> {
        if order.source != Source::Static {
            return None;
        }
        let (uid, name) = (&order.pod.metadata.uid, full_name(&order.pod));
        let is_before = |(known, task): &(&String, &Task)| match *known == uid {
            true => task.order.borrow().held == Held::No,
            false => task.name == name,
        };
        let (before, task) = self.tasks.iter().find(is_before)?;
        Some((before.clone(), grace_of(&task.order.borrow().pod)))
    }

    /// Says of static pods that wait for too long what they wait for.
    fn tell_overdue(&mut self) {
        for Overdue { order, before, waited } in self.waiting.overdue() {
            let secs = waited.as_secs();
            let why = self.parts.timelines.trouble(&before);
            let why = why.map(|why| format!(": {why}")).unwrap_or_default();
            let message = format!(
                "the pod {before} that was here under this name has not ended within {secs} s{why}"
            );
            let meta = &order.pod.metadata;
            tracing::warn!(pod = meta.name, namespace = meta.namespace, message, "waits");
            let outcome = Outcome::Failed(message.clone());
            self.parts.timelines.step(&order.pod, "WaitForPredecessor".into(), waited, outcome);
            let event = PodEvent::new(Severity::Warning, "FailedSync", message);
            self.parts.reports.event(&order.pod, event);
        }
    }

    /// What was found of another pod of a static pod's name is that pod before its manifest was edited: no source will claim it.
    fn retire_namesakes(&mut self, pod: &Pod) {
        let name = full_name(pod);
        let other = |uid: &String| *uid != pod.metadata.uid;
        let of_runtime = self
            .unclaimed
            .iter()
            .filter(|(uid, found)| other(uid) && found.namespace == name.0 && found.name == name.1);
        let of_journal = self.records.iter().filter(|(uid, record)| {
            other(uid) && record.namespace == name.0 && record.name == name.1
        });
        let uids: BTreeSet<String> =
            of_runtime.map(|(uid, _)| uid).chain(of_journal.map(|(uid, _)| uid)).cloned().collect();
        uids.iter().for_each(|uid| self.remove_remains_of(uid));
    }

    fn begin_waiting(&mut self) {
        for (asked, order) in self.waiting.take() {
            self.wants(order, asked);
        }
    }

    fn begin(&mut self, order: Order, asked: Instant) {
        let uid = order.pod.metadata.uid.clone();
        // A look that is under way will not tell a pod that has a task by then.
        let is_old = self.overheard.remove(&uid) || !self.looks.is_empty();
        let start = Start {
            on_node: self.unclaimed.remove(&uid).unwrap_or_default(),
            memory: self.records.remove(&uid).map(|record| record.memory),
        };
        if start.memory.as_ref().is_some_and(Memory::takes_of_the_node) {
            self.parts.promise(&order.pod);
        }
        let name = full_name(&order.pod);
        let meta = &order.pod.metadata;
        let page = self.board.task(format!("pod {}/{}", meta.namespace, meta.name));
        page.started("order");
        let (order, orders) = watch::channel(order);
        let news = Arc::new(Inbox::default());
        let hand = self.parts.in_hand.hand(&uid, in_hand::content(&order.borrow().pod));
        let (parts, heard, memory) = (self.parts.clone(), news.clone(), start.memory.clone());
        let made = panics::isolate_sync(|| {
            let _mark = hand.mark();
            Box::new(Worker::new(parts, orders, heard, page, start))
        });
        let worker = match made {
            Ok(worker) => worker,
            Err(panicked) => return self.put_off(order.borrow().clone(), memory, &panicked),
        };
        let (done, metrics, last) = (uid.clone(), self.parts.metrics.clone(), worker.last());
        self.ended.spawn(hand.clone().around(async move {
            metrics.worker_started(asked.elapsed());
            // Panics of its operations come back as errors.
            let outcome = panics::isolate(worker.run()).await.and_then(|outcome| outcome);
            (done, outcome)
        }));
        let task = Task { name, order, news, hand, last };
        if is_old {
            tell(&task, RuntimeEvent::Missed);
        }
        self.tasks.insert(uid, task);
    }

    /// What the runtime or the journal has of pods that no source wants is taken down like a pod that was dropped. A pod that
    /// waits for another of its name is wanted: it may run already, begun by the agent before this one.
    fn remove_remains(&mut self) {
        let known = self.records.keys().chain(self.unclaimed.keys());
        let unwanted = known.filter(|uid| !self.waiting.contains(uid) && !self.suspects.keep(uid));
        let uids: BTreeSet<String> = unwanted.cloned().collect();
        uids.iter().for_each(|uid| self.remove_remains_of(uid));
    }

    fn remove_remains_of(&mut self, uid: &str) {
        let pod = match (self.unclaimed.get(uid), self.records.get(uid)) {
            (Some(found), _) if !found.name.is_empty() => {
                remains_of(uid, &found.namespace, &found.name, &container_names(found))
            }
            (_, Some(record)) => remains_of(uid, &record.namespace, &record.name, &[]),
            _ => remains_of(uid, "", "", &[]),
        };
        tracing::info!(uid, name = pod.metadata.name, "nobody wants this pod any more");
        let order = Order { pod: Arc::new(pod), source: Source::Api, held: Held::No };
        self.begin(order, Instant::now());
    }

    /// Looks at the whole runtime: what was missed may be about a pod that has no task.
    fn look(&mut self) {
        if !self.looks.is_empty() {
            self.look_again = true;
            return;
        }
        self.looked_for = std::mem::take(&mut self.overheard);
        let (runtime, metrics) = (self.parts.runtime.clone(), self.parts.metrics.clone());
        let known: BTreeSet<String> = self.tasks.keys().cloned().collect();
        self.looks.spawn(async move {
            let began = Instant::now();
            match runtime.strangers(&known).await {
                Ok(found) => {
                    metrics.acts.looked(began.elapsed());
                    Some(found)
                }
                Err(error) => {
                    tracing::warn!(error = proto_daemon::exit::chain(&error), "cannot list pods");
                    None
                }
            }
        });
    }

    /// Pods without a task are kept for their sources to claim, or taken down when those have said everything. A pod that has
    /// ended since the look began is taken down once more, which finds nothing.
    fn looked(&mut self, found: Vec<PodOnNode>) {
        for pod in self.unclaimed.values_mut() {
            (pod.sandboxes, pod.containers) = (Vec::new(), Vec::new());
        }
        for pod in found.into_iter().filter(|pod| !self.tasks.contains_key(&pod.uid)) {
            self.unclaimed.insert(pod.uid.clone(), pod);
        }
        if self.silent.is_empty() {
            self.remove_remains();
            let is_known = |uid: &str| {
                self.tasks.contains_key(uid)
                    || self.waiting.contains(uid)
                    || self.suspects.keep(uid)
            };
            self.parts.provision.retain(is_known);
        }
    }

    fn pass_on(&mut self, happened: RuntimeEvent) {
        let uid = match &happened {
            RuntimeEvent::Missed => {
                self.tasks.values().for_each(|task| _ = tell(task, RuntimeEvent::Missed));
                self.overheard.extend(self.unclaimed.keys().cloned());
                self.look();
                return;
            }
            RuntimeEvent::Container { pod_uid, .. } | RuntimeEvent::Sandbox { pod_uid, .. } => {
                pod_uid
            }
        };
        if let Some(task) = self.tasks.get(uid) {
            self.parts.metrics.acts.heard();
            if tell(task, happened) == Full::Yes {
                self.parts.metrics.acts.lost_event();
            }
        } else if !self.silent.is_empty() || self.unclaimed.contains_key(uid) {
            // Its source may still ask for it.
            self.overheard.insert(uid.clone());
        }
    }
}

/// News for which there is no room are lost, and what waits with them: the task looks at everything instead.
fn tell(task: &Task, news: RuntimeEvent) -> Full {
    task.news.add(news, NEWS_LEN, || RuntimeEvent::Missed)
}

fn container_names(found: &PodOnNode) -> Vec<String> {
    let mut names: Vec<String> = found.containers.iter().map(|c| c.name.clone()).collect();
    names.sort();
    names.dedup();
    names
}

/// What is known of a pod whose object is gone.
fn remains_of(uid: &str, namespace: &str, name: &str, containers: &[String]) -> Pod {
    let mut pod = Pod::default();
    pod.metadata.uid = uid.to_owned();
    pod.metadata.namespace = namespace.to_owned();
    pod.metadata.name = name.to_owned();
    pod.spec.containers =
        containers.iter().map(|n| Container { name: n.clone(), ..Container::default() }).collect();
    pod
}

#[cfg(test)]
pub mod test_support;
#[cfg(test)]
mod tests;
