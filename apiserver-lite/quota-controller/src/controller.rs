//! The controller's tasks: the watch of quotas, the watches of what they count, the workers.

use std::sync::Arc;
use std::time::Duration;

use proto_api::ObjectKey;
use proto_api::core::v1::ResourceQuota;
use proto_client::{Change, Client, ClientError, ListParams, Reflector};
use proto_daemon::drain::DrainWatch;
use proto_daemon::exit::chain;
use proto_daemon::statusz::TaskStatus;
use proto_daemon::work_queue::{WorkQueue, WorkQueueMetrics, run_workers};
use tokio::sync::Notify;

use crate::recount::Recount;
use crate::watches::QuotaWatches;

/// The controller's name in `--controllers`.
pub const CONTROLLER: &str = "resourcequota";

/// Recalculates `status.used` of ResourceQuotas.
pub struct QuotaController {
    /// Reads what is counted, and writes statuses.
    pub client: Client,
    /// Time after which a quota is recalculated although no change was observed.
    pub sync_period: Duration,
    /// Number of quotas that are counted at a time.
    pub workers: usize,
    /// Where the keys of its queue are counted.
    pub metrics: WorkQueueMetrics,
    /// The status page.
    pub page: TaskStatus,
}

impl QuotaController {
    /// Runs until drained.
    pub async fn run(self, drain: DrainWatch) {
        let Self { client, sync_period, workers, metrics, page } = self;
        let queue = WorkQueue::<ObjectKey>::new(metrics, |_| CONTROLLER);
        let quotas = Reflector::whole(client.all::<ResourceQuota>(), ListParams::default());
        let changed = Arc::new(Notify::new());
        let watches = QuotaWatches::new(client.clone(), quotas.store(), queue.clone());
        let following = tokio::spawn(watches.run(changed.clone(), drain.clone()));
        let queue_of = queue.clone();
        let watching = tokio::spawn(quotas.run(drain.clone(), move |change| {
            if let Change::Applied { key, new, old } = &change {
                // Its status is written here and by the API server.
                let is_new = old.as_ref().is_none_or(|old| old.spec != new.spec);
                if is_new {
                    queue_of.add(key.clone());
                }
                if !is_new {
                    return;
                }
            }
            changed.notify_one();
        }));
        let recount = Arc::new(Recount { client, sync_period });
        let (page, work_drain) = (Arc::new(page), drain.clone());
        let work = move |key: ObjectKey| {
            let (recount, page) = (recount.clone(), page.clone());
            async move { work(&recount, &page, &key).await }
        };
        run_workers(queue, workers, work_drain, work).await;
        watching.abort();
        following.abort();
    }
}

async fn work(
    recount: &Recount,
    page: &TaskStatus,
    key: &ObjectKey,
) -> Result<Option<Duration>, ClientError> {
    page.started(format!("resourcequota {key}"));
    let done = recount.run(key).await;
    match &done {
        Ok(_) => page.done(""),
        Err(error) => page.failed(chain(error)),
    }
    done
}
