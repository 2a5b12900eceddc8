//! Whether a pod may stay: where its node is has to be found out first.

use std::time::{Duration, Instant};

use proto_api::core::v1::Node;
use proto_client::ObjectKey;

use super::{WorkError, Worker, lock, now};
use crate::controllers::pod_cleanup::{self, Place, QUARANTINE};
use crate::task::Task;

impl Worker {
    /// Removes a pod that nobody else will, or that may not stay.
    pub(super) async fn clean_up(
        &self,
        task: &Task,
        key: &ObjectKey,
    ) -> Result<Option<Duration>, WorkError> {
        let Some(pod) = self.world.pods.get(key) else { return Ok(None) };
        let name = &pod.spec.node_name;
        let node = self.world.nodes.get(&ObjectKey::new("", name));
        let place = match &node {
            _ if name.is_empty() => Place::Unscheduled,
            Some(node) => {
                lock(&self.memory.vanished).remove(name);
                Place::On(node)
            }
            None => match self.missing_since(name) {
                missing if missing < QUARANTINE => Place::Missing(missing),
                // The map may be behind for as long as it likes: what is done now cannot be undone.
                _ if self.client.all::<Node>().find(name).await?.is_some() => {
                    lock(&self.memory.vanished).remove(name);
                    Place::Missing(Duration::ZERO)
                }
                _ => Place::Absent,
            },
        };
        self.apply(task, pod_cleanup::plan(&pod, place, now())).await
    }

    fn missing_since(&self, node: &str) -> Duration {
        let now = Instant::now();
        let mut vanished = lock(&self.memory.vanished);
        let since = vanished.entry(node.to_owned()).or_insert(now);
        now.saturating_duration_since(*since)
    }
}
