//! What users see of a pod: its status in the API, and events about waiting.

use std::time::Duration;

use agent_pod::desired::{PodWant, Source, grace_of};
use agent_pod::events;
use agent_pod::plan::Plan;
use agent_pod::record::{Memory, Why};
use proto_api::core::v1::PodStatus;

use super::{Held, Outcome, Worker, name};
use crate::clock;
use crate::pods::in_flight::Key;
use crate::pods::ports::{ReportError, Reported, StatusChange};
use crate::pods::status_patch;

/// The longest that a status that tells of no progress waits while more pods begin than can at once. Most of them run before it is
/// over, and what they show first is that.
const BEGINNING_HELD: Duration = Duration::from_secs(10);

/// The longest that a status waits for the record of what probes and hooks found. An agent that is killed between the two would begin
/// with what the API shows and not know why; a disk that takes no record keeps no status back for longer.
const RECORD_WAIT: Duration = Duration::from_secs(1);

impl Worker {
    /// Takes in what the API shows now, whoever wrote it, unless a write is under way, whose answer may be newer.
    pub(super) fn compare_shown(&mut self) {
        if self.busy.has(&Key::Status) {
            return;
        }
        let order = self.order.borrow().clone();
        let (now, status) = (clock::boot(), &order.pod.status);
        let wanted = self.known.as_ref().map(|known| known.status.clone());
        let Some(seen) = self.shown.watch(&order.pod, wanted.as_deref(), now) else { return };
        match order.source {
            Source::Api => self.memory.heed_end(status, grace_of(&order.pod), now),
            // Heard for the first time: users have seen as much already.
            Source::Static if seen.first => self.memory.heed_progress(status),
            // A mirror ends nothing.
            Source::Static => {}
        }
        for (kind, status, since) in seen.overruled {
            tracing::debug!(pod = %name(&order.pod), kind, status, "another has changed a condition");
            self.memory.heed_condition(kind, status, since);
        }
    }

    /// Begins to write the status if the API shows another. Returns when to try again.
    pub(super) fn show(&mut self, next: &Plan) -> Option<Duration> {
        if self.busy.has(&Key::Status) {
            return None;
        }
        if self.is_shown(&next.status) {
            return self.shown.believes_watch_at();
        }
        let now = clock::boot();
        let from = self.shown.status().cloned().unwrap_or_default();
        if status_patch::only_begins(&from, &next.status) {
            let held_until = &mut self.beginning_held_until;
            if held_until.is_none() && self.parts.turns.is_wanted() {
                *held_until = Some(now.saturating_add(BEGINNING_HELD));
            }
            if let Some(until) = held_until.filter(|until| now < *until) {
                return Some(until);
            }
        }
        if now < self.shown.not_before() {
            return Some(self.shown.not_before());
        }
        let (reports, pod) = (self.parts.reports.clone(), self.pod());
        let (to, whole) = (next.status.clone(), self.shown.is_unsure());
        let findings = self.findings.clone();
        self.spawn(Key::Status, None, async move {
            if let Some(record) = findings {
                let _late = tokio::time::timeout(RECORD_WAIT, record.durable()).await;
            }
            let change = StatusChange { from: &from, to: &to, whole };
            let result = reports.status(&pod, change).await;
            Outcome::Shown(Box::new(to), result)
        });
        None
    }

    pub(super) fn is_shown(&self, status: &PodStatus) -> bool {
        self.order.borrow().held == Held::No || self.shown.is(status)
    }

    pub(super) fn status_written(
        &mut self,
        status: PodStatus,
        result: Result<Reported, ReportError>,
    ) {
        match result {
            Ok(Reported::Shown(answer)) => self.shown.written(&status, answer, clock::boot()),
            Ok(Reported::NoObject) => self.shown.absent(&self.pod()),
            Err(error) => {
                self.shown.failed(clock::boot());
                tracing::debug!(pod = %name(&self.pod()), %error, "status is not written");
            }
        }
    }

    pub(super) fn tell_present_image(&self, want: &PodWant, container: &str) {
        let Some(container) = want.container(container) else { return };
        let known = self.memory.containers.get(&container.name);
        let pulled = known.is_some_and(|m| m.has_pulled(&container.image));
        if !pulled {
            let event = events::image_present(want, &container.name, &container.image);
            self.parts.reports.event(&self.pod(), event);
        }
    }

    /// Tells that the pod was active for too long, once: when that is decided.
    pub(super) fn tell_deadline(&self, next: &Plan) {
        let exceeded = |memory: &Memory| {
            memory.ending.as_ref().is_some_and(|e| e.why == Why::DeadlineExceeded)
        };
        if exceeded(&next.memory) && !exceeded(&self.memory) {
            self.parts.reports.event(&self.pod(), events::deadline_exceeded());
        }
    }

    /// Tells the waiting reasons that are new.
    pub(super) fn tell_waiting(&mut self, want: &PodWant, status: &PodStatus) {
        let pod = self.pod();
        let statuses = status.init_container_statuses.iter().chain(&status.container_statuses);
        for container in statuses.chain(&status.ephemeral_container_statuses) {
            let Some(waiting) = &container.state.waiting else {
                self.told.remove(&container.name);
                continue;
            };
            let before = self.told.insert(container.name.clone(), waiting.reason.clone());
            if before.as_ref() == Some(&waiting.reason) {
                continue;
            }
            let (reason, message) = (&waiting.reason, &waiting.message);
            for event in events::waiting(want, &container.name, reason, message) {
                self.parts.reports.event(&pod, event);
            }
        }
    }
}
