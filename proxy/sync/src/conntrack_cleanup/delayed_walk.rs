//! Walks conntrack: at once for replied flows, a second later for unreplied ones.
//!
//! An unreplied flow may still get its reply from a terminating endpoint; if its entry were deleted, that reply would
//! not be translated back. Keeping it for a while is harmless: the stale flow log reports its next packet.

use std::collections::{BTreeSet, VecDeque};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender};
use std::time::{Duration, Instant};

use proto_daemon::exit::chain;
use proxy_kernel::{Session, Socket};
use proxy_rules::stale_flow_log::StaleFlowKey;

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
}

impl ConntrackWalker {
    /// Delays as of [`super::start`]; results go to `back`.
    pub(super) fn new(
        metrics: ProxyMetrics,
        (settle, rest): (Duration, Duration),
        back: SyncSender<CleanupEvent>,
    ) -> Self {
        Self { metrics, settle, rest, back, session: None, late: VecDeque::new() }
    }

    /// Walks until the senders are gone.
    pub(super) fn run(mut self, walks: &Receiver<WalkRequest>) {
        loop {
            let next = match self.late.front() {
                Some(late) => {
                    walks.recv_timeout(late.due.saturating_duration_since(Instant::now()))
                }
                None => walks.recv().map_err(|_| RecvTimeoutError::Disconnected),
            };
            let events = match next {
                Ok((work, keys)) => self.walk(work, keys),
                Err(RecvTimeoutError::Timeout) => self.walk_delayed(),
                Err(RecvTimeoutError::Disconnected) => return,
            };
            if events.into_iter().any(|event| self.back.send(event).is_err()) {
                return;
            }
        }
    }

    fn walk(&mut self, work: WalkTargets, keys: BTreeSet<StaleFlowKey>) -> Vec<CleanupEvent> {
        std::thread::sleep(self.settle);
        if self.delete_stale_flows(&work, FlowSelection::Answered).left == 0 {
            return vec![CleanupEvent::Walked, CleanupEvent::Deleted(keys)];
        }
        let early = (self.late.len() >= DELAYED_WALKS_MAX).then(|| self.walk_delayed());
        let due = Instant::now().checked_add(self.rest).unwrap_or_else(Instant::now);
        self.late.push_back(DelayedWalk { due, work, keys });
        [vec![CleanupEvent::Walked], early.unwrap_or_default()].concat()
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
