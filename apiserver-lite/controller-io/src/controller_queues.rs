//! The queues of controllers: one of its own for each with a number of workers of its own, and one that the others share.

use std::collections::BTreeMap;

use proto_daemon::work_queue::{WorkKey, WorkQueue, WorkQueueMetrics};

/// The queues. Cheap to clone; all clones are the same queues.
#[derive(Clone)]
pub struct ControllerQueues<K: WorkKey> {
    shared: WorkQueue<K>,
    own: BTreeMap<&'static str, WorkQueue<K>>,
}

impl<K: WorkKey> ControllerQueues<K> {
    /// Empty queues; those in `controllers` have their own. Keys are counted in `metrics` as those of the controller that `controller_of` gives.
    pub fn new(
        controllers: impl IntoIterator<Item = &'static str>,
        metrics: &WorkQueueMetrics,
        controller_of: fn(&K) -> &'static str,
    ) -> Self {
        let queue = || WorkQueue::new(metrics.clone(), controller_of);
        let own = controllers.into_iter().map(|controller| (controller, queue())).collect();
        Self { shared: queue(), own }
    }

    /// Makes a key of a controller ready.
    pub fn add(&self, controller: &str, key: K) {
        self.own.get(controller).unwrap_or(&self.shared).add(key);
    }

    /// Each queue with the number of its workers: those in `own`, and `shared` for what the other controllers share.
    pub fn with_workers(
        &self,
        own: &BTreeMap<&'static str, usize>,
        shared: usize,
    ) -> Vec<(WorkQueue<K>, usize)> {
        let workers = |controller: &str| own.get(controller).copied().unwrap_or(1);
        let all = self.own.iter().map(|(name, queue)| (queue.clone(), workers(name)));
        all.chain([(self.shared.clone(), shared)]).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_go_to_the_queue_of_their_controller_or_to_the_shared_one() {
        let own = BTreeMap::from([("deployment", 3), ("namespace", 2)]);
        let metrics = WorkQueueMetrics::new().expect("metrics");
        let queues = ControllerQueues::new(own.keys().copied(), &metrics, |_| "any");
        for (controller, key) in [("deployment", 1), ("namespace", 2), ("job", 3), ("podgc", 4)] {
            queues.clone().add(controller, key);
        }
        let found: Vec<(usize, usize)> = queues
            .with_workers(&own, 8)
            .iter()
            .map(|(queue, workers)| (queue.ready_len(), *workers))
            .collect();
        assert_eq!(found, [(1, 3), (1, 2), (2, 8)]);
    }
}
