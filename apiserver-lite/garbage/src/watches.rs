//! The watches of all kinds: those of definitions are started and ended as the definitions come and go.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use apiserver_controllers::custom_resources::{self, CustomResource};
use proto_api::ObjectKey;
use proto_api::meta::v1::PartialObjectMetadata;
use proto_client::dynamic::Dynamic;
use proto_client::{Api, Change, Client, ClientError, ListParams, Reflector, Store};
use proto_daemon::backoff::Backoff;
use proto_daemon::drain::DrainWatch;
use proto_daemon::exit::chain;
use proto_daemon::work_queue::WorkQueue;
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinHandle;

use crate::index::{Index, Ownership};
use crate::kinds::{CollectedKind, Id, KindId, Kinds};
use crate::process::{OwnershipCaches, lock};

/// Back-off of the discovery of served kinds.
const PROBE: Backoff =
    Backoff { first: Duration::from_millis(200), longest: Duration::from_secs(10) };

/// Handles the changes of all kinds.
pub struct KindChangeHandler {
    /// The ownership graph.
    pub index: Arc<Mutex<Index>>,
    /// The objects to process.
    pub queue: WorkQueue<Id>,
}

impl KindChangeHandler {
    fn take(&self, kind: KindId, key: ObjectKey, old: Option<&Ownership>, new: Option<&Ownership>) {
        let look = lock(&self.index).apply(&Id { kind, key }, old, new);
        for id in look {
            self.queue.add(id);
        }
    }
}

/// The caches of all kinds.
#[derive(Clone, Default)]
pub struct InformerCaches(Arc<RwLock<BTreeMap<KindId, Store<Ownership>>>>);

impl InformerCaches {
    fn cache(&self, kind: KindId) -> Option<Store<Ownership>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).get(&kind).cloned()
    }

    fn insert(&self, kind: KindId, store: Store<Ownership>) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).insert(kind, store);
    }

    fn remove(&self, kind: KindId) -> Option<Store<Ownership>> {
        self.0.write().unwrap_or_else(PoisonError::into_inner).remove(&kind)
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
}

/// Runs one watch for each kind that the server serves.
pub struct Watches {
    client: Client,
    kinds: Arc<Kinds>,
    taker: Arc<KindChangeHandler>,
    drain: DrainWatch,
    caches: InformerCaches,
    running: BTreeMap<KindId, JoinHandle<()>>,
    /// Woken when a definition has changed.
    defined: Arc<Notify>,
}

/// Ends them.
impl Drop for Watches {
    fn drop(&mut self) {
        self.running.values().for_each(JoinHandle::abort);
    }
}

impl Watches {
    /// No watches yet.
    pub fn new(
        client: Client,
        kinds: Arc<Kinds>,
        taker: Arc<KindChangeHandler>,
        drain: DrainWatch,
    ) -> Self {
        let caches = InformerCaches::default();
        let (running, defined) = (BTreeMap::new(), Arc::default());
        Self { client, kinds, taker, drain, caches, running, defined }
    }

    /// What they fill.
    pub fn caches(&self) -> InformerCaches {
        self.caches.clone()
    }

    /// Starts the watch of a kind, which drops `ready` when its cache is complete.
    pub fn start(&mut self, kind: KindId, ready: Option<mpsc::Sender<()>>) {
        let Some(collection) = self.kinds.collection(kind, None) else { return };
        let definitions = custom_resources::definitions(self.client.names());
        let are_definitions =
            (&collection.group, &collection.plural) == (&definitions.group, &definitions.plural);
        let api = self.client.metadata(collection);
        let reflector =
            Reflector::projected(api.clone(), ListParams::default(), Ownership::from_object);
        self.caches.insert(kind, reflector.store());
        let mut filled = Filled { kind, taker: self.taker.clone(), ready, defined: None };
        if are_definitions {
            filled.defined = Some(self.defined.clone());
        }
        let task = tokio::spawn(keep(api, reflector, filled, self.drain.clone()));
        self.running.insert(kind, task);
    }

    /// Follows the definitions until drained.
    pub async fn run(mut self) {
        let drain = self.drain.clone();
        loop {
            let defined = self.defined.clone();
            tokio::select! {
                () = drain.asked() => return,
                () = defined.notified() => {}
            }
            tokio::select! {
                () = drain.asked() => return,
                () = self.follow_definitions(None) => {}
            }
        }
    }

    /// Starts the watches of kinds that definitions have added, and ends those of definitions that are gone. Retried until there is an answer.
    pub async fn follow_definitions(&mut self, ready: Option<mpsc::Sender<()>>) {
        let served: Vec<CollectedKind> =
            self.defined().await.iter().map(CollectedKind::from).collect();
        for (id, kind) in self.kinds.iter().filter(|(_, kind)| kind.custom) {
            if !served.contains(&kind) {
                self.end(id);
            }
        }
        let known: Vec<_> = self.kinds.iter().map(|(_, kind)| kind).collect();
        for kind in served.into_iter().filter(|kind| !known.iter().any(|have| **have == *kind)) {
            let id = self.kinds.add(kind);
            self.start(id, ready.clone());
        }
    }

    async fn defined(&self) -> Vec<CustomResource> {
        let definitions = custom_resources::definitions(self.client.names());
        let definitions = Dynamic::new(self.client.clone(), definitions);
        let mut failures = 1u32;
        loop {
            match definitions.list(&ListParams::default()).await {
                Ok(list) => return custom_resources::list_served(&list),
                Err(error) if is_unserved(&error) => return Vec::new(),
                Err(error) => {
                    let error = chain(&error);
                    tracing::debug!(
                        failures,
                        error,
                        "cannot list CustomResourceDefinitions; retried"
                    );
                    tokio::time::sleep(PROBE.delay(failures, 0.5)).await;
                    failures = failures.saturating_add(1);
                }
            }
        }
    }

    /// Ends the watch of a kind whose definition is gone: its objects are gone too.
    fn end(&mut self, kind: KindId) {
        if let Some(task) = self.running.remove(&kind) {
            task.abort();
        }
        for (key, old) in self.caches.remove(kind).iter().flat_map(Store::list) {
            self.taker.take(kind, key, Some(&old), None);
        }
        self.kinds.remove(kind);
    }
}

fn is_unserved(error: &ClientError) -> bool {
    error.is_not_found() || error.code() == Some(405)
}

/// Receives the changes of a kind.
struct Filled {
    kind: KindId,
    taker: Arc<KindChangeHandler>,
    /// Dropped when the cache is complete.
    ready: Option<mpsc::Sender<()>>,
    /// Woken after each change of a definition.
    defined: Option<Arc<Notify>>,
}

/// Fills the cache of one kind, if it is served.
async fn keep(
    api: Api<PartialObjectMetadata>,
    reflector: Reflector<PartialObjectMetadata, Ownership>,
    mut filled: Filled,
    drain: DrainWatch,
) {
    let served = tokio::select! {
        () = drain.asked() => return,
        served = is_served(&api) => served,
    };
    if !served {
        return;
    }
    let (kind, taker) = (filled.kind, filled.taker);
    reflector
        .run(drain, move |change| {
            match change {
                Change::Applied { key, new, old } => {
                    taker.take(kind, key, old.as_deref(), Some(&new));
                }
                Change::Deleted { key, old } => taker.take(kind, key, Some(&old), None),
                Change::Synced => drop(filled.ready.take()),
            }
            filled.defined.iter().for_each(|defined| defined.notify_one());
        })
        .await;
}

/// Whether the server serves the collection; retried until there is an answer.
async fn is_served(api: &Api<PartialObjectMetadata>) -> bool {
    let mut failures = 1u32;
    loop {
        match api.list(&ListParams { limit: Some(1), ..ListParams::default() }).await {
            Ok(_) => return true,
            Err(error) if is_unserved(&error) => return false,
            Err(error) => {
                let (plural, error) = (&api.collection().plural, chain(&error));
                // Nothing is collected until every kind can be listed.
                if failures >= 4 && failures.is_power_of_two() {
                    tracing::warn!(
                        plural,
                        failures,
                        error,
                        "cannot list a kind; garbage collection waits until it can"
                    );
                } else {
                    tracing::debug!(
                        plural,
                        failures,
                        error,
                        "cannot list a kind; garbage collection waits until it can"
                    );
                }
                tokio::time::sleep(PROBE.delay(failures, 0.5)).await;
                failures = failures.saturating_add(1);
            }
        }
    }
}
