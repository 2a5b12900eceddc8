//! Deletes stale flows, away from the path of updates.
//!
//! ```text
//!  driver ──flows──▶ keeper ──flows──▶ walker: finds them all, deletes them
//!                      │  ▲               │
//!            sets and  │  └────done───────┘
//!            takes away▼
//!                     trap ──packets of such flows──▶ listener: deletes the flow of each
//! ```
//!
//! A walk through the kernel's table of connections takes tens of milliseconds; flows in use cannot wait for it.
//! So the keeper first sets a trap ([`proxy_rules::stale_flow_log`]), and whatever flow sends a packet meanwhile is deleted
//! at once. A walk deletes flows that were answered; a question that was under way when its endpoint went may still
//! be answered by an endpoint that drains, so the walk for those comes a second later ([`late`]). While a walk is on,
//! further flows are collected for the next one. Without a packet log, or without
//! the right to listen to it, the walk is all there is.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::Duration;

use proto_daemon::exit::chain;
use proxy_kernel::{QueryError, Session, Socket};
use proxy_netfilter::ct::{Flow, STATUS_SEEN_REPLY};
use proxy_rules::stale::{Allowed, StaleFlows, StaleSet};
use proxy_rules::stale_flow_log::{StaleFlowKey, StaleFlowLog};

use crate::metrics::ProxyMetrics;

mod delayed_walk;
use delayed_walk::ConntrackWalker;

mod stale_flow_log;
use stale_flow_log::StaleFlowLogKeeper;

/// Requests that wait, at most. Each is the work of a whole pass.
const WAITING_MAX: usize = 256;
/// Flows collected for the next walk, at most.
const COLLECTED_MAX: usize = 1 << 18;
/// Up to so many filters the kernel compares, one walk each; for more, all flows of a protocol are read once.
const EXACT_WALKS_MAX: usize = 4;
/// How long a walk waits at first: a packet that looked its endpoint up just before it went becomes a flow within
/// this time.
pub const SETTLE_DELAY: Duration = Duration::from_millis(2);
/// How long a question that was under way is left to be answered.
pub const UNREPLIED_DELAY: Duration = Duration::from_secs(1);
/// The threads do little and call nothing deep.
const STACK_LEN: usize = 256 << 10;

/// Work for the conntrack cleanup.
#[derive(Clone, Debug)]
pub enum CleanupRequest {
    /// Delete these.
    Stale(Vec<StaleFlows>),
    /// Delete all that lead elsewhere than these.
    Except(Allowed),
}

/// What the keeper hears.
#[derive(Clone)]
enum CleanupEvent {
    CleanupRequest(CleanupRequest),
    /// The walk is done; another may begin.
    Walked,
    /// Flows with these keys are gone.
    Deleted(BTreeSet<StaleFlowKey>),
    /// Nobody will send work any more.
    End,
}

/// Hands work to the conntrack cleanup. The threads end with the last clone.
#[derive(Clone, Debug)]
pub struct CleanupQueue(Arc<Sender>);

#[derive(Debug)]
struct Sender(SyncSender<CleanupEvent>);

impl Drop for Sender {
    fn drop(&mut self) {
        // When so much waits that this does not fit, the threads stay behind, idle.
        let _ = self.0.try_send(CleanupEvent::End);
    }
}

impl CleanupQueue {
    /// Hands over work without waiting. When too much waits already the work is not done, which is said in
    /// the log: such flows end by their own timeouts.
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

/// Starts the keeper; the others start with the first work. `stale_flow_log` says how to make the trap; none for walks
/// alone. Each walk begins after `settle`, usually [`SETTLE_DELAY`]; that for flows without an answer `rest` later, usually
/// [`UNREPLIED_DELAY`].
pub fn start(
    metrics: ProxyMetrics,
    stale_flow_log: Option<StaleFlowLog>,
    settle: Duration,
    rest: Duration,
) -> std::io::Result<CleanupQueue> {
    let (sender, receiver) = sync_channel(WAITING_MAX);
    let cleanup_queue = CleanupQueue(Arc::new(Sender(sender.clone())));
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

/// What one walk looks for.
#[derive(Clone, Debug, Default)]
pub struct WalkTargets {
    /// These flows.
    pub stale: BTreeSet<StaleFlows>,
    /// All that are none of these.
    pub allowed: Option<Allowed>,
}

impl WalkTargets {
    fn is_empty(&self) -> bool {
        self.stale.is_empty() && self.allowed.as_ref().is_none_or(Allowed::is_empty)
    }
}

/// A walk to do: what for, and the trap's keys that it makes needless.
type WalkRequest = (WalkTargets, BTreeSet<StaleFlowKey>);

struct Coordinator {
    stale_flow_log: StaleFlowLogKeeper,
    metrics: ProxyMetrics,
    /// Before a walk, and before that for flows without an answer.
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
        self.collected.stale.extend(flows);
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

/// Which flows to delete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowSelection {
    /// Those that were answered.
    Answered,
    /// All.
    All,
}

/// What a walk did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CleanupCount {
    /// Flows that were deleted.
    pub deleted: u64,
    /// Flows that were left because they wait for an answer.
    pub left: u64,
}

/// Lets go of the flows that `work` is about.
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
