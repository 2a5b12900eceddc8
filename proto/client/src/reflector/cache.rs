//! The map behind a reflector, and what a new list means for it. Pure.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{Change, ObjectKey};

/// Objects by key, with the version at which each was last seen.
#[derive(Debug)]
pub(super) struct Cache<U> {
    entries: BTreeMap<ObjectKey, Entry<U>>,
    /// Counts lists; an entry of an older one is gone when a list ends.
    list: u64,
}

#[derive(Debug)]
struct Entry<U> {
    version: Box<str>,
    list: u64,
    object: Arc<U>,
}

impl<U> Default for Cache<U> {
    fn default() -> Self {
        Self { entries: BTreeMap::new(), list: 0 }
    }
}

impl<U> Cache<U> {
    pub(super) fn get(&self, key: &ObjectKey) -> Option<Arc<U>> {
        self.entries.get(key).map(|entry| entry.object.clone())
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&ObjectKey, &Arc<U>)> {
        self.entries.iter().map(|(key, entry)| (key, &entry.object))
    }

    pub(super) fn within<'a>(&'a self, namespace: &'a str) -> impl Iterator<Item = &'a Arc<U>> {
        let first = ObjectKey::new(namespace, "");
        let from_first = self.entries.range(first..);
        from_first
            .take_while(move |(key, _)| key.namespace == namespace)
            .map(|(_, entry)| &entry.object)
    }

    pub(super) fn begin_list(&mut self) {
        self.list += 1;
    }

    /// The object as it is at `version`; no change when that version is the one that is known, as
    /// after most lists.
    pub(super) fn apply(
        &mut self,
        key: ObjectKey,
        version: &str,
        object: impl FnOnce() -> U,
    ) -> Option<Change<U>> {
        let list = self.list;
        if let Some(entry) = self.entries.get_mut(&key)
            && *entry.version == *version
            && !version.is_empty()
        {
            entry.list = list;
            return None;
        }
        let new = Arc::new(object());
        let entry = Entry { version: version.into(), list, object: new.clone() };
        let old = self.entries.insert(key.clone(), entry).map(|entry| entry.object);
        Some(Change::Applied { key, new, old })
    }

    pub(super) fn delete(&mut self, key: &ObjectKey) -> Option<Change<U>> {
        let entry = self.entries.remove(key)?;
        Some(Change::Deleted { key: key.clone(), old: entry.object })
    }

    /// Removes what the list did not hold.
    pub(super) fn end_list(&mut self) -> Vec<Change<U>> {
        let list = self.list;
        self.entries
            .extract_if(.., |_, entry| entry.list != list)
            .map(|(key, entry)| Change::Deleted { key, old: entry.object })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn key(name: &str) -> ObjectKey {
        ObjectKey::new("ns", name)
    }

    #[test]
    fn a_second_list_tells_only_differences() {
        let mut cache = Cache::default();
        cache.begin_list();
        for name in ["a", "b", "c"] {
            assert!(cache.apply(key(name), "1", || 1).is_some());
        }
        assert!(cache.end_list().is_empty());

        cache.begin_list();
        assert_eq!(cache.apply(key("a"), "1", || 9), None);
        let changed = cache.apply(key("b"), "2", || 2);
        assert_eq!(
            changed,
            Some(Change::Applied { key: key("b"), new: Arc::new(2), old: Some(Arc::new(1)) })
        );
        assert_eq!(cache.end_list(), [Change::Deleted { key: key("c"), old: Arc::new(1) }]);
        assert_eq!(cache.get(&key("a")), Some(Arc::new(1)));
    }

    #[test]
    fn a_list_that_begins_again_counts_alone() {
        let mut cache = Cache::default();
        cache.begin_list();
        cache.apply(key("a"), "1", || 1);
        cache.begin_list();
        cache.apply(key("b"), "2", || 1);
        assert_eq!(cache.end_list(), [Change::Deleted { key: key("a"), old: Arc::new(1) }]);
    }

    #[test]
    fn what_was_never_seen_is_not_deleted() {
        assert_eq!(Cache::<u8>::default().delete(&key("a")), None);
    }

    #[derive(Clone, Debug)]
    enum Step {
        List(Vec<(u8, u8)>),
        Apply(u8, u8),
        Delete(u8),
    }

    fn step() -> impl Strategy<Value = Step> {
        let entry = || (0..5_u8, 1..9_u8);
        prop_oneof![
            prop::collection::vec(entry(), 0..5).prop_map(Step::List),
            entry().prop_map(|(name, version)| Step::Apply(name, version)),
            (0..5_u8).prop_map(Step::Delete),
        ]
    }

    proptest! {
        /// Who only listens to changes knows the same as who reads the map.
        #[test]
        fn changes_rebuild_the_map(steps in prop::collection::vec(step(), 0..30)) {
            let mut cache: Cache<u8> = Cache::default();
            let mut heard = BTreeMap::new();
            let mut truth = BTreeMap::new();
            for step in steps {
                let mut changes = Vec::new();
                match step {
                    Step::List(entries) => {
                        truth = entries.iter().copied().collect();
                        cache.begin_list();
                        for (name, version) in &truth {
                            changes.extend(cache.apply(key(&name.to_string()), &version.to_string(), || *version));
                        }
                        changes.extend(cache.end_list());
                    }
                    Step::Apply(name, version) => {
                        truth.insert(name, version);
                        changes.extend(cache.apply(key(&name.to_string()), &version.to_string(), || version));
                    }
                    Step::Delete(name) => {
                        truth.remove(&name);
                        changes.extend(cache.delete(&key(&name.to_string())));
                    }
                }
                for change in changes {
                    match change {
                        Change::Applied { key, new, old } => {
                            prop_assert_eq!(heard.insert(key, *new), old.as_deref().copied());
                        }
                        Change::Deleted { key, old } => prop_assert_eq!(heard.remove(&key), Some(*old)),
                        Change::Synced => {}
                    }
                }
                let truth: BTreeMap<_, _> =
                    truth.iter().map(|(name, version)| (key(&name.to_string()), *version)).collect();
                prop_assert_eq!(&heard, &truth);
                let map: BTreeMap<_, _> = cache.iter().map(|(key, object)| (key.clone(), **object)).collect();
                prop_assert_eq!(&map, &truth);
            }
        }
    }
}
