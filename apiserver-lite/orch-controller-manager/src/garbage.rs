//! The garbage collector: objects whose owners are all gone go too, and what a deletion asks for by the finalizers `orphan`
//! and `foregroundDeletion` is done, for every kind that is served.
//!
//! Of each object only what ownership needs is kept ([`index::Slim`]), from watches that send metadata alone. A change says
//! which objects have to be looked at ([`index`], pure); looking asks the server for what the maps may be wrong about
//! ([`look`]); what is then done is decided by [`plan`] (pure) and holds only for the version that was looked at.

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

use crate::metrics::Counters;
use index::{Index, Slim};
use kinds::{Id, KindId, Kinds};
use process::{Absent, Maps, Processor, lock};
use server::ApiServer;

/// The name that `--controllers` knows.
pub const CONTROLLER: &str = "garbagecollector";

/// Between tries to learn whether a kind is served.
const PROBE: Backoff =
    Backoff { first: Duration::from_millis(200), longest: Duration::from_secs(10) };

/// Collects until drained.
pub struct Garbage {
    /// The API server.
    pub client: Client,
    /// Objects looked at at a time.
    pub workers: usize,
    /// Where the work is counted.
    pub counters: Counters,
    /// Where it is shown.
    pub page: TaskStatus,
}

/// The maps of all kinds.
struct InformerMaps(BTreeMap<KindId, Store<Slim>>);

impl Maps for InformerMaps {
    fn get(&self, id: &Id) -> Option<Arc<Slim>> {
        self.0.get(&id.kind)?.get(&id.key)
    }

    fn serves(&self, kind: KindId) -> bool {
        // The map of a kind that is not served never becomes complete.
        self.0.get(&kind).is_some_and(Store::is_synced)
    }
}

/// Takes the changes of all kinds.
struct Taker {
    index: Arc<Mutex<Index>>,
    queue: WorkQueue<Id>,
    counters: Counters,
}

impl Taker {
    fn take(&self, kind: KindId, key: ObjectKey, old: Option<&Slim>, new: Option<&Slim>) {
        let look = lock(&self.index).apply(&Id { kind, key }, old, new);
        for id in look {
            self.counters.added(CONTROLLER);
            self.queue.add(id);
        }
    }
}

impl Garbage {
    /// Follows every kind that is served, and looks at what their changes ask for once all maps are complete: before that
    /// dependents that are not shown would be taken for none.
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
            let reflector = Reflector::projected(api.clone(), ListParams::default(), Slim::of);
            stores.insert(kind, reflector.store());
            keeping.spawn(keep(kind, api, reflector, taker.clone(), ready.clone(), drain.clone()));
        }
        drop(ready);
        tokio::select! {
            () = drain.asked() => return,
            // Every keeper drops its sender when its kind is complete, or not served.
            _ = all_ready.recv() => {}
        }
        tracing::debug!(kinds = stores.len(), "the maps of all kinds are complete");
        let server = ApiServer { client, kinds: kinds.clone() };
        let absent = Mutex::new(Absent::default());
        let processor =
            Arc::new(Processor { server, maps: InformerMaps(stores), kinds, index, absent });
        let work = {
            let queue = queue.clone();
            move |id: Id| {
                let (processor, queue) = (processor.clone(), queue.clone());
                let (counters, page) = (counters.clone(), page.clone());
                async move { work(&processor, &queue, &counters, &page, id).await }
            }
        };
        run_workers(queue, workers, drain, work).await;
        keeping.abort_all();
    }
}

async fn work(
    processor: &Processor<ApiServer, InformerMaps>,
    queue: &WorkQueue<Id>,
    counters: &Counters,
    page: &TaskStatus,
    id: Id,
) -> Result<Option<Duration>, ClientError> {
    let plural = processor.kinds.get(id.kind).map_or("", |kind| kind.plural);
    page.started(format!("{plural} {}", id.key));
    let begun = std::time::Instant::now();
    let seen = processor.process(&id).await;
    counters.worked(CONTROLLER, begun.elapsed());
    match seen {
        Ok(seen) => {
            page.done("");
            seen.look.into_iter().for_each(|other| queue.add(other));
            Ok(seen.again_in)
        }
        Err(error) => {
            counters.failed(CONTROLLER);
            page.failed(chain(&error));
            Err(error)
        }
    }
}

/// Keeps the map of one kind, if the server has it.
async fn keep(
    kind: KindId,
    api: Api<PartialObjectMetadata>,
    reflector: Reflector<PartialObjectMetadata, Slim>,
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

/// Whether the server has the collection; asks until there is an answer.
async fn is_served(api: &Api<PartialObjectMetadata>) -> bool {
    let mut failures = 1u32;
    loop {
        match api.list(&ListParams { limit: Some(1), ..ListParams::default() }).await {
            Ok(_) => return true,
            Err(error) if error.is_not_found() || error.code() == Some(405) => return false,
            Err(error) => {
                let (plural, error) = (&api.collection().plural, chain(&error));
                // Until every kind can be listed nothing is collected.
                if failures >= 4 && failures.is_power_of_two() {
                    tracing::warn!(plural, failures, error, "cannot list what is to be collected");
                } else {
                    tracing::debug!(plural, failures, error, "cannot list what is to be collected");
                }
                tokio::time::sleep(PROBE.delay(failures, 0.5)).await;
                failures = failures.saturating_add(1);
            }
        }
    }
}

#[cfg(test)]
mod histories;
