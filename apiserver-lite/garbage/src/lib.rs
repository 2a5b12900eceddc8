//! io: the garbage collector: deletes objects whose owners are all deleted, and handles the finalizers `orphan` and `foregroundDeletion`, for every kind
//! that is served.
//!
//! Metadata-only watches keep the ownership of each object ([`index::Ownership`]). A change queues the objects to process ([`index`], pure).
//! Processing reads from the server what the caches may lack ([`process`]); [`plan`] (pure) decides, and its writes are conditional on the version
//! that was read.

// Numbers come from API objects.
#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

mod index;
mod kinds;
mod plan;
mod process;
mod server;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use proto_api::meta::v1::PartialObjectMetadata;
use proto_client::{Api, Change, Client, ClientError, ListParams, ObjectKey, Reflector, Store};
use proto_daemon::backoff::Backoff;
use proto_daemon::drain::DrainWatch;
use proto_daemon::exit::chain;
use proto_daemon::statusz::TaskStatus;
use proto_daemon::work_queue::{WorkQueue, run_workers};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use index::{Index, Ownership};
use kinds::{Id, KindId, Kinds};
use process::{Absent, OwnershipCaches, Processor, lock};
use server::ApiServer;

/// The controller's name in `--controllers`.
pub const CONTROLLER: &str = "garbagecollector";

/// Back-off of the discovery of served kinds.
const PROBE: Backoff =
    Backoff { first: Duration::from_millis(200), longest: Duration::from_secs(10) };

/// Counts the collector's work in metrics.
pub trait WorkCounter: Send + Sync {
    /// Counts an object that a change has queued.
    fn count_add(&self);
    /// Counts an object whose processing failed and is retried.
    fn count_failure(&self);
    /// Observes how long the processing of an object took.
    fn observe_duration(&self, took: Duration);
}

/// The collector.
pub struct Garbage {
    /// The client.
    pub client: Client,
    /// Number of concurrently processed objects.
    pub workers: usize,
    /// The metrics.
    pub counters: Arc<dyn WorkCounter>,
    /// The status page.
    pub page: TaskStatus,
}

/// The caches of all kinds.
struct InformerCaches(BTreeMap<KindId, Store<Ownership>>);

impl OwnershipCaches for InformerCaches {
    fn get(&self, id: &Id) -> Option<Arc<Ownership>> {
        self.0.get(&id.kind)?.get(&id.key)
    }

    fn serves(&self, kind: KindId) -> bool {
        // The cache of a kind that is not served never becomes complete.
        self.0.get(&kind).is_some_and(Store::is_synced)
    }
}

/// Handles the changes of all kinds.
struct Taker {
    index: Arc<Mutex<Index>>,
    queue: WorkQueue<Id>,
    counters: Arc<dyn WorkCounter>,
}

impl Taker {
    fn take(&self, kind: KindId, key: ObjectKey, old: Option<&Ownership>, new: Option<&Ownership>) {
        let look = lock(&self.index).apply(&Id { kind, key }, old, new);
        for id in look {
            self.counters.count_add();
            self.queue.add(id);
        }
    }
}

impl Garbage {
    /// Runs until drained: watches every served kind, and processes objects once all caches are complete, because missing dependents would count as
    /// deleted.
    pub async fn run(self, drain: DrainWatch) {
        let Self { client, workers, counters, page } = self;
        let page = Arc::new(page);
        let kinds = Arc::new(Kinds::new(client.names()));
        let (index, queue) = (Arc::new(Mutex::new(Index::default())), WorkQueue::default());
        let (index_of, queue_of) = (index.clone(), queue.clone());
        let taker =
            Arc::new(Taker { index: index_of, queue: queue_of, counters: counters.clone() });
        let (ready, mut all_ready) = mpsc::channel(1);
        let mut stores = BTreeMap::new();
        let mut keeping = JoinSet::new();
        for (kind, _) in kinds.iter() {
            let Some(collection) = kinds.collection(kind, None) else { continue };
            let api = client.metadata(collection);
            let reflector = Reflector::projected(api.clone(), ListParams::default(), Ownership::of);
            stores.insert(kind, reflector.store());
            keeping.spawn(keep(kind, api, reflector, taker.clone(), ready.clone(), drain.clone()));
        }
        drop(ready);
        tokio::select! {
            () = drain.asked() => return,
            // Each watch drops its sender when its kind is complete or not served.
            _ = all_ready.recv() => {}
        }
        tracing::debug!(
            kinds = stores.len(),
            "the caches of all kinds are complete; garbage collection starts"
        );
        let server = ApiServer { client, kinds: kinds.clone() };
        let absent = Mutex::new(Absent::default());
        let processor =
            Arc::new(Processor { server, caches: InformerCaches(stores), kinds, index, absent });
        let work = {
            let queue = queue.clone();
            move |id: Id| {
                let (processor, queue) = (processor.clone(), queue.clone());
                let (counters, page) = (counters.clone(), page.clone());
                async move { work(&processor, &queue, &*counters, &page, id).await }
            }
        };
        run_workers(queue, workers, drain, work).await;
        keeping.abort_all();
    }
}

async fn work(
    processor: &Processor<ApiServer, InformerCaches>,
    queue: &WorkQueue<Id>,
    counters: &dyn WorkCounter,
    page: &TaskStatus,
    id: Id,
) -> Result<Option<Duration>, ClientError> {
    let plural = processor.kinds.get(id.kind).map_or("", |kind| kind.plural);
    page.started(format!("{plural} {}", id.key));
    let begun = std::time::Instant::now();
    let seen = processor.process(&id).await;
    counters.observe_duration(begun.elapsed());
    match seen {
        Ok(seen) => {
            page.done("");
            seen.process.into_iter().for_each(|other| queue.add(other));
            Ok(seen.requeue_after)
        }
        Err(error) => {
            counters.count_failure();
            page.failed(chain(&error));
            Err(error)
        }
    }
}

/// Fills the cache of one kind, if it is served.
async fn keep(
    kind: KindId,
    api: Api<PartialObjectMetadata>,
    reflector: Reflector<PartialObjectMetadata, Ownership>,
    taker: Arc<Taker>,
    ready: mpsc::Sender<()>,
    drain: DrainWatch,
) {
    let served = tokio::select! {
        () = drain.asked() => return,
        served = is_served(&api) => served,
    };
    if !served {
        return;
    }
    let mut ready = Some(ready);
    reflector
        .run(drain, move |change| match change {
            Change::Applied { key, new, old } => taker.take(kind, key, old.as_deref(), Some(&new)),
            Change::Deleted { key, old } => taker.take(kind, key, Some(&old), None),
            Change::Synced => drop(ready.take()),
        })
        .await;
}

/// Whether the server serves the collection; retried until there is an answer.
async fn is_served(api: &Api<PartialObjectMetadata>) -> bool {
    let mut failures = 1u32;
    loop {
        match api.list(&ListParams { limit: Some(1), ..ListParams::default() }).await {
            Ok(_) => return true,
            Err(error) if error.is_not_found() || error.code() == Some(405) => return false,
            Err(error) => {
                let (plural, error) = (&api.collection().plural, chain(&error));
                // Nothing is collected until every kind can be listed.
                if failures >= 4 && failures.is_power_of_two() {
                    tracing::warn!(
                        plural,
                        failures,
                        error,
                        "kind cannot be listed; garbage collection waits for it and retries"
                    );
                } else {
                    tracing::debug!(
                        plural,
                        failures,
                        error,
                        "kind cannot be listed; garbage collection waits for it and retries"
                    );
                }
                tokio::time::sleep(PROBE.delay(failures, 0.5)).await;
                failures = failures.saturating_add(1);
            }
        }
    }
}

#[cfg(test)]
mod histories;
