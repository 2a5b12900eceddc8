//! An index over objects of the store that authorizers and admission decide by. It is brought up to date when it is read.

use std::sync::{PoisonError, RwLock};

use apiserver_schema::Object;
use apiserver_store::{Compacted, Entry, Event, EventKind, Range, Store, Watch, WatchError};

use crate::record::StoredObject;

/// Attempts to read the objects at a revision: all records may be replaced just after it was the current one.
const READ_TRIES: usize = 5;

/// What is kept of the objects below a key prefix.
pub trait ObjectIndex: Send + Sync {
    /// The key prefix.
    const PREFIX: &'static str;

    /// An index of no object, with the same settings.
    #[must_use]
    fn emptied(&self) -> Self;

    /// Adds an object, or replaces its previous version.
    fn set(&mut self, object: &Object);

    /// Removes an object.
    fn remove(&mut self, object: &Object);

    /// Removes what `before` has and this index does not have. Called after a relist: changes that would have removed it were missed.
    fn succeed(&mut self, _before: &Self) {}
}

/// An index that follows the store. A read sees every write that was answered before it.
pub struct StoreIndex<T> {
    store: Store<StoredObject>,
    state: RwLock<Followed<T>>,
}

struct Followed<T> {
    index: T,
    changes: Watch<StoredObject>,
}

/// The index cannot follow the store from its current revision.
#[derive(Debug, thiserror::Error)]
#[error("cannot watch {prefix}")]
pub struct IndexError {
    prefix: &'static str,
    source: FillError,
}

/// The objects cannot be read, or their changes not be watched.
#[derive(Debug, thiserror::Error)]
enum FillError {
    #[error(transparent)]
    Watch(#[from] WatchError),
    #[error("cannot read at a revision that is compacted")]
    Compacted(#[from] Compacted),
}

impl<T: ObjectIndex> StoreIndex<T> {
    /// Fills `empty` from the store and follows its changes.
    ///
    /// # Errors
    /// The store cannot be watched.
    pub fn follow(store: &Store<StoredObject>, empty: T) -> Result<Self, IndexError> {
        let followed = Followed::fill(store, empty);
        let state = followed.map_err(|source| IndexError { prefix: T::PREFIX, source })?;
        Ok(Self { store: store.clone(), state: RwLock::new(state) })
    }

    /// Calls `decide` with the current index, or with an empty one, which allows nothing, if the objects cannot be read.
    pub fn read<U>(&self, decide: impl FnOnce(&T) -> U) -> U {
        self.read_current(|index| match index {
            Ok(index) => decide(index),
            Err(last) => decide(&last.emptied()),
        })
    }

    /// Calls `decide` with the current index; `None` if the objects cannot be read.
    pub fn try_read<U>(&self, decide: impl FnOnce(&T) -> U) -> Option<U> {
        self.read_current(|index| index.ok().map(decide))
    }

    /// Calls `decide` with the current index, or with the last one if the objects cannot be read.
    pub fn read_last<U>(&self, decide: impl FnOnce(&T) -> U) -> U {
        self.read_current(|index| decide(index.unwrap_or_else(|last| last)))
    }

    /// Calls `decide` with the current index, or with the last one as an error.
    fn read_current<U>(&self, decide: impl for<'a> FnOnce(Result<&'a T, &'a T>) -> U) -> U {
        {
            let state = self.state.read().unwrap_or_else(PoisonError::into_inner);
            if !state.changes.is_pending() {
                return decide(Ok(&state.index));
            }
        }
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        if !state.catch_up() {
            // The next change is compacted: the index is filled again from the store.
            match Followed::fill(&self.store, state.index.emptied()) {
                Ok(mut fresh) => {
                    fresh.index.succeed(&state.index);
                    *state = fresh;
                }
                Err(error) => {
                    let prefix = T::PREFIX;
                    tracing::error!(%error, prefix, "cannot read objects of the store; requests that need them are refused, and flow schemas stay unchanged, until they can be read");
                    return decide(Err(&state.index));
                }
            }
        }
        decide(Ok(&state.index))
    }
}

impl<T: ObjectIndex> Followed<T> {
    fn fill(store: &Store<StoredObject>, mut index: T) -> Result<Self, FillError> {
        let mut read = Self::list_and_watch(store);
        for _ in 1..READ_TRIES {
            if read.is_ok() {
                break;
            }
            read = Self::list_and_watch(store);
        }
        let (entries, changes) = read?;
        entries.iter().for_each(|entry| index.set(entry.record.object()));
        Ok(Self { index, changes })
    }

    fn list_and_watch(
        store: &Store<StoredObject>,
    ) -> Result<(Vec<Entry<StoredObject>>, Watch<StoredObject>), FillError> {
        let snapshot = store.snapshot();
        let changes = store.watch(T::PREFIX, snapshot.revision())?;
        let range = Range { prefix: T::PREFIX, after: None, limit: None };
        Ok((snapshot.range(range)?.entries, changes))
    }

    /// Applies the changes since the last call; false if some of them are compacted.
    fn catch_up(&mut self) -> bool {
        let mut events: Vec<Event<StoredObject>> = Vec::new();
        while self.changes.is_pending() {
            if self.changes.try_batch(&mut events).is_err() {
                return false;
            }
            for event in events.drain(..) {
                match event.kind {
                    EventKind::Created | EventKind::Updated => {
                        self.index.set(event.record.object());
                    }
                    EventKind::Deleted => self.index.remove(event.record.object()),
                }
            }
        }
        true
    }
}
