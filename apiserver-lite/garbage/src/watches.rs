//! The watches of all kinds: those of definitions and of other API servers are started and ended as these come and go.

mod caches;
mod other_servers;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use apiserver_controllers::custom_resources::{self, CustomResource};
use apiserver_controllers::other_servers::api_services;
use proto_api::ObjectKey;
use proto_api::meta::v1::PartialObjectMetadata;
use proto_client::dynamic::Dynamic;
use proto_client::{Api, Change, Client, ClientError, ListParams, Reflector};
use proto_daemon::backoff::Backoff;
use proto_daemon::drain::DrainWatch;
use proto_daemon::exit::chain;
use proto_daemon::work_queue::WorkQueue;
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::index::{Index, Ownership};
use crate::kinds::{CollectedKind, Id, KindId, Kinds};
use crate::process::lock;
pub use caches::InformerCaches;
use other_servers::{HeldBytes, INTERVAL_MIN};

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
        self.queue_all(look);
    }

    fn queue_all(&self, ids: impl IntoIterator<Item = Id>) {
        ids.into_iter().for_each(|id| self.queue.add(id));
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
    /// Woken when a definition or an APIService has changed.
    defined: Arc<Notify>,
    /// What is kept of the objects of other servers.
    held: HeldBytes,
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
        let (running, defined, held) = Default::default();
        Self { client, kinds, taker, drain, caches, running, defined, held }
    }

    /// What they fill.
    pub fn caches(&self) -> InformerCaches {
        self.caches.clone()
    }

    /// Starts the watch of a kind, which drops `ready` when its cache is complete.
    pub fn start(&mut self, kind: KindId, ready: Option<mpsc::Sender<()>>) {
        let Some(collected) = self.kinds.get(kind) else { return };
        let Some(collection) = self.kinds.collection(kind, None) else { return };
        let names = self.client.names();
        let defines = [custom_resources::definitions(names), api_services(names)]
            .iter()
            .any(|of| (&of.group, &of.plural) == (&collection.group, &collection.plural));
        let api = self.client.metadata(collection);
        let held = collected.is_of_other_server().then(|| self.held.of_kind());
        let reflector = match held.clone() {
            Some(held) => Reflector::projected(api.clone(), ListParams::default(), move |object| {
                held.hold(Ownership::from_object(object))
            }),
            None => {
                Reflector::projected(api.clone(), ListParams::default(), Ownership::from_object)
            }
        };
        let unlisted = self.caches.insert(kind, reflector.store());
        let defined = defines.then(|| self.defined.clone());
        let taker = self.taker.clone();
        let unlisted = Some(unlisted);
        let filled = Filled { kind, collected, taker, ready, unlisted, defined, held };
        let task = tokio::spawn(keep(api, reflector, filled, self.caches(), self.drain.clone()));
        self.running.insert(kind, task);
    }

    /// Follows the definitions and the other servers until drained.
    pub async fn run(mut self) {
        let (drain, defined) = (self.drain.clone(), self.defined.clone());
        let mut asked: Option<Instant> = None;
        loop {
            let follow = async {
                self.follow_definitions(None).await;
                let age = asked.map(|asked| asked.elapsed()).filter(|age| *age < INTERVAL_MIN);
                if let Some(age) = age {
                    return Some(INTERVAL_MIN.saturating_sub(age));
                }
                let next = self.follow_other_servers().await;
                asked = Some(Instant::now());
                next
            };
            let next = tokio::select! {
                () = drain.asked() => return,
                next = follow => next,
            };
            let due = async {
                match next {
                    Some(delay) => tokio::time::sleep(delay).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = drain.asked() => return,
                () = defined.notified() => {}
                // What other servers serve may change without a change of their APIServices.
                () = due => {}
            }
        }
    }

    /// Starts the watches of kinds that definitions have added, and ends those of definitions that are gone. Retried until there is an answer.
    pub async fn follow_definitions(&mut self, ready: Option<mpsc::Sender<()>>) {
        let served = self.defined().await.iter().map(CollectedKind::defined).collect();
        self.follow_kinds(served, CollectedKind::is_defined, ready);
    }

    /// Watches the kinds that are served now, and no longer those that are not, of the kinds for which `may_end` holds.
    fn follow_kinds(
        &mut self,
        served: Vec<CollectedKind>,
        may_end: impl Fn(&CollectedKind) -> bool,
        ready: Option<mpsc::Sender<()>>,
    ) {
        let mut new = served;
        for (id, known) in self.kinds.iter().filter(|(_, kind)| may_end(kind)) {
            match new.iter().position(|kind| kind.is_read_as(&known)) {
                // Other versions of it may be served now.
                Some(at) => self.update(id, &known, new.swap_remove(at)),
                None => self.end(id),
            }
        }
        for kind in new {
            let id = self.kinds.add(kind);
            self.start(id, ready.clone());
        }
    }

    /// Takes over in which versions a kind is served now.
    fn update(&self, id: KindId, known: &CollectedKind, now: CollectedKind) {
        if *known != now {
            let dependents = self.caches.dependents_of(&now);
            self.kinds.update(id, now);
            self.taker.queue_all(dependents);
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

    /// Ends the watch of a kind that is not served any more: its objects are gone, or out of reach.
    fn end(&mut self, kind: KindId) {
        if let Some(task) = self.running.remove(&kind) {
            task.abort();
        }
        self.caches.forget(kind, &self.taker);
        self.kinds.remove(kind);
    }
}

fn is_unserved(error: &ClientError) -> bool {
    error.is_not_found() || error.code() == Some(405)
}

/// Receives the changes of a kind.
struct Filled {
    kind: KindId,
    collected: Arc<CollectedKind>,
    taker: Arc<KindChangeHandler>,
    /// Dropped when the cache is complete.
    ready: Option<mpsc::Sender<()>>,
    /// The same for the cache itself.
    unlisted: Option<Arc<()>>,
    /// Woken after each change of a definition or an APIService.
    defined: Option<Arc<Notify>>,
    /// What is kept of the objects, if another server has them.
    held: Option<HeldBytes>,
}

/// Fills the cache of one kind, if it is served.
async fn keep(
    api: Api<PartialObjectMetadata>,
    reflector: Reflector<PartialObjectMetadata, Ownership>,
    mut filled: Filled,
    caches: InformerCaches,
    drain: DrainWatch,
) {
    let served = tokio::select! {
        () = drain.asked() => return,
        served = is_served(&api, filled.ready.is_some()) => served,
    };
    if !served {
        return;
    }
    let (kind, taker, held) = (filled.kind, filled.taker.clone(), filled.held.clone());
    let all = caches.clone();
    let follow = reflector.run(drain, |change| {
        match change {
            Change::Applied { key, new, old } => {
                filled.held.iter().for_each(|held| held.release(old.as_deref()));
                filled.taker.take(kind, key, old.as_deref(), Some(&new));
            }
            Change::Deleted { key, old } => {
                filled.held.iter().for_each(|held| held.release(Some(&old)));
                filled.taker.take(kind, key, Some(&old), None);
            }
            Change::Synced => {
                let is_first = filled.unlisted.take().is_some();
                if is_first && filled.ready.take().is_none() {
                    // Nothing was known of these owners.
                    filled.taker.queue_all(all.dependents_of(&filled.collected));
                }
            }
        }
        filled.defined.iter().for_each(|defined| defined.notify_one());
    });
    let Some(held) = held else { return follow.await };
    tokio::select! {
        () = follow => {}
        bytes = held.too_many() => {
            tracing::warn!(
                collection = api.collection().path(),
                bytes,
                "the objects of other API servers take too much memory; those of this kind are not garbage collected"
            );
            caches.forget(kind, &taker);
        }
    }
}

/// Whether the server serves the collection; retried until there is an answer, for which the collection of all kinds may wait.
async fn is_served(api: &Api<PartialObjectMetadata>, is_awaited: bool) -> bool {
    let mut failures = 1u32;
    loop {
        match api.list(&ListParams { limit: Some(1), ..ListParams::default() }).await {
            Ok(_) => return true,
            Err(error) if is_unserved(&error) => return false,
            Err(error) => {
                let (plural, error) = (&api.collection().plural, chain(&error));
                // Nothing is collected until every awaited kind can be listed.
                if is_awaited && failures >= 4 && failures.is_power_of_two() {
                    tracing::warn!(
                        plural,
                        failures,
                        error,
                        "cannot list a kind; garbage collection waits until it can"
                    );
                } else {
                    tracing::debug!(plural, failures, error, "cannot list a kind; retried");
                }
                tokio::time::sleep(PROBE.delay(failures, 0.5)).await;
                failures = failures.saturating_add(1);
            }
        }
    }
}
