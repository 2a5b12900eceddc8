//! States of an ephemeral server: all objects at one revision, kept in memory under a name until they are put back.

use std::collections::BTreeMap;
use std::sync::Arc;

use apiserver_store::SavedRecords;
use tokio::sync::{Mutex, MutexGuard, OwnedRwLockReadGuard, OwnedRwLockWriteGuard, RwLock};

use crate::record::StoredObject;

/// Most states that are kept. Each keeps its objects in memory.
pub const STATES_MAX: usize = 16;
/// Largest size of the objects of all of them, as a store would write them. What several states have is counted for each.
pub const STATES_LEN_MAX: usize = 256 << 20;

/// The states of a server.
#[derive(Default)]
pub struct SavedStates {
    by_name: Mutex<StatesByName>,
    /// Held by what must not see a state put back between its steps, and alone by what puts one back.
    steps: Arc<RwLock<()>>,
}

/// Keeps states from being put back as long as it exists. Of a server that is not ephemeral it is empty.
#[derive(Debug, Default)]
pub struct HeldState {
    _steps: Option<OwnedRwLockReadGuard<()>>,
}

/// The states by name, within bounds.
#[derive(Default)]
pub struct StatesByName(BTreeMap<String, SavedState>);

struct SavedState {
    records: SavedRecords<StoredObject>,
    len: usize,
}

/// There is no room for another state.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoRoom {
    /// There are too many.
    #[error(
        "{STATES_MAX} states are saved, which is the limit: delete one or overwrite one of them"
    )]
    States,
    /// Their objects are too large.
    #[error(
        "the saved states would have {len} bytes of objects, more than {STATES_LEN_MAX}: delete one of them"
    )]
    Len {
        /// The size with the new one.
        len: usize,
    },
}

impl SavedStates {
    /// The states, for one request at a time.
    pub async fn by_name(&self) -> MutexGuard<'_, StatesByName> {
        self.by_name.lock().await
    }

    /// Waits until no state is being put back.
    pub async fn hold(&self) -> HeldState {
        HeldState { _steps: Some(self.steps.clone().read_owned().await) }
    }

    /// Waits until no write with side effects holds the state.
    pub async fn alone(&self) -> OwnedRwLockWriteGuard<()> {
        self.steps.clone().write_owned().await
    }
}

impl StatesByName {
    /// Keeps a state, in the place of what was kept under its name before.
    ///
    /// # Errors
    /// [`NoRoom`]; what was kept stays.
    pub fn put(&mut self, name: &str, records: SavedRecords<StoredObject>) -> Result<(), NoRoom> {
        let objects = records.entries().iter().map(|entry| entry.record.stored_len());
        let len = objects.fold(0, usize::saturating_add);
        let others = self.0.iter().filter(|(other, _)| *other != name);
        let all = others.clone().fold(len, |sum, (_, state)| sum.saturating_add(state.len));
        if others.count() >= STATES_MAX {
            return Err(NoRoom::States);
        }
        if all > STATES_LEN_MAX {
            return Err(NoRoom::Len { len: all });
        }
        self.0.insert(name.to_owned(), SavedState { records, len });
        Ok(())
    }

    /// The objects of a state.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&SavedRecords<StoredObject>> {
        self.0.get(name).map(|state| &state.records)
    }

    /// Drops a state, and returns what it was.
    pub fn remove(&mut self, name: &str) -> Option<SavedRecords<StoredObject>> {
        self.0.remove(name).map(|state| state.records)
    }

    /// The names of all saved states, sorted.
    #[must_use]
    pub fn names(&self) -> Vec<&str> {
        self.0.keys().map(String::as_str).collect()
    }
}
