//! Installs the stale flow log and deletes the flows that it reports.

use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use proto_daemon::exit::chain;
use proxy_kernel::{CommitError, PacketLog, Session, Socket};
use proxy_netfilter::nft::Batch;
use proxy_netfilter::nft::numbers::TableFlags;
use proxy_rules::stale_flow_log::{STALE_FLOWS_MAX, StaleFlowKey, StaleFlowLog};

use super::{open, thread};
use crate::metrics::ProxyMetrics;

/// Interval at which the listener checks whether it should end.
const LISTEN: Duration = Duration::from_secs(60);

/// Keeps the set of the stale flow log up to date, and deletes the table when it is empty.
pub(super) struct StaleFlowLogKeeper {
    /// `None` if the kernel does not support it.
    stale_flow_log: Option<StaleFlowLog>,
    metrics: ProxyMetrics,
    session: Option<Session<Socket>>,
    listening: Option<Listening>,
    /// Keys in the set, with the number of walks that are still to come for each.
    keys: BTreeMap<StaleFlowKey, u32>,
}

/// Ends the listener when dropped.
struct Listening(Arc<AtomicBool>);

impl Drop for Listening {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

impl StaleFlowLogKeeper {
    pub(super) fn new(stale_flow_log: Option<StaleFlowLog>, metrics: ProxyMetrics) -> Self {
        let keys = BTreeMap::new();
        let mut keeper = Self { stale_flow_log, metrics, session: None, listening: None, keys };
        // A predecessor's table is deleted with its socket if it had an owner; otherwise it may still exist.
        if keeper
            .stale_flow_log
            .as_ref()
            .is_some_and(|stale_flow_log| stale_flow_log.flags == TableFlags::NONE)
        {
            keeper.commit(StaleFlowLog::delete_table);
        }
        keeper
    }

    /// Adds keys. A key that is present stays until the walks of both requests are done.
    pub(super) fn catch(&mut self, wanted: &BTreeSet<StaleFlowKey>) {
        if self.stale_flow_log.is_none() {
            return;
        }
        let room = STALE_FLOWS_MAX.saturating_sub(self.keys.len());
        let is_new = |key: &&StaleFlowKey| !self.keys.contains_key(*key);
        let new: BTreeSet<StaleFlowKey> =
            wanted.iter().filter(is_new).take(room).cloned().collect();
        if new.is_empty() || !self.listen() {
            return;
        }
        let is_set = !self.keys.is_empty();
        let done = self.commit(|stale_flow_log, batch| {
            if !is_set {
                stale_flow_log.create_table(batch);
            }
            stale_flow_log.add_keys(&new, batch);
        });
        if done {
            self.keys.extend(new.into_iter().map(|key| (key, 0)));
        }
    }

    /// Records that a walk for these keys begins.
    pub(super) fn count_walk(&mut self, keys: &BTreeSet<StaleFlowKey>) {
        for key in keys {
            self.keys.entry(key.clone()).and_modify(|walks| *walks = walks.saturating_add(1));
        }
    }

    /// Removes keys whose walks are done.
    pub(super) fn release(&mut self, keys: &BTreeSet<StaleFlowKey>) {
        let mut over = BTreeSet::new();
        for key in keys {
            let Some(walks) = self.keys.get_mut(key) else { continue };
            *walks = walks.saturating_sub(1);
            if *walks == 0 {
                over.insert(key.clone());
            }
        }
        self.keys.retain(|key, _| !over.contains(key));
        if over.is_empty() {
            return;
        }
        let is_empty = self.keys.is_empty();
        self.commit(|stale_flow_log, batch| {
            if is_empty {
                stale_flow_log.delete_table(batch)
            } else {
                stale_flow_log.remove_keys(&over, batch)
            }
        });
    }

    /// Commits what `write` appends. After a failure there is no table until the next keys arrive.
    fn commit(&mut self, write: impl FnOnce(&StaleFlowLog, &mut Batch)) -> bool {
        if self.session.is_none() {
            self.session = open();
        }
        let (Some(stale_flow_log), Some(session)) = (&self.stale_flow_log, &mut self.session)
        else {
            return false;
        };
        let mut batch = session.batch(None);
        write(stale_flow_log, &mut batch);
        let Err(error) = session.commit(batch) else { return true };
        tracing::warn!(
            error = %chain(&error),
            "cannot update the stale flow table; stale flows end only when a conntrack walk finds them"
        );
        self.keys.clear();
        let mut batch = session.batch(None);
        stale_flow_log.delete_table(&mut batch);
        // Best effort: a table that stays has no listener, and is replaced by the next one.
        let _ = session.commit(batch);
        if matches!(error, CommitError::Refused { .. }) {
            self.stale_flow_log = None;
        }
        false
    }

    /// Starts the listener. Without NFLOG returns false and disables the stale flow log.
    fn listen(&mut self) -> bool {
        if self.listening.is_some() {
            return true;
        }
        let Some(stale_flow_log) = &self.stale_flow_log else { return false };
        let (log, session) = match (PacketLog::open(stale_flow_log.group), open()) {
            (Ok(log), Some(session)) => (log, session),
            (Err(error), _) => {
                tracing::info!(
                    error = %chain(&error),
                    "the packet log is not available; stale flows end only when a conntrack walk finds them"
                );
                self.stale_flow_log = None;
                return false;
            }
            (_, None) => return false,
        };
        let wanted = Arc::new(AtomicBool::new(true));
        let (metrics, still) = (self.metrics.clone(), wanted.clone());
        let listener = move || listen(log, session, &metrics, &still);
        if thread("stale-flow-log", listener).is_err() {
            return false;
        }
        self.listening = Some(Listening(wanted));
        true
    }
}

/// Deletes the flow of each logged packet.
fn listen(
    mut log: PacketLog,
    mut session: Session<Socket>,
    metrics: &ProxyMetrics,
    wanted: &AtomicBool,
) {
    while wanted.load(Ordering::Relaxed) {
        let waited = log.wait(LISTEN, |tuple| {
            // Several packets of a flow may be queued: after the first its entry does not exist.
            match session.delete_tuple(&tuple) {
                Ok(deleted) => metrics.flows_deleted.inc_by(u64::from(deleted)),
                Err(error) => {
                    tracing::warn!(error = %chain(&error), "cannot delete a stale conntrack entry; it ends by its timeout")
                }
            }
        });
        if let Err(error) = waited {
            tracing::warn!(
                %error,
                "cannot read the packet log; stale flows end only when a conntrack walk finds them"
            );
            return;
        }
    }
}
