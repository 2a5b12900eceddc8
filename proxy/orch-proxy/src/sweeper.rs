//! Lets go of stale flows, on a thread and a socket of its own: a walk through the kernel's table of
//! connections takes milliseconds, and no update waits for it.

use std::collections::BTreeSet;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::Instant;

use proto_daemon::exit::chain;
use proxy_kernel::{QueryError, Session, Socket};
use proxy_netfilter::ct::{AddressFamily, Flow, FlowFilter, STATUS_DNAT};
use proxy_rules::stale::{Allowed, StaleFlows};

use crate::metrics::ProxyMetrics;

/// Requests that wait, at most. Each is the work of a whole pass.
const WAITING_MAX: usize = 256;
/// Up to so many filters the kernel compares, one walk each; for more, all flows are read once.
const WALKS_MAX: usize = 4;

/// Work for the sweeper.
#[derive(Clone, Debug)]
pub enum Sweep {
    /// Let go of these.
    Stale(Vec<StaleFlows>),
    /// Let go of all that lead elsewhere than these.
    Except(Allowed),
}

/// Hands work to the sweeper.
#[derive(Clone, Debug)]
pub struct Sweeps(SyncSender<Sweep>);

impl Sweeps {
    /// Hands over work without waiting. When too much waits already the work is not done, which is said in
    /// the log: such flows end by their own timeouts.
    pub fn send(&self, sweep: Sweep) {
        if let Err(TrySendError::Full(_)) = self.0.try_send(sweep) {
            tracing::warn!("too many stale flows at once; some are left to their timeouts");
        }
    }
}

/// Starts the thread. It ends when the last [`Sweeps`] is gone.
pub fn start(metrics: ProxyMetrics) -> std::io::Result<Sweeps> {
    let (sender, receiver) = sync_channel(WAITING_MAX);
    let work = move || sweep_all(&receiver, &metrics);
    std::thread::Builder::new().name("sweeper".into()).stack_size(256 << 10).spawn(work)?;
    Ok(Sweeps(sender))
}

fn sweep_all(work: &Receiver<Sweep>, metrics: &ProxyMetrics) {
    // The socket is opened with the first work: a node without UDP services never has one.
    let mut session = None;
    while let Ok(first) = work.recv() {
        let mut stale = BTreeSet::new();
        let mut allowed = None;
        for sweep in std::iter::once(first).chain(work.try_iter()) {
            match sweep {
                Sweep::Stale(flows) => stale.extend(flows),
                Sweep::Except(those) => allowed = Some(those),
            }
        }
        if session.is_none() {
            session = Socket::open()
                .inspect_err(
                    |error| tracing::warn!(error = %chain(error), "cannot let go of flows"),
                )
                .ok()
                .map(Session::new);
        }
        let Some(session) = session.as_mut() else { continue };
        let started = Instant::now();
        let swept = sweep(session, &stale, allowed.as_ref());
        metrics.sweep_seconds.observe(started.elapsed().as_secs_f64());
        match swept {
            Ok(0) => {}
            Ok(deleted) => {
                metrics.flows_deleted.inc_by(deleted);
                tracing::info!(deleted, "let go of stale flows");
            }
            Err(error) => tracing::warn!(error = %chain(&error), "cannot let go of flows"),
        }
    }
}

/// Lets go of the flows that pass one of the filters, or that `allowed` calls stale; returns how many.
pub fn sweep(
    session: &mut Session<Socket>,
    stale: &BTreeSet<StaleFlows>,
    allowed: Option<&Allowed>,
) -> Result<u64, QueryError> {
    let mut found: Vec<Flow> = Vec::new();
    if stale.len() <= WALKS_MAX {
        for StaleFlows { family, filter } in stale {
            session.flows(*family, filter, |flow| found.push(flow))?;
        }
    } else {
        for family in [AddressFamily::V4, AddressFamily::V6] {
            let ours: Vec<_> = stale.iter().filter(|s| s.family == family).collect();
            if !ours.is_empty() {
                session.flows(family, &FlowFilter::default(), |flow| {
                    if ours.iter().any(|stale| stale.filter.matches(&flow)) {
                        found.push(flow);
                    }
                })?;
            }
        }
    }
    if let Some(allowed) = allowed.filter(|allowed| !allowed.is_empty()) {
        let rewritten =
            FlowFilter { status: Some((STATUS_DNAT, STATUS_DNAT)), ..FlowFilter::default() };
        for family in [AddressFamily::V4, AddressFamily::V6] {
            session.flows(family, &rewritten, |flow| {
                if allowed.is_stale(&flow) {
                    found.push(flow);
                }
            })?;
        }
    }
    let mut deleted = 0;
    for flow in &found {
        deleted += u64::from(session.delete_flow(flow)?);
    }
    Ok(deleted)
}
