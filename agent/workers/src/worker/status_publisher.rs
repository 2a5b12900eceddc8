//! Shows a pod's status: to the rest of the node as a snapshot, in the log, as events of waiting
//! containers, and decides when it is written to the API.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use agent_clock as clock;
use agent_interfaces::{ReportError, Reported};
use agent_pod::desired::DesiredPod;
use agent_pod::events;
use proto_api::core::v1::{Pod, PodStatus};

use super::{PodUpdate, SourcePresence, name};
use crate::pod_context::{HoldsResources, PodContext, PodSnapshot};
use crate::shown_status::{ShownStatus, WatchChange};
use crate::status_patch;
use crate::transitions::{first_transitions, transitions};

/// How long a status without progress is held back while the runtime limiter has waiters. Most of
/// these pods run before that, and their first status shows it.
const BEGINNING_HELD: Duration = Duration::from_secs(10);

/// Publishes the status of one pod.
pub struct StatusPublisher {
    shared: Arc<PodContext>,
    /// The snapshot last published to the rest of the node.
    snapshot: Option<PodSnapshot>,
    /// The status that the API is known to show.
    shown: ShownStatus,
    /// Until when a status without progress is held back.
    beginning_held_until: Option<Duration>,
    /// Waiting reasons that were reported as events, by container.
    reported_waiting: BTreeMap<String, String>,
}

/// A status to write to the API.
pub struct StatusWrite {
    /// The status that the API is known to show.
    pub from: PodStatus,
    /// The status that it is to show.
    pub to: PodStatus,
    /// Whether the patch states all fields, since `from` may be wrong.
    pub whole: bool,
}

/// What is to be done about the status in the API.
pub enum StatusStep {
    /// Nothing now; when to look again, since boot.
    Wait(Option<Duration>),
    /// It is written.
    Write(Box<StatusWrite>),
}

impl StatusPublisher {
    /// Starts from the object as first received.
    pub fn new(shared: Arc<PodContext>, pod: Arc<Pod>) -> Self {
        Self {
            shared,
            snapshot: None,
            shown: ShownStatus::new(pod),
            beginning_held_until: None,
            reported_waiting: BTreeMap::new(),
        }
    }

    /// Applies the status that the API shows now. Must not be called while a write is in flight,
    /// whose answer may be newer.
    pub fn observe_shown(&mut self, pod: &Arc<Pod>) -> Option<WatchChange> {
        let wanted = self.snapshot.as_ref().map(|known| known.status.clone());
        self.shown.observe(pod, wanted.as_deref(), clock::boot())
    }

    /// Publishes the pod's snapshot to the rest of the node, and logs it, if it has changed.
    pub fn publish_snapshot(
        &mut self,
        update: PodUpdate,
        status: &PodStatus,
        holds_resources: HoldsResources,
    ) {
        let PodUpdate { pod, source, .. } = update;
        let is_reported = |known: &PodSnapshot| {
            Arc::ptr_eq(&known.pod, &pod)
                && (known.holds_resources, known.source) == (holds_resources, source)
                && *known.status == *status
        };
        if !self.snapshot.as_ref().is_some_and(is_reported) {
            let status = Arc::new(status.clone());
            let known = PodSnapshot { pod, status, holds_resources, source };
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

    /// Decides on a write of the status, if the API shows another one.
    pub fn next_write(&mut self, update: &PodUpdate, status: &PodStatus) -> StatusStep {
        if self.is_shown(update, status) {
            return StatusStep::Wait(self.shown.watch_trusted_at());
        }
        let now = clock::boot();
        let from = self.shown.status().cloned().unwrap_or_default();
        if status_patch::shows_no_progress(&from, status) {
            let held_until = &mut self.beginning_held_until;
            if held_until.is_none() && self.shared.runtime_limiter.has_waiters() {
                *held_until = Some(now.saturating_add(BEGINNING_HELD));
            }
            if let Some(until) = held_until.filter(|until| now < *until) {
                return StatusStep::Wait(Some(until));
            }
        }
        if now < self.shown.not_before() {
            return StatusStep::Wait(Some(self.shown.not_before()));
        }
        let (to, whole) = (status.clone(), self.shown.is_unsure());
        StatusStep::Write(Box::new(StatusWrite { from, to, whole }))
    }

    /// Whether the API server has this status, or the pod no longer needs one written.
    pub fn is_shown(&self, update: &PodUpdate, status: &PodStatus) -> bool {
        update.presence == SourcePresence::Dropped || self.shown.matches(status)
    }

    /// Applies the outcome of a write.
    pub fn record_write(
        &mut self,
        pod: &Pod,
        status: &PodStatus,
        result: Result<Reported, ReportError>,
    ) {
        match result {
            Ok(Reported::Shown(answer)) => self.shown.record_written(status, answer, clock::boot()),
            Ok(Reported::NoObject) => self.shown.record_absent(pod),
            Err(error) => {
                self.shown.record_failed(clock::boot());
                tracing::debug!(pod = %name(pod), %error, "cannot write the pod's status; retried with back-off");
            }
        }
    }

    /// Reports new reasons of waiting containers as events.
    pub fn report_waiting(&mut self, pod: &Pod, want: &DesiredPod, status: &PodStatus) {
        let statuses = status.init_container_statuses.iter().chain(&status.container_statuses);
        for container in statuses.chain(&status.ephemeral_container_statuses) {
            let Some(waiting) = &container.state.waiting else {
                self.reported_waiting.remove(&container.name);
                continue;
            };
            let before =
                self.reported_waiting.insert(container.name.clone(), waiting.reason.clone());
            if before.as_ref() == Some(&waiting.reason) {
                continue;
            }
            let (reason, message) = (&waiting.reason, &waiting.message);
            for event in events::container_waiting(want, &container.name, reason, message) {
                self.shared.reports.event(pod, event);
            }
        }
    }
}
