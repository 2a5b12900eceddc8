//! The controllers: each file decides for one thing, from objects and the time to writes, and does nothing.

pub mod account_token;
pub mod addresses;
pub mod deployment;
pub mod disruption;
pub mod endpoint_slices;
pub mod endpoints;
pub mod mirror;
pub mod namespace;
pub mod node_cidr;
pub mod node_lifecycle;
pub mod owners;
pub mod pod_gc;
pub mod replica_set;
pub mod replicas;
pub mod replication_controller;
pub mod root_ca;
pub mod service_account;
pub mod taint_manager;
pub mod volumes;
pub mod write_events;

use std::collections::BTreeMap;
use std::time::Duration;

use proto_api::meta::v1::ObjectMeta;
use proto_client::ObjectKey;
use proto_client::events::correlate::EventReport;

use crate::api_writes::{ObjectKind, Write};
use write_events::WriteEvent;

/// What a controller wants done.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// In this order.
    pub writes: Vec<Write>,
    /// When to look again even if nothing changes.
    pub again_in: Option<Duration>,
    /// Events of a plan that was done whole.
    pub said: Vec<EventReport>,
    /// Events of single writes, by their place among the writes.
    pub events: BTreeMap<usize, WriteEvent>,
    /// Who takes objects over by these writes; they are only made if the server shows that it is not being deleted.
    pub adopter: Option<Adopter>,
}

/// An object that becomes the controller of others.
#[derive(Clone, Debug, PartialEq)]
pub struct Adopter {
    /// Its kind.
    pub kind: ObjectKind,
    /// Which.
    pub key: ObjectKey,
    /// Its uid.
    pub uid: String,
}

impl Adopter {
    /// The object of this kind with this metadata.
    pub fn of(kind: ObjectKind, metadata: &ObjectMeta) -> Self {
        Self { kind, key: ObjectKey::of(metadata), uid: metadata.uid.clone() }
    }
}

impl Plan {
    /// These writes and nothing later.
    pub fn of(writes: impl IntoIterator<Item = Write>) -> Self {
        Self { writes: writes.into_iter().collect(), ..Self::default() }
    }

    /// Does what another plan does as well, afterwards.
    pub fn absorb(&mut self, other: Self) {
        let before = self.writes.len();
        let events = other.events.into_iter();
        self.events.extend(events.map(|(nth, event)| (before.saturating_add(nth), event)));
        self.writes.extend(other.writes);
        self.said.extend(other.said);
        self.adopter = other.adopter.or(self.adopter.take());
        other.again_in.into_iter().for_each(|delay| self.look_again_in(delay));
    }

    /// Adds a write, and the events of what becomes of it.
    pub fn push_with_event(&mut self, write: Write, event: WriteEvent) {
        self.events.insert(self.writes.len(), event);
        self.writes.push(write);
    }

    /// Asks to look again in `delay`, or earlier if that was asked before.
    pub fn look_again_in(&mut self, delay: Duration) {
        self.again_in = Some(self.again_in.map_or(delay, |earlier| earlier.min(delay)));
    }
}
