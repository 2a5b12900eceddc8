//! The task of one pod, the only one that acts on the pod.
//!
//! ```text
//!   source ── update ─┐
//!   runtime ─ event ──┤                         ┌─ journal
//!   objects ─ wake ───┼─► state ─► plan ─► act ─┼─ runtime, node, volumes  (each in its own task, one per object)
//!   results ──────────┤                         └─ status, events
//!   time ─────────────┘
//! ```
//!
//! Each turn applies what has happened, plans from the whole state, starts the actions that the
//! plan admits and that are not already in flight, and waits. Results of operations arrive as
//! messages; no operation modifies the state itself.

#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

mod action_outcome;
mod refresh;
mod relist;
mod status_writer;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use agent_clock as clock;
use agent_interfaces::objects::Subscription;
use agent_interfaces::{ErrorText, MountedVolumes, ReportError, Reported, VolumeError};
use agent_journal::active_pods::ActivityMark;
use agent_journal::{CommitHandle, Record};
use agent_pod::backoff::RetryStep;
use agent_pod::desired::{DesiredPod, PodSource, grace_period};
use agent_pod::events;
use agent_pod::lifecycle::plan;
use agent_pod::observed::{InstanceState, ObservedContainer, ObservedPod, ObservedVolumes};
use agent_pod::plan::{Action, Plan, PodStage};
use agent_pod::record::PodRecord;
use agent_runtime::events::RuntimeEvent;
use agent_runtime::runtime::PodOnNode;
use proto_api::core::v1::{Container, Pod, PodStatus};
use proto_daemon::panics::{self, Panicked};
use proto_daemon::statusz::TaskStatus;
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::act::act;
use super::action_context::ActionContext;
use super::action_result::ActionFailure;
use super::action_result::{self, ActionResult};
use super::in_flight::{OperationKey, OperationsInFlight, operation_key};
use super::inbox::Inbox;
use super::pod_context::{HoldsResources, PodContext, PodSnapshot};
use super::probe_worker::{ProbeChange, ProbeWorkers};
use super::shown::ShownStatus;
use super::termination_message::with_message;
use super::transitions::{first_transitions, transitions};

/// The latest state of a pod in its source.
#[derive(Clone, Debug, PartialEq)]
pub struct PodUpdate {
    pub pod: Arc<Pod>,
    pub source: PodSource,
    pub presence: SourcePresence,
}

/// Whether a source still has a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SourcePresence {
    /// The source has it.
    Present,
    /// The source no longer has it.
    Dropped,
}

/// What is known of the pod when its task starts.
#[derive(Debug, Default)]
pub struct InitialState {
    /// Its sandboxes and containers in the runtime.
    pub on_node: PodOnNode,
    /// Its record in the journal.
    pub memory: Option<PodRecord>,
}

struct FinishedOperation {
    key: OperationKey,
    /// The deadline of a stop, as it was when the stop started.
    deadline: Option<Duration>,
    outcome: OperationResult,
}

enum OperationResult {
    ActionDone(Action, Result<ActionResult, ActionFailure>, Duration),
    /// Not started, because the pod is terminating.
    Skipped,
    Mounted(Result<MountedVolumes, VolumeError>),
    Unmounted(Result<(), ErrorText>),
    StatusWritten(Box<PodStatus>, Result<Reported, ReportError>),
    Relisted(u64, Result<PodOnNode, ErrorText>),
}

/// The state of a pod's task.
pub struct Worker {
    shared: Arc<PodContext>,
    update: watch::Receiver<PodUpdate>,
    news: Arc<Inbox<RuntimeEvent>>,
    status_page: TaskStatus,

    seen: ObservedPod,
    memory: PodRecord,
    subscription: Box<dyn Subscription>,
    wake: Arc<Notify>,
    mounted: Arc<MountedVolumes>,
    /// Number of ephemeral containers that the subscription covers.
    ephemeral: usize,
    probing: ProbeWorkers,
    probe_changes: Arc<Inbox<ProbeChange>>,
    /// The record last put into the journal, and the handle to await its commit.
    recorded: Arc<Mutex<Option<PodRecord>>>,
    commit: Option<CommitHandle>,
    /// The commit of the newest record with results of probes or hooks.
    findings_commit: Option<CommitHandle>,

    in_flight: OperationsInFlight,
    under_way: JoinSet<Result<FinishedOperation, Panicked>>,
    panicked: Option<Panicked>,
    /// Counts changes of the runtime's state, so that an older relist is discarded.
    epoch: u64,
    relist_again: bool,
    relist_not_before: Duration,
    /// Whether a failed call may nevertheless have created or started something.
    is_uncertain: bool,
    /// The time since boot at which running containers are killed, set once the pod terminates;
    /// operations in flight read it.
    ending: watch::Sender<Option<Duration>>,
    /// Labels and annotations that the volumes were built from.
    fields: (BTreeMap<String, String>, BTreeMap<String, String>),
    volumes_stale: bool,
    refresh_not_before: Duration,
    /// Consecutive failed refreshes.
    refresh_failures: u32,

    /// The snapshot last published to the rest of the node.
    snapshot: Option<PodSnapshot>,
    /// The status that the API is known to show.
    shown: ShownStatus,
    /// Until when a status without progress is held back.
    beginning_held_until: Option<Duration>,
    /// Waiting reasons that were reported as events, by container.
    reported_waiting: BTreeMap<String, String>,
    forgotten: bool,
}

impl Worker {
    /// The task of a pod; `update` carries the pod's state in its source, `news` its runtime
    /// events.
    pub fn new(
        shared: Arc<PodContext>,
        update: watch::Receiver<PodUpdate>,
        news: Arc<Inbox<RuntimeEvent>>,
        status_page: TaskStatus,
        start: InitialState,
    ) -> Self {
        let pod = update.borrow().pod.clone();
        let wake = shared.waker(&pod.metadata.uid);
        let subscription = shared.object_cache.subscribe(&pod, wake.clone());
        let recorded = start.memory.clone();
        let (status, instances) = (&pod.status, &start.on_node.containers);
        let memory = match update.borrow().source {
            PodSource::Api => {
                let end = (grace_period(&pod), clock::boot());
                PodRecord::recover_api_pod(start.memory, status, instances, end)
            }
            PodSource::Static => PodRecord::recover(start.memory, status, instances),
        };
        let volumes = if shared.volumes.exist(&pod) {
            ObservedVolumes::Unverified
        } else {
            ObservedVolumes::Absent
        };
        // The agent lists the cgroups at its start: a pod of which nothing was found has none.
        let known_before = recorded.is_some() || !start.on_node.uid.is_empty();
        let on_node = start.on_node.containers.into_iter();
        let containers = on_node.map(|c| with_message(&shared, &pod, c)).collect();
        let seen = ObservedPod {
            sandboxes: start.on_node.sandboxes,
            containers,
            volumes,
            cgroup: known_before && shared.cgroups.adopt_cgroup(&pod),
            ..ObservedPod::default()
        };
        let probe_changes = Arc::new(Inbox::default());
        Self {
            snapshot: None,
            shown: ShownStatus::new(pod.clone()),
            ephemeral: pod.spec.ephemeral_containers.len(),
            probing: ProbeWorkers::new(shared.clone(), probe_changes.clone()),
            probe_changes,
            shared,
            update,
            news,
            status_page,
            seen,
            memory,
            subscription,
            wake,
            mounted: Arc::default(),
            recorded: Arc::new(Mutex::new(recorded)),
            commit: None,
            findings_commit: None,
            in_flight: OperationsInFlight::default(),
            under_way: JoinSet::new(),
            panicked: None,
            epoch: 0,
            relist_again: false,
            relist_not_before: Duration::ZERO,
            is_uncertain: false,
            ending: watch::Sender::new(None),
            fields: (pod.metadata.labels.clone(), pod.metadata.annotations.clone()),
            volumes_stale: false,
            refresh_not_before: Duration::ZERO,
            refresh_failures: 0,
            beginning_held_until: None,
            reported_waiting: BTreeMap::new(),
            forgotten: false,
        }
    }

    /// The record last put into the journal, readable also after the task has ended.
    pub fn last_record(&self) -> Arc<Mutex<Option<PodRecord>>> {
        self.recorded.clone()
    }

    /// Runs until nothing of the pod is left. Boxed, since each wrapping future would hold another
    /// copy of it.
    ///
    /// # Errors
    /// An operation or a probe of the pod panicked.
    pub async fn run(mut self: Box<Self>) -> Result<(), Panicked> {
        while !self.forgotten {
            let wake_at = self.reconcile();
            if let Some(panicked) = self.panicked.take() {
                return Err(panicked);
            }
            if !self.forgotten {
                self.wait(wake_at).await;
            }
        }
        let pod = self.pod();
        let uid = pod.metadata.uid.clone();
        tracing::info!(pod = %name(&pod), uid, "nothing of the pod is left on the node");
        self.shared.journal.put(&uid, None);
        self.shared.forget(&uid);
        Ok(())
    }

    /// One turn: plans, records the memory, writes the status and starts actions. Returns when the
    /// next turn is due without an event.
    fn reconcile(&mut self) -> Option<Duration> {
        self.observe_shown();
        let want = self.desired();
        self.seen.unsure = self.is_uncertain || self.in_flight.starts();
        let mut next = plan(&want, &self.seen, &self.memory, clock::now());
        self.report_deadline(&next);
        self.record_memory(std::mem::take(&mut next.record));
        self.report_waiting(&want, &next.status);
        self.publish_snapshot(&next);
        let mut wake_at = next.wake_at;
        let mut wake = |at: Option<Duration>| wake_at = [wake_at, at].into_iter().flatten().min();
        wake(self.write_status(&next));
        for action in &next.actions {
            self.start_action(&want, action, &next);
        }
        let probed = self.probing.sync(&next.probes, &self.pod(), &want);
        self.panicked = self.panicked.take().or(probed.err());
        wake(self.refresh_volumes(&next));
        wake(self.start_relist());
        self.status_page.done(format!("{:?}", next.stage));
        wake_at
    }

    /// Waits for the next event or for `wake_at`. Every arm is cancel safe: what is not received
    /// now is received in the next turn.
    async fn wait(&mut self, wake_at: Option<Duration>) {
        let timer = async {
            match wake_at {
                Some(at) => tokio::time::sleep_until(clock::instant(at)).await,
                None => std::future::pending().await,
            }
        };
        // In the order of urgency. The order is fixed so that a test's schedule determines its
        // history.
        tokio::select! {
            biased;
            changed = self.update.changed() => {
                if changed.is_err() {
                    // The dispatcher has ended because the agent stops; the containers keep
                    // running.
                    std::future::pending::<()>().await;
                }
                self.apply_update();
            }
            Some(finished) = self.under_way.join_next(), if !self.under_way.is_empty() => {
                match finished {
                    Ok(Ok(finished)) => self.finish_operation(finished),
                    Ok(Err(panicked)) => self.panicked = Some(panicked),
                    Err(error) => tracing::error!(%error, "an operation of the pod was cancelled; the next plan repeats it"),
                }
            }
            news = self.news.next() => self.apply_runtime_event(news),
            ProbeChange { container, id, kind, good } = self.probe_changes.next() => {
                // A result for an older instance changes nothing.
                self.memory.record_probe_result(&container, &id, kind, good);
            }
            () = self.wake.notified() => {
                self.sources_changed();
                // Objects that were missing may exist now.
                self.memory.clear_failure(&RetryStep::Volumes);
                self.forget_imported();
            }
            () = timer => {}
        }
    }

    fn pod(&self) -> Arc<Pod> {
        self.update.borrow().pod.clone()
    }

    fn desired(&self) -> DesiredPod {
        let update = self.update.borrow().clone();
        let config = |container: &Container| self.environment_state(container);
        let mut want = DesiredPod::from_pod(
            &update.pod,
            update.source,
            &self.shared.qos(&update.pod),
            &self.shared.host_ips,
            config,
        );
        want.disruption = self.shared.decision(&update.pod.metadata.uid);
        want.dead_kept = self.shared.dead_kept();
        want.crash_delay_max = self.shared.crash_delay_max;
        if update.presence == SourcePresence::Dropped { want.into_gone() } else { want }
    }

    /// Applies the pod's new state in its source.
    fn apply_update(&mut self) {
        let update = self.update.borrow().clone();
        let meta = &update.pod.metadata;
        let fields = (meta.labels.clone(), meta.annotations.clone());
        self.volumes_stale |= fields != self.fields;
        self.fields = fields;
        let ephemeral = update.pod.spec.ephemeral_containers.len();
        if ephemeral != self.ephemeral {
            // New ephemeral containers may refer to further objects.
            self.ephemeral = ephemeral;
            self.subscription = self.shared.object_cache.subscribe(&update.pod, self.wake.clone());
        }
    }

    /// Stores the plan's memory, and puts it into the journal if it has changed.
    fn record_memory(&mut self, memory: PodRecord) {
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
        let commit = self.shared.journal.put(&pod.metadata.uid, Some(record));
        if self.memory.has_newer_results(&before) {
            self.findings_commit = Some(commit.clone());
        }
        self.commit = Some(commit);
    }

    /// Publishes the pod's snapshot to the rest of the node if it has changed.
    fn publish_snapshot(&mut self, next: &Plan) {
        let takes = self.memory.holds_resources() && next.stage != PodStage::Gone;
        let holds_resources = if takes { HoldsResources::Yes } else { HoldsResources::No };
        let PodUpdate { pod, source, .. } = self.update.borrow().clone();
        let is_told = |known: &PodSnapshot| {
            Arc::ptr_eq(&known.pod, &pod)
                && (known.holds_resources, known.source) == (holds_resources, source)
                && *known.status == next.status
        };
        if !self.snapshot.as_ref().is_some_and(is_told) {
            let known =
                PodSnapshot { pod, status: Arc::new(next.status.clone()), holds_resources, source };
            self.log_transitions(&known);
            self.snapshot = Some(known.clone());
            self.shared.update_snapshot(known);
        }
    }

    /// Logs what has changed since the last snapshot, or since the status that the source had when
    /// the task began.
    fn log_transitions(&self, now: &PodSnapshot) {
        let current = (&*now.pod, &*now.status);
        let changes = match &self.snapshot {
            Some(known) => transitions((&known.pod, &known.status), current),
            None => first_transitions(current),
        };
        for transition in changes {
            tracing::info!(pod = %name(&now.pod), uid = now.pod.metadata.uid, "{transition}");
        }
    }

    // === operations ===

    fn start_action(&mut self, want: &DesiredPod, action: &Action, next: &Plan) {
        if !self.in_flight.admits(action) || self.is_held_back(action, next) {
            return;
        }
        let pod = self.pod();
        if let Some(event) = events::action_started(want, &self.memory, action) {
            self.shared.reports.event(&pod, event);
        }
        let deadline = match action {
            Action::StopContainer { deadline, .. } => Some(*deadline),
            _ => None,
        };
        // An action that fails half-way leaves something to clean up as well.
        match action {
            Action::MountVolumes if self.seen.volumes == ObservedVolumes::Absent => {
                self.seen.volumes = ObservedVolumes::Unverified;
            }
            Action::CreateSandbox { .. } => self.seen.cgroup = true,
            _ => {}
        }
        let key = operation_key(action);
        let before = self.commit.clone().filter(|_| action.needs_durable_record());
        let (shared, context, mut action) =
            (self.shared.clone(), self.action_context(), action.clone());
        if let Action::StopContainer { hook, .. } = &mut action {
            // A stop with an earlier deadline does not run the hook again.
            *hook &= !self.in_flight.has(&key);
        }
        self.spawn(key, deadline, async move {
            if let Some(commit) = before {
                commit.durable().await;
            }
            if action.begins() && context.ending.borrow().is_some() {
                return OperationResult::Skipped;
            }
            let began = Instant::now();
            match action {
                Action::MountVolumes => OperationResult::Mounted(
                    shared.volumes.set_up(&context.pod, &context.objects).await,
                ),
                Action::UnmountVolumes => {
                    OperationResult::Unmounted(shared.volumes.tear_down(&context.pod).await)
                }
                action => {
                    let result = act(&shared, &context, &action).await;
                    OperationResult::ActionDone(action, result, began.elapsed())
                }
            }
        });
    }

    /// Volumes wait for the objects that they are built from; the final report waits until the last
    /// status is shown.
    fn is_held_back(&self, action: &Action, next: &Plan) -> bool {
        match action {
            Action::MountVolumes => !self.subscription.is_complete(),
            Action::ReportDeleted => !self.is_shown(&next.status),
            _ => false,
        }
    }

    fn spawn(
        &mut self,
        key: OperationKey,
        deadline: Option<Duration>,
        operation: impl Future<Output = OperationResult> + Send + 'static,
    ) {
        self.in_flight.begin(key.clone(), deadline);
        let finished = async move { FinishedOperation { key, deadline, outcome: operation.await } };
        self.under_way.spawn(ActivityMark::current().wrap(panics::isolate(finished)));
    }

    fn action_context(&self) -> ActionContext {
        let sandbox = self.seen.ready_sandbox();
        ActionContext {
            pod: self.pod(),
            source: self.update.borrow().source,
            objects: Arc::new(self.subscription.objects(&self.pod())),
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

    // === results and runtime events ===

    fn apply_runtime_event(&mut self, news: RuntimeEvent) {
        match news {
            RuntimeEvent::Container { container, .. } => {
                let container = with_message(&self.shared, &self.pod(), container);
                action_result::update_instance(&mut self.seen, container);
            }
            RuntimeEvent::Sandbox { sandbox, .. } => {
                action_result::update_sandbox(&mut self.seen, sandbox);
            }
            RuntimeEvent::Missed => self.relist_again = true,
        }
        self.epoch = self.epoch.wrapping_add(1);
    }

    fn finish_operation(&mut self, finished: FinishedOperation) {
        if matches!(
            finished.key,
            OperationKey::Sandbox | OperationKey::Container(_) | OperationKey::DeadContainer(_)
        ) {
            self.epoch = self.epoch.wrapping_add(1);
        }
        self.in_flight.end(&finished.key, finished.deadline);
        let want = self.desired();
        match finished.outcome {
            OperationResult::ActionDone(action, result, took) => {
                self.action_done(&want, &action, result, took)
            }
            OperationResult::Skipped => {}
            OperationResult::Mounted(result) => self.volumes_set_up(&want, result),
            OperationResult::Unmounted(Ok(())) => {
                self.action_succeeded(
                    &want,
                    &Action::UnmountVolumes,
                    ActionResult::Nothing,
                    Duration::ZERO,
                );
            }
            OperationResult::Unmounted(Err(line)) => {
                self.action_failed(&want, &Action::UnmountVolumes, "", &line);
            }
            OperationResult::StatusWritten(status, result) => self.status_written(*status, result),
            OperationResult::Relisted(epoch, result) => self.apply_relist(epoch, result),
        }
    }

    fn with_termination_messages(
        &self,
        containers: Vec<ObservedContainer>,
    ) -> Vec<ObservedContainer> {
        let pod = self.pod();
        containers.into_iter().map(|c| with_message(&self.shared, &pod, c)).collect()
    }
}

fn name(pod: &Pod) -> String {
    format!("{}/{}", pod.metadata.namespace, pod.metadata.name)
}

#[cfg(test)]
mod tests;
