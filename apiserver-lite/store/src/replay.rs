//! Builds the state in memory from the content of the disk.

use std::sync::Arc;

use bytes::Bytes;

use crate::{
    Entry, Event, EventKind, OpenError, Record, RestoreError, Retention, Stamp,
    disk::DiskContent,
    log::Change,
    state::{LoadedRecords, StoreState},
};

/// Most events restored as history, so that clients of a restarted server continue their watches. More would delay the start.
const HISTORY_LEN_MAX: usize = 4096;

/// The callback of [`Store::open_with`](crate::Store::open_with).
type PrepareRecord<'a, T> = &'a dyn Fn(&T) -> Result<(), RestoreError>;

/// Restores the records of the checkpoint, applies the log's changes, and keeps the last ones as history.
pub fn replay<T: Record>(
    found: DiskContent,
    retention: Retention,
    prepare: PrepareRecord<'_, T>,
) -> Result<StoreState<T>, OpenError> {
    let DiskContent { mut revision, mut stored, changes } = found;
    let recent = changes.len().saturating_sub(HISTORY_LEN_MAX.min(retention.events_max));
    let mut changes = changes.into_iter();
    for change in changes.by_ref().take(recent) {
        revision = change.stamp.modified;
        match change.value {
            Some(value) => stored.insert(change.key, (change.stamp, value)),
            None => stored.remove(&change.key),
        };
    }
    let mut entries = Vec::with_capacity(stored.len());
    for (key, (stamp, value)) in stored {
        let record = restore_record(&key, value, stamp, prepare)?;
        entries.push(Entry { key, stamp, record });
    }
    let mut state = StoreState::new(LoadedRecords { revision, entries }, retention);
    for change in changes {
        let len = change.value.as_ref().map_or(0, Bytes::len);
        let event = replay_change(&state, change, prepare)?;
        state.publish([(event, len)]);
    }
    Ok(state)
}

/// The event of a change.
fn replay_change<T: Record>(
    state: &StoreState<T>,
    change: Change,
    prepare: PrepareRecord<'_, T>,
) -> Result<Event<T>, OpenError> {
    let Change { key, stamp, value } = change;
    let previous = state.current(&key);
    let (key, previous) = match previous {
        Some(entry) => (entry.key, Some(entry.record)),
        None => (key, None),
    };
    let (kind, record) = match (value, &previous) {
        (Some(value), None) => (EventKind::Created, restore_record(&key, value, stamp, prepare)?),
        (Some(value), Some(_)) => {
            (EventKind::Updated, restore_record(&key, value, stamp, prepare)?)
        }
        (None, Some(last)) => (EventKind::Deleted, Arc::new(T::tombstone(last, stamp))),
        (None, None) => {
            let source = "the log deletes a key that does not exist".into();
            return Err(OpenError::Restore { key: key.to_string(), source });
        }
    };
    Ok(Event { key, kind, stamp, record, previous })
}

fn restore_record<T: Record>(
    key: &str,
    value: Bytes,
    stamp: Stamp,
    prepare: PrepareRecord<'_, T>,
) -> Result<Arc<T>, OpenError> {
    let restored = T::restore(key, value, stamp).and_then(|record| {
        prepare(&record)?;
        Ok(Arc::new(record))
    });
    restored.map_err(|source| OpenError::Restore { key: key.to_owned(), source })
}
