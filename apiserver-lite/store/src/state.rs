//! The store in memory: the versions of every key and the recent events. Pure: the writer publishes into it, all others read.
//!
//! Each key holds its newest version and the older ones that a readable revision still sees. A read at revision `r` returns the
//! newest version made at or before `r`. Keys lie in groups, each with its own recent events; they have the keys whose versions are
//! dropped when history is compacted. Where there are too many events, the group that takes most loses its oldest: who writes much
//! shortens the history of its own group, and no other.

use std::{
    collections::{BTreeMap, VecDeque, btree_map},
    iter::Peekable,
    ops::Bound,
    sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard},
};

use crate::{
    Compacted, Entry, Event, EventKind, Page, Range, Retention, Revision, SnapshotError, Stamp,
    watcher::Watcher, watchers::Watchers,
};

mod shrinking;

pub use shrinking::{FoundBound, FoundRecord};

/// The state behind its lock. A writer holds it for one publication, a reader for one read; it is not held over IO or an await.
pub struct SharedState<T>(RwLock<StoreState<T>>);

impl<T> SharedState<T> {
    pub fn new(state: StoreState<T>) -> Self {
        Self(RwLock::new(state))
    }

    pub fn read(&self) -> RwLockReadGuard<'_, StoreState<T>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn write(&self) -> RwLockWriteGuard<'_, StoreState<T>> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Versions by key, and recent events.
pub struct StoreState<T> {
    keys: BTreeMap<Arc<str>, Versions<T>>,
    /// The group of a key: a beginning of it.
    group_of: fn(&str) -> &str,
    /// Events by group.
    histories: BTreeMap<Box<str>, History<T>>,
    /// Events of all groups, and the sum of their lengths.
    events: usize,
    bytes: usize,
    revision: Revision,
    /// No group can be read before it.
    oldest: Revision,
    retention: Retention,
    watchers: Watchers,
}

/// What ends a batch of events: a reader that is slow holds those of one batch, which the history may not have any more.
#[derive(Clone, Copy, Debug)]
pub struct BatchBound {
    /// Events, beyond which only those of a revision that was begun follow.
    pub events: usize,
    /// Bytes of memory that the records take, about; a batch has one revision at least.
    pub bytes: usize,
}

/// The recent events of a group.
struct History<T> {
    /// The events after `oldest`, in order. Where a store orders its own writes each revision has one in some group; where etcd does, a revision may have
    /// none, or those of a transaction.
    ring: VecDeque<HistoryEntry<T>>,
    /// Sum of their lengths.
    bytes: usize,
    /// The group can be read and watched from it on, unless that of all is later.
    oldest: Revision,
}

/// An event and what its record takes in memory, in bytes.
struct HistoryEntry<T> {
    event: Event<T>,
    len: usize,
}

/// The records of a medium when it is opened.
pub struct LoadedRecords<T> {
    pub revision: Revision,
    /// In ascending order of key.
    pub entries: Vec<Entry<T>>,
}

/// The versions of one key, oldest first in `older`; a deletion is a version without a record.
struct Versions<T> {
    newest: Version<T>,
    older: VecDeque<Version<T>>,
}

struct Version<T> {
    stamp: Stamp,
    record: Option<Arc<T>>,
}

impl<T> StoreState<T> {
    pub fn new(loaded: LoadedRecords<T>, retention: Retention, group_of: fn(&str) -> &str) -> Self {
        let keys = loaded.entries.into_iter().map(|entry| {
            let newest = Version { stamp: entry.stamp, record: Some(entry.record) };
            (entry.key, Versions { newest, older: VecDeque::new() })
        });
        Self {
            keys: keys.collect(),
            group_of,
            histories: BTreeMap::new(),
            events: 0,
            bytes: 0,
            revision: loaded.revision,
            oldest: loaded.revision,
            retention,
            watchers: Watchers::default(),
        }
    }

    pub fn revision(&self) -> Revision {
        self.revision
    }

    /// The oldest revision at which every group can be read.
    pub fn oldest(&self) -> Revision {
        let of_groups = self.histories.values().map(|history| history.oldest).max();
        of_groups.unwrap_or(self.oldest).max(self.oldest)
    }

    /// Whether keys that start with `prefix` can be read at `revision`, and watched from it.
    pub fn check_readable(&self, prefix: &str, revision: Revision) -> Result<(), SnapshotError> {
        if revision > self.revision {
            return Err(SnapshotError::Future { requested: revision, current: self.revision });
        }
        Ok(self.check_kept(prefix, revision)?)
    }

    fn check_kept(&self, prefix: &str, revision: Revision) -> Result<(), Compacted> {
        let of_groups = self.histories_of(prefix).map(|history| history.oldest).max();
        check_not_before(of_groups.unwrap_or(self.oldest).max(self.oldest), revision)
    }

    /// The histories of the groups that have keys with this prefix.
    fn histories_of<'a>(&'a self, prefix: &'a str) -> impl Iterator<Item = &'a History<T>> {
        let group = (self.group_of)(prefix);
        // A prefix that ends within the name of a group is itself the group of no key.
        let known = self.histories.get(group);
        let below = self.histories.range::<str, _>((Bound::Included(prefix), Bound::Unbounded));
        let below = below.take_while(move |(group, _)| group.starts_with(prefix));
        let several = known.is_none().then_some(below).into_iter().flatten();
        known.into_iter().chain(several.map(|(_, history)| history))
    }

    /// The newest version of every key, in ascending order, with the revision that they make up.
    pub fn all(&self) -> (Revision, Vec<Entry<T>>) {
        let entries = self.keys.iter().filter_map(|(key, versions)| versions.newest.entry(key));
        (self.revision, entries.collect())
    }

    /// The newest version of `key`.
    pub fn current(&self, key: &str) -> Option<Entry<T>> {
        let (key, versions) = self.keys.get_key_value(key)?;
        versions.newest.entry(key)
    }

    pub fn get(&self, key: &str, at: Revision) -> Result<Option<Entry<T>>, Compacted> {
        self.check_kept(key, at)?;
        let found = self.keys.get_key_value(key);
        Ok(found.and_then(|(key, versions)| versions.at(at)?.entry(key)))
    }

    pub fn range(&self, range: Range<'_>, at: Revision) -> Result<Page<T>, Compacted> {
        self.check_kept(range.prefix, at)?;
        Ok(self.page(range, |versions| versions.at(at)))
    }

    /// The newest versions in a range.
    pub fn current_range(&self, range: Range<'_>) -> Page<T> {
        self.page(range, |versions| Some(&versions.newest))
    }

    fn page<'a>(
        &'a self,
        range: Range<'a>,
        version: impl Fn(&'a Versions<T>) -> Option<&'a Version<T>>,
    ) -> Page<T> {
        let limit = range.limit.unwrap_or(usize::MAX);
        let mut entries = Vec::new();
        for (key, versions) in self.versions_in(range) {
            let Some(entry) = version(versions).and_then(|version| version.entry(key)) else {
                continue;
            };
            if entries.len() == limit {
                return Page { entries, more: true };
            }
            entries.push(entry);
        }
        Page { entries, more: false }
    }

    pub fn count(&self, range: Range<'_>, at: Revision) -> Result<usize, Compacted> {
        self.check_kept(range.prefix, at)?;
        let exists = |versions: &Versions<T>| versions.at(at).is_some_and(|v| v.record.is_some());
        let most = range.limit.unwrap_or(usize::MAX);
        Ok(self.versions_in(range).filter(|(_, versions)| exists(versions)).take(most).count())
    }

    fn versions_in<'a>(
        &'a self,
        range: Range<'a>,
    ) -> impl Iterator<Item = (&'a Arc<str>, &'a Versions<T>)> {
        let start = match range.after {
            Some(after) if after >= range.prefix => Bound::Excluded(after),
            _ => Bound::Included(range.prefix),
        };
        let keys: btree_map::Range<'_, Arc<str>, _> =
            self.keys.range::<str, _>((start, Bound::Unbounded));
        keys.take_while(move |(key, _)| key.starts_with(range.prefix))
    }

    /// Appends to `into` the events after `seen` whose key starts with `prefix`, as many as the bound allows, and returns the revision up to which all
    /// matching events were appended. Events of one revision are never parted, however many they are.
    pub fn events_after(
        &self,
        seen: Revision,
        prefix: &str,
        bound: BatchBound,
        into: &mut Vec<Event<T>>,
    ) -> Result<Revision, Compacted> {
        self.check_kept(prefix, seen)?;
        let room = into.len().saturating_add(bound.events);
        let (mut last, mut bytes) = (seen, 0_usize);
        for HistoryEntry { event, len } in self.entries_after(seen, prefix) {
            let is_full = into.len() >= room || bytes >= bound.bytes;
            if is_full && event.stamp.modified > last {
                return Ok(last);
            }
            into.push(event.clone());
            last = event.stamp.modified;
            bytes = bytes.saturating_add(*len);
        }
        Ok(self.revision)
    }

    /// The events after `seen` whose key starts with `prefix`, in order.
    fn entries_after<'a>(
        &'a self,
        seen: Revision,
        prefix: &'a str,
    ) -> impl Iterator<Item = &'a HistoryEntry<T>> {
        let of_group = move |history: &'a History<T>| {
            let entries = history.ring.range(history.position_after(seen)..);
            entries.filter(move |entry| entry.event.key.starts_with(prefix)).peekable()
        };
        let mut groups: Vec<_> = self.histories_of(prefix).map(of_group).collect();
        std::iter::from_fn(move || {
            let next_of = |(at, group): (usize, &mut Peekable<_>)| {
                let next: Option<&&HistoryEntry<T>> = group.peek();
                next.map(|entry| (entry.event.stamp.modified, at))
            };
            let (_, at) = groups.iter_mut().enumerate().filter_map(next_of).min()?;
            groups.get_mut(at)?.next()
        })
    }

    /// The revision before `seen` if several keys below `prefix` were written at `seen`, else `seen`.
    pub fn resume_after(&self, prefix: &str, seen: Revision) -> Revision {
        let before = Revision(seen.0.saturating_sub(1));
        if self.check_kept(prefix, before).is_err() {
            return seen;
        }
        let at_seen = self.entries_after(before, prefix);
        let mut at_seen = at_seen.take_while(|entry| entry.event.stamp.modified == seen);
        match at_seen.nth(1) {
            Some(_) => before,
            None => seen,
        }
    }

    /// Makes a batch of durable events visible atomically. Their revisions are after the current one and ascend; all events of a revision are in one
    /// batch. Each comes with the bytes of memory that its record takes, and `topic` is that of a record.
    /// Returns the watchers to wake.
    pub fn publish(
        &mut self,
        events: impl IntoIterator<Item = (Event<T>, usize)>,
        topic: impl Fn(&T) -> Option<&str>,
    ) -> Vec<Arc<Watcher>> {
        let mut woken = Vec::new();
        // A watcher without pending events has seen all before the batch; it may match only the second event of a revision.
        let seen = self.revision;
        for (event, len) in events {
            debug_assert!(event.stamp.modified > seen && event.stamp.modified >= self.revision);
            let topics = || {
                let before = event.previous.as_ref().unwrap_or(&event.record);
                [topic(&event.record), topic(before)]
            };
            self.watchers.each_of(&event.key, topics, |watcher| {
                if watcher.mark_pending(seen) {
                    woken.push(watcher.clone());
                }
            });
            self.revision = event.stamp.modified;
            let record = (event.kind != EventKind::Deleted).then(|| event.record.clone());
            let version = Version { stamp: event.stamp, record };
            match self.keys.entry(event.key.clone()) {
                btree_map::Entry::Vacant(entry) => {
                    entry.insert(Versions { newest: version, older: VecDeque::new() });
                }
                btree_map::Entry::Occupied(mut entry) => {
                    let versions = entry.get_mut();
                    let before = std::mem::replace(&mut versions.newest, version);
                    versions.older.push_back(before);
                }
            }
            self.push_event(event, len);
        }
        self.drop_surplus_events();
        woken
    }

    /// Moves to a later revision at which nothing changed.
    pub fn advance(&mut self, revision: Revision) {
        self.revision = self.revision.max(revision);
    }

    /// Puts `records` in the place of all that is there, as one step to a later revision, and returns the watchers to wake. Nothing before it can be
    /// read or watched from: every watch has fallen behind.
    pub fn replace(&mut self, records: &[Entry<T>], revision: Revision) -> Vec<Arc<Watcher>> {
        let seen = self.revision;
        let versions = |entry: &Entry<T>| {
            let newest = Version { stamp: entry.stamp, record: Some(entry.record.clone()) };
            (entry.key.clone(), Versions { newest, older: VecDeque::new() })
        };
        self.keys = records.iter().map(versions).collect();
        self.histories = BTreeMap::new();
        (self.events, self.bytes) = (0, 0);
        self.revision = revision;
        self.oldest = self.revision;
        let woken = self.watchers.all().filter(|watcher| watcher.mark_pending(seen));
        woken.cloned().collect()
    }

    /// Registers a watcher.
    pub fn add_watcher(&mut self, watcher: Arc<Watcher>) {
        self.watchers.add(watcher);
    }

    /// Removes the watcher of an ended watch.
    pub fn remove_watcher(&mut self, watcher: &Arc<Watcher>) {
        self.watchers.remove(watcher);
    }

    fn push_event(&mut self, event: Event<T>, len: usize) {
        let group = (self.group_of)(&event.key);
        if !self.histories.contains_key(group) {
            self.histories.insert(group.into(), History::new(self.oldest));
        }
        if let Some(history) = self.histories.get_mut(group) {
            history.bytes = history.bytes.saturating_add(len);
            self.bytes = self.bytes.saturating_add(len);
            self.events = self.events.saturating_add(1);
            history.ring.push_back(HistoryEntry { event, len });
        }
    }

    /// Drops events of the largest groups until there are few enough.
    fn drop_surplus_events(&mut self) {
        let Retention { events_max, bytes_max } = self.retention;
        loop {
            let by_bytes = self.bytes > bytes_max;
            if !by_bytes && self.events <= events_max {
                return;
            }
            let size = |history: &History<T>| match by_bytes {
                true => history.bytes,
                false => history.ring.len(),
            };
            let largest = self.histories.iter().max_by_key(|(_, history)| size(history));
            let Some(group) = largest.map(|(group, _)| group.clone()) else { return };
            if !self.drop_oldest_event(&group) {
                return;
            }
        }
    }

    /// Compacts the revisions before `oldest`.
    pub fn compact(&mut self, oldest: Revision) {
        let oldest = oldest.min(self.revision);
        self.oldest = self.oldest.max(oldest);
        let groups: Vec<Box<str>> = self.histories.keys().cloned().collect();
        for group in groups {
            while self.histories.get(&group).is_some_and(|history| history.begins_by(oldest))
                && self.drop_oldest_event(&group)
            {}
        }
        self.histories.retain(|_, history| !history.ring.is_empty() || history.oldest > oldest);
    }

    /// Drops the oldest event of a group; false if there is none.
    fn drop_oldest_event(&mut self, group: &str) -> bool {
        let Some(history) = self.histories.get_mut(group) else { return false };
        let Some(HistoryEntry { event, len }) = history.ring.pop_front() else { return false };
        history.bytes = history.bytes.saturating_sub(len);
        history.oldest = event.stamp.modified;
        let oldest = self.oldest.max(history.oldest);
        self.bytes = self.bytes.saturating_sub(len);
        self.events = self.events.saturating_sub(1);
        self.drop_unreadable_versions(&event.key, oldest);
        true
    }

    /// Drops the versions of `key` that no revision from `oldest` on sees any more.
    fn drop_unreadable_versions(&mut self, key: &str, oldest: Revision) {
        let Some(versions) = self.keys.get_mut(key) else { return };
        // A version is visible until the next one, so it can be dropped once the next one is at `oldest` or before.
        let next_made = |versions: &Versions<T>| {
            versions.older.get(1).unwrap_or(&versions.newest).stamp.modified
        };
        while !versions.older.is_empty() && next_made(versions) <= oldest {
            versions.older.pop_front();
        }
        if versions.older.is_empty() {
            versions.older.shrink_to_fit();
            let newest = &versions.newest;
            if newest.record.is_none() && newest.stamp.modified <= oldest {
                self.keys.remove(key);
            }
        }
    }
}

impl<T> History<T> {
    fn new(oldest: Revision) -> Self {
        Self { ring: VecDeque::new(), bytes: 0, oldest }
    }

    /// Where the events after `seen` begin.
    fn position_after(&self, seen: Revision) -> usize {
        self.ring.partition_point(|entry| entry.event.stamp.modified <= seen)
    }

    /// Whether the first event is of this revision or an earlier one.
    fn begins_by(&self, revision: Revision) -> bool {
        self.ring.front().is_some_and(|entry| entry.event.stamp.modified <= revision)
    }
}

fn check_not_before(oldest: Revision, requested: Revision) -> Result<(), Compacted> {
    if requested < oldest {
        return Err(Compacted { requested, oldest });
    }
    Ok(())
}

impl<T> Versions<T> {
    fn at(&self, revision: Revision) -> Option<&Version<T>> {
        let newest_first = std::iter::once(&self.newest).chain(self.older.iter().rev());
        newest_first.into_iter().find(|version| version.stamp.modified <= revision)
    }
}

impl<T> Version<T> {
    fn entry(&self, key: &Arc<str>) -> Option<Entry<T>> {
        let record = self.record.clone()?;
        Some(Entry { key: key.clone(), stamp: self.stamp, record })
    }
}

#[cfg(test)]
mod tests;
