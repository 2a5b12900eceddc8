//! Events on their way to where they are stored. Who waits is a mode; how many wait is bounded, in number and in bytes.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use apiserver_audit::Mode;
use bytes::Bytes;
use tokio::sync::{mpsc, oneshot};

use crate::metrics::AuditMetrics;

/// Events in the queue of a mode that waits: those of requests that are served at the same time.
const WAITING_MAX: usize = 1024;
/// Most bytes in the queue of a mode that does not wait.
const QUEUED_LEN_MAX: usize = 64 << 20;
/// Most events, and about the most bytes, that are taken at once.
pub const TAKEN_MAX: usize = 400;
pub const TAKEN_LEN_MAX: usize = 4 << 20;
/// Longest wait for the rest at the end of the process.
const FLUSH_MAX: Duration = Duration::from_secs(5);

/// What is in a queue.
pub enum AuditJob {
    /// An event to be stored, and who waits for it.
    Event(Bytes, Option<oneshot::Sender<bool>>),
    /// To be answered when everything before it is stored.
    Flush(oneshot::Sender<()>),
}

/// The sending end of a bounded queue of audit events.
pub struct Queue {
    jobs: mpsc::Sender<AuditJob>,
    mode: Mode,
    queued_len: Arc<AtomicUsize>,
    metrics: AuditMetrics,
}

/// The receiving end of a queue of audit events, which collects batches.
pub struct AuditJobs {
    pub jobs: mpsc::Receiver<AuditJob>,
    queued_len: Arc<AtomicUsize>,
}

/// Events that are stored together.
#[derive(Default)]
pub struct EventBatch {
    pub events: Vec<Bytes>,
    waiting: Vec<oneshot::Sender<bool>>,
    flushes: Vec<oneshot::Sender<()>>,
    pub len: usize,
}

/// A queue of this mode.
pub fn queue(mode: Mode, metrics: AuditMetrics) -> (Queue, AuditJobs) {
    let max = match mode {
        Mode::Batch(batch) => batch.buffer_size.max(1),
        Mode::Blocking | Mode::BlockingStrict => WAITING_MAX,
    };
    let (sender, receiver) = mpsc::channel(max);
    let queued_len = Arc::<AtomicUsize>::default();
    let queue = Queue { jobs: sender, mode, queued_len: queued_len.clone(), metrics };
    (queue, AuditJobs { jobs: receiver, queued_len })
}

impl Queue {
    /// Queues an event as the mode says; in a blocking mode it returns a receiver that says whether the event was stored. A future that is dropped early has
    /// queued nothing.
    pub async fn send(&self, event: Bytes) -> Option<oneshot::Receiver<bool>> {
        let (stored, outcome) = oneshot::channel();
        if matches!(self.mode, Mode::Batch(_)) {
            self.enqueue(event);
            return None;
        }
        if let Ok(place) = self.jobs.reserve().await {
            self.queued_len.fetch_add(event.len(), Ordering::Relaxed);
            place.send(AuditJob::Event(event, Some(stored)));
        }
        Some(outcome)
    }

    /// Whether half of the bytes that may be queued are, in a mode that drops what does not fit.
    pub fn is_half_full(&self) -> bool {
        let drops = matches!(self.mode, Mode::Batch(_));
        drops && self.queued_len.load(Ordering::Relaxed) > QUEUED_LEN_MAX / 2
    }

    /// Waits until an event is stored as the mode says; false if the request must not go on without it.
    pub async fn is_stored(&self, outcome: Option<oneshot::Receiver<bool>>) -> bool {
        let Some(outcome) = outcome else { return true };
        outcome.await.unwrap_or(false) || self.mode != Mode::BlockingStrict
    }

    /// Stores an event as the mode says.
    #[cfg(test)]
    pub async fn store(&self, event: Bytes) -> bool {
        let outcome = self.send(event).await;
        self.is_stored(outcome).await
    }

    /// Stores an event without a wait, for requests that have ended.
    pub fn submit(&self, event: Bytes) {
        if matches!(self.mode, Mode::Batch(_)) {
            return self.enqueue(event);
        }
        // Each event of a full queue waits in a task of its own: a backend that hangs must not gather them for ever.
        let len = event.len();
        let before = self.queued_len.fetch_add(len, Ordering::Relaxed);
        if before.saturating_add(len) > QUEUED_LEN_MAX {
            self.queued_len.fetch_sub(len, Ordering::Relaxed);
            return self.drop_event();
        }
        let Err(refused) = self.jobs.try_send(AuditJob::Event(event, None)) else { return };
        match (refused, tokio::runtime::Handle::try_current()) {
            (mpsc::error::TrySendError::Full(job), Ok(runtime)) => {
                let jobs = self.jobs.clone();
                runtime.spawn(async move { jobs.send(job).await });
            }
            _ => self.drop_event(),
        }
    }

    fn enqueue(&self, event: Bytes) {
        let len = event.len();
        let before = self.queued_len.fetch_add(len, Ordering::Relaxed);
        let fits = before.saturating_add(len) <= QUEUED_LEN_MAX;
        if !fits || self.jobs.try_send(AuditJob::Event(event, None)).is_err() {
            self.queued_len.fetch_sub(len, Ordering::Relaxed);
            self.drop_event();
        }
    }

    fn drop_event(&self) {
        self.metrics.failed("buffered", 1);
        tracing::debug!("the queue of audit events is full; an event is dropped");
    }

    /// Waits until everything before is stored, or the time for it is over.
    pub async fn flush(&self) {
        let (done, stored) = oneshot::channel();
        let flush = async {
            if self.jobs.send(AuditJob::Flush(done)).await.is_ok() {
                let _ = stored.await;
            }
        };
        if tokio::time::timeout(FLUSH_MAX, flush).await.is_err() {
            tracing::warn!("audit events are not stored in time and are lost");
        }
    }
}

impl AuditJobs {
    /// Adds a job to those that are taken.
    pub fn take(&self, job: AuditJob, taken: &mut EventBatch) {
        match job {
            AuditJob::Event(event, waiting) => {
                self.queued_len.fetch_sub(event.len(), Ordering::Relaxed);
                taken.len = taken.len.saturating_add(event.len());
                taken.events.push(event);
                taken.waiting.extend(waiting);
            }
            AuditJob::Flush(done) => taken.flushes.push(done),
        }
    }

    /// Adds what is in the queue already, up to `max` events.
    pub fn take_ready(&mut self, taken: &mut EventBatch, max: usize) {
        while !taken.is_full(max) {
            let Ok(job) = self.jobs.try_recv() else { return };
            self.take(job, taken);
        }
    }
}

impl EventBatch {
    /// Whether nothing more is added.
    pub fn is_full(&self, max: usize) -> bool {
        self.events.len() >= max || self.len >= TAKEN_LEN_MAX || !self.flushes.is_empty()
    }

    /// Notifies the waiting requests.
    pub fn finish(self, stored: bool) {
        // A request whose client has disconnected has dropped its receiver.
        for waiting in self.waiting {
            let _ = waiting.send(stored);
        }
        for flush in self.flushes {
            let _ = flush.send(());
        }
    }
}

#[cfg(test)]
mod tests {
    use apiserver_audit::BatchSettings;

    use super::*;
    use crate::metrics::for_tests;

    fn batch(buffer_size: usize) -> Mode {
        let max_wait = Duration::from_secs(1);
        Mode::Batch(BatchSettings { buffer_size, max_size: 10, max_wait, throttle: None })
    }

    #[tokio::test]
    async fn a_full_queue_drops_and_counts() {
        let (metrics, registry) = for_tests();
        let (queue, mut jobs) = queue(batch(2), metrics);
        for _ in 0..5 {
            assert!(queue.store(Bytes::from_static(b"e")).await, "nobody waits");
        }
        let text = registry.text();
        assert!(text.contains("apiserver_audit_error_total{plugin=\"buffered\"} 3"), "{text}");
        let mut taken = EventBatch::default();
        jobs.take_ready(&mut taken, TAKEN_MAX);
        assert_eq!(taken.events.len(), 2);
        assert_eq!(queue.queued_len.load(Ordering::Relaxed), 0);
    }

    #[tokio::test]
    async fn the_bytes_in_a_queue_are_bounded() {
        let (metrics, registry) = for_tests();
        let (queue, _jobs) = queue(batch(1000), metrics);
        let big = Bytes::from(vec![b'x'; QUEUED_LEN_MAX / 4]);
        for _ in 0..6 {
            queue.submit(big.clone());
        }
        let text = registry.text();
        assert!(text.contains("apiserver_audit_error_total{plugin=\"buffered\"} 2"), "{text}");
    }

    #[tokio::test]
    async fn a_request_goes_on_without_its_event_unless_the_mode_is_strict() {
        for (mode, stored, goes_on) in [
            (Mode::Blocking, true, true),
            (Mode::Blocking, false, true),
            (Mode::BlockingStrict, true, true),
            (Mode::BlockingStrict, false, false),
        ] {
            let (queue, mut jobs) = queue(mode, for_tests().0);
            let storing = async {
                let mut taken = EventBatch::default();
                let job = jobs.jobs.recv().await.unwrap();
                jobs.take(job, &mut taken);
                taken.finish(stored);
            };
            let (went_on, ()) = tokio::join!(queue.store(Bytes::from_static(b"e")), storing);
            assert_eq!(went_on, goes_on, "{mode:?} {stored}");
        }
    }
}
