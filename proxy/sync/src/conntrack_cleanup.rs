//! Deletes conntrack entries of removed endpoints, outside the update path.
//!
//! ```text
//!  driver ──flows──▶ coordinator ──flows──▶ walker: dumps conntrack, deletes matches
//!                      │  ▲                    │
//!          updates and │  └────────done────────┘
//!          deletes     ▼
//!                stale flow log ──packets of such flows──▶ listener: deletes the flow of each packet
//! ```
//!
//! Dumping conntrack takes tens of milliseconds, too long for flows in use. So the coordinator first installs the
//! stale flow log ([`proxy_rules::stale_flow_log`]): a flow that sends a packet is deleted at once. The walk then
//! deletes idle flows. An unreplied flow may still get its reply from an endpoint that is terminating, so the walk for
//! those comes a second later ([`delayed_walk`]). TCP connections whose handshake has no answer have walks of their own
//! ([`handshakes`]), and their packets are never logged. Flows that arrive during a walk are collected for the next one.
//! Without NFLOG, or without permission to bind its group, there are only walks.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::Duration;

use proto_daemon::exit::chain;
use proxy_kernel::{QueryError, Session, Socket};
use proxy_netfilter::ct::{Flow, STATUS_SEEN_REPLY};
use proxy_rules::stale::{AllowedEndpoints, FlowAnswer, StaleFlows, StaleSet};
use proxy_rules::stale_flow_log::{StaleFlowKey, StaleFlowLog};

use crate::metrics::ProxyMetrics;

mod delayed_walk;
use delayed_walk::ConntrackWalker;

mod handshakes;
use handshakes::HANDSHAKES_MAX;

mod stale_flow_log;
use stale_flow_log::StaleFlowLogKeeper;

/// Queued requests. Each comes from one pass.
const WAITING_MAX: usize = 256;
/// Flows collected for the next walk.
const COLLECTED_MAX: usize = 1 << 18;
/// Up to this many filters are compared by the kernel, one dump each; for more, all flows of a protocol are dumped
/// once.
const EXACT_WALKS_MAX: usize = 4;
/// Delay before a walk: a packet that was matched just before its endpoint was removed becomes a conntrack entry
/// within this time.
pub const SETTLE_DELAY: Duration = Duration::from_millis(2);
/// How long unreplied flows are kept.
pub const UNREPLIED_DELAY: Duration = Duration::from_secs(1);
/// The threads have shallow call stacks.
const STACK_LEN: usize = 256 << 10;

/// A request to delete flows.
#[derive(Clone, Debug)]
pub enum CleanupRequest {
    /// Delete these flows.
    Stale(Vec<StaleFlows>),
    /// Delete all flows of Services that do not lead to one of these endpoints.
    Except(AllowedEndpoints),
}

/// Input of the coordinator.
#[derive(Clone)]
enum CleanupEvent {
    CleanupRequest(CleanupRequest),
    /// A walk is done.
    Walked,
    /// Flows with these keys were deleted.
    Deleted(BTreeSet<StaleFlowKey>),
    /// The last sender is gone.
    End,
}

/// Queue of the conntrack cleanup. The threads end with the last clone.
#[derive(Clone, Debug)]
pub struct CleanupQueue(Arc<QueueSender>);

#[derive(Debug)]
struct QueueSender(SyncSender<CleanupEvent>);

impl Drop for QueueSender {
    fn drop(&mut self) {
        // If the queue is full the idle threads stay.
        let _ = self.0.try_send(CleanupEvent::End);
    }
}

impl CleanupQueue {
    /// Queues a request without waiting. If the queue is full the request is dropped, with a warning: such flows end
    /// by conntrack timeouts.
    pub fn send(&self, delete_stale_flows: CleanupRequest) {
        if let Err(TrySendError::Full(_)) =
            self.0.0.try_send(CleanupEvent::CleanupRequest(delete_stale_flows))
        {
            tracing::warn!(
                "too many stale flows are queued; the surplus ends by conntrack timeouts"
            );
        }
    }
}

/// Starts the coordinator; the other threads start with the first request. Without `stale_flow_log` there are only
/// walks. Each walk begins after `settle`, usually [`SETTLE_DELAY`]; the one for unreplied flows `rest` later, usually
/// [`UNREPLIED_DELAY`].
pub fn start(
    metrics: ProxyMetrics,
    stale_flow_log: Option<StaleFlowLog>,
    settle: Duration,
    rest: Duration,
) -> std::io::Result<CleanupQueue> {
    let (sender, receiver) = sync_channel(WAITING_MAX);
    let cleanup_queue = CleanupQueue(Arc::new(QueueSender(sender.clone())));
    let work = move || {
        let mut keeper = Coordinator {
            stale_flow_log: StaleFlowLogKeeper::new(stale_flow_log, metrics.clone()),
            metrics,
            pauses: (settle, rest),
            walker: None,
            walking: false,
            collected: WalkTargets::default(),
        };
        keeper.run(&receiver, &sender);
    };
    thread("conntrack-clean", work)?;
    Ok(cleanup_queue)
}

fn thread(name: &str, work: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    std::thread::Builder::new().name(name.into()).stack_size(STACK_LEN).spawn(work).map(drop)
}

/// What a walk deletes.
#[derive(Clone, Debug, Default)]
pub struct WalkTargets {
    /// Flows to these endpoints.
    pub stale: BTreeSet<StaleFlows>,
    /// Flows to any endpoint but these.
    pub allowed: Option<AllowedEndpoints>,
}

impl WalkTargets {
    fn is_empty(&self) -> bool {
        self.stale.is_empty() && self.allowed.as_ref().is_none_or(AllowedEndpoints::is_empty)
    }
}

/// A walk, and the keys of the stale flow log that it makes unnecessary.
type WalkRequest = (WalkTargets, BTreeSet<StaleFlowKey>);

struct Coordinator {
    stale_flow_log: StaleFlowLogKeeper,
    metrics: ProxyMetrics,
    /// Delays before a walk, and before the one for unreplied flows.
    pauses: (Duration, Duration),
    walker: Option<SyncSender<WalkRequest>>,
    walking: bool,
    collected: WalkTargets,
}

impl Coordinator {
    fn run(&mut self, events: &Receiver<CleanupEvent>, back: &SyncSender<CleanupEvent>) {
        while let Ok(first) = events.recv() {
            for one in std::iter::once(first).chain(events.try_iter()) {
                match one {
                    CleanupEvent::CleanupRequest(CleanupRequest::Stale(flows)) => {
                        self.collect(flows)
                    }
                    CleanupEvent::CleanupRequest(CleanupRequest::Except(allowed)) => {
                        self.collected.allowed = Some(allowed)
                    }
                    CleanupEvent::Walked => self.walking = false,
                    CleanupEvent::Deleted(keys) => self.stale_flow_log.release(&keys),
                    CleanupEvent::End => return,
                }
            }
            let keys = self.collected.stale.iter().filter_map(StaleFlowKey::from_flows).collect();
            self.stale_flow_log.catch(&keys);
            if !self.walking && !self.collected.is_empty() {
                self.walk(keys, back);
            }
        }
    }

    fn collect(&mut self, flows: Vec<StaleFlows>) {
        // Those of other protocols have to be deleted: they are not left out for these.
        let is_handshake = |flows: &StaleFlows| flows.answer() == FlowAnswer::None;
        let (handshakes, others): (Vec<_>, Vec<_>) = flows.into_iter().partition(is_handshake);
        let room = HANDSHAKES_MAX.saturating_sub(self.collected.stale.len());
        let left_out = handshakes.len().saturating_sub(room);
        if left_out > 0 {
            tracing::warn!(
                left_out,
                "too many endpoints are removed; unanswered TCP connections to some end by conntrack timeouts"
            );
        }
        self.collected.stale.extend(others.into_iter().chain(handshakes.into_iter().take(room)));
        let surplus = self.collected.stale.len().saturating_sub(COLLECTED_MAX);
        if surplus > 0 {
            for _ in 0..surplus {
                self.collected.stale.pop_last();
            }
            tracing::warn!(
                surplus,
                "too many stale flows are queued; the surplus ends by conntrack timeouts"
            );
        }
    }

    fn walk(&mut self, keys: BTreeSet<StaleFlowKey>, back: &SyncSender<CleanupEvent>) {
        if self.walker.is_none() {
            let (sender, walks) = sync_channel(1);
            let walker = ConntrackWalker::new(self.metrics.clone(), self.pauses, back.clone());
            let started = thread("conntrack-walk", move || walker.run(&walks));
            self.walker = started.map(|()| sender).ok();
        }
        let Some(walker) = &self.walker else { return };
        let work = std::mem::take(&mut self.collected);
        self.stale_flow_log.count_walk(&keys);
        self.walking = walker.try_send((work, keys)).is_ok();
    }
}

fn open() -> Option<Session<Socket>> {
    let opened = Socket::open();
    let opened = opened.inspect_err(
        |error| tracing::warn!(error = %chain(error), "cannot delete stale conntrack entries"),
    );
    opened.ok().map(Session::new)
}

/// Which stale flows a walk deletes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowSelection {
    /// Replied flows.
    Answered,
    /// All flows.
    All,
}

/// Result of a walk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CleanupCount {
    /// Deleted entries.
    pub deleted: u64,
    /// Entries kept because they are unreplied.
    pub left: u64,
}

/// Deletes the flows of `work`.
pub fn delete_stale_flows(
    session: &mut Session<Socket>,
    work: &WalkTargets,
    which: FlowSelection,
) -> Result<CleanupCount, QueryError> {
    let mut found: Vec<Flow> = Vec::new();
    if work.stale.len() <= EXACT_WALKS_MAX {
        for StaleFlows { family, filter } in &work.stale {
            session.flows(*family, filter, |flow| found.push(flow))?;
        }
    } else {
        let set = StaleSet::from_flows(&work.stale);
        for StaleFlows { family, filter } in set.walks() {
            session.flows(family, &filter, |flow| {
                if set.contains(&flow) {
                    found.push(flow);
                }
            })?;
        }
    }
    if let Some(allowed) = &work.allowed {
        for StaleFlows { family, filter } in allowed.walks() {
            session.flows(family, &filter, |flow| {
                if allowed.is_stale(&flow) {
                    found.push(flow);
                }
            })?;
        }
    }
    let all = found.len();
    if which == FlowSelection::Answered {
        found.retain(|flow| flow.status & STATUS_SEEN_REPLY != 0);
    }
    let left = all.saturating_sub(found.len()) as u64;
    Ok(CleanupCount { deleted: session.delete_flows(&found)?, left })
}
