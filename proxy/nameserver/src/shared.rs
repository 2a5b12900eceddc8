//! The zone, shared by those who hear of changes and those who answer.

use std::sync::{PoisonError, RwLock, RwLockReadGuard};

use proxy_dns::Zone;
use tokio::sync::watch;

/// What has to be heard completely before a name can be said not to exist: services, and slices of endpoints.
const SOURCES: usize = 2;

/// The names of the cluster as far as they have been heard of.
#[derive(Debug)]
pub struct SharedZone {
    zone: RwLock<Zone>,
    /// How many of the sources have been heard completely.
    complete_sources: watch::Sender<usize>,
}

impl SharedZone {
    /// With nothing heard yet.
    pub fn new(zone: Zone) -> Self {
        Self { zone: RwLock::new(zone), complete_sources: watch::Sender::new(0) }
    }

    /// The zone, for a moment.
    pub fn read(&self) -> RwLockReadGuard<'_, Zone> {
        self.zone.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the zone.
    pub fn change(&self, change: impl FnOnce(&mut Zone)) {
        change(&mut self.zone.write().unwrap_or_else(PoisonError::into_inner));
    }

    /// One more source has been heard completely.
    pub fn source_complete(&self) {
        self.complete_sources.send_modify(|sources| *sources += 1);
    }

    /// Whether everything has been heard of.
    pub fn is_complete(&self) -> bool {
        *self.complete_sources.borrow() >= SOURCES
    }

    /// Returns once everything has been heard of. Cancel safe.
    pub async fn complete(&self) {
        // The sender lives in self: the channel cannot close.
        let _ = self.complete_sources.subscribe().wait_for(|sources| *sources >= SOURCES).await;
    }
}
