//! A store whose writes are ordered outside of this process: several servers share a log that is elsewhere. Memory, readers and watches are those of
//! every store; what differs is that nothing is decided here. A [`Follower`] takes what was committed, in order, and says what a write would compare and put.
//!
//! ```text
//!   write() ──bounded queue──▶ requests ──plan──▶ a transaction elsewhere
//!      ▲                                                │
//!      └── answer, once memory has it ◀── apply ◀── changes, in order
//! ```

use std::{collections::HashSet, sync::Arc};

use bytes::Bytes;
use tokio::sync::{mpsc, watch};

use crate::{
    Bounds, Entry, Health, OpenError, Record, RestoreError, Revision, Store, StoreConfig, Write,
    WriteCondition, WriteError,
    log::Change,
    replay::{RestoreContext, restore_change},
    state::{LoadedRecords, SharedState, StoreState},
    transform::StoredForms,
    writer::{WriterRequest, check_expectation, check_len},
};

/// The callback of [`Follower::start`]: what restoring needs besides the bytes.
pub type PrepareRestore<T> = Box<dyn Fn(&T) -> Result<(), RestoreError> + Send + Sync>;

/// What follows the log that is elsewhere. Used by one task for [`apply`](Follower::apply) and [`replace`](Follower::replace), by any for the rest.
pub struct Follower<T: Record> {
    shared: Arc<SharedState<T>>,
    forms: Arc<StoredForms>,
    bounds: Bounds,
    prepare: PrepareRestore<T>,
    committed: watch::Sender<Revision>,
    health: watch::Sender<Health>,
}

/// What one write compares and does.
pub struct PlannedWrite<T> {
    pub key: String,
    /// The version that it replaces or deletes: nothing is written if the key has another one by then.
    pub current: Option<Entry<T>>,
    /// The stored form; `None` deletes the key.
    pub value: Option<Bytes>,
    /// [Claims](Record::claims) that it takes: nothing is written if one is taken.
    pub claims: Vec<String>,
    /// Claims that it gives up.
    pub released: Vec<String>,
}

impl<T: Record> Follower<T> {
    /// A store with these records at `revision`, in ascending order of key; the follower of it; and what is asked of it.
    ///
    /// # Errors
    /// A record cannot be restored.
    #[expect(clippy::type_complexity, reason = "three parts of one thing, taken apart at once")]
    pub fn start(
        config: StoreConfig,
        prepare: PrepareRestore<T>,
        revision: Revision,
        records: Vec<Change>,
    ) -> Result<(Store<T>, Self, mpsc::Receiver<WriterRequest<T>>), OpenError> {
        let forms = Arc::new(StoredForms::new(config.transform.clone()));
        let restoring = RestoreContext { prepare: &*prepare, forms: &forms };
        let entries = restore_all(records, &restoring)?;
        let state = StoreState::new(
            LoadedRecords { revision, entries },
            config.retention,
            T::history_group,
        );
        let shared = Arc::new(SharedState::new(state));
        let (committed, committed_to) = watch::channel(revision);
        let (health, health_to) = watch::channel(Health::Serving);
        let (queue, requests) = mpsc::channel(config.bounds.queue_len_max.max(1));
        let bounds = config.bounds;
        let parts = (shared.clone(), queue, committed_to, health_to, forms.clone());
        let store = Store::following(parts, config);
        Ok((store, Self { shared, forms, bounds, prepare, committed, health }, requests))
    }

    /// The revision up to which memory has everything.
    #[must_use]
    pub fn revision(&self) -> Revision {
        self.shared.read().revision()
    }

    /// Waits until memory has `revision`; false if that will not happen.
    pub async fn reached(&self, revision: Revision) -> bool {
        self.committed.subscribe().wait_for(|current| *current >= revision).await.is_ok()
    }

    /// What `writes` would compare and do, decided on what is in memory: all of them, in one transaction.
    ///
    /// # Errors
    /// What memory says against one of them.
    pub fn plan(&self, writes: &[Write<T>]) -> Result<Vec<PlannedWrite<T>>, WriteError<T>> {
        let mut keys = HashSet::new();
        if let Some(twice) = writes.iter().find(|write| !keys.insert(write.key())) {
            let reason = format!("{} is written twice in one transaction", twice.key());
            return Err(WriteError::NotWritten { reason: reason.into() });
        }
        writes.iter().map(|write| self.plan_one(write)).collect()
    }

    fn plan_one(&self, write: &Write<T>) -> Result<PlannedWrite<T>, WriteError<T>> {
        let key = write.key();
        check_len(key, "key", key.len(), self.bounds.key_len_max)?;
        let current = self.shared.read().current(key);
        let claimed = |entry: &Option<Entry<T>>| -> Vec<String> {
            entry.as_ref().map(|entry| entry.record.claims()).unwrap_or_default()
        };
        match write {
            Write::Put { expect, draft, .. } => {
                let current = check_expectation(key, *expect, current)?;
                if current.as_ref().is_some_and(|current| !current.record.is_readable()) {
                    return Err(WriteError::Unreadable { key: key.to_owned() });
                }
                let value = T::stored(draft);
                check_len(key, "value", value.len(), self.bounds.value_len_max)?;
                let (value, _) = self.forms.encode(key, value)?;
                let (before, after) = (claimed(&current), T::claims_of(draft));
                let only = |of: &[String], other: &[String]| -> Vec<String> {
                    of.iter().filter(|claim| !other.contains(claim)).cloned().collect()
                };
                let (claims, released) = (only(&after, &before), only(&before, &after));
                Ok(PlannedWrite {
                    key: key.to_owned(),
                    current,
                    value: Some(value),
                    claims,
                    released,
                })
            }
            Write::Delete { expect, .. } => {
                let expect = if *expect == WriteCondition::Anything {
                    WriteCondition::Present
                } else {
                    *expect
                };
                let current = check_expectation(key, expect, current)?;
                let released = claimed(&current);
                Ok(PlannedWrite {
                    key: key.to_owned(),
                    current,
                    value: None,
                    claims: Vec::new(),
                    released,
                })
            }
        }
    }

    /// The newest version of `key` in memory.
    #[must_use]
    pub fn current(&self, key: &str) -> Option<Entry<T>> {
        self.shared.read().current(key)
    }

    /// The version of `key` at `revision`, if it is still kept.
    #[must_use]
    pub fn version(&self, key: &str, revision: Revision) -> Option<Entry<T>> {
        self.shared.read().get(key, revision).ok().flatten()
    }

    /// Makes what was committed visible: all changes of one revision, which is after the current one. Without changes nothing happened there.
    ///
    /// # Errors
    /// A record cannot be restored. Nothing of the revision is visible then.
    pub fn apply(&self, revision: Revision, changes: Vec<Change>) -> Result<(), OpenError> {
        let restoring = RestoreContext { prepare: &*self.prepare, forms: &self.forms };
        let mut events = Vec::with_capacity(changes.len());
        for change in changes {
            let current = self.shared.read().current(&change.key);
            let event = restore_change(current, change, &restoring)?;
            let len = event.record.memory_len();
            events.push((event, len));
        }
        let mut state = self.shared.write();
        let woken = state.publish(events, T::topic);
        state.advance(revision);
        let revision = state.revision();
        drop(state);
        woken.iter().for_each(|watcher| watcher.wake());
        self.committed.send_replace(revision);
        Ok(())
    }

    /// Puts all records that there are at `revision` in the place of those in memory, because changes in between were missed. Every watch ends as one
    /// that fell behind.
    ///
    /// # Errors
    /// A record cannot be restored. Nothing is replaced then.
    pub fn replace(&self, revision: Revision, records: Vec<Change>) -> Result<(), OpenError> {
        let restoring = RestoreContext { prepare: &*self.prepare, forms: &self.forms };
        let entries = restore_all(records, &restoring)?;
        let mut state = self.shared.write();
        let woken = state.replace(&entries, revision);
        drop(state);
        woken.iter().for_each(|watcher| watcher.wake());
        self.committed.send_replace(revision);
        Ok(())
    }

    /// Sets whether writes are possible; returns what was so before.
    pub fn set_health(&self, health: Health) -> Health {
        let mut before = health.clone();
        self.health.send_if_modified(|current| {
            let changed = *current != health;
            before = std::mem::replace(current, health);
            changed
        });
        before
    }

    /// Whether writes are possible.
    #[must_use]
    pub fn health(&self) -> Health {
        self.health.borrow().clone()
    }
}

fn restore_all<T: Record>(
    records: Vec<Change>,
    restoring: &RestoreContext<'_, T>,
) -> Result<Vec<Entry<T>>, OpenError> {
    let live = records.into_iter().filter_map(|Change { key, stamp, value }| {
        value.map(|value| {
            let record = restoring.restore(&key, value, stamp)?;
            Ok(Entry { key, stamp, record })
        })
    });
    live.collect()
}

#[cfg(test)]
mod tests;
