//! Walks conntrack: at once for replied flows, a second later for unreplied ones.
//!
//! An unreplied flow may still get its reply from a terminating endpoint; if its entry were deleted, that reply would
//! not be translated back. Keeping it for a while is harmless: the stale flow log reports its next packet.
//!
//! Endpoints of TCP are removed all the time, and only what has no answer is looked for: there is one walk for all of a
//! second.

use std::collections::{BTreeSet, VecDeque};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender};
use std::time::{Duration, Instant};

use proto_daemon::exit::chain;
use proxy_kernel::{Session, Socket};
use proxy_rules::stale::{FlowAnswer, StaleFlows};
use proxy_rules::stale_flow_log::StaleFlowKey;

use super::{
    COLLECTED_MAX, CleanupCount, CleanupEvent, FlowSelection, WalkRequest, WalkTargets,
    delete_stale_flows, open,
};
use crate::metrics::ProxyMetrics;

/// Delayed walks that may be queued; the oldest is done early when there are more.
const DELAYED_WALKS_MAX: usize = 64;

/// A walk for flows that were kept.
struct DelayedWalk {
    due: Instant,
    work: WalkTargets,
    keys: BTreeSet<StaleFlowKey>,
}

pub(super) struct ConntrackWalker {
    metrics: ProxyMetrics,
    settle: Duration,
    rest: Duration,
    back: SyncSender<CleanupEvent>,
    session: Option<Session<Socket>>,
    late: VecDeque<DelayedWalk>,
    handshakes: Handshakes,
}

/// TCP connections that are to be deleted if their handshake still has no answer.
#[derive(Debug, Default)]
struct Handshakes {
    /// When those of the next walk are due.
    due: Option<Instant>,
    next: BTreeSet<StaleFlows>,
    /// Those that came since: a second has to pass for each.
    later: BTreeSet<StaleFlows>,
}

impl Handshakes {
    /// Adds some, due after `rest`. Beyond [`COLLECTED_MAX`] they end by conntrack timeouts.
    fn add(&mut self, flows: BTreeSet<StaleFlows>, now: Instant, rest: Duration) {
        let room = COLLECTED_MAX.saturating_sub(self.later.len());
        self.later.extend(flows.into_iter().take(room));
        if self.due.is_none() {
            self.begin(now, rest);
        }
    }

    /// Takes those of the walk that is due.
    fn take(&mut self, now: Instant, rest: Duration) -> BTreeSet<StaleFlows> {
        let taken = std::mem::take(&mut self.next);
        self.begin(now, rest);
        taken
    }

    fn begin(&mut self, now: Instant, rest: Duration) {
        self.next = std::mem::take(&mut self.later);
        let due = now.checked_add(rest).unwrap_or(now);
        self.due = (!self.next.is_empty()).then_some(due);
    }
}

impl ConntrackWalker {
    /// Delays as of [`super::start`]; results go to `back`.
    pub(super) fn new(
        metrics: ProxyMetrics,
        (settle, rest): (Duration, Duration),
        back: SyncSender<CleanupEvent>,
    ) -> Self {
        Self {
            metrics,
            settle,
            rest,
            back,
            session: None,
            late: VecDeque::new(),
            handshakes: Handshakes::default(),
        }
    }

    /// Walks until the senders are gone.
    pub(super) fn run(mut self, walks: &Receiver<WalkRequest>) {
        loop {
            let late = self.late.front().map(|late| late.due);
            let next = match late.into_iter().chain(self.handshakes.due).min() {
                // Requests that never pause do not keep it back.
                Some(due) if due <= Instant::now() => Err(RecvTimeoutError::Timeout),
                Some(due) => walks.recv_timeout(due.saturating_duration_since(Instant::now())),
                None => walks.recv().map_err(|_| RecvTimeoutError::Disconnected),
            };
            let events = match next {
                Ok((work, keys)) => self.walk(work, keys),
                Err(RecvTimeoutError::Timeout) => self.walk_due(Instant::now()),
                Err(RecvTimeoutError::Disconnected) => return,
            };
            if events.into_iter().any(|event| self.back.send(event).is_err()) {
                return;
            }
        }
    }

    fn walk(&mut self, mut work: WalkTargets, keys: BTreeSet<StaleFlowKey>) -> Vec<CleanupEvent> {
        let is_handshake = |flows: &StaleFlows| flows.answer() == FlowAnswer::None;
        let (handshakes, others) = work.stale.into_iter().partition(is_handshake);
        self.handshakes.add(handshakes, Instant::now(), self.rest);
        work.stale = others;
        if work.is_empty() {
            return vec![CleanupEvent::Walked, CleanupEvent::Deleted(keys)];
        }
        std::thread::sleep(self.settle);
        if self.delete_stale_flows(&work, FlowSelection::Answered).left == 0 {
            return vec![CleanupEvent::Walked, CleanupEvent::Deleted(keys)];
        }
        let early = (self.late.len() >= DELAYED_WALKS_MAX).then(|| self.walk_delayed());
        let due = Instant::now().checked_add(self.rest).unwrap_or_else(Instant::now);
        self.late.push_back(DelayedWalk { due, work, keys });
        [vec![CleanupEvent::Walked], early.unwrap_or_default()].concat()
    }

    fn walk_due(&mut self, now: Instant) -> Vec<CleanupEvent> {
        if self.handshakes.due.is_some_and(|due| due <= now) {
            let stale = self.handshakes.take(now, self.rest);
            self.delete_stale_flows(&WalkTargets { stale, allowed: None }, FlowSelection::All);
        }
        let is_due = self.late.front().is_some_and(|late| late.due <= now);
        if is_due { self.walk_delayed() } else { Vec::new() }
    }

    fn walk_delayed(&mut self) -> Vec<CleanupEvent> {
        let Some(late) = self.late.pop_front() else { return Vec::new() };
        self.delete_stale_flows(&late.work, FlowSelection::All);
        vec![CleanupEvent::Deleted(late.keys)]
    }

    fn delete_stale_flows(&mut self, work: &WalkTargets, which: FlowSelection) -> CleanupCount {
        if self.session.is_none() {
            self.session = open();
        }
        let Some(session) = &mut self.session else { return CleanupCount::default() };
        let started = Instant::now();
        let swept = delete_stale_flows(session, work, which);
        self.metrics.sweep_seconds.observe(started.elapsed().as_secs_f64());
        swept
            .inspect(|swept| {
                if swept.deleted > 0 {
                    self.metrics.flows_deleted.inc_by(swept.deleted);
                    tracing::info!(deleted = swept.deleted, "deleted stale conntrack entries");
                }
            })
            .unwrap_or_else(|error| {
                tracing::warn!(error = %chain(&error), "cannot delete stale conntrack entries; they end by their timeouts");
                CleanupCount::default()
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proxy_rules::model::Protocol;
    use proxy_rules::stale::connections;

    fn flows(ports: std::ops::Range<u16>) -> BTreeSet<StaleFlows> {
        let endpoint = ([10, 0, 0, 7].into(), 8080);
        ports.map(|port| connections((None, port), Protocol::Tcp, endpoint)).collect()
    }

    #[test]
    fn handshakes_wait_for_their_answer_and_are_looked_for_together() {
        let (begin, rest) = (Instant::now(), Duration::from_secs(1));
        let at = |millis| begin + Duration::from_millis(millis);
        let mut handshakes = Handshakes::default();
        handshakes.add(flows(1..3), at(0), rest);
        handshakes.add(flows(3..4), at(400), rest);
        handshakes.add(flows(4..5), at(800), rest);
        assert_eq!(handshakes.due, Some(at(1000)));
        assert_eq!(handshakes.take(at(1000), rest), flows(1..3));
        assert_eq!(handshakes.due, Some(at(2000)));
        assert_eq!(handshakes.take(at(2000), rest), flows(3..5));
        assert_eq!(handshakes.due, None);
        handshakes.add(BTreeSet::new(), at(3000), rest);
        assert_eq!(handshakes.due, None);
    }
}
