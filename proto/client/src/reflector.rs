//! A collection as a shared map that follows the server: one task updates it, all others read it.
//!
//! Which part of each object is kept is the caller's choice ([`Reflector::projected`]): a component that needs three fields of every pod does not store
//! every pod. Changes are reported to one callback in their order. The task calls it, so it must not block: it wakes a loop or adds a key to a work queue.

mod cache;

use std::sync::{Arc, PoisonError, RwLock};

use proto_api::{Collection, ObjectKey, Resource};
use proto_daemon::drain::DrainWatch;
use proto_daemon::panics::isolate_sync;
use tokio::sync::watch as state;

use crate::api::Api;
use crate::params::ListParams;
use crate::served_resources::ServedResources;
use crate::watch::{Observed, watch};
use cache::Cache;

/// One change of the map.
#[derive(Clone, Debug, PartialEq)]
pub enum Change<U> {
    /// An object was created or has changed.
    Applied {
        key: ObjectKey,
        /// What is kept of it now.
        new: Arc<U>,
        /// What was kept of it before; not set for a new object.
        old: Option<Arc<U>>,
    },
    /// An object was deleted.
    Deleted {
        /// Which.
        key: ObjectKey,
        /// What was kept of it last.
        old: Arc<U>,
    },
    /// A list is complete: all objects have been reported. Sent after the initial list and after each later one.
    Synced,
}

/// The map. Cheap to clone; all clones are one map.
#[derive(Debug)]
pub struct Store<U> {
    cache: Arc<RwLock<Cache<U>>>,
    synced: state::Receiver<bool>,
    followed: state::Receiver<bool>,
}

impl<U> Clone for Store<U> {
    fn clone(&self) -> Self {
        Self {
            cache: self.cache.clone(),
            synced: self.synced.clone(),
            followed: self.followed.clone(),
        }
    }
}

impl<U> Store<U> {
    /// One object.
    pub fn get(&self, key: &ObjectKey) -> Option<Arc<U>> {
        self.read(|cache| cache.get(key))
    }

    /// All objects, by namespace and name.
    pub fn list(&self) -> Vec<(ObjectKey, Arc<U>)> {
        self.read(|cache| cache.iter().map(|(key, object)| (key, object.clone())).collect())
    }

    /// All objects, without their names.
    pub fn objects(&self) -> Vec<Arc<U>> {
        self.read(|cache| cache.objects().cloned().collect())
    }

    /// The objects of one namespace, by name. The cost depends on their number only.
    pub fn within(&self, namespace: &str) -> Vec<Arc<U>> {
        self.read(|cache| cache.within(namespace).cloned().collect())
    }

    /// The objects of one namespace that match, by name; only these are cloned. No change is taken while they are matched.
    pub fn matching(&self, namespace: &str, is_match: impl Fn(&U) -> bool) -> Vec<Arc<U>> {
        let matching = |cache: &Cache<U>| {
            let objects = cache.within(namespace).filter(|object| is_match(object));
            objects.cloned().collect()
        };
        self.read(matching)
    }

    /// Number of objects.
    pub fn len(&self) -> usize {
        self.read(Cache::len)
    }

    /// Whether there are no objects.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether the initial list is complete.
    pub fn is_synced(&self) -> bool {
        *self.synced.borrow()
    }

    /// Whether a watch is open now, so that changes arrive as they happen.
    pub fn followed(&self) -> state::Receiver<bool> {
        self.followed.clone()
    }

    /// Returns once the initial list is complete; never if its task ended before. Cancel safe.
    pub async fn synced(&self) {
        if self.synced.clone().wait_for(|synced| *synced).await.is_err() {
            std::future::pending().await
        }
    }

    fn read<A>(&self, read: impl FnOnce(&Cache<U>) -> A) -> A {
        read(&self.cache.read().unwrap_or_else(PoisonError::into_inner))
    }
}

/// What is kept of an object.
type Project<T, U> = Box<dyn Fn(T) -> U + Send + Sync>;

/// Updates a [`Store`]; run it as a task.
pub struct Reflector<T, U> {
    api: Api<T>,
    params: ListParams,
    project: Project<T, U>,
    store: Store<U>,
    synced: state::Sender<bool>,
    followed: state::Sender<bool>,
}

impl<T: Resource> Reflector<T, T> {
    /// Keeps whole objects, without the managed fields, which only the server needs.
    pub fn whole(api: Api<T>, params: ListParams) -> Self {
        Self::projected(api, params, |mut object| {
            object.metadata_mut().managed_fields = Vec::new();
            object
        })
    }
}

impl<T: Resource, U: Send + Sync + 'static> Reflector<T, U> {
    /// Keeps `project` of each object.
    pub fn projected(
        api: Api<T>,
        params: ListParams,
        project: impl Fn(T) -> U + Send + Sync + 'static,
    ) -> Self {
        let project = Box::new(project);
        let (synced, is_synced) = state::channel(false);
        let (followed, is_followed) = state::channel(false);
        let store = Store { cache: Arc::default(), synced: is_synced, followed: is_followed };
        Self { api, params, project, store, synced, followed }
    }

    /// The map.
    pub fn store(&self) -> Store<U> {
        self.store.clone()
    }

    /// The collection that it follows.
    pub fn collection(&self) -> &Collection {
        self.api.collection()
    }

    /// [`Self::run`], if the server has the collection; otherwise the map is empty and complete.
    pub async fn run_if_served(
        self,
        served: &ServedResources,
        drain: DrainWatch,
        mut changed: impl FnMut(Change<U>) + Send,
    ) {
        if served.has(self.collection()) {
            return self.run(drain, changed).await;
        }
        changed(Change::Synced);
        self.synced.send_replace(true);
    }

    /// Follows the server until drained, and reports each change to `changed` after the map has it.
    pub async fn run(self, drain: DrainWatch, mut changed: impl FnMut(Change<U>) + Send) {
        let Self { api, params, project, store, synced, followed } = self;
        let follow = watch(&api, &params, |observed| {
            match observed {
                Observed::WatchBegan => drop(followed.send_replace(true)),
                Observed::WatchEnded => drop(followed.send_replace(false)),
                _ => {}
            }
            let changes = {
                let mut cache = store.cache.write().unwrap_or_else(PoisonError::into_inner);
                apply_observation(&mut cache, &project, observed)
            };
            for change in changes {
                let complete = matches!(change, Change::Synced);
                changed(change);
                if complete {
                    // After all objects were reported, so that a waiting caller finds its own state complete as
                    // well.
                    synced.send_replace(true);
                }
            }
        });
        // Dropping the watch loses nothing: the map is not read by the next start.
        tokio::select! {
            () = drain.asked() => {}
            () = follow => {}
        }
    }
}

/// What is kept of `object`; `None` if the projection panicked, which must not affect other objects.
fn project_one<T: Resource, U>(key: &ObjectKey, project: &Project<T, U>, object: T) -> Option<U> {
    isolate_sync(|| project(object))
        .inspect_err(|panicked| {
            tracing::error!(
                resource = T::PLURAL,
                object = %key,
                %panicked,
                "reading an object panicked; it is ignored until it changes"
            );
        })
        .ok()
}

/// Applies one observation to the map. Most are one change; the end of a list may be many.
fn apply_observation<T: Resource, U>(
    cache: &mut Cache<U>,
    project: &Project<T, U>,
    observed: Observed<T>,
) -> Vec<Change<U>> {
    match observed {
        Observed::WatchBegan | Observed::WatchEnded => Vec::new(),
        Observed::ListBegan => {
            cache.begin_list();
            Vec::new()
        }
        Observed::Listed(object) | Observed::Applied(object) => {
            let key = ObjectKey::from_metadata(object.metadata());
            let version = object.metadata().resource_version.clone();
            let named = key.clone();
            cache
                .apply(key, &version, || project_one(&named, project, object))
                .into_iter()
                .collect()
        }
        Observed::Deleted(object) => {
            cache.delete(&ObjectKey::from_metadata(object.metadata())).into_iter().collect()
        }
        Observed::ListEnded => {
            let mut changes = cache.end_list();
            changes.push(Change::Synced);
            changes
        }
    }
}

#[cfg(test)]
mod tests {
    use proto_api::core::v1::ConfigMap;

    use super::*;

    #[test]
    #[allow(clippy::panic, reason = "the panic is what is tested")]
    fn an_object_whose_projection_panics_is_ignored_alone() {
        let project: Project<ConfigMap, String> = Box::new(|object| {
            if object.metadata.name == "bad" { panic!("bad object") } else { object.metadata.name }
        });
        let mut cache = Cache::default();
        let mut see = |name: &str| {
            let mut object = ConfigMap::default();
            (object.metadata.name, object.metadata.resource_version) = (name.into(), "1".into());
            apply_observation(&mut cache, &project, Observed::Applied(object)).len()
        };
        assert_eq!([see("a"), see("bad"), see("b")], [1, 0, 1]);
        assert_eq!(cache.len(), 2);
    }
}
