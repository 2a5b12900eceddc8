//! The caches of all kinds, and which of them are not complete yet.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock, Weak};
use std::time::Duration;

use proto_client::Store;
use tokio::time::Instant;

use super::KindChangeHandler;
use crate::index::Ownership;
use crate::kinds::{CollectedKind, Id, KindId};
use crate::process::OwnershipCaches;

/// How long owners wait for a kind's first list: another server may never answer.
pub(super) const LIST_MAX: Duration = Duration::from_secs(30);

#[derive(Clone)]
struct KindCache {
    store: Store<Ownership>,
    since: Instant,
    /// Alive until the first list is complete, or the kind is known not to be served.
    unlisted: Weak<()>,
}

#[derive(Default)]
struct Caches {
    kinds: BTreeMap<KindId, KindCache>,
    /// The versions whose kinds are not known, although their servers are available, and since when.
    unread: BTreeMap<String, Instant>,
}

/// The caches of all kinds.
#[derive(Clone, Default)]
pub struct InformerCaches(Arc<RwLock<Caches>>);

impl InformerCaches {
    fn read<T>(&self, read: impl FnOnce(&Caches) -> T) -> T {
        read(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn change<T>(&self, change: impl FnOnce(&mut Caches) -> T) -> T {
        change(&mut self.0.write().unwrap_or_else(PoisonError::into_inner))
    }

    fn cache(&self, kind: KindId) -> Option<Store<Ownership>> {
        self.read(|caches| caches.kinds.get(&kind).map(|cache| cache.store.clone()))
    }

    /// Adds a kind's cache. What is returned is to be dropped when its first list is complete.
    pub(super) fn insert(&self, kind: KindId, store: Store<Ownership>) -> Arc<()> {
        let listing = Arc::new(());
        let unlisted = Arc::downgrade(&listing);
        let cache = KindCache { store, since: Instant::now(), unlisted };
        self.change(|caches| caches.kinds.insert(kind, cache));
        listing
    }

    /// Whether a kind has a cache.
    pub(super) fn has(&self, kind: KindId) -> bool {
        self.cache(kind).is_some()
    }

    /// Removes a kind's cache, and reports its objects as deleted.
    pub(super) fn forget(&self, kind: KindId, taker: &KindChangeHandler) {
        let removed = self.change(|caches| caches.kinds.remove(&kind));
        for (key, old) in removed.iter().flat_map(|cache| cache.store.list()) {
            taker.take(kind, key, Some(&old), None);
        }
    }

    /// The objects that name an owner of this kind.
    pub(super) fn dependents_of(&self, owner: &CollectedKind) -> Vec<Id> {
        let all = self.read(|caches| caches.kinds.clone());
        let of_kind = |(kind, cache): (KindId, KindCache)| {
            let objects = cache.store.list().into_iter();
            let dependents = objects.filter(|(_, object)| object.names_owner(owner));
            dependents.map(move |(key, _)| Id { kind, key }).collect::<Vec<_>>()
        };
        all.into_iter().flat_map(of_kind).collect()
    }

    /// From now on owners wait for other servers, of which nothing has been read yet.
    pub fn await_other_servers(&self) {
        self.change(|caches| caches.unread = [(String::new(), Instant::now())].into());
    }

    /// Notes the versions whose kinds are not known although their servers are available.
    pub(super) fn note_unread(&self, versions: impl IntoIterator<Item = String>) {
        self.change(|caches| {
            let known = std::mem::take(&mut caches.unread);
            let noted = |version: String| {
                let since = known.get(&version).copied().unwrap_or_else(Instant::now);
                (version, since)
            };
            caches.unread = versions.into_iter().map(noted).collect();
        });
    }
}

impl OwnershipCaches for InformerCaches {
    fn get(&self, id: &Id) -> Option<Arc<Ownership>> {
        self.cache(id.kind)?.get(&id.key)
    }

    fn names(&self, kind: KindId) -> Vec<String> {
        let all = self.cache(kind).map(|store| store.list()).unwrap_or_default();
        all.into_iter().map(|(key, _)| key.name).collect()
    }

    fn serves(&self, kind: KindId) -> bool {
        // The cache of a kind that is not served never becomes complete.
        self.cache(kind).is_some_and(|store| store.is_synced())
    }

    fn are_incomplete(&self) -> bool {
        self.read(|caches| {
            let unlisted = caches.kinds.values().filter(|kind| kind.unlisted.strong_count() > 0);
            let mut since = unlisted.map(|kind| kind.since).chain(caches.unread.values().copied());
            since.any(|since| since.elapsed() < LIST_MAX)
        })
    }
}
