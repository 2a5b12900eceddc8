//! The map of a reflector, and how a new list changes it. Pure.
//!
//! There may be hundreds of thousands of objects with small projections, so entries are small: namespaces are shared, and only the hash of a version is
//! kept.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use proto_api::ObjectKey;

use super::Change;

/// Objects by namespace and name, with the version at which each was last seen.
#[derive(Debug)]
pub(super) struct Cache<U> {
    namespaces: BTreeMap<Box<str>, BTreeMap<Box<str>, Entry<U>>>,
    /// Counts lists; entries of an older one are removed at the end of a list.
    list: u32,
    /// A new seed for each map: the server chooses the versions.
    versions: RandomState,
}

#[derive(Debug)]
struct Entry<U> {
    /// Hash of the version. Collisions of 64-bit hashes are neglected.
    version: u64,
    list: u32,
    object: Arc<U>,
}

impl<U> Default for Cache<U> {
    fn default() -> Self {
        Self { namespaces: BTreeMap::new(), list: 0, versions: RandomState::new() }
    }
}

impl<U> Cache<U> {
    pub(super) fn get(&self, key: &ObjectKey) -> Option<Arc<U>> {
        let entry = self.namespaces.get(&*key.namespace)?.get(&*key.name)?;
        Some(entry.object.clone())
    }

    pub(super) fn len(&self) -> usize {
        self.namespaces.values().map(BTreeMap::len).sum()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (ObjectKey, &Arc<U>)> {
        self.namespaces.iter().flat_map(|(namespace, entries)| {
            entries
                .iter()
                .map(move |(name, entry)| (ObjectKey::new(&**namespace, &**name), &entry.object))
        })
    }

    pub(super) fn objects(&self) -> impl Iterator<Item = &Arc<U>> {
        self.namespaces.values().flat_map(BTreeMap::values).map(|entry| &entry.object)
    }

    pub(super) fn within(&self, namespace: &str) -> impl Iterator<Item = &Arc<U>> {
        let entries = self.namespaces.get(namespace).into_iter();
        entries.flat_map(BTreeMap::values).map(|entry| &entry.object)
    }

    pub(super) fn begin_list(&mut self) {
        self.list = self.list.wrapping_add(1);
    }

    /// Records the object at `version`; no change if that version is known, as after most lists. Without an object, because its projection failed, the old
    /// one stays.
    pub(super) fn apply(
        &mut self,
        key: ObjectKey,
        version: &str,
        object: impl FnOnce() -> Option<U>,
    ) -> Option<Change<U>> {
        let (list, seen) = (self.list, self.versions.hash_one(version));
        let entries = self.namespaces.get_mut(&*key.namespace);
        let known = entries.and_then(|entries| entries.get_mut(&*key.name));
        if let Some(entry) = known {
            entry.list = list;
            if entry.version == seen && !version.is_empty() {
                return None;
            }
            entry.version = seen;
            let new = Arc::new(object()?);
            let old = std::mem::replace(&mut entry.object, new.clone());
            return Some(Change::Applied { key, new, old: Some(old) });
        }
        let new = Arc::new(object()?);
        let entry = Entry { version: seen, list, object: new.clone() };
        let entries = match self.namespaces.get_mut(&*key.namespace) {
            Some(entries) => entries,
            None => self.namespaces.entry(key.namespace.as_str().into()).or_default(),
        };
        entries.insert(key.name.as_str().into(), entry);
        Some(Change::Applied { key, new, old: None })
    }

    pub(super) fn delete(&mut self, key: &ObjectKey) -> Option<Change<U>> {
        let entries = self.namespaces.get_mut(&*key.namespace)?;
        let entry = entries.remove(&*key.name)?;
        if entries.is_empty() {
            self.namespaces.remove(&*key.namespace);
        }
        Some(Change::Deleted { key: key.clone(), old: entry.object })
    }

    /// Removes the objects that the list did not contain.
    pub(super) fn end_list(&mut self) -> Vec<Change<U>> {
        let list = self.list;
        let mut gone = Vec::new();
        for (namespace, entries) in &mut self.namespaces {
            let old = entries.extract_if(.., |_, entry| entry.list != list);
            gone.extend(old.map(|(name, entry)| Change::Deleted {
                key: ObjectKey::new(&**namespace, &*name),
                old: entry.object,
            }));
        }
        self.namespaces.retain(|_, entries| !entries.is_empty());
        gone
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
    fn a_second_list_reports_only_differences() {
        let mut cache = Cache::default();
        cache.begin_list();
        for name in ["a", "b", "c"] {
            assert!(cache.apply(key(name), "1", || Some(1)).is_some());
        }
        assert!(cache.end_list().is_empty());

        cache.begin_list();
        assert_eq!(cache.apply(key("a"), "1", || Some(9)), None);
        let changed = cache.apply(key("b"), "2", || Some(2));
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
        cache.apply(key("a"), "1", || Some(1));
        cache.begin_list();
        cache.apply(key("b"), "2", || Some(1));
        assert_eq!(cache.end_list(), [Change::Deleted { key: key("a"), old: Arc::new(1) }]);
    }

    #[test]
    fn an_object_that_cannot_be_made_leaves_what_was_known() {
        let mut cache = Cache::default();
        cache.begin_list();
        assert!(cache.apply(key("a"), "1", || Some(1)).is_some());
        assert_eq!(cache.apply(key("a"), "2", || None), None);
        assert_eq!(cache.apply(key("b"), "1", || None), None);
        assert_eq!(cache.get(&key("a")), Some(Arc::new(1)));
        assert_eq!((cache.get(&key("b")), cache.len()), (None, 1));
        assert!(cache.end_list().is_empty());
        assert!(cache.apply(key("a"), "3", || Some(3)).is_some());
    }

    #[test]
    fn deletions_of_unknown_objects_are_ignored() {
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
        /// Changes carry the same information as the map.
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
                            changes.extend(cache.apply(key(&name.to_string()), &version.to_string(), || Some(*version)));
                        }
                        changes.extend(cache.end_list());
                    }
                    Step::Apply(name, version) => {
                        truth.insert(name, version);
                        changes.extend(cache.apply(key(&name.to_string()), &version.to_string(), || Some(version)));
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
                let map: BTreeMap<_, _> = cache.iter().map(|(key, object)| (key, **object)).collect();
                prop_assert_eq!(&map, &truth);
                prop_assert_eq!(cache.len(), truth.len());
                prop_assert_eq!(cache.within("ns").count(), truth.len());
            }
        }
    }
}
