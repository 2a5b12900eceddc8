//! The seats of one priority level, and the queues of those who wait for one: a state machine without clock and tasks. Whoever owns it wakes who is started.
//!
//! Among queues with requests the one with the least virtual start is served next, which is moved by one for each request it has been served. A queue that was
//! empty begins at the virtual time of the level, so that nobody saves up or owes what it did not use. A request with `n` others before it in its
//! queue therefore waits until each other queue with requests has been served at most `n + 2` times, however long those are.

use std::collections::VecDeque;

use crate::hand::Hand;
use crate::level::{LimitResponse, Queuing};

/// Most requests that wait in all queues of a level.
pub const WAITING_MAX: usize = 16_384;

/// The seats and queues of a level. `W` wakes a request that waits.
#[derive(Debug)]
pub struct FairQueue<W> {
    seats: usize,
    /// Requests that have a seat.
    executing: usize,
    waiting: usize,
    /// `None` where requests do not wait.
    queuing: Option<Queuing>,
    /// May be more than are configured, while those have requests.
    queues: Vec<Queue<W>>,
    /// Virtual start of the request that was started last.
    time: u64,
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
    start: u64,
}

/// What becomes of a request that arrives.
#[derive(Debug, PartialEq, Eq)]
pub enum Arrival {
    /// It is to be served.
    Executing(Seat),
    /// It waits.
    Queued(Ticket),
    /// It is not served.
    Rejected(Rejection),
}

/// Why a request is not served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rejection {
    /// All seats are taken, and requests of the level do not wait.
    ConcurrencyLimit,
    /// Its queue is full.
    QueueFull,
}

/// The seat of a request that is served; to be given back to [`FairQueue::finish`].
#[derive(Debug, PartialEq, Eq)]
#[must_use]
pub struct Seat {
    queue: Option<usize>,
}

/// The place of a request that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket {
    queue: usize,
    number: u64,
}

impl<W> Queue<W> {
    fn new() -> Self {
        Self { waiting: VecDeque::new(), executing: 0, start: 0 }
    }

    fn load(&self) -> usize {
        self.waiting.len().saturating_add(self.executing)
    }
}

impl<W> FairQueue<W> {
    /// A level whose seats are all free.
    #[must_use]
    pub fn new(seats: usize, response: LimitResponse) -> Self {
        let mut made = Self {
            seats,
            executing: 0,
            waiting: 0,
            queuing: None,
            queues: Vec::new(),
            time: 0,
            last: 0,
            number: 0,
        };
        made.reconfigure(seats, response);
        made
    }

    /// Changes seats and queues. Who has a seat or waits keeps it. [`FairQueue::start_next`] is to be called until it gives nothing.
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

    /// A request of `flow` arrives; `waiter` is made if it has to wait.
    pub fn arrive(&mut self, flow: u64, waiter: impl FnOnce() -> W) -> Arrival {
        let at = self.queuing.map(|queuing| self.choose(flow, queuing));
        if self.waiting == 0 && self.executing < self.seats {
            return Arrival::Executing(self.seat(at));
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
        self.waiting = self.waiting.saturating_add(1);
        Arrival::Queued(Ticket { queue: at, number })
    }

    /// A request gives its seat back. Gives the request that has it now, with its seat, if one waited.
    pub fn finish(&mut self, seat: Seat) -> Option<(W, Seat)> {
        self.executing = self.executing.saturating_sub(1);
        if let Some(queue) = seat.queue.and_then(|at| self.queues.get_mut(at)) {
            queue.executing = queue.executing.saturating_sub(1);
        }
        let started = self.start_next();
        self.shrink();
        started
    }

    /// A request no longer waits. `None` if it has been started, and so has a seat.
    pub fn cancel(&mut self, ticket: Ticket) -> Option<W> {
        let queue = self.queues.get_mut(ticket.queue)?;
        let at = queue.waiting.binary_search_by_key(&ticket.number, |(number, _)| *number).ok()?;
        let (_, waiter) = queue.waiting.remove(at)?;
        self.waiting = self.waiting.saturating_sub(1);
        self.shrink();
        Some(waiter)
    }

    /// Starts the request that is next, if one waits and a seat is free.
    pub fn start_next(&mut self) -> Option<(W, Seat)> {
        if self.waiting == 0 || self.executing >= self.seats {
            return None;
        }
        let waiting = self.queues.iter().enumerate().filter(|(_, queue)| !queue.waiting.is_empty());
        // Among equals the first one after the queue that was served last.
        let (at, _) = waiting.min_by_key(|(at, queue)| (queue.start, *at <= self.last, *at))?;
        let (_, waiter) = self.queues.get_mut(at)?.waiting.pop_front()?;
        self.waiting = self.waiting.saturating_sub(1);
        self.last = at;
        Some((waiter, self.seat(Some(at))))
    }

    /// Whether nobody has a seat or waits.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.executing == 0 && self.waiting == 0
    }

    /// The seats, and how many requests have one and how many wait.
    #[must_use]
    pub fn counts(&self) -> (usize, usize, usize) {
        (self.seats, self.executing, self.waiting)
    }

    /// The queue of the flow's hand with the fewest requests.
    fn choose(&self, flow: u64, queuing: Queuing) -> usize {
        let hand = Hand::deal(flow, queuing.queues, queuing.hand);
        let load = |at: &usize| self.queues.get(*at).map_or(usize::MAX, Queue::load);
        hand.cards().min_by_key(load).unwrap_or_default()
    }

    fn seat(&mut self, at: Option<usize>) -> Seat {
        self.executing = self.executing.saturating_add(1);
        if let Some(queue) = at.and_then(|at| self.queues.get_mut(at)) {
            queue.executing = queue.executing.saturating_add(1);
            let start = queue.start.max(self.time);
            self.time = start;
            queue.start = start.saturating_add(1);
        }
        Seat { queue: at }
    }

    /// Drops queues that are no longer configured, once nobody is in them or behind them.
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
