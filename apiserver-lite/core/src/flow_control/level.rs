//! The seats of one priority level, shared by the tasks of its requests: who waits is woken when a seat is free, and a seat that is dropped is given back.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use apiserver_flow_control::{Arrival, LimitResponse, QueuePlace, QueueSet, Rejection, Seat};
use http::HeaderValue;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout};

use super::metrics::SchemaMetrics;

/// Wakes a request that waits, and gives it its seat.
type Waiter = oneshot::Sender<Seat>;

/// A flow schema with its level.
pub(super) struct Schema {
    pub(super) level: Arc<Level>,
    /// Identities of both.
    pub(super) uids: [Option<HeaderValue>; 2],
    pub(super) metrics: SchemaMetrics,
}

/// The seats of a level; none are counted of the one without a limit.
pub(super) struct Level {
    queue: Option<Mutex<QueueSet<Waiter>>>,
    /// Moment from which the queue counts time.
    since: Instant,
}

/// A seat, until it is dropped.
pub struct HeldSeat {
    schema: Arc<Schema>,
    seat: Option<Seat>,
}

/// Why a request is not served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotServed {
    /// All seats are taken, and requests of the level do not wait.
    ConcurrencyLimit,
    /// Too many wait already.
    QueueFull,
    /// It has waited too long.
    TimeOut,
    /// Its client is gone.
    Cancelled,
}

impl NotServed {
    pub(super) fn all() -> [Self; 4] {
        [Self::ConcurrencyLimit, Self::QueueFull, Self::TimeOut, Self::Cancelled]
    }

    /// The reason in metrics.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::ConcurrencyLimit => "concurrency-limit",
            Self::QueueFull => "queue-full",
            Self::TimeOut => "time-out",
            Self::Cancelled => "cancelled",
        }
    }
}

impl Schema {
    pub(super) fn uids(&self) -> [Option<HeaderValue>; 2] {
        self.uids.clone()
    }
}

impl Level {
    /// The level without a limit.
    pub(super) fn exempt() -> Self {
        Self { queue: None, since: Instant::now() }
    }

    /// A level with these seats.
    pub(super) fn limited(seats: usize, response: LimitResponse) -> Self {
        let queue = Some(Mutex::new(QueueSet::new(seats, response)));
        Self { queue, since: Instant::now() }
    }

    fn queue(&self) -> Option<MutexGuard<'_, QueueSet<Waiter>>> {
        let queue = self.queue.as_ref()?;
        Some(queue.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Changes seats and queues; who waits may have a seat now.
    pub(super) fn reconfigure(&self, seats: usize, response: LimitResponse) {
        let Some(mut queue) = self.queue() else { return };
        queue.reconfigure(seats, response);
        let now = self.since.elapsed();
        while let Some(started) = queue.start_next(now) {
            wake(&mut queue, Some(started), now);
        }
    }

    /// Whether no request has a seat or waits.
    pub(super) fn is_idle(&self) -> bool {
        self.queue().is_none_or(|queue| queue.is_idle())
    }

    fn give_back(&self, seat: Seat) {
        let Some(mut queue) = self.queue() else { return };
        let now = self.since.elapsed();
        let started = queue.finish(seat, now);
        wake(&mut queue, started, now);
    }
}

/// Gives a seat to the request that is next, or to the one after it if that is gone.
fn wake(queue: &mut QueueSet<Waiter>, mut started: Option<(Waiter, Seat)>, now: Duration) {
    while let Some((waiter, seat)) = started {
        started = match waiter.send(seat) {
            Ok(()) => None,
            Err(seat) => queue.finish(seat, now),
        };
    }
}

impl HeldSeat {
    fn new(schema: &Arc<Schema>, seat: Option<Seat>) -> Self {
        schema.metrics.executing.inc();
        Self { schema: schema.clone(), seat }
    }
}

impl Drop for HeldSeat {
    fn drop(&mut self) {
        self.schema.metrics.executing.dec();
        if let Some(seat) = self.seat.take() {
            self.schema.level.give_back(seat);
        }
    }
}

/// A request that waits. When it is dropped it waits no longer.
struct Waiting<'a> {
    schema: &'a Schema,
    place: QueuePlace,
    granted: oneshot::Receiver<Seat>,
    since: Instant,
    /// Why it was not served, unless it was.
    ended: Option<NotServed>,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.schema.metrics.waiting.dec();
        let Some(why) = self.ended else { return };
        self.schema.metrics.refused(why, self.since.elapsed());
        let Some(mut queue) = self.schema.level.queue() else { return };
        // Seats are given under the lock: if the request does not wait, its seat is here.
        let now = self.schema.level.since.elapsed();
        if queue.cancel(self.place, now).is_none()
            && let Ok(seat) = self.granted.try_recv()
        {
            let started = queue.finish(seat, now);
            wake(&mut queue, started, now);
        }
    }
}

/// A seat for a request of `flow`, once one is free.
pub(super) async fn seat(
    schema: &Arc<Schema>,
    flow: u64,
    wait_max: Duration,
) -> Result<HeldSeat, NotServed> {
    let mut granted = None;
    let arrival = schema.level.queue().map(|mut queue| {
        queue.arrive(flow, schema.level.since.elapsed(), || {
            let (waiter, receiver) = oneshot::channel();
            granted = Some(receiver);
            waiter
        })
    });
    let refused = |why| {
        schema.metrics.refused(why, Duration::ZERO);
        Err(why)
    };
    let place = match arrival {
        None => {
            schema.metrics.dispatched.inc();
            return Ok(HeldSeat::new(schema, None));
        }
        Some(Arrival::Executing(seat)) => {
            schema.metrics.count_served(Duration::ZERO);
            return Ok(HeldSeat::new(schema, Some(seat)));
        }
        Some(Arrival::Rejected(Rejection::ConcurrencyLimit)) => {
            return refused(NotServed::ConcurrencyLimit);
        }
        Some(Arrival::Rejected(Rejection::QueueFull)) => return refused(NotServed::QueueFull),
        Some(Arrival::Queued(place)) => place,
    };
    let Some(granted) = granted else { return refused(NotServed::QueueFull) };
    schema.metrics.waiting.inc();
    let ended = Some(NotServed::Cancelled);
    let mut waiting = Waiting { schema, place, granted, since: Instant::now(), ended };
    match timeout(wait_max, &mut waiting.granted).await {
        Ok(Ok(seat)) => {
            waiting.ended = None;
            schema.metrics.count_served(waiting.since.elapsed());
            Ok(HeldSeat::new(schema, Some(seat)))
        }
        // The sender is dropped only with the level, which this request holds.
        Ok(Err(_)) | Err(_) => {
            waiting.ended = Some(NotServed::TimeOut);
            Err(NotServed::TimeOut)
        }
    }
}
