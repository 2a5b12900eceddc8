//! The controller's tasks: the watch of autoscalers and the workers.

use std::sync::Arc;
use std::time::Duration;

use proto_api::ObjectKey;
use proto_api::autoscaling::v2::HorizontalPodAutoscaler;
use proto_client::events::recorder;
use proto_client::{Change, Client, ClientError, ListParams, Reflector};
use proto_daemon::drain::DrainWatch;
use proto_daemon::exit::chain;
use proto_daemon::statusz::TaskStatus;
use proto_daemon::work_queue::{WorkQueue, WorkQueueMetrics, run_workers};

use crate::flags::AutoscalingFlags;
use crate::reconcile::AutoscalerReconciler;

/// The controller's name in `--controllers`.
pub const CONTROLLER: &str = "horizontalpodautoscaling";

/// The source component of its events.
const COMPONENT: &str = "horizontal-pod-autoscaler";

/// Reconciles HorizontalPodAutoscalers: reads metrics, scales targets, writes status.
pub struct AutoscalingController {
    /// Reads and writes.
    pub client: Client,
    /// How it decides, and how often.
    pub flags: AutoscalingFlags,
    /// Number of autoscalers that are looked at at a time.
    pub workers: usize,
    /// Where the keys of its queue are counted.
    pub metrics: WorkQueueMetrics,
    /// The status page.
    pub page: TaskStatus,
}

impl AutoscalingController {
    /// Runs until drained.
    pub async fn run(self, drain: DrainWatch) {
        let Self { client, flags, workers, metrics, page } = self;
        let (recorder, writer) = recorder(client.clone(), COMPONENT, "");
        let writing = tokio::spawn(writer.run(drain.clone()));
        let queue = WorkQueue::<ObjectKey>::new(metrics, |_| CONTROLLER);
        let all = client.all::<HorizontalPodAutoscaler>();
        let autoscalers = Reflector::whole(all, ListParams::default());
        let store = autoscalers.store();
        let queue_of = queue.clone();
        let watching = tokio::spawn(autoscalers.run(drain.clone(), move |change| match change {
            // Its status is written here.
            Change::Applied { key, new, old } => {
                if old.is_none_or(|old| old.spec != new.spec) {
                    queue_of.add(key);
                }
            }
            Change::Deleted { key, .. } => queue_of.add(key),
            Change::Synced => {}
        }));
        let reconciler = AutoscalerReconciler::new(client, store, recorder, &flags);
        let (reconciler, page) = (Arc::new(reconciler), Arc::new(page));
        let work = move |key: ObjectKey| {
            let (reconciler, page) = (reconciler.clone(), page.clone());
            async move { work(&reconciler, &page, &key).await }
        };
        run_workers(queue, workers, drain, work).await;
        watching.abort();
        writing.abort();
    }
}

async fn work(
    reconciler: &AutoscalerReconciler,
    page: &TaskStatus,
    key: &ObjectKey,
) -> Result<Option<Duration>, ClientError> {
    page.started(format!("horizontalpodautoscaler {key}"));
    let done = reconciler.run(key).await;
    match &done {
        Ok(_) => page.done(""),
        Err(error) => page.failed(chain(error)),
    }
    done
}
