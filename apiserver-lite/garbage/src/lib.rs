//! io: the garbage collector: deletes objects whose owners are all deleted, and handles the finalizers `orphan` and `foregroundDeletion`, for every kind
//! that is served.
//!
//! Metadata-only watches keep the ownership of each object ([`index::Ownership`]). A change queues the objects to process ([`index`], pure).
//! Processing reads from the server what the caches may lack ([`process`]; many owners in turns); [`plan`] (pure) decides, and its writes are conditional
//! on the version that was read.

// Numbers come from API objects.
#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

mod index;
mod kinds;
mod plan;
mod process;
mod server;
mod watches;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use apiserver_controller_io::lost_races::LostRaces;
use proto_client::Client;
use proto_client::events::{Recorder, recorder};
use proto_daemon::drain::DrainWatch;
use proto_daemon::exit::chain;
use proto_daemon::statusz::TaskStatus;
use proto_daemon::work_queue::{WorkQueue, WorkQueueMetrics, run_workers};
use tokio::sync::mpsc;

use index::Index;
use kinds::{Id, Kinds};
use process::{Processor, READS_MAX};
use server::{ANSWER_MAX, ApiServer, ObjectRequestError};
use watches::{InformerCaches, KindChangeHandler, Watches};

/// The controller's name in `--controllers`.
pub const CONTROLLER: &str = "garbagecollector";

/// The source component of its events.
const EVENT_SOURCE: &str = "garbage-collector-controller";

/// The garbage collector: watches of all kinds, the ownership graph and its workers.
pub struct Garbage {
    pub client: Client,
    /// Number of concurrently processed objects.
    pub workers: usize,
    /// Where the keys of its queue are counted.
    pub metrics: WorkQueueMetrics,
    /// The status page.
    pub page: TaskStatus,
}

impl Garbage {
    /// Runs until drained: watches every served kind, and processes objects once all caches are complete, because missing dependents would count as
    /// deleted.
    pub async fn run(self, drain: DrainWatch) {
        let Self { client, workers, metrics, page } = self;
        let page = Arc::new(page);
        let kinds = Arc::new(Kinds::new(client.names()));
        let index = Arc::new(Mutex::new(Index::default()));
        let queue = WorkQueue::new(metrics, |_| CONTROLLER);
        let (index_of, queue_of) = (index.clone(), queue.clone());
        let taker = Arc::new(KindChangeHandler { index: index_of, queue: queue_of });
        let mut watches = Watches::new(client.clone(), kinds.clone(), taker, drain.clone());
        let caches = watches.caches();
        let (ready, mut all_ready) = mpsc::channel(1);
        for (kind, _) in kinds.iter() {
            watches.start(kind, Some(ready.clone()));
        }
        tokio::select! {
            () = drain.asked() => return,
            () = watches.follow_definitions(Some(ready)) => {}
        }
        tokio::select! {
            () = drain.asked() => return,
            // Each watch drops its sender when its kind is complete or not served.
            _ = all_ready.recv() => {}
        }
        tracing::debug!(
            kinds = kinds.iter().count(),
            "the caches of all kinds are complete; garbage collection starts"
        );
        let (events, writer) = recorder(client.clone(), EVENT_SOURCE, "");
        tokio::spawn(writer.run(drain.clone()));
        let server = ApiServer::new(client, kinds.clone());
        caches.await_other_servers();
        let (absent, unfinished) = Default::default();
        let processor =
            Processor { server, caches, kinds, index, absent, unfinished, reads_max: READS_MAX };
        let processor = Arc::new(processor);
        let races = Arc::new(LostRaces::default());
        let work = {
            let queue = queue.clone();
            move |id: Id| {
                let (processor, queue, page) = (processor.clone(), queue.clone(), page.clone());
                let events = events.clone();
                let races = races.clone();
                async move {
                    let run = work(&processor, &queue, (&page, &events), &id).await;
                    let is_race = |error: &_| matches!(error, ObjectRequestError::LostRace);
                    races.retry(&id, run, is_race)
                }
            }
        };
        let following = tokio::spawn(watches.run());
        run_workers(queue, workers, drain, work).await;
        following.abort();
    }
}

async fn work(
    processor: &Processor<ApiServer, InformerCaches>,
    queue: &WorkQueue<Id>,
    (page, events): (&TaskStatus, &Recorder),
    id: &Id,
) -> Result<Option<Duration>, ObjectRequestError> {
    let kind = processor.kinds.get(id.kind);
    page.started(format!(
        "{} {}",
        kind.map(|kind| kind.plural.clone()).unwrap_or_default(),
        id.key
    ));
    match processor.process(id).await {
        Ok(seen) => {
            page.done("");
            seen.report.into_iter().for_each(|report| events.record(report));
            seen.process.into_iter().for_each(|other| queue.add(other));
            match seen.has_lost_race {
                true => Err(ObjectRequestError::LostRace),
                false => Ok(seen.requeue_after),
            }
        }
        Err(ObjectRequestError::Busy(kind)) => {
            page.done(format!("{kind}: waits for other requests to its API server"));
            // All objects of a slow server may come here at once, without another point at which tasks are switched.
            tokio::task::yield_now().await;
            Ok(Some(ANSWER_MAX))
        }
        Err(error) => {
            page.failed(chain(&error));
            Err(error)
        }
    }
}

#[cfg(test)]
mod histories;
