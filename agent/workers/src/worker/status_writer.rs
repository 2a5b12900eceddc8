//! Writes a pod's status to the API, and reports waiting containers as events.

use std::time::Duration;

use agent_clock as clock;
use agent_interfaces::{ReportError, Reported, StatusChange};
use agent_pod::desired::{DesiredPod, PodSource, grace_period};
use agent_pod::events;
use agent_pod::plan::Plan;
use agent_pod::record::{PodRecord, TerminationReason};
use proto_api::core::v1::PodStatus;

use super::{OperationResult, SourcePresence, Worker, name};
use crate::in_flight::OperationKey;
use crate::status_patch;

/// How long a status without progress is held back while the runtime limiter has waiters. Most of
/// these pods run before that, and their first status shows it.
const BEGINNING_HELD: Duration = Duration::from_secs(10);

/// How long a status waits for the journal to commit results of probes and hooks. An agent that is
/// killed between the two would start with the API's status and without its reasons; a failing disk
/// does not delay the status longer than this.
const RECORD_WAIT: Duration = Duration::from_secs(1);

impl Worker {
    /// Applies the status that the API shows now, unless a write is in flight, whose answer may be
    /// newer.
    pub(super) fn observe_shown(&mut self) {
        if self.in_flight.has(&OperationKey::Status) {
            return;
        }
        let update = self.update.borrow().clone();
        let (now, status) = (clock::boot(), &update.pod.status);
        let wanted = self.snapshot.as_ref().map(|known| known.status.clone());
        let Some(seen) = self.shown.observe(&update.pod, wanted.as_deref(), now) else { return };
        match update.source {
            PodSource::Api => self.memory.apply_end(status, grace_period(&update.pod), now),
            // The mirror pod is seen for the first time: its progress has been visible to users.
            PodSource::Static if seen.first => self.memory.apply_progress(status),
            // A mirror pod never ends its static pod.
            PodSource::Static => {}
        }
        for (kind, status, since) in seen.overruled {
            tracing::debug!(pod = %name(&update.pod), kind, status, "another client has changed a pod condition; it is written again");
            self.memory.apply_condition(kind, status, since);
        }
    }

    /// Starts to write the status if the API shows another one. Returns when to try again.
    pub(super) fn write_status(&mut self, next: &Plan) -> Option<Duration> {
        if self.in_flight.has(&OperationKey::Status) {
            return None;
        }
        if self.is_shown(&next.status) {
            return self.shown.watch_trusted_at();
        }
        let now = clock::boot();
        let from = self.shown.status().cloned().unwrap_or_default();
        if status_patch::shows_no_progress(&from, &next.status) {
            let held_until = &mut self.beginning_held_until;
            if held_until.is_none() && self.shared.runtime_limiter.has_waiters() {
                *held_until = Some(now.saturating_add(BEGINNING_HELD));
            }
            if let Some(until) = held_until.filter(|until| now < *until) {
                return Some(until);
            }
        }
        if now < self.shown.not_before() {
            return Some(self.shown.not_before());
        }
        let (reports, pod) = (self.shared.reports.clone(), self.pod());
        let (to, whole) = (next.status.clone(), self.shown.is_unsure());
        let findings_commit = self.findings_commit.clone();
        self.spawn(OperationKey::Status, None, async move {
            if let Some(record) = findings_commit {
                let _late = tokio::time::timeout(RECORD_WAIT, record.durable()).await;
            }
            let change = StatusChange { from: &from, to: &to, whole };
            let result = reports.status(&pod, change).await;
            OperationResult::StatusWritten(Box::new(to), result)
        });
        None
    }

    pub(super) fn is_shown(&self, status: &PodStatus) -> bool {
        self.update.borrow().presence == SourcePresence::Dropped || self.shown.matches(status)
    }

    pub(super) fn status_written(
        &mut self,
        status: PodStatus,
        result: Result<Reported, ReportError>,
    ) {
        match result {
            Ok(Reported::Shown(answer)) => {
                self.shown.record_written(&status, answer, clock::boot())
            }
            Ok(Reported::NoObject) => self.shown.record_absent(&self.pod()),
            Err(error) => {
                self.shown.record_failed(clock::boot());
                tracing::debug!(pod = %name(&self.pod()), %error, "cannot write the pod's status; retried with back-off");
            }
        }
    }

    pub(super) fn report_present_image(&self, want: &DesiredPod, container: &str) {
        let Some(container) = want.container(container) else { return };
        let known = self.memory.containers.get(&container.name);
        let pulled = known.is_some_and(|m| m.has_pulled(&container.image));
        if !pulled {
            let event = events::image_present(want, &container.name, &container.image);
            self.shared.reports.event(&self.pod(), event);
        }
    }

    /// Reports the exceeded `activeDeadlineSeconds` once, when the pod is ended for it.
    pub(super) fn report_deadline(&self, next: &Plan) {
        let exceeded = |memory: &PodRecord| {
            memory.ending.as_ref().is_some_and(|e| e.why == TerminationReason::DeadlineExceeded)
        };
        if exceeded(&next.record) && !exceeded(&self.memory) {
            self.shared.reports.event(&self.pod(), events::deadline_exceeded());
        }
    }

    /// Reports new reasons of waiting containers as events.
    pub(super) fn report_waiting(&mut self, want: &DesiredPod, status: &PodStatus) {
        let pod = self.pod();
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
                self.shared.reports.event(&pod, event);
            }
        }
    }
}
