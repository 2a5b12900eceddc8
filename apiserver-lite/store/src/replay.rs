//! Builds the state in memory from the content of the disk.

use std::sync::Arc;

use bytes::Bytes;

use crate::{
    Entry, Event, EventKind, Form, OpenError, Record, RestoreError, Retention, Stamp,
    disk::DiskContent,
    log::Change,
    state::{LoadedRecords, StoreState},
    transform::StoredForms,
};

/// Most events restored as history, so that clients of a restarted server continue their watches. More would delay the start.
const HISTORY_LEN_MAX: usize = 4096;

/// The callback of [`Store::open_with`](crate::Store::open_with).
type PrepareRecord<'a, T> = &'a dyn Fn(&T) -> Result<(), RestoreError>;

/// What restoring a record needs besides its bytes.
pub struct RestoreContext<'a, T> {
    pub prepare: PrepareRecord<'a, T>,
    pub forms: &'a StoredForms,
}

/// Restores the records of the checkpoint, applies the log's changes, and keeps the last ones as history.
pub fn replay<T: Record>(
    found: DiskContent,
    retention: Retention,
    restoring: &RestoreContext<'_, T>,
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
        let record = restoring.restore(&key, value, stamp)?;
        entries.push(Entry { key, stamp, record });
    }
    let mut state =
        StoreState::new(LoadedRecords { revision, entries }, retention, T::history_group);
    for change in changes {
        let event = restore_change(state.current(&change.key), change, restoring)?;
        let len = event.record.memory_len();
        state.publish([(event, len)], T::topic);
    }
    Ok(state)
}

/// The event of a change of a key with this version.
pub fn restore_change<T: Record>(
    current: Option<Entry<T>>,
    change: Change,
    restoring: &RestoreContext<'_, T>,
) -> Result<Event<T>, OpenError> {
    let Change { key, stamp, value } = change;
    let (key, previous) = match current {
        Some(entry) => (entry.key, Some(entry.record)),
        None => (key, None),
    };
    let (kind, record) = match (value, &previous) {
        (Some(value), None) => (EventKind::Created, restoring.restore(&key, value, stamp)?),
        (Some(value), Some(_)) => (EventKind::Updated, restoring.restore(&key, value, stamp)?),
        (None, Some(last)) => {
            restoring.forms.note(&key, Form::AS_IS);
            (EventKind::Deleted, Arc::new(T::tombstone(last, stamp)))
        }
        (None, None) => {
            let source = "the log deletes a key that does not exist".into();
            return Err(OpenError::Restore { key: key.to_string(), source });
        }
    };
    Ok(Event { key, kind, stamp, record, previous })
}

impl<T: Record> RestoreContext<'_, T> {
    /// The record of bytes read from disk. Versions of a key are restored in order, so that the form noted last is that of the current one.
    pub fn restore(
        &self,
        key: &Arc<str>,
        stored: Bytes,
        stamp: Stamp,
    ) -> Result<Arc<T>, OpenError> {
        let read = match self.forms.transform() {
            None => T::restore(key, stored, stamp),
            Some(transform) => match transform.decode_stored(key, stored.clone()) {
                Ok((value, form)) => {
                    self.forms.note(key, form);
                    T::restore(key, value, stamp)
                }
                Err(why) => {
                    self.forms.note(key, Form::UNREADABLE);
                    T::unreadable(key, stored, stamp, why)
                }
            },
        };
        let restored = read.and_then(|record| {
            (self.prepare)(&record)?;
            Ok(Arc::new(record))
        });
        restored.map_err(|source| OpenError::Restore { key: key.to_string(), source })
    }
}
