//! What a controller plans: writes as values, their events, and when to look again.

use std::collections::BTreeMap;
use std::time::Duration;

use proto_api::event_report::EventReport;
use proto_api::meta::v1::ObjectMeta;
use proto_api::{ObjectKey, Time};

use crate::api_writes::{ApiWrite, ObjectKind};
use crate::replica_failure::FailureStatus;
use crate::write_events::WriteEvent;

/// The writes and events that a controller plans.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// The writes, in order.
    pub writes: Vec<ApiWrite>,
    /// When to reconcile again if nothing changes.
    pub requeue_after: Option<Duration>,
    /// Events to record when all writes have succeeded.
    pub reports: Vec<EventReport>,
    /// Events of single writes, by their index.
    pub events: BTreeMap<usize, WriteEvent>,
    /// The owner that adopts objects by these writes, which are only made if a live read shows that it is not being deleted.
    pub adopter: Option<Adopter>,
    /// The status to write if a pod cannot be created or deleted.
    pub on_failure: Option<FailureStatus>,
}

/// An object that becomes the controller of orphans.
#[derive(Clone, Debug, PartialEq)]
pub struct Adopter {
    pub kind: ObjectKind,
    pub key: ObjectKey,
    pub uid: String,
}

impl Adopter {
    /// The object of this kind with this metadata.
    pub fn new(kind: ObjectKind, metadata: &ObjectMeta) -> Self {
        Self { kind, key: ObjectKey::from_metadata(metadata), uid: metadata.uid.clone() }
    }
}

impl Plan {
    /// A plan of these writes.
    pub fn from_writes(writes: impl IntoIterator<Item = ApiWrite>) -> Self {
        Self { writes: writes.into_iter().collect(), ..Self::default() }
    }

    /// Appends another plan.
    pub fn absorb(&mut self, other: Self) {
        let before = self.writes.len();
        let events = other.events.into_iter();
        self.events.extend(events.map(|(nth, event)| (before.saturating_add(nth), event)));
        self.writes.extend(other.writes);
        self.reports.extend(other.reports);
        self.adopter = other.adopter.or(self.adopter.take());
        self.on_failure = other.on_failure.or(self.on_failure.take());
        other.requeue_after.into_iter().for_each(|delay| self.requeue_in(delay));
    }

    /// Adds a write with the events of its success and failure.
    pub fn push_with_event(&mut self, write: ApiWrite, event: WriteEvent) {
        self.events.insert(self.writes.len(), event);
        self.writes.push(write);
    }

    /// The write of the status that says that the `nth` write failed with `error`, if there is one.
    pub fn status_of_failure(&self, nth: usize, error: String, now: Time) -> Option<ApiWrite> {
        let event = self.events.get(&nth)?;
        self.on_failure.clone()?.write(&event.operation, error, now)
    }

    /// Plans to reconcile again in `delay`, or earlier if that is planned.
    pub fn requeue_in(&mut self, delay: Duration) {
        self.requeue_after = Some(self.requeue_after.map_or(delay, |earlier| earlier.min(delay)));
    }
}
