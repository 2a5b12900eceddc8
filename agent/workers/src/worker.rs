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
//!
//! [`pod_state`] is what is known and decided (pure), [`driver`] runs the operations,
//! [`status_publisher`] shows the status, [`record_writer`] keeps the journal, [`volume_refresher`]
//! says when volumes are refreshed. This file brings one's results to the others.

#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

mod action_outcome;
mod driver;
mod pod_state;
mod record_writer;
mod status_publisher;
mod volume_refresher;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use agent_clock as clock;
use agent_pod::backoff::RetryStep;
use agent_pod::desired::{DesiredPod, PodSource, grace_period};
use agent_pod::env::ServiceEnv;
use agent_pod::events;
use agent_pod::observed::{ObservedContainer, ObservedImage, ObservedPod, ObservedVolumes};
use agent_pod::plan::{Action, Plan, PodStage};
use agent_pod::record::{PodRecord, TerminationReason};
use agent_runtime::RuntimeError;
use agent_runtime::events::RuntimeEvent;
use agent_runtime::runtime::PodOnNode;
use proto_api::core::v1::Pod;
use proto_daemon::exit::chain;
use proto_daemon::panics::Panicked;
use proto_daemon::statusz::TaskStatus;
use tokio::sync::watch;

use self::driver::{FinishedOperation, OperationResult, PodDriver};
use self::pod_state::{PodState, RelistStep};
use self::record_writer::RecordWriter;
use self::status_publisher::{StatusPublisher, StatusStep};
use self::volume_refresher::{RefreshStep, VolumeRefresher};
use super::action_context::ActionContext;
use super::action_result::ActionResult;
use super::in_flight::OperationKey;
use super::inbox::Inbox;
use super::pod_context::{HoldsResources, PodContext};
use super::probe_worker::{ProbeChange, ProbeWorkers};
use super::termination_message::with_message;

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

/// A pod's task: the state that it plans from, and what executes the plans.
pub struct Worker {
    shared: Arc<PodContext>,
    update: watch::Receiver<PodUpdate>,
    news: Arc<Inbox<RuntimeEvent>>,
    status_page: TaskStatus,
    state: PodState,
    driver: PodDriver,
    records: RecordWriter,
    publisher: StatusPublisher,
    volumes: VolumeRefresher,
    probing: ProbeWorkers,
    probe_changes: Arc<Inbox<ProbeChange>>,
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
        let wake = shared.pods.waker(&pod.metadata.uid);
        let refresher = VolumeRefresher::new(shared.object_cache.clone(), &pod, wake);
        let recorded = start.memory.clone();
        let (status, instances) = (&pod.status, &start.on_node.containers);
        let memory = match update.borrow().source {
            PodSource::Api => {
                let end = (grace_period(&pod), clock::boot());
                PodRecord::recover_api_pod(start.memory, status, instances, end)
            }
            PodSource::Static => PodRecord::recover_static_pod(start.memory, status, instances),
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
            state: PodState::new(seen, memory),
            driver: PodDriver::new(shared.clone()),
            records: RecordWriter::new(shared.journal.clone(), recorded),
            publisher: StatusPublisher::new(shared.clone(), pod),
            volumes: refresher,
            probing: ProbeWorkers::new(shared.clone(), probe_changes.clone()),
            probe_changes,
            shared,
            update,
            news,
            status_page,
        }
    }

    /// The record last put into the journal, readable also after the task has ended.
    pub fn last_record(&self) -> Arc<Mutex<Option<PodRecord>>> {
        self.records.last_record()
    }

    /// Runs until nothing of the pod is left. Boxed, since each wrapping future would hold another
    /// copy of it.
    ///
    /// # Errors
    /// An operation or a probe of the pod panicked.
    pub async fn run(mut self: Box<Self>) -> Result<(), Panicked> {
        while !self.state.forgotten {
            let wake_at = self.reconcile();
            if let Some(panicked) = self.driver.take_panic() {
                return Err(panicked);
            }
            if !self.state.forgotten {
                self.wait(wake_at).await;
            }
        }
        let pod = self.pod();
        let uid = &pod.metadata.uid;
        tracing::info!(pod = %name(&pod), uid, "pod cleanup is complete: nothing of the pod is left on the node");
        self.records.remove(uid);
        self.shared.forget(uid);
        Ok(())
    }

    /// One turn: plans, records the memory, writes the status and starts actions. Returns when the
    /// next turn is due without an event.
    fn reconcile(&mut self) -> Option<Duration> {
        self.observe_shown();
        let want = self.desired();
        let mut next = self.state.plan(&want, self.driver.in_flight().starts(), clock::now());
        self.report_deadline(&next);
        self.record_memory(std::mem::take(&mut next.record));
        self.publisher.report_waiting(&self.pod(), &want, &next.status);
        self.publish_snapshot(&next);
        let mut wake_at = next.wake_at;
        let mut wake = |at: Option<Duration>| wake_at = [wake_at, at].into_iter().flatten().min();
        wake(self.write_status(&next));
        for action in &next.actions {
            self.start_action(&want, action, &next);
        }
        let probed = self.probing.sync(&next.probes, &self.pod(), &want);
        self.driver.record_panic(probed.err());
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
                self.volumes.apply_update(&self.update.borrow().pod);
            }
            finished = self.driver.next_finished() => {
                if let Some(finished) = finished {
                    self.finish_operation(finished);
                }
            }
            news = self.news.next() => self.apply_runtime_event(news),
            ProbeChange { container, id, kind, good } = self.probe_changes.next() => {
                // A result for an older instance changes nothing.
                self.state.memory.record_probe_result(&container, &id, kind, good);
            }
            () = self.volumes.changed() => {
                self.volumes.objects_changed(clock::boot());
                // Objects that were missing may exist now.
                self.state.memory.clear_failure(&RetryStep::Volumes);
                self.forget_imported();
            }
            () = timer => {}
        }
    }

    fn pod(&self) -> Arc<Pod> {
        self.update.borrow().pod.clone()
    }

    fn desired(&mut self) -> DesiredPod {
        let update = self.update.borrow().clone();
        let environments = self.volumes.environments(&update.pod);
        let mut want = DesiredPod::from_pod(
            &update.pod,
            update.source,
            &self.shared.qos(&update.pod),
            &self.shared.settings.host_ips,
            |container| environments.state_of(container),
        );
        want.disruption = self.shared.pods.decision(&update.pod.metadata.uid);
        want.dead_kept = self.shared.dead_kept();
        want.crash_delay_max = self.shared.settings.crash_delay_max;
        if update.presence == SourcePresence::Dropped { want.into_gone() } else { want }
    }

    // === status and record ===

    /// Applies the status that the API shows now, unless a write is in flight, whose answer may be
    /// newer.
    fn observe_shown(&mut self) {
        if self.driver.in_flight().has(&OperationKey::Status) {
            return;
        }
        let update = self.update.borrow().clone();
        let Some(seen) = self.publisher.observe_shown(&update.pod) else { return };
        let (now, status, memory) = (clock::boot(), &update.pod.status, &mut self.state.memory);
        match update.source {
            PodSource::Api => memory.apply_end(status, grace_period(&update.pod), now),
            // The mirror pod is seen for the first time: its progress has been visible to users.
            PodSource::Static if seen.first => memory.apply_mirror(status),
            // A mirror pod never ends its static pod.
            PodSource::Static => {}
        }
        for (kind, status, since) in seen.overruled {
            tracing::debug!(pod = %name(&update.pod), kind, status, "another client has changed a pod condition; it is written again");
            memory.apply_condition(kind, status, since);
        }
    }

    /// Reports the exceeded `activeDeadlineSeconds` once, when the pod is ended for it.
    fn report_deadline(&self, next: &Plan) {
        let exceeded = |memory: &PodRecord| {
            memory.ending.as_ref().is_some_and(|e| e.why == TerminationReason::DeadlineExceeded)
        };
        if exceeded(&next.record) && !exceeded(&self.state.memory) {
            self.shared.reports.event(&self.pod(), events::deadline_exceeded());
        }
    }

    /// Stores the plan's memory, and puts it into the journal if it has changed.
    fn record_memory(&mut self, memory: PodRecord) {
        self.state.memory = memory;
        let memory = &self.state.memory;
        self.driver.set_ending(memory.ending.as_ref().map(|ending| ending.deadline));
        self.records.write(&self.update.borrow().pod, memory);
    }

    /// Publishes the pod's snapshot to the rest of the node if it has changed.
    fn publish_snapshot(&mut self, next: &Plan) {
        let takes = next.stage.holds_resources() && self.state.memory.is_admitted();
        let holds_resources = if takes { HoldsResources::Yes } else { HoldsResources::No };
        let update = self.update.borrow().clone();
        self.publisher.publish_snapshot(update, &next.status, holds_resources);
    }

    /// Starts to write the status if the API shows another one. Returns when to try again.
    fn write_status(&mut self, next: &Plan) -> Option<Duration> {
        if self.driver.in_flight().has(&OperationKey::Status) {
            return None;
        }
        let update = self.update.borrow().clone();
        let undecided = next.stage == PodStage::Preparing && self.state.memory.admission.is_none();
        if undecided && update.source == PodSource::Static {
            // The mirror may show an earlier refusal, which the next may repeat.
            return None;
        }
        match self.publisher.next_write(&update, &next.status) {
            StatusStep::Wait(at) => at,
            StatusStep::Write(write) => {
                self.driver.write_status(update.pod, write, self.records.findings_commit());
                None
            }
        }
    }

    // === operations ===

    fn start_action(&mut self, want: &DesiredPod, action: &Action, next: &Plan) {
        if !self.driver.in_flight().admits(action) || self.is_held_back(action, next) {
            return;
        }
        if let Some(event) = events::action_started(want, &self.state.memory, action) {
            self.shared.reports.event(&self.pod(), event);
        }
        self.state.begin_action(action);
        let commit = self.records.commit().filter(|_| action.needs_durable_record());
        let services = match action {
            Action::CreateContainer { .. } => self.volumes.services(&self.pod()),
            _ => Vec::new(),
        };
        self.driver.start_action(action.clone(), self.action_context(services), commit);
    }

    /// Volumes wait for the objects that they are built from; the final report waits until the last
    /// status is shown.
    fn is_held_back(&self, action: &Action, next: &Plan) -> bool {
        match action {
            Action::MountVolumes => !self.volumes.has_all_objects(),
            Action::ReportDeleted => !self.publisher.is_shown(&self.update.borrow(), &next.status),
            _ => false,
        }
    }

    fn action_context(&self, services: Vec<ServiceEnv>) -> ActionContext {
        let pod = self.pod();
        ActionContext {
            services,
            source: self.update.borrow().source,
            objects: Arc::new(self.volumes.objects()),
            pod,
            mounted: self.volumes.mounted(),
            pod_ips: self.state.pod_ips(),
            ending: self.driver.ending(),
            running: self.state.running_containers(),
        }
    }

    /// Refreshes volumes whose objects have changed or whose token is due. Returns when the next
    /// refresh is due.
    fn refresh_volumes(&mut self, next: &Plan) -> Option<Duration> {
        let alive =
            matches!(next.stage, PodStage::Preparing | PodStage::Initializing | PodStage::Running);
        if !alive && self.state.seen.volumes == ObservedVolumes::Unverified {
            // A driver may never answer, and the pod no longer needs the volume.
            self.shared.volumes.give_up(&self.pod());
        }
        if !alive
            || self.state.seen.volumes != ObservedVolumes::Mounted
            || self.driver.in_flight().has(&OperationKey::Volumes)
        {
            return None;
        }
        match self.volumes.next_refresh(clock::boot()) {
            RefreshStep::Wait(at) => at,
            RefreshStep::Refresh => {
                self.driver.refresh_volumes(self.action_context(Vec::new()));
                None
            }
        }
    }

    /// Relists the pod when events may have been lost and no operation changes the runtime. Returns
    /// when to try again.
    fn start_relist(&mut self) -> Option<Duration> {
        let in_flight = self.driver.in_flight();
        let is_busy = in_flight.has(&OperationKey::Relist) || in_flight.changes_runtime();
        match self.state.next_relist(is_busy, clock::boot()) {
            RelistStep::Nothing => None,
            RelistStep::Wait(at) => Some(at),
            RelistStep::Start(epoch) => {
                self.driver.relist(self.pod().metadata.uid.clone(), epoch);
                None
            }
        }
    }

    // === results and runtime events ===

    fn apply_runtime_event(&mut self, news: RuntimeEvent) {
        let news = match news {
            RuntimeEvent::Container { pod_uid, container } => RuntimeEvent::Container {
                pod_uid,
                container: with_message(&self.shared, &self.pod(), container),
            },
            other => other,
        };
        self.state.apply_event(news);
    }

    fn finish_operation(&mut self, finished: FinishedOperation) {
        if matches!(
            finished.key,
            OperationKey::Sandbox | OperationKey::Container(_) | OperationKey::DeadContainer(_)
        ) {
            self.state.runtime_changed();
        }
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
            OperationResult::Unmounted(Err(error)) => {
                self.action_failed(&want, &Action::UnmountVolumes, "", &chain(&error));
            }
            OperationResult::StatusWritten(status, result) => {
                self.publisher.record_write(&self.update.borrow().pod, &status, result);
            }
            OperationResult::Relisted(epoch, result) => self.apply_relist(epoch, result),
        }
    }

    fn apply_relist(&mut self, epoch: u64, result: Result<PodOnNode, RuntimeError>) {
        match result {
            Ok(mut on_node) => {
                let changes_runtime = self.driver.in_flight().changes_runtime();
                if self.state.accepts_relist(epoch, changes_runtime) {
                    if !self.state.seen.cgroup && !on_node.sandboxes.is_empty() {
                        self.state.seen.cgroup = self.shared.cgroups.adopt_cgroup(&self.pod());
                    }
                    on_node.containers = self.with_termination_messages(on_node.containers);
                    self.state.apply_relist(on_node);
                }
            }
            Err(error) => {
                tracing::warn!(pod = %name(&self.pod()), error = chain(&error), "cannot list the pod's containers; retried in a second");
                self.state.relist_failed(clock::boot());
            }
        }
    }

    fn with_termination_messages(
        &self,
        containers: Vec<ObservedContainer>,
    ) -> Vec<ObservedContainer> {
        let pod = self.pod();
        containers.into_iter().map(|c| with_message(&self.shared, &pod, c)).collect()
    }

    /// Forgets pull failures of images that have been imported meanwhile.
    fn forget_imported(&mut self) {
        let (images, state) = (&self.shared.images, &mut self.state);
        state
            .memory
            .troubles
            .retain(|t| !matches!(&t.step, RetryStep::Image(image) if images.is_imported(image)));
        state.seen.images.retain(|image, seen| {
            !(matches!(seen, ObservedImage::Absent { .. }) && images.is_imported(image))
        });
    }
}

fn name(pod: &Pod) -> String {
    format!("{}/{}", pod.metadata.namespace, pod.metadata.name)
}

#[cfg(test)]
mod tests;
