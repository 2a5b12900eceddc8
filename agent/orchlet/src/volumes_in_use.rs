//! The volumes that the Node object lists as in use. Whoever attaches and detaches goes by that list, so it is written when a volume comes
//! into or out of use and not with the next status: a volume is used only after it is listed, and another node gets it as soon as
//! it is not.

use std::sync::Arc;
use std::time::Duration;

use proto_api::core::v1::Node;
use proto_client::{Client, ClientError, Patch, WriteParams};
use proto_daemon::backoff::{Backoff, Retries};
use proto_daemon::drain::DrainWatch;
use proto_daemon::exit::chain;
use proto_daemon::statusz::TaskStatus;
use serde_json::json;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};

use crate::pods::ports::PodVolumes;

/// What comes at the same time is written together.
const SETTLE: Duration = Duration::from_millis(5);
/// Between two writes: many pods that come at once are not as many versions of the Node object.
const PACE: Duration = Duration::from_millis(100);
/// After a write that failed.
const RETRY: Backoff =
    Backoff { first: Duration::from_millis(100), longest: Duration::from_secs(5) };

/// Keeps the list.
pub struct InUse {
    /// The API server.
    pub client: Client,
    /// Name of the node.
    pub name: String,
    /// The node's volumes.
    pub volumes: Arc<dyn PodVolumes>,
    /// The Node object as it is known.
    pub node: watch::Receiver<Option<Arc<Node>>>,
}

impl InUse {
    /// Keeps the list until drained.
    pub async fn run(self, page: TaskStatus, drain: DrainWatch) {
        let Some(changes) = self.volumes.in_use_changes() else { return };
        // Cancel safe: the server has a write or it has not, and the next start looks.
        tokio::select! {
            () = drain.asked() => {}
            () = self.keep(changes, page) => {}
        }
    }

    async fn keep(&self, mut changes: watch::Receiver<u64>, page: TaskStatus) {
        let mut node = self.node.clone();
        let mut retries = Retries::new(RETRY);
        loop {
            // Nobody tells any more when nobody is left who knows the Node.
            let Ok(known) = node.wait_for(Option::is_some).await.map(|node| node.clone()) else {
                return;
            };
            // From here on nobody else writes the list but the periodic status, which says the same.
            let listed = known.map(|node| node.status.volumes_in_use.clone());
            page.started("change");
            let follow = self.follow(listed.unwrap_or_default(), &mut changes, || {
                retries.reset();
                page.done("written");
            });
            // All arms are cancel safe: the server has a write or it has not.
            let error = tokio::select! {
                error = follow => error,
                // Another object takes its place.
                () = gone(&self.node) => continue,
            };
            page.failed(chain(&error));
            tracing::warn!(error = chain(&error), "volumes in use are not listed");
            sleep(retries.next_delay(rand::random())).await;
        }
    }

    /// Writes the list of one Node object whenever it is another, until that fails.
    async fn follow(
        &self,
        mut listed: Vec<String>,
        changes: &mut watch::Receiver<u64>,
        mut written: impl FnMut(),
    ) -> ClientError {
        loop {
            self.volumes.listed(&listed);
            changes.mark_unchanged();
            let wanted = self.volumes.in_use();
            let mut next = Instant::now();
            if listed != wanted {
                if let Err(error) = self.write(&wanted).await {
                    return error;
                }
                written();
                next += PACE;
                listed = wanted;
                self.volumes.listed(&listed);
            }
            if changes.changed().await.is_err() {
                // Nothing changes any more.
                std::future::pending::<()>().await;
            }
            sleep_until(next.max(Instant::now() + SETTLE)).await;
        }
    }

    /// Of the status this list alone, whatever else has changed.
    async fn write(&self, wanted: &[String]) -> Result<(), ClientError> {
        let patch = Patch::Merge(json!({"status": {"volumesInUse": wanted}}));
        let api = self.client.all::<Node>();
        api.patch_status(&self.name, &patch, &WriteParams::default()).await.map(drop)
    }
}

/// Waits until the Node object is known no more.
async fn gone(node: &watch::Receiver<Option<Arc<Node>>>) {
    let _ = node.clone().wait_for(Option::is_none).await;
}
