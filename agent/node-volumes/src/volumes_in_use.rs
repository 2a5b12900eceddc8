//! The Node's `volumesInUse`. The attach/detach controller relies on it, so it is written as soon
//! as a volume's use starts or ends, not with the next status: a volume is used only after it is
//! listed, and detached only after it is removed from the list.

use std::sync::Arc;
use std::time::Duration;

use agent_interfaces::AttachedVolumes;
use proto_api::core::v1::Node;
use proto_client::{Client, ClientError, Patch, WriteParams};
use proto_daemon::backoff::{Backoff, Retries};
use proto_daemon::drain::DrainWatch;
use proto_daemon::exit::chain;
use proto_daemon::statusz::TaskStatus;
use serde_json::json;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};

/// Pause that collects concurrent changes.
const SETTLE: Duration = Duration::from_millis(5);
/// Least interval between writes, so that a burst of pods does not cause as many versions of the
/// Node.
const PACE: Duration = Duration::from_millis(100);
/// Back-off after failed writes.
const RETRY: Backoff =
    Backoff { first: Duration::from_millis(100), longest: Duration::from_secs(5) };

/// The task that writes the list.
pub struct InUse {
    /// The API server.
    pub client: Client,
    /// Name of the node.
    pub name: String,
    /// The node's volumes.
    pub volumes: Arc<dyn AttachedVolumes>,
    /// The known Node object.
    pub node: watch::Receiver<Option<Arc<Node>>>,
}

impl InUse {
    /// Writes the list until drained.
    pub async fn run(self, page: TaskStatus, drain: DrainWatch) {
        let Some(changes) = self.volumes.in_use_changes() else { return };
        // Cancel safe: the next start reads the object again.
        tokio::select! {
            () = drain.asked() => {}
            () = self.keep(changes, page) => {}
        }
    }

    async fn keep(&self, mut changes: watch::Receiver<u64>, page: TaskStatus) {
        let mut node = self.node.clone();
        let mut retries = Retries::new(RETRY);
        loop {
            // The sender is dropped when the agent stops.
            let Ok(known) = node.wait_for(Option::is_some).await.map(|node| node.clone()) else {
                return;
            };
            // From here on only the periodic status also writes the list, with the same content.
            let listed = known.map(|node| node.status.volumes_in_use.clone());
            page.started("change");
            let follow = self.follow(listed.unwrap_or_default(), &mut changes, || {
                retries.reset();
                page.done("written");
            });
            // All arms are cancel safe: the server has the write or not.
            let error = tokio::select! {
                error = follow => error,
                // The Node object was replaced.
                () = until_deleted(&self.node) => continue,
            };
            page.failed(chain(&error));
            tracing::warn!(
                error = chain(&error),
                "cannot write the Node's volumesInUse; retried, new volumes wait for it"
            );
            sleep(retries.next_delay(rand::random())).await;
        }
    }

    /// Writes the list of one Node object after every change, until a write fails.
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
                // No further changes.
                std::future::pending::<()>().await;
            }
            sleep_until(next.max(Instant::now() + SETTLE)).await;
        }
    }

    /// Patches only this list of the status.
    async fn write(&self, wanted: &[String]) -> Result<(), ClientError> {
        let patch = Patch::Merge(json!({"status": {"volumesInUse": wanted}}));
        let api = self.client.all::<Node>();
        api.patch_status(&self.name, &patch, &WriteParams::default()).await.map(drop)
    }
}

/// Waits until the Node object is no longer known.
async fn until_deleted(node: &watch::Receiver<Option<Arc<Node>>>) {
    let _ = node.clone().wait_for(Option::is_none).await;
}
