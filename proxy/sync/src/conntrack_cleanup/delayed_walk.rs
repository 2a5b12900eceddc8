//! Walks conntrack: at once for replied flows, a second later for unreplied ones.
//!
//! An unreplied flow may still get its reply from a terminating endpoint; if its entry were deleted, that reply would
//! not be translated back. Keeping it for a while is harmless: the stale flow log reports its next packet.

use std::collections::{BTreeSet, VecDeque};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender};
use std::time::{Duration, Instant};

use proto_daemon::exit::chain;
use proxy_kernel::{QueryError, Session, Socket};
use proxy_rules::stale::{FlowAnswer, StaleFlows};
use proxy_rules::stale_flow_log::StaleFlowKey;

use super::handshakes::Handshakes;
use super::{
    CleanupCount, CleanupEvent, FlowSelection, WalkRequest, WalkTargets, delete_stale_flows, open,
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
            let next = match late.into_iter().chain(self.handshakes.due()).min() {
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
        self.handshakes.add(handshakes, Instant::now());
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
        if self.handshakes.due().is_some_and(|due| due <= now) {
            self.walk_handshakes();
        }
        let is_due = self.late.front().is_some_and(|late| late.due <= now);
        if is_due { self.walk_delayed() } else { Vec::new() }
    }

    fn walk_handshakes(&mut self) {
        if self.session.is_none() {
            self.session = open();
        }
        let Some(session) = &mut self.session else {
            self.handshakes.end_walk(false, Instant::now().checked_add(self.rest));
            return;
        };
        std::thread::sleep(self.settle);
        let started = Instant::now();
        let walked = self.handshakes.walk(session, self.rest);
        self.note(started, walked.map(|deleted| CleanupCount { deleted, left: 0 }));
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
        self.note(started, swept)
    }

    /// Counts and logs the outcome of a walk.
    fn note(&self, started: Instant, swept: Result<CleanupCount, QueryError>) -> CleanupCount {
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
