//! The zone, shared by the watches and the server.

use std::sync::{PoisonError, RwLock, RwLockReadGuard};

use proxy_dns::Zone;
use tokio::sync::watch;

/// Services and EndpointSlices, which must be synced before a name can be said not to exist.
const SOURCES: usize = 2;

/// The zone and whether it is synced.
#[derive(Debug)]
pub struct SharedZone {
    zone: RwLock<Zone>,
    /// How many of the sources are synced.
    complete_sources: watch::Sender<usize>,
}

impl SharedZone {
    /// Nothing is synced yet.
    pub fn new(zone: Zone) -> Self {
        Self { zone: RwLock::new(zone), complete_sources: watch::Sender::new(0) }
    }

    /// Locks the zone for reading.
    pub fn read(&self) -> RwLockReadGuard<'_, Zone> {
        self.zone.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the zone.
    pub fn change(&self, change: impl FnOnce(&mut Zone)) {
        change(&mut self.zone.write().unwrap_or_else(PoisonError::into_inner));
    }

    /// One more source is synced.
    pub fn source_complete(&self) {
        self.complete_sources.send_modify(|sources| *sources += 1);
    }

    /// Whether all sources are synced.
    pub fn is_complete(&self) -> bool {
        *self.complete_sources.borrow() >= SOURCES
    }

    /// Returns once all sources are synced. Cancel safe.
    pub async fn complete(&self) {
        // The sender lives in self: the channel cannot close.
        let _ = self.complete_sources.subscribe().wait_for(|sources| *sources >= SOURCES).await;
    }
}
