//! Walks through the kernel's connections: at once for flows that were answered, later for those that were not.
//!
//! A flow without an answer is a question under way, or one that nobody answers. Let go of too early, the answer of an
//! endpoint that drains finds no way back; left for a while, it harms nobody: its next packet is caught by the trap.

use std::collections::{BTreeSet, VecDeque};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender};
use std::time::{Duration, Instant};

use proto_daemon::exit::chain;
use proxy_kernel::{Session, Socket};
use proxy_rules::trap::TrapKey;

use super::{Heard, Swept, Walk, Which, Work, open, sweep};
use crate::metrics::ProxyMetrics;

/// Walks that wait, at most; the eldest comes early when there are more.
const LATE_MAX: usize = 64;

/// A walk for flows that were left.
struct Late {
    due: Instant,
    work: Work,
    keys: BTreeSet<TrapKey>,
}

/// Walks, and says what it has done.
pub(super) struct Walker {
    metrics: ProxyMetrics,
    settle: Duration,
    rest: Duration,
    back: SyncSender<Heard>,
    session: Option<Session<Socket>>,
    late: VecDeque<Late>,
}

impl Walker {
    /// Pauses as of [`super::start`]; `back` hears what is done.
    pub(super) fn new(
        metrics: ProxyMetrics,
        (settle, rest): (Duration, Duration),
        back: SyncSender<Heard>,
    ) -> Self {
        Self { metrics, settle, rest, back, session: None, late: VecDeque::new() }
    }

    /// Walks until nobody asks any more.
    pub(super) fn run(mut self, walks: &Receiver<Walk>) {
        loop {
            let next = match self.late.front() {
                Some(late) => {
                    walks.recv_timeout(late.due.saturating_duration_since(Instant::now()))
                }
                None => walks.recv().map_err(|_| RecvTimeoutError::Disconnected),
            };
            let heard = match next {
                Ok((work, keys)) => self.walk(work, keys),
                Err(RecvTimeoutError::Timeout) => self.walk_late(),
                Err(RecvTimeoutError::Disconnected) => return,
            };
            if heard.into_iter().any(|heard| self.back.send(heard).is_err()) {
                return;
            }
        }
    }

    fn walk(&mut self, work: Work, keys: BTreeSet<TrapKey>) -> Vec<Heard> {
        std::thread::sleep(self.settle);
        if self.sweep(&work, Which::Answered).left == 0 {
            return vec![Heard::Walked, Heard::Gone(keys)];
        }
        let early = (self.late.len() >= LATE_MAX).then(|| self.walk_late());
        let due = Instant::now().checked_add(self.rest).unwrap_or_else(Instant::now);
        self.late.push_back(Late { due, work, keys });
        [vec![Heard::Walked], early.unwrap_or_default()].concat()
    }

    fn walk_late(&mut self) -> Vec<Heard> {
        let Some(late) = self.late.pop_front() else { return Vec::new() };
        self.sweep(&late.work, Which::All);
        vec![Heard::Gone(late.keys)]
    }

    fn sweep(&mut self, work: &Work, which: Which) -> Swept {
        if self.session.is_none() {
            self.session = open();
        }
        let Some(session) = &mut self.session else { return Swept::default() };
        let started = Instant::now();
        let swept = sweep(session, work, which);
        self.metrics.sweep_seconds.observe(started.elapsed().as_secs_f64());
        swept
            .inspect(|swept| {
                if swept.deleted > 0 {
                    self.metrics.flows_deleted.inc_by(swept.deleted);
                    tracing::info!(deleted = swept.deleted, "let go of stale flows");
                }
            })
            .unwrap_or_else(|error| {
                tracing::warn!(error = %chain(&error), "cannot let go of flows");
                Swept::default()
            })
    }
}
