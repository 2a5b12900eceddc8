//! Records in place of equal ones that take less memory.

use std::ops::Bound;
use std::sync::Arc;

use super::{History, StoreState, Versions};
use crate::Revision;

/// A record that some key has or had, or a tombstone.
pub struct FoundRecord<T> {
    key: Arc<str>,
    revision: Revision,
    /// Whether the key has it now.
    pub is_current: bool,
    pub record: Arc<T>,
}

/// A version of a key.
#[derive(Clone)]
pub struct VersionPosition {
    key: Arc<str>,
    revision: Revision,
}

/// Some records in the order of keys and versions.
pub struct FoundRecords<T> {
    pub records: Vec<FoundRecord<T>>,
    /// The last one; `None` if no further ones follow.
    pub last: Option<VersionPosition>,
}

/// What ends [`FoundRecords`]: this many records, or this many bytes of memory.
#[derive(Clone, Copy)]
pub struct FoundBound {
    pub records: usize,
    pub bytes: usize,
}

impl<T> StoreState<T> {
    /// The records after `after` of all versions that are kept, until one of the bounds is reached.
    pub fn records_after(
        &self,
        after: Option<&VersionPosition>,
        bound: FoundBound,
        memory_len: impl Fn(&T) -> usize,
    ) -> FoundRecords<T> {
        let start = after.map_or(Bound::Unbounded, |after| Bound::Included(&*after.key));
        let seen_of = |key: &str| after.filter(|after| *after.key == *key);
        let (mut records, mut bytes) = (Vec::new(), 0_usize);
        for (key, versions) in self.keys.range::<str, _>((start, Bound::Unbounded)) {
            let seen = seen_of(key).map_or(Revision(0), |after| after.revision);
            let first = versions.older.partition_point(|version| version.stamp.modified <= seen);
            for version in versions.older.range(first..).chain([&versions.newest]) {
                let revision = version.stamp.modified;
                if revision <= seen {
                    continue;
                }
                // The record of a deletion is in its event only.
                let tombstone = || {
                    let history = self.histories.get((self.group_of)(key))?;
                    let at = history.find(key, revision)?;
                    history.ring.get(at).map(|entry| &entry.event.record)
                };
                let Some(record) = version.record.as_ref().or_else(tombstone) else { continue };
                let is_current =
                    version.record.is_some() && revision == versions.newest.stamp.modified;
                bytes = bytes.saturating_add(memory_len(record));
                let record = record.clone();
                records.push(FoundRecord { key: key.clone(), revision, is_current, record });
                if records.len() >= bound.records || bytes >= bound.bytes {
                    let last = Some(VersionPosition { key: key.clone(), revision });
                    return FoundRecords { records, last };
                }
            }
        }
        FoundRecords { records, last: None }
    }

    /// Puts each of the new records wherever the one that was found is still. They count as much of the history as before: they may grow again when they
    /// are read.
    pub fn replace_records(&mut self, records: &[(FoundRecord<T>, Arc<T>)]) {
        for (found, new) in records {
            let replace = |record: &mut Arc<T>| {
                if Arc::ptr_eq(record, &found.record) {
                    *record = new.clone();
                }
            };
            let Some(versions) = self.keys.get_mut(&*found.key) else { continue };
            let next = versions.replace(found.revision, replace);
            let Some(history) = self.histories.get_mut((self.group_of)(&found.key)) else {
                continue;
            };
            if let Some(at) = history.find(&found.key, found.revision)
                && let Some(entry) = history.ring.get_mut(at)
            {
                replace(&mut entry.event.record);
            }
            if let Some(at) = next.and_then(|next| history.find(&found.key, next))
                && let Some(previous) =
                    history.ring.get_mut(at).and_then(|entry| entry.event.previous.as_mut())
            {
                replace(previous);
            }
        }
    }
}

impl<T> Versions<T> {
    /// Replaces the record of the version of `revision`; the revision of the version after it.
    fn replace(&mut self, revision: Revision, replace: impl Fn(&mut Arc<T>)) -> Option<Revision> {
        let at = self.older.partition_point(|version| version.stamp.modified < revision);
        let next = self.older.get(at.saturating_add(1)).unwrap_or(&self.newest).stamp.modified;
        let version = self.older.get_mut(at).unwrap_or(&mut self.newest);
        if let Some(record) = version.record.as_mut().filter(|_| version.stamp.modified == revision)
        {
            replace(record);
        }
        (next > revision).then_some(next)
    }
}

impl<T> History<T> {
    /// The position of the event of a key at a revision.
    fn find(&self, key: &str, revision: Revision) -> Option<usize> {
        let first = self.ring.partition_point(|entry| entry.event.stamp.modified < revision);
        let of_revision = self.ring.range(first..);
        let mut of_revision =
            of_revision.take_while(|entry| entry.event.stamp.modified == revision);
        let at = of_revision.position(|entry| &*entry.event.key == key)?;
        first.checked_add(at)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::state::{BatchBound, LoadedRecords};
    use crate::{Event, EventKind, Range, Retention, Stamp};

    /// Writes of a few keys, among them deletions, in transactions of several keys too.
    fn state() -> StoreState<u64> {
        let retention = Retention { events_max: 1000, bytes_max: 1000 };
        let loaded = LoadedRecords { revision: Revision(0), entries: vec![] };
        let mut state = StoreState::new(loaded, retention, |key| key.get(..1).unwrap_or(""));
        let (mut newest, mut events) = (BTreeMap::new(), Vec::new());
        for step in 0..60_u64 {
            let modified = Revision(step / 2 + 1);
            let key = ["a1", "a2", "b1"][usize::try_from(step).unwrap() % 3];
            let previous: Option<(Arc<u64>, Revision)> = newest.remove(key);
            let is_deletion = previous.is_some() && step % 7 == 0;
            let created = previous.as_ref().map_or(modified, |(_, created)| *created);
            let record = Arc::new(step);
            if !is_deletion {
                newest.insert(key, (record.clone(), created));
            }
            let kind = match (&previous, is_deletion) {
                (None, _) => EventKind::Created,
                (_, false) => EventKind::Updated,
                (_, true) => EventKind::Deleted,
            };
            let stamp = Stamp { created, modified };
            let previous = previous.map(|(record, _)| record);
            let event = Event { key: key.into(), kind, stamp, record, previous };
            events.push((event, 1));
        }
        for transaction in events.chunks(2) {
            state.publish(transaction.iter().cloned(), |_| None);
        }
        state
    }

    impl StoreState<u64> {
        /// All that readers and watchers can see.
        fn seen(&self) -> Vec<u64> {
            let mut seen = Vec::new();
            for at in self.oldest().0..=self.revision().0 {
                let range = Range { prefix: "", after: None, limit: None };
                let page = self.range(range, Revision(at)).unwrap();
                seen.extend(page.entries.iter().map(|entry| *entry.record));
            }
            let (mut events, bound) = (Vec::new(), BatchBound { events: 999, bytes: 999 });
            self.events_after(self.oldest(), "", bound, &mut events).unwrap();
            for event in events {
                seen.push(*event.record);
                seen.extend(event.previous.map(|previous| *previous));
            }
            seen
        }
    }

    /// Every record that can be seen is found, and replaced wherever it is.
    #[test]
    fn every_record_is_replaced_everywhere() {
        for compacted in [0, 3, 11, 30] {
            for (records, bytes) in [(1, 999), (2, 999), (1000, 1), (1000, 999)] {
                let mut state = state();
                state.compact(Revision(compacted));
                let before = state.seen();
                assert!(!before.is_empty());
                let (mut after, mut current) = (None, Vec::new());
                loop {
                    let bound = FoundBound { records, bytes };
                    let found = state.records_after(after.as_ref(), bound, |_| 1);
                    let replace = |found: FoundRecord<u64>| {
                        current.extend(found.is_current.then_some(*found.record));
                        let new = Arc::new(*found.record + 1000);
                        (found, new)
                    };
                    let records: Vec<_> = found.records.into_iter().map(replace).collect();
                    state.replace_records(&records);
                    after = found.last;
                    if after.is_none() {
                        break;
                    }
                }
                let expected: Vec<u64> = before.iter().map(|record| record + 1000).collect();
                assert_eq!(state.seen(), expected, "{compacted} {records} {bytes}");
                let range = Range { prefix: "", after: None, limit: None };
                let entries = state.range(range, state.revision()).unwrap().entries;
                let expected: Vec<u64> = entries.iter().map(|entry| *entry.record).collect();
                let current: Vec<u64> = current.iter().map(|record| record + 1000).collect();
                assert_eq!(current, expected, "of their keys");
            }
        }
    }

    /// What was written after the records were found stays.
    #[test]
    fn later_writes_are_not_replaced() {
        let mut state = state();
        let bound = FoundBound { records: 1000, bytes: 1000 };
        let found = state.records_after(None, bound, |_| 1);
        let newest = state.current("a1").or_else(|| state.current("a2")).unwrap();
        let modified = state.revision().next();
        let stamp = Stamp { created: newest.stamp.created, modified };
        let (record, previous) = (Arc::new(7), Some(newest.record.clone()));
        let event =
            Event { key: newest.key.clone(), kind: EventKind::Updated, stamp, record, previous };
        state.publish([(event, 1)], |_| None);
        let records: Vec<_> =
            found.records.into_iter().map(|found| (found, Arc::new(99))).collect();
        state.replace_records(&records);
        assert_eq!(*state.current(&newest.key).unwrap().record, 7);
        let (mut events, bound) = (Vec::new(), BatchBound { events: 9, bytes: 9 });
        let before = Revision(modified.0 - 1);
        state.events_after(before, "", bound, &mut events).unwrap();
        assert_eq!(events.len(), 1);
        assert_eq!((*events[0].record, *events[0].previous.clone().unwrap()), (7, 99));
    }
}
