//! A queue of keys for controllers: a key has at most one worker, is queued at most once, may be delayed, and is retried with back-off when its work
//! failed. The length is bounded by the number of distinct keys.
//!
//! ```text
//!            add                    next
//!   idle ----------> ready (once) -------> running --done--> idle, or ready when added meanwhile
//!    ^  add_after      ^                      |
//!    |     |           | due                  | retry (back-off)
//!    +-- delayed ------+ <--------------------+
//! ```

mod metrics;
mod schedule;

use std::fmt::Debug;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use crate::backoff::Backoff;
use crate::drain::DrainWatch;
use crate::exit::chain;
use crate::panics::isolate;
use metrics::QueueMetrics;
use schedule::{Run, Schedule};

pub use metrics::WorkQueueMetrics;

/// Longest delay of a key. Delays come from objects (deadlines, times to live); a key that is early is delayed again by its worker.
pub const DELAY_MAX: Duration = Duration::from_secs(24 * 3600);

/// The time in `delay` from now, at most [`DELAY_MAX`].
fn after(delay: Duration) -> Instant {
    Instant::now() + delay.min(DELAY_MAX)
}

/// The name of a unit of work, for example namespace and name.
pub trait WorkKey: Clone + Ord + Debug + Send + 'static {}
impl<K: Clone + Ord + Debug + Send + 'static> WorkKey for K {}

/// The queue. Cheap to clone; all clones are one queue.
#[derive(Debug)]
pub struct WorkQueue<K: WorkKey>(Arc<Shared<K>>);

#[derive(Debug)]
struct Shared<K: WorkKey> {
    schedule: Mutex<Schedule<K>>,
    changed: Notify,
}

/// One key while it is processed. Dropping it without a result counts as a failure, so no key is lost.
#[derive(Debug)]
pub struct Work<K: WorkKey> {
    queue: WorkQueue<K>,
    key: K,
    begun: Instant,
    has_result: bool,
}

impl<K: WorkKey> Clone for WorkQueue<K> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<K: WorkKey> WorkQueue<K> {
    /// An empty queue. Its keys are counted in `metrics` as those of the controller that `controller_of` gives.
    pub fn new(metrics: WorkQueueMetrics, controller_of: fn(&K) -> &'static str) -> Self {
        let metrics = QueueMetrics { metrics, controller_of };
        let schedule = Mutex::new(Schedule::new(metrics));
        Self(Arc::new(Shared { schedule, changed: Notify::new() }))
    }

    /// Makes `key` ready.
    pub fn add(&self, key: K) {
        self.schedule().add(key, Instant::now());
        self.0.changed.notify_one();
    }

    /// Makes `key` ready in `delay` from now, or earlier if it was added so before. Delays are limited to [`DELAY_MAX`].
    pub fn add_after(&self, key: K, delay: Duration) {
        self.schedule().add_at(key, after(delay));
        self.0.changed.notify_one();
    }

    /// The next key that is ready. Cancel safe.
    pub async fn next(&self) -> Work<K> {
        loop {
            let due = {
                let mut schedule = self.schedule();
                let begun = Instant::now();
                if let Some(key) = schedule.take(begun) {
                    if schedule.ready_len() > 0 {
                        self.0.changed.notify_one();
                    }
                    return Work { queue: self.clone(), key, begun, has_result: false };
                }
                schedule.next_due()
            };
            match due {
                Some(due) => tokio::select! {
                    () = self.0.changed.notified() => {}
                    () = sleep_until(due) => {}
                },
                None => self.0.changed.notified().await,
            }
        }
    }

    /// Number of ready keys.
    pub fn ready_len(&self) -> usize {
        self.schedule().ready_len()
    }

    fn schedule(&self) -> MutexGuard<'_, Schedule<K>> {
        self.0.schedule.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: WorkKey> Work<K> {
    pub fn key(&self) -> &K {
        &self.key
    }

    /// How often the key has failed in a row before.
    fn failures(&self) -> u32 {
        self.queue.schedule().failures(&self.key)
    }

    /// The work succeeded: earlier failures are forgotten.
    pub fn done(self) {
        self.end(Requeue::Never);
    }

    /// The work succeeded and is to be repeated after a delay.
    pub fn again_in(self, delay: Duration) {
        self.end(Requeue::After(delay));
    }

    fn end(mut self, next: Requeue) {
        self.has_result = true;
        let mut schedule = self.queue.schedule();
        if let Requeue::After(delay) | Requeue::NotBegun(delay) = next {
            schedule.add_at(self.key.clone(), after(delay));
        }
        let was_begun = !matches!(next, Requeue::NotBegun(_));
        schedule.done(&self.key, Run { begun: self.begun, ended: Instant::now(), was_begun });
        drop(schedule);
        self.queue.0.changed.notify_one();
    }
}

/// What comes after a run that did not fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Requeue {
    /// Nothing, until the key is added.
    Never,
    /// Another run after this delay, or earlier when the key is added.
    After(Duration),
    /// The same, since the run had to wait for something: it is not observed as one.
    NotBegun(Duration),
}

impl From<Option<Duration>> for Requeue {
    fn from(delay: Option<Duration>) -> Self {
        delay.map_or(Self::Never, Self::After)
    }
}

impl<K: WorkKey> Drop for Work<K> {
    fn drop(&mut self) {
        if !self.has_result {
            let wait = |failures| after(Backoff::OBJECT.delay(failures, rand::random()));
            let run = Run { begun: self.begun, ended: Instant::now(), was_begun: true };
            self.queue.schedule().failed(&self.key, run, wait);
            self.queue.0.changed.notify_one();
        }
    }
}

/// Processes the queue with `workers` tasks until drained. Keys in progress are finished first. `work` returns whether the key is to be
/// processed again, and when. An object that fails for ever does not fill the log: of a key's failures in a row the 1st, 2nd, 4th, 8th, ... are warnings.
pub async fn run_workers<K, R, E, F, Fut>(
    queue: WorkQueue<K>,
    workers: usize,
    drain: DrainWatch,
    work: F,
) where
    K: WorkKey + Sync,
    E: std::error::Error + Send + 'static,
    F: Fn(K) -> Fut + Clone + Send + 'static,
    Fut: Future<Output = Result<R, E>> + Send,
    R: Into<Requeue> + Send,
{
    let mut running = JoinSet::new();
    for _ in 0..workers.max(1) {
        let (queue, drain, work) = (queue.clone(), drain.clone(), work.clone());
        running.spawn(async move {
            loop {
                // Cancel safe: next removes a key in its last step only.
                let item = tokio::select! {
                    biased;
                    () = drain.asked() => return,
                    item = queue.next() => item,
                };
                match isolate(work(item.key().clone())).await {
                    Ok(Ok(next)) => item.end(next.into()),
                    Ok(Err(error)) => {
                        let failures = item.failures().saturating_add(1);
                        let (key, error) = (item.key(), chain(&error));
                        match failures.is_power_of_two() {
                            true => {
                                tracing::warn!(?key, error, failures, "cannot process a key; retried after its back-off");
                            }
                            false => {
                                tracing::debug!(?key, error, failures, "cannot process a key; retried after its back-off");
                            }
                        }
                    }
                    Err(panicked) => {
                        tracing::error!(key = ?item.key(), %panicked, "processing a key panicked; retried after its back-off");
                    }
                }
            }
        });
    }
    while running.join_next().await.is_some() {}
}

#[cfg(test)]
mod tests;
