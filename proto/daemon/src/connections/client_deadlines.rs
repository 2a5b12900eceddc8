//! Deadlines of the client of a connection: for its next request, and for reading a response. Pure: times are arguments.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

use super::{Limits, Reason};

/// The pending steps of one client with their start times.
#[derive(Debug)]
pub(super) struct ClientDeadlines {
    /// Requests in flight, by number.
    requests: BTreeMap<u64, RequestState>,
    /// Number of the last request.
    last: u64,
    /// What is missing while no request is in flight, and since when.
    idle: (Reason, Instant),
    /// Streams in flight.
    streams: usize,
}

/// Progress of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RequestState {
    /// It is not authorized: its time counts from its head to the end of its response.
    Unauthorized(Instant),
    /// This many waits for the server; the deadline had run this long before.
    Waiting(usize, Duration),
    /// Nothing: the server works for it.
    Served,
    /// Its response is to be read.
    Answered(Instant),
    /// Nothing: it lasts as long as it lasts.
    Stream,
}

/// When the client is late, and with what.
pub(super) type Due = (Instant, Reason);

impl ClientDeadlines {
    /// A handshake is done, or begins.
    pub(super) fn new(now: Instant) -> Self {
        Self { requests: BTreeMap::new(), last: 0, idle: (Reason::NoRequest, now), streams: 0 }
    }

    /// Starts the deadline for the first request.
    pub(super) fn await_first(&mut self, now: Instant) {
        self.idle = (Reason::NoRequest, now);
    }

    /// The head of a request has arrived. Gives its number.
    pub(super) fn begin(&mut self, now: Instant) -> u64 {
        self.last = self.last.wrapping_add(1);
        self.requests.insert(self.last, RequestState::Unauthorized(now));
        self.last
    }

    /// A request has ended: its response was written, or it was given up.
    pub(super) fn end(&mut self, request: u64, now: Instant) {
        if self.requests.remove(&request) == Some(RequestState::Stream) {
            self.streams = self.streams.saturating_sub(1);
        }
        self.idle = (Reason::Idle, now);
    }

    /// A request is authorized: the client must only read its response.
    pub(super) fn authorize(&mut self, request: u64) {
        if let Some(state @ (RequestState::Unauthorized(_) | RequestState::Waiting(..))) =
            self.requests.get_mut(&request)
        {
            *state = RequestState::Served;
        }
    }

    /// A request is an authorized stream. `false` if it is known as one.
    pub(super) fn stream(&mut self, request: u64) -> bool {
        let Some(state) = self.requests.get_mut(&request) else { return false };
        if std::mem::replace(state, RequestState::Stream) == RequestState::Stream {
            return false;
        }
        self.streams = self.streams.saturating_add(1);
        true
    }

    /// The response of a request begins.
    pub(super) fn answer(&mut self, request: u64, now: Instant) {
        if let Some(state @ RequestState::Served) = self.requests.get_mut(&request) {
            *state = RequestState::Answered(now);
        }
    }

    /// A good part of a response is written: the client reads.
    pub(super) fn progress(&mut self, request: u64, now: Instant) {
        if let Some(RequestState::Answered(since)) = self.requests.get_mut(&request) {
            *since = now;
        }
    }

    /// A request waits for the server.
    pub(super) fn wait(&mut self, request: u64, now: Instant) {
        match self.requests.get_mut(&request) {
            Some(state @ &mut RequestState::Unauthorized(since)) => {
                *state = RequestState::Waiting(1, now.saturating_duration_since(since));
            }
            Some(RequestState::Waiting(waits, _)) => *waits = waits.saturating_add(1),
            _ => {}
        }
    }

    /// A request waits no longer: its deadline continues where it stopped.
    pub(super) fn resume(&mut self, request: u64, now: Instant) {
        if let Some(state @ &mut RequestState::Waiting(waits, elapsed)) =
            self.requests.get_mut(&request)
        {
            *state = match waits {
                ..=1 => RequestState::Unauthorized(now.checked_sub(elapsed).unwrap_or(now)),
                _ => RequestState::Waiting(waits.saturating_sub(1), elapsed),
            };
        }
    }

    /// Whether a stream is in flight.
    pub(super) fn has_streams(&self) -> bool {
        self.streams > 0
    }

    /// The earliest deadline; `None` while none runs.
    pub(super) fn due(&self, limits: &Limits) -> Option<Due> {
        let at =
            |since: Instant, limit: Duration, reason| Some((since.checked_add(limit)?, reason));
        if self.requests.is_empty() {
            let (reason, since) = self.idle;
            let limit = match reason {
                Reason::NoRequest => limits.first_request,
                _ => limits.idle,
            };
            return at(since, limit, reason);
        }
        let dues = self.requests.values().filter_map(|state| match *state {
            RequestState::Unauthorized(since) => at(since, limits.unauthorized, Reason::NotTaken),
            RequestState::Answered(since) => at(since, limits.answered, Reason::NotTaken),
            RequestState::Waiting(..) | RequestState::Served | RequestState::Stream => None,
        });
        dues.min_by_key(|(at, _)| *at)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::LIMITS;
    use super::*;

    fn after(debts: &ClientDeadlines, began: Instant) -> Option<u64> {
        debts.due(&LIMITS).map(|(at, _)| at.duration_since(began).as_secs())
    }

    #[test]
    fn the_oldest_debt_is_due_first() {
        let began = Instant::now();
        let at = |secs| began + Duration::from_secs(secs);
        let mut debts = ClientDeadlines::new(began);
        assert_eq!(after(&debts, began), Some(LIMITS.first_request.as_secs()));
        let (first, second) = (debts.begin(at(1)), debts.begin(at(2)));
        assert_eq!(after(&debts, began), Some(1 + LIMITS.unauthorized.as_secs()));
        debts.authorize(first);
        assert_eq!(after(&debts, began), Some(2 + LIMITS.unauthorized.as_secs()));
        // Other requests that begin and end do not move a deadline.
        let third = debts.begin(at(10));
        debts.end(third, at(11));
        assert_eq!(after(&debts, began), Some(2 + LIMITS.unauthorized.as_secs()));
        debts.authorize(second);
        assert_eq!(after(&debts, began), None, "the server's turn");
        debts.answer(first, at(500));
        debts.answer(second, at(501));
        assert_eq!(after(&debts, began), Some(500 + LIMITS.answered.as_secs()));
        debts.progress(first, at(502));
        assert_eq!(after(&debts, began), Some(501 + LIMITS.answered.as_secs()));
        debts.end(first, at(502));
        debts.end(second, at(503));
        assert_eq!(after(&debts, began), Some(503 + LIMITS.idle.as_secs()));
    }

    #[test]
    fn a_stream_and_what_waits_owe_nothing() {
        let began = Instant::now();
        let at = |secs| began + Duration::from_secs(secs);
        let mut debts = ClientDeadlines::new(began);
        let (stream, waiting) = (debts.begin(at(0)), debts.begin(at(0)));
        assert!(debts.stream(stream) && !debts.stream(stream) && debts.has_streams());
        debts.answer(stream, at(1));
        debts.wait(waiting, at(5));
        debts.wait(waiting, at(6));
        debts.resume(waiting, at(7));
        assert_eq!(after(&debts, began), None);
        debts.resume(waiting, at(100));
        assert_eq!(after(&debts, began), Some(95 + LIMITS.unauthorized.as_secs()));
        debts.end(stream, at(100));
        assert!(!debts.has_streams());
    }
}
