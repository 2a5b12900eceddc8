//! The seats of one priority level, and the queues of waiting requests: a state machine without clock and tasks. Its owner wakes the requests that are started.
//!
//! Among queues with requests the one with the least virtual start is served next. It is moved by the time for which the queue's requests had seats while
//! others waited, and by [`TURN`] for each at least, so that long requests lose turns. A queue that was empty begins at the virtual time of the level, so that
//! unused time is not saved up. Time used while no request waited is not charged.
//!
//! Where no request takes longer than a turn, one with `n` others before it in its queue waits until each other queue with requests has been served at most
//! `n + 2` times, however long those queues are.

use std::collections::VecDeque;
use std::time::Duration;

use crate::level::{LimitResponse, Queuing};
use crate::shuffle_sharding::QueueHand;

/// Most requests that wait in all queues of a level.
pub const WAITING_MAX: usize = 1_024;
/// What a request uses at least: Kubernetes' estimate.
const TURN: Duration = Duration::from_millis(3);

/// The seats and queues of a level. `W` wakes a request that waits.
#[derive(Debug)]
pub struct QueueSet<W> {
    seats: usize,
    /// Requests that have a seat.
    executing: usize,
    waiting: usize,
    /// `None` where requests do not wait.
    queuing: Option<Queuing>,
    /// May be more than are configured, while those have requests.
    queues: Vec<Queue<W>>,
    /// Virtual start of the request that was started last.
    time: Duration,
    /// For how long requests have waited, without the time since `waiting_since`.
    waited: Duration,
    /// Since when there has always been one that waits, if one does.
    waiting_since: Duration,
    /// The queue that was served last.
    last: usize,
    /// Number of the next request that waits.
    number: u64,
}

#[derive(Debug)]
struct Queue<W> {
    waiting: VecDeque<(u64, W)>,
    executing: usize,
    /// Virtual start of its next request.
    start: Duration,
}

/// What becomes of a request that arrives.
#[derive(Debug, PartialEq, Eq)]
pub enum Arrival {
    /// It is to be served.
    Executing(Seat),
    /// It waits.
    Queued(QueuePlace),
    /// It is not served.
    Rejected(Rejection),
}

/// Why a request is not served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rejection {
    /// All seats are taken, and requests of the level do not wait.
    ConcurrencyLimit,
    QueueFull,
}

/// The seat of a request that is served; to be given back to [`QueueSet::finish`].
#[derive(Debug, PartialEq, Eq)]
#[must_use]
pub struct Seat {
    queue: Option<usize>,
    /// For how long others had waited in the level when it was taken.
    waited: Duration,
}

/// The place of a request that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueuePlace {
    queue: usize,
    number: u64,
}

impl<W> Queue<W> {
    fn new() -> Self {
        Self { waiting: VecDeque::new(), executing: 0, start: Duration::ZERO }
    }

    fn load(&self) -> usize {
        self.waiting.len().saturating_add(self.executing)
    }
}

impl<W> QueueSet<W> {
    /// A level whose seats are all free.
    #[must_use]
    pub fn new(seats: usize, response: LimitResponse) -> Self {
        let mut made = Self {
            seats,
            executing: 0,
            waiting: 0,
            queuing: None,
            queues: Vec::new(),
            time: Duration::ZERO,
            waited: Duration::ZERO,
            waiting_since: Duration::ZERO,
            last: 0,
            number: 0,
        };
        made.reconfigure(seats, response);
        made
    }

    /// Changes seats and queues. Who has a seat or waits keeps it. [`QueueSet::start_next`] is to be called until it gives nothing.
    pub fn reconfigure(&mut self, seats: usize, response: LimitResponse) {
        self.seats = seats;
        self.queuing = match response {
            LimitResponse::Reject => None,
            LimitResponse::Queue(queuing) => Some(queuing),
        };
        let wanted = self.queuing.map_or(0, |queuing| queuing.queues);
        while self.queues.len() < wanted {
            self.queues.push(Queue::new());
        }
        self.shrink();
    }

    /// A request of `flow` arrives; `waiter` is made if it has to wait. `now`, here and below, is the time since any moment that stays the same.
    pub fn arrive(&mut self, flow: u64, now: Duration, waiter: impl FnOnce() -> W) -> Arrival {
        let at = self.queuing.map(|queuing| self.choose(flow, queuing));
        if self.waiting == 0 && self.executing < self.seats {
            return Arrival::Executing(self.seat(at, now));
        }
        let (Some(queuing), Some(at)) = (self.queuing, at) else {
            return Arrival::Rejected(Rejection::ConcurrencyLimit);
        };
        let Some(queue) = self.queues.get_mut(at) else {
            return Arrival::Rejected(Rejection::QueueFull);
        };
        if queue.waiting.len() >= queuing.length || self.waiting >= WAITING_MAX {
            return Arrival::Rejected(Rejection::QueueFull);
        }
        if queue.waiting.is_empty() {
            queue.start = queue.start.max(self.time);
        }
        let number = self.number;
        self.number = number.saturating_add(1);
        queue.waiting.push_back((number, waiter()));
        if self.waiting == 0 {
            self.waiting_since = now;
        }
        self.waiting = self.waiting.saturating_add(1);
        Arrival::Queued(QueuePlace { queue: at, number })
    }

    /// A request gives its seat back. Gives the request that has it now, with its seat, if one waited.
    pub fn finish(&mut self, seat: Seat, now: Duration) -> Option<(W, Seat)> {
        self.executing = self.executing.saturating_sub(1);
        let used = self.waited(now).saturating_sub(seat.waited);
        if let Some(queue) = seat.queue.and_then(|at| self.queues.get_mut(at)) {
            queue.executing = queue.executing.saturating_sub(1);
            queue.start = queue.start.saturating_add(used.saturating_sub(TURN));
        }
        let started = self.start_next(now);
        self.shrink();
        started
    }

    /// A request no longer waits. `None` if it has been started, and so has a seat.
    pub fn cancel(&mut self, place: QueuePlace, now: Duration) -> Option<W> {
        let queue = self.queues.get_mut(place.queue)?;
        let at = queue.waiting.binary_search_by_key(&place.number, |(number, _)| *number).ok()?;
        let (_, waiter) = queue.waiting.remove(at)?;
        self.waits_no_more(now);
        self.shrink();
        Some(waiter)
    }

    /// Starts the request that is next, if one waits and a seat is free.
    pub fn start_next(&mut self, now: Duration) -> Option<(W, Seat)> {
        if self.waiting == 0 || self.executing >= self.seats {
            return None;
        }
        let waiting = self.queues.iter().enumerate().filter(|(_, queue)| !queue.waiting.is_empty());
        // Among equals the first one after the queue that was served last.
        let (at, _) = waiting.min_by_key(|(at, queue)| (queue.start, *at <= self.last, *at))?;
        let (_, waiter) = self.queues.get_mut(at)?.waiting.pop_front()?;
        self.waits_no_more(now);
        self.last = at;
        Some((waiter, self.seat(Some(at), now)))
    }

    /// For how long requests have waited until now.
    fn waited(&self, now: Duration) -> Duration {
        let last =
            if self.waiting > 0 { now.saturating_sub(self.waiting_since) } else { Duration::ZERO };
        self.waited.saturating_add(last)
    }

    fn waits_no_more(&mut self, now: Duration) {
        if self.waiting == 1 {
            self.waited = self.waited(now);
        }
        self.waiting = self.waiting.saturating_sub(1);
    }

    /// Whether no request has a seat or waits.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.executing == 0 && self.waiting == 0
    }

    /// The seats, and how many requests have one and how many wait.
    #[must_use]
    pub fn counts(&self) -> (usize, usize, usize) {
        (self.seats, self.executing, self.waiting)
    }

    /// The queue of the flow's hand that is not full, with the fewest requests, and among those the one that has used least.
    fn choose(&self, flow: u64, queuing: Queuing) -> usize {
        let hand = QueueHand::deal(flow, queuing.queues, queuing.hand);
        let rank = |at: &usize| match self.queues.get(*at) {
            Some(queue) => {
                let is_full = queue.waiting.len() >= queuing.length;
                (is_full, queue.load(), queue.start.max(self.time))
            }
            None => (true, usize::MAX, Duration::MAX),
        };
        hand.cards().min_by_key(rank).unwrap_or_default()
    }

    fn seat(&mut self, at: Option<usize>, now: Duration) -> Seat {
        self.executing = self.executing.saturating_add(1);
        if let Some(queue) = at.and_then(|at| self.queues.get_mut(at)) {
            queue.executing = queue.executing.saturating_add(1);
            let start = queue.start.max(self.time);
            self.time = start;
            queue.start = start.saturating_add(TURN);
        }
        Seat { queue: at, waited: self.waited(now) }
    }

    /// Drops queues that are no longer configured, once they and the queues after them are empty.
    fn shrink(&mut self) {
        let wanted = self.queuing.map_or(0, |queuing| queuing.queues);
        while self.queues.len() > wanted
            && self.queues.last().is_some_and(|queue| queue.load() == 0)
        {
            self.queues.pop();
        }
    }
}

#[cfg(test)]
mod tests;
