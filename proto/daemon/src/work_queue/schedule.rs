//! Which key is ready, running or delayed, counted in metrics. The time is an argument.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use tokio::time::Instant;

use super::metrics::QueueMetrics;

/// The state behind a work queue. A key that is idle, not delayed and without failures is not kept.
#[derive(Debug)]
pub(super) struct Schedule<K: Clone + Ord> {
    entries: BTreeMap<K, Entry>,
    ready: VecDeque<K>,
    delayed: BTreeSet<(Instant, K)>,
    metrics: QueueMetrics<K>,
}

#[derive(Debug, Default)]
struct Entry {
    phase: Phase,
    /// Since when it is ready.
    ready_since: Option<Instant>,
    /// When its delay ends.
    due: Option<Instant>,
    /// Failures in a row.
    failures: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Phase {
    #[default]
    Idle,
    Ready,
    Running,
    /// Running, and added since it began.
    RunningStale,
}

/// A run of a key.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    pub(super) begun: Instant,
    pub(super) ended: Instant,
    /// Whether it did anything but wait.
    pub(super) was_begun: bool,
}

impl<K: Clone + Ord> Schedule<K> {
    pub(super) fn new(metrics: QueueMetrics<K>) -> Self {
        let (entries, ready, delayed) = Default::default();
        Self { entries, ready, delayed, metrics }
    }

    /// Makes the key ready at `now`, or after its current run.
    pub(super) fn add(&mut self, key: K, now: Instant) {
        self.promote(now);
        self.make_ready(key, now);
    }

    fn make_ready(&mut self, key: K, since: Instant) {
        let entry = self.entries.entry(key.clone()).or_default();
        match entry.phase {
            Phase::Idle => {
                entry.phase = Phase::Ready;
                entry.ready_since = Some(since);
                self.metrics.count_added(&key);
                self.ready.push_back(key);
            }
            Phase::Running => {
                entry.phase = Phase::RunningStale;
                self.metrics.count_added(&key);
            }
            Phase::Ready | Phase::RunningStale => {}
        }
    }

    /// Makes the keys ready whose delays have ended.
    fn promote(&mut self, now: Instant) {
        while let Some((due, _)) = self.delayed.first()
            && *due <= now
            && let Some((due, key)) = self.delayed.pop_first()
        {
            if let Some(entry) = self.entries.get_mut(&key) {
                entry.due = None;
            }
            self.make_ready(key, due);
        }
    }

    /// Makes the key ready at `at`; the earlier of two such times counts.
    pub(super) fn add_at(&mut self, key: K, at: Instant) {
        let entry = self.entries.entry(key.clone()).or_default();
        if entry.due.is_some_and(|due| due <= at) {
            return;
        }
        if let Some(later) = entry.due.replace(at) {
            self.delayed.remove(&(later, key.clone()));
        }
        self.delayed.insert((at, key));
    }

    /// Removes the key that has been ready longest.
    pub(super) fn take(&mut self, now: Instant) -> Option<K> {
        self.promote(now);
        let key = self.ready.pop_front()?;
        let entry = self.entries.entry(key.clone()).or_default();
        entry.phase = Phase::Running;
        let since = entry.ready_since.take().unwrap_or(now);
        self.metrics.count_begun(&key, now.saturating_duration_since(since), now);
        Some(key)
    }

    /// The run of the key succeeded.
    pub(super) fn done(&mut self, key: &K, run: Run) {
        if let Some(entry) = self.entries.get_mut(key) {
            entry.failures = 0;
        }
        self.end(key, run);
    }

    /// The run of the key failed; `wait` maps the number of failures in a row to the time of the retry.
    pub(super) fn failed(&mut self, key: &K, run: Run, wait: impl FnOnce(u32) -> Instant) {
        self.metrics.count_failed(key);
        let entry = self.entries.entry(key.clone()).or_default();
        entry.failures = entry.failures.saturating_add(1);
        let at = wait(entry.failures);
        // A key that was added meanwhile waits too: an invalid object that changes often must not spin.
        if entry.phase == Phase::RunningStale {
            entry.phase = Phase::Running;
            self.metrics.count_withdrawn(key);
        }
        self.end(key, run);
        self.add_at(key.clone(), at);
    }

    /// Failures of a key in a row.
    pub(super) fn failures(&self, key: &K) -> u32 {
        self.entries.get(key).map_or(0, |entry| entry.failures)
    }

    /// When the next delayed key becomes ready.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.delayed.first().map(|(due, _)| *due)
    }

    /// Keys that are ready.
    pub(super) fn ready_len(&self) -> usize {
        self.ready.len()
    }

    fn end(&mut self, key: &K, run: Run) {
        self.metrics.count_ended(key, run);
        let Some(entry) = self.entries.get_mut(key) else { return };
        match entry.phase {
            Phase::RunningStale => {
                entry.phase = Phase::Ready;
                entry.ready_since = Some(run.ended);
                self.ready.push_back(key.clone());
            }
            _ => {
                entry.phase = Phase::Idle;
                if entry.due.is_none() && entry.failures == 0 {
                    self.entries.remove(key);
                }
            }
        }
        self.promote(run.ended);
    }
}

/// What waits for no worker any more.
impl<K: Clone + Ord> Drop for Schedule<K> {
    fn drop(&mut self) {
        self.ready.iter().for_each(|key| self.metrics.count_withdrawn(key));
    }
}
