//! The Services of a store that several servers write to.

use std::sync::Arc;

use apiserver_schema::Kind;
use apiserver_store::{EventKind, Range, Store, Watch, WatchError};

use crate::key;
use crate::record::StoredObject;

/// Follows the Services that any server writes.
pub struct PeerServices {
    store: Store<StoredObject>,
    prefix: String,
    changes: Watch<StoredObject>,
}

/// A Service that was written or deleted.
pub(super) struct ServiceChange {
    pub before: Option<Arc<StoredObject>>,
    pub now: Option<Arc<StoredObject>>,
}

/// What has become of the Services since the last look.
pub(super) enum ServiceChanges {
    Each(Vec<ServiceChange>),
    /// Changes were missed: these are all.
    Restarted(Vec<Arc<StoredObject>>),
}

impl PeerServices {
    /// Follows the Services of `store` from now on; `kind` is the kind Service.
    ///
    /// # Errors
    /// The store cannot be watched.
    pub fn follow(store: &Store<StoredObject>, kind: &Kind) -> Result<Self, WatchError> {
        let prefix = key::prefix(kind, "");
        let changes = store.watch(prefix.clone(), store.revision())?;
        Ok(Self { store: store.clone(), prefix, changes })
    }

    pub(super) fn take_changes(&mut self) -> ServiceChanges {
        let (mut events, mut changes) = (Vec::new(), Vec::new());
        while self.changes.is_pending() {
            if self.changes.try_batch(&mut events).is_err() {
                return self.restart();
            }
            changes.extend(events.drain(..).map(|event| ServiceChange {
                now: (event.kind != EventKind::Deleted).then_some(event.record),
                before: event.previous,
            }));
        }
        ServiceChanges::Each(changes)
    }

    fn restart(&mut self) -> ServiceChanges {
        // It fails only if all records are replaced just now: the old watch then says so again.
        if let Ok(changes) = self.store.watch(self.prefix.clone(), self.store.revision()) {
            self.changes = changes;
        }
        let range = Range { prefix: &self.prefix, after: None, limit: None };
        let services = self.store.current_range(range).entries;
        ServiceChanges::Restarted(services.into_iter().map(|entry| entry.record).collect())
    }
}

impl std::fmt::Debug for PeerServices {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PeerServices").field("prefix", &self.prefix).finish_non_exhaustive()
    }
}
