//! The task of one pod. It alone acts on the pod.
//!
//! ```text
//!   source ── order ──┐
//!   runtime ─ event ──┤                       ┌─ journal
//!   objects ─ poke ───┼─► look ─► plan ─► do ─┼─ runtime, node, volumes  (each in its own task, one per object)
//!   done ─────────────┤                       └─ status, events
//!   time ─────────────┘
//! ```
//!
//! Every turn of the loop takes in what has happened, plans from the whole state, begins what the plan admits and nothing is
//! being done to already, and waits. What an operation brings comes back as a message; no operation touches the state.

#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

mod refresh;
mod relist;
mod status_writer;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use agent_pod::backoff::Step;
use agent_pod::desired::{PodWant, Source, grace_of};
use agent_pod::events;
use agent_pod::lifecycle::plan;
use agent_pod::observed::{ContainerSeen, InstanceState, PodSeen, VolumesSeen};
use agent_pod::plan::{Action, Plan, Stage};
use agent_pod::record::Memory;
use agent_runtime::events::RuntimeEvent;
use agent_runtime::runtime::PodOnNode;
use proto_api::core::v1::{Container, Pod, PodStatus};
use proto_daemon::panics::{self, Panicked};
use proto_daemon::statusz::TaskStatus;
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::act::{Failure, act};
use super::action_context::Scene;
use super::action_result::{self, Effect, step};
use super::in_flight::{Busy, Key, key};
use super::in_hand::Hand;
use super::inbox::Inbox;
use super::pod_context::{Counts, Known, Parts};
use super::ports::{Line, MountedVolumes, ReportError, Reported};
use super::probe_worker::{Probing, Verdict};
use super::shown::Shown;
use super::termination_message::with_message;
use crate::clock;
use crate::journal::{CommitHandle, Record};
use crate::object_cache::Subscription;

/// What a pod's source says of it now.
#[derive(Clone, Debug, PartialEq)]
pub struct Order {
    /// The pod.
    pub pod: Arc<Pod>,
    /// Where it comes from.
    pub source: Source,
    /// Whether its source still has it.
    pub held: Held,
}

/// Whether a source still has a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Held {
    /// It has.
    Yes,
    /// It has not.
    No,
}

/// What is known of the pod when its task begins.
#[derive(Debug, Default)]
pub struct Start {
    /// What the runtime has of it.
    pub on_node: PodOnNode,
    /// What the journal has of it.
    pub memory: Option<Memory>,
}

/// An operation that ended.
struct Finished {
    key: Key,
    /// Of a stop, as it began.
    deadline: Option<Duration>,
    outcome: Outcome,
}

enum Outcome {
    Did(Action, Result<Effect, Failure>, Duration),
    /// It was not begun, since the pod ends.
    Dropped,
    Mounted(Result<MountedVolumes, Line>),
    Unmounted(Result<(), Line>),
    Shown(Box<PodStatus>, Result<Reported, ReportError>),
    Looked(u64, Result<PodOnNode, Line>),
}

/// The task's state.
pub struct Worker {
    parts: Arc<Parts>,
    order: watch::Receiver<Order>,
    news: Arc<Inbox<RuntimeEvent>>,
    status_page: TaskStatus,

    seen: PodSeen,
    memory: Memory,
    subscription: Box<dyn Subscription>,
    poke: Arc<Notify>,
    mounted: Arc<MountedVolumes>,
    /// How many ephemeral containers the subscription knows of.
    ephemeral: usize,
    probing: Probing,
    verdicts: Arc<Inbox<Verdict>>,
    /// What the journal was given last, and its receipt.
    recorded: Arc<Mutex<Option<Memory>>>,
    ticket: Option<CommitHandle>,
    /// The receipt of the newest record that says what probes or hooks found.
    findings: Option<CommitHandle>,

    busy: Busy,
    under_way: JoinSet<Result<Finished, Panicked>>,
    panicked: Option<Panicked>,
    /// Counts what was done to the runtime, so that a look from before is not believed.
    epoch: u64,
    look_again: bool,
    look_not_before: Duration,
    /// Whether the runtime may have made or started what it said it had not.
    unsure: bool,
    /// When what still runs is killed, since boot, once nothing of the pod may begin any more: for what is under way.
    ending: watch::Sender<Option<Duration>>,
    /// Labels and annotations that the volumes were made from.
    fields: (BTreeMap<String, String>, BTreeMap<String, String>),
    volumes_stale: bool,
    refresh_not_before: Duration,
    /// Refreshes that failed since the last that did not.
    refresh_failures: u32,

    /// What the node's other parts were told last.
    known: Option<Known>,
    /// What is known of the status that the API shows.
    shown: Shown,
    /// Until when the status is held back while it tells only that the pod begins.
    beginning_held_until: Option<Duration>,
    /// Waiting reasons that users were told.
    told: BTreeMap<String, String>,
    forgotten: bool,
}

impl Worker {
    /// The task of a pod; `order` tells what its source says, `news` what happens in the runtime.
    pub fn new(
        parts: Arc<Parts>,
        order: watch::Receiver<Order>,
        news: Arc<Inbox<RuntimeEvent>>,
        status_page: TaskStatus,
        start: Start,
    ) -> Self {
        let pod = order.borrow().pod.clone();
        let poke = parts.poke(&pod.metadata.uid);
        let subscription = parts.objects.subscribe(&pod, poke.clone());
        let recorded = start.memory.clone();
        let (status, instances) = (&pod.status, &start.on_node.containers);
        let memory = match order.borrow().source {
            Source::Api => {
                let end = (grace_of(&pod), clock::boot());
                Memory::recall_of_api(start.memory, status, instances, end)
            }
            Source::Static => Memory::recall(start.memory, status, instances),
        };
        let volumes =
            if parts.volumes.exist(&pod) { VolumesSeen::Unverified } else { VolumesSeen::Absent };
        // The agent has looked at the tree when it began: what nothing was found of has nothing there.
        let known_before = recorded.is_some() || !start.on_node.uid.is_empty();
        let on_node = start.on_node.containers.into_iter();
        let containers = on_node.map(|c| with_message(&parts, &pod, c)).collect();
        let seen = PodSeen {
            sandboxes: start.on_node.sandboxes,
            containers,
            volumes,
            cgroup: known_before && parts.place.adopt_cgroup(&pod),
            ..PodSeen::default()
        };
        let verdicts = Arc::new(Inbox::default());
        Self {
            known: None,
            shown: Shown::new(pod.clone()),
            ephemeral: pod.spec.ephemeral_containers.len(),
            probing: Probing::new(parts.clone(), verdicts.clone()),
            verdicts,
            parts,
            order,
            news,
            status_page,
            seen,
            memory,
            subscription,
            poke,
            mounted: Arc::default(),
            recorded: Arc::new(Mutex::new(recorded)),
            ticket: None,
            findings: None,
            busy: Busy::default(),
            under_way: JoinSet::new(),
            panicked: None,
            epoch: 0,
            look_again: false,
            look_not_before: Duration::ZERO,
            unsure: false,
            ending: watch::Sender::new(None),
            fields: (pod.metadata.labels.clone(), pod.metadata.annotations.clone()),
            volumes_stale: false,
            refresh_not_before: Duration::ZERO,
            refresh_failures: 0,
            beginning_held_until: None,
            told: BTreeMap::new(),
            forgotten: false,
        }
    }

    /// What the journal was given last, also when the task is gone.
    pub fn last(&self) -> Arc<Mutex<Option<Memory>>> {
        self.recorded.clone()
    }

    /// Runs until nothing of the pod is left. Boxed: a future holds what it is given once more for each one around it.
    ///
    /// # Errors
    /// An operation or a probe of the pod panicked.
    pub async fn run(mut self: Box<Self>) -> Result<(), Panicked> {
        while !self.forgotten {
            let wake_at = self.turn();
            if let Some(panicked) = self.panicked.take() {
                return Err(panicked);
            }
            if !self.forgotten {
                self.wait(wake_at).await;
            }
        }
        let uid = self.pod().metadata.uid.clone();
        self.parts.journal.put(&uid, None);
        self.parts.forget(&uid);
        Ok(())
    }

    /// One turn: plan, remember, show, begin. Returns when time alone calls for the next.
    fn turn(&mut self) -> Option<Duration> {
        self.compare_shown();
        let want = self.want();
        self.seen.unsure = self.unsure || self.busy.starts();
        let mut next = plan(&want, &self.seen, &self.memory, clock::now());
        self.tell_deadline(&next);
        self.remember(std::mem::take(&mut next.memory));
        self.tell_waiting(&want, &next.status);
        self.count(&next);
        let mut wake_at = next.wake_at;
        let mut wake = |at: Option<Duration>| wake_at = [wake_at, at].into_iter().flatten().min();
        wake(self.show(&next));
        for action in &next.actions {
            self.begin(&want, action, &next);
        }
        let probed = self.probing.follow(&next.probes, &self.pod(), &want);
        self.panicked = self.panicked.take().or(probed.err());
        wake(self.refresh(&next));
        wake(self.look());
        self.status_page.done(format!("{:?}", next.stage));
        wake_at
    }

    /// Waits until something happens. Every arm is cancel safe: what is not taken now is taken in the next turn.
    async fn wait(&mut self, wake_at: Option<Duration>) {
        let timer = async {
            match wake_at {
                Some(at) => tokio::time::sleep_until(clock::instant(at)).await,
                None => std::future::pending().await,
            }
        };
        // In the order of urgency: what the source says comes first, and one schedule of events is one history.
        tokio::select! {
            biased;
            changed = self.order.changed() => {
                if changed.is_err() {
                    // The sources are gone: the agent stops, the pod runs on.
                    std::future::pending::<()>().await;
                }
                self.reordered();
            }
            Some(finished) = self.under_way.join_next(), if !self.under_way.is_empty() => {
                match finished {
                    Ok(Ok(finished)) => self.finish(finished),
                    Ok(Err(panicked)) => self.panicked = Some(panicked),
                    Err(error) => tracing::error!(%error, "an operation of a pod broke off"),
                }
            }
            news = self.news.next() => self.hear(news),
            Verdict { container, id, kind, good } = self.verdicts.next() => {
                // One about an instance that is not the newest any more changes nothing.
                self.memory.probed(&container, &id, kind, good);
            }
            () = self.poke.notified() => {
                self.sources_changed();
                // What was missing may be there now.
                self.memory.forget_trouble(&Step::Volumes);
                self.forget_imported();
            }
            () = timer => {}
        }
    }

    fn pod(&self) -> Arc<Pod> {
        self.order.borrow().pod.clone()
    }

    fn want(&self) -> PodWant {
        let order = self.order.borrow().clone();
        let config = |container: &Container| self.config(container);
        let mut want = PodWant::from_pod(
            &order.pod,
            order.source,
            &self.parts.qos(&order.pod),
            &self.parts.host_ips,
            config,
        );
        want.verdict = self.parts.verdict(&order.pod.metadata.uid);
        want.dead_kept = self.parts.dead_kept();
        want.crash_delay_max = self.parts.crash_delay_max;
        if order.held == Held::No { want.gone() } else { want }
    }

    /// Takes in what the source says now.
    fn reordered(&mut self) {
        let order = self.order.borrow().clone();
        let meta = &order.pod.metadata;
        let fields = (meta.labels.clone(), meta.annotations.clone());
        // Labels and annotations may be files of a volume.
        self.volumes_stale |= fields != self.fields;
        self.fields = fields;
        let ephemeral = order.pod.spec.ephemeral_containers.len();
        if ephemeral != self.ephemeral {
            // The new ones may refer to objects that nothing of the pod has referred to.
            self.ephemeral = ephemeral;
            self.subscription = self.parts.objects.subscribe(&order.pod, self.poke.clone());
        }
    }

    /// Keeps the plan's memory, and hands it to the journal when it says something new.
    fn remember(&mut self, memory: Memory) {
        self.memory = memory;
        self.ending.send_replace(self.memory.ending.as_ref().map(|ending| ending.deadline));
        let before = {
            let mut recorded = self.recorded.lock().unwrap_or_else(PoisonError::into_inner);
            if recorded.as_ref() == Some(&self.memory) {
                return;
            }
            recorded.replace(self.memory.clone()).unwrap_or_default()
        };
        let pod = self.pod();
        let record = Record {
            namespace: pod.metadata.namespace.clone(),
            name: pod.metadata.name.clone(),
            memory: self.memory.clone(),
        };
        let ticket = self.parts.journal.put(&pod.metadata.uid, Some(record));
        if self.memory.has_found_more_than(&before) {
            self.findings = Some(ticket.clone());
        }
        self.ticket = Some(ticket);
    }

    /// Tells the node's other parts what is known of the pod, when that is news.
    fn count(&mut self, next: &Plan) {
        let takes = self.memory.takes_of_the_node() && next.stage != Stage::Gone;
        let counts = if takes { Counts::Yes } else { Counts::No };
        let Order { pod, source, .. } = self.order.borrow().clone();
        let is_told = |known: &Known| {
            Arc::ptr_eq(&known.pod, &pod)
                && (known.counts, known.source) == (counts, source)
                && *known.status == next.status
        };
        if !self.known.as_ref().is_some_and(is_told) {
            let known = Known { pod, status: Arc::new(next.status.clone()), counts, source };
            self.known = Some(known.clone());
            self.parts.know(known);
        }
    }

    // === operations ===

    fn begin(&mut self, want: &PodWant, action: &Action, next: &Plan) {
        if !self.busy.admits(action) || self.is_held_back(action, next) {
            return;
        }
        let pod = self.pod();
        if let Some(event) = events::begun(want, &self.memory, action) {
            self.parts.reports.event(&pod, event);
        }
        let deadline = match action {
            Action::StopContainer { deadline, .. } => Some(*deadline),
            _ => None,
        };
        // What fails half-way leaves something to take down as well.
        match action {
            Action::MountVolumes if self.seen.volumes == VolumesSeen::Absent => {
                self.seen.volumes = VolumesSeen::Unverified;
            }
            Action::CreateSandbox { .. } => self.seen.cgroup = true,
            _ => {}
        }
        let key = key(action);
        let before = self.ticket.clone().filter(|_| action.needs_durable_memory());
        let (parts, scene, mut action) = (self.parts.clone(), self.scene(), action.clone());
        if let Action::StopContainer { hook, .. } = &mut action {
            // A stop that overtakes another does not run the hook again.
            *hook &= !self.busy.has(&key);
        }
        self.spawn(key, deadline, async move {
            if let Some(ticket) = before {
                ticket.durable().await;
            }
            if action.begins() && scene.ending.borrow().is_some() {
                return Outcome::Dropped;
            }
            let began = Instant::now();
            match action {
                Action::MountVolumes => {
                    Outcome::Mounted(parts.volumes.set_up(&scene.pod, &scene.sources).await)
                }
                Action::UnmountVolumes => {
                    Outcome::Unmounted(parts.volumes.tear_down(&scene.pod).await)
                }
                action => {
                    let result = act(&parts, &scene, &action).await;
                    Outcome::Did(action, result, began.elapsed())
                }
            }
        });
    }

    /// Volumes wait until everything they are made from was looked up, the last word until the last status is shown.
    fn is_held_back(&self, action: &Action, next: &Plan) -> bool {
        match action {
            Action::MountVolumes => !self.subscription.is_complete(),
            Action::ReportDeleted => !self.is_shown(&next.status),
            _ => false,
        }
    }

    fn spawn(
        &mut self,
        key: Key,
        deadline: Option<Duration>,
        operation: impl Future<Output = Outcome> + Send + 'static,
    ) {
        self.busy.begin(key.clone(), deadline);
        let finished = async move { Finished { key, deadline, outcome: operation.await } };
        self.under_way.spawn(Hand::current().around(panics::isolate(finished)));
    }

    fn scene(&self) -> Scene {
        let sandbox = self.seen.ready_sandbox();
        Scene {
            pod: self.pod(),
            source: self.order.borrow().source,
            sources: Arc::new(self.subscription.sources(&self.pod())),
            mounted: self.mounted.clone(),
            pod_ips: sandbox.map(|s| s.ips.clone()).unwrap_or_default(),
            ending: self.ending.subscribe(),
            running: self
                .seen
                .containers
                .iter()
                .filter(|c| matches!(c.state, InstanceState::Running { .. }))
                .map(|c| (c.name.clone(), c.id.clone()))
                .collect(),
        }
    }

    // === what comes back ===

    fn hear(&mut self, news: RuntimeEvent) {
        match news {
            RuntimeEvent::Container { container, .. } => {
                let container = with_message(&self.parts, &self.pod(), container);
                action_result::instance_changed(&mut self.seen, container);
            }
            RuntimeEvent::Sandbox { sandbox, .. } => {
                action_result::sandbox_changed(&mut self.seen, sandbox);
            }
            RuntimeEvent::Missed => self.look_again = true,
        }
        self.epoch = self.epoch.wrapping_add(1);
    }

    fn finish(&mut self, finished: Finished) {
        if matches!(finished.key, Key::Sandbox | Key::Container(_) | Key::Remains(_)) {
            self.epoch = self.epoch.wrapping_add(1);
        }
        self.busy.end(&finished.key, finished.deadline);
        let want = self.want();
        match finished.outcome {
            Outcome::Did(action, result, took) => self.did(&want, &action, result, took),
            Outcome::Dropped => {}
            Outcome::Mounted(result) => self.mounted(&want, result),
            Outcome::Unmounted(Ok(())) => {
                self.worked(&want, &Action::UnmountVolumes, Effect::Nothing, Duration::ZERO);
            }
            Outcome::Unmounted(Err(line)) => {
                self.failed(&want, &Action::UnmountVolumes, "", &line);
            }
            Outcome::Shown(status, result) => self.status_written(*status, result),
            Outcome::Looked(epoch, result) => self.looked(epoch, result),
        }
    }

    fn did(
        &mut self,
        want: &PodWant,
        action: &Action,
        result: Result<Effect, Failure>,
        took: Duration,
    ) {
        match result {
            Ok(effect) => {
                self.doubt(action, effect.tells());
                self.worked(want, action, effect, took);
            }
            Err(failure) => {
                self.parts.step_failed(&self.pod(), action, took, &failure.message);
                let told = failure.effect.tells();
                if let Effect::Instance(instance) = failure.effect {
                    action_result::instance_changed(&mut self.seen, *instance);
                }
                if let Action::RunPostStart { container, id } = action {
                    // Told as an event already; the instance is stopped for it.
                    self.memory.post_started(container, id, false);
                    return;
                }
                if let Action::CreateContainer { container, .. } = action {
                    // The image may have been removed behind our back: look it up again.
                    if let Some(c) = want.container(container) {
                        self.seen.images.remove(&c.image);
                    }
                }
                self.doubt(action, told);
                self.failed(want, action, failure.reason, &failure.message);
            }
        }
    }

    fn worked(&mut self, want: &PodWant, action: &Action, effect: Effect, took: Duration) {
        let pod = self.pod();
        if let Action::CreateContainer { container, .. } = action {
            self.tell_present_image(want, container);
        }
        if let Some(event) = events::done(want, action, &proto_daemon::go_duration::format(took)) {
            self.parts.reports.event(&pod, event);
        }
        action_result::done(&mut self.seen, &mut self.memory, action, effect);
        self.parts.step_done(&pod, action, took);
        tracing::debug!(pod = %name(&pod), ?action, ?took, "done");
        self.forgotten |= *action == Action::Forget;
    }

    fn failed(&mut self, want: &PodWant, action: &Action, reason: &str, message: &str) {
        let pod = self.pod();
        tracing::warn!(pod = %name(&pod), ?action, error = message, "failed");
        if let Some(event) = events::failed(want, action, message) {
            self.parts.reports.event(&pod, event);
        }
        self.memory.failed(step(action), reason, message, clock::boot());
        if let Action::CreateSandbox { attempt } = action {
            self.memory.sandbox_spoilt(*attempt);
        }
    }

    fn with_messages(&self, containers: Vec<ContainerSeen>) -> Vec<ContainerSeen> {
        let pod = self.pod();
        containers.into_iter().map(|c| with_message(&self.parts, &pod, c)).collect()
    }
}

fn name(pod: &Pod) -> String {
    format!("{}/{}", pod.metadata.namespace, pod.metadata.name)
}

#[cfg(test)]
mod tests;
