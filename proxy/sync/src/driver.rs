//! Syncs the kernel's nf_tables with [`DesiredForwarding`].
//!
//! A change is committed as soon as it is received; changes that arrive during a commit are compiled and committed
//! together.
//!
//! ```text
//!            synced             changed                    refused, lost, full
//! (waiting) ---------> (loaded) -------> commit a change --------------------------.
//!     the ruleset stays    ^ \_________________/                                   |
//!     as it was found      |      periodically: read back, repair                  |
//!                          '------------------ load again <------------------------'
//! ```

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use proto_daemon::backoff::Backoff;
use proto_daemon::drain::DrainWatch;
use proto_daemon::exit::chain;
use proto_daemon::ready::ReadyGuard;
use proto_daemon::statusz::TaskStatus;
use proxy_kernel::{CommitError, NftMonitor, QueryError, Session, Transport};
use proxy_netfilter::nft::command::{Command, IfExists};
use proxy_netfilter::nft::numbers::TableFlags;
use proxy_netfilter::nft::{Batch, Family, Table};
use proxy_rules::layout::{Layout, Map};
use proxy_rules::model::ServiceId;
use proxy_rules::stale::{AllowedEndpoints, stale_flows};
use proxy_rules::table_swap::{self as swap, TableState};
use proxy_rules::transaction::{ElementsByMap, Load, Run, clear_table};
use proxy_rules::{Pass, Transaction};

use crate::conntrack_cleanup::{CleanupQueue, CleanupRequest};
use crate::desired::{DesiredForwarding, PendingChanges};
use crate::metrics::ProxyMetrics;
use crate::table_swap::{self, NamedTables};

mod ruleset_monitor;
mod sync_health;
mod sys;
mod thread;
mod verify_ruleset;
use ruleset_monitor::RulesetMonitor;
pub use sync_health::SyncHealth;
pub use thread::ThreadError;
use verify_ruleset::ReadBack;

/// Delay before a failed pass is retried.
const RETRY: Backoff =
    Backoff { first: Duration::from_millis(20), longest: Duration::from_secs(30) };
/// Attempts to commit while other programs commit at the same time.
const CONFLICTS_MAX: u32 = 16;
/// A packet has left a table after this time: it traverses the chains in microseconds, without interruption.
const DETACH_DELAY: Duration = Duration::from_millis(10);
/// Elements in one transaction when the kernel does not accept all in one.
const CHUNK_LEN: usize = 1000;

/// A pass failed.
#[derive(Debug, thiserror::Error)]
pub enum SyncError {
    /// The tables were not loaded.
    #[error("cannot load the nftables tables")]
    Load(#[source] CommitError),
    /// A change was not committed; the next pass loads the tables.
    #[error("cannot change the nftables tables")]
    Change(#[source] CommitError),
    /// The tables were not read.
    #[error("cannot read the nftables tables back")]
    ReadBack(#[source] QueryError),
}

/// Whether other programs can change the proxy's tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ownership {
    /// The kernel lets only the proxy's socket change them (`NFT_TABLE_F_OWNER`).
    Ours,
    /// Every program can. The generation of the ruleset shows when one has committed.
    Shared {
        /// The latest generation at which the tables contain only what the proxy committed or read.
        generation: Option<u32>,
    },
}

/// Keeps the kernel's tables in sync.
pub struct Driver<T> {
    desired: Arc<DesiredForwarding>,
    session: Session<T>,
    ownership: Ownership,
    cleanup_queue: CleanupQueue,
    metrics: ProxyMetrics,
    status: TaskStatus,
    ready: Option<ReadyGuard>,
    sync_health: SyncHealth,
    pace: SyncIntervals,
    /// Name of the tables; loads alternate between this one and its `-b` variant.
    name: String,
    /// Changes that are not committed.
    pending: PendingChanges,
    /// Notifications of changes by other programs.
    nft_monitor: Option<NftMonitor>,
    /// Services over their budget, as logged last.
    over_budget: BTreeSet<ServiceId>,
}

/// Intervals of the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SyncIntervals {
    /// All elements are read back after this time even if the generation did not change.
    pub read_back: Duration,
    /// Minimum time between two passes; zero for none.
    pub between: Duration,
}

impl<T: Transport> Driver<T> {
    /// Nothing is committed before [`Driver::run`].
    pub fn new(
        desired: Arc<DesiredForwarding>,
        session: Session<T>,
        cleanup_queue: CleanupQueue,
        metrics: ProxyMetrics,
        status: TaskStatus,
        ready: ReadyGuard,
        pace: SyncIntervals,
    ) -> Self {
        let layout = desired.plane().layout().clone();
        let ownership = match layout.flags {
            TableFlags::NONE => Ownership::Shared { generation: None },
            _ => Ownership::Ours,
        };
        desired.set_metrics(metrics.clone());
        Self {
            desired,
            session,
            ownership,
            cleanup_queue,
            metrics,
            status,
            ready: Some(ready),
            sync_health: SyncHealth::default(),
            pace,
            name: layout.table.clone(),
            pending: PendingChanges::default(),
            nft_monitor: None,
            over_budget: BTreeSet::new(),
        }
    }

    /// Detects other programs' changes by notifications, if they can make any. Without them the generation is compared
    /// twice a second.
    pub fn use_nft_monitor(&mut self, nft_monitor: NftMonitor) {
        if self.ownership != Ownership::Ours {
            self.nft_monitor = Some(nft_monitor);
        }
    }

    /// Whether passes succeed.
    pub fn sync_health(&self) -> SyncHealth {
        self.sync_health.clone()
    }

    /// The netlink session, for tests.
    pub fn session(&mut self) -> &mut Session<T> {
        &mut self.session
    }

    /// Syncs until drained. Before Services and EndpointSlices are synced the ruleset stays as an earlier process left
    /// it.
    pub async fn run(mut self, drain: DrainWatch) {
        let desired = self.desired.clone();
        // Both arms are cancel safe.
        tokio::select! {
            () = drain.asked() => return,
            () = desired.synced() => {}
        }
        let mut failures = 0;
        let mut read_back = ReadBack::new(self.pace.read_back);
        self.begin("services and endpoints are synced");
        let mut result = self.pass();
        let mut ruleset_monitor = RulesetMonitor::new(self.nft_monitor.take());
        loop {
            let earliest = Instant::now() + self.pace.between;
            failures = self.publish(result, failures);
            let pause = match (failures, self.ownership) {
                (0, Ownership::Ours) => read_back.pause(),
                (0, Ownership::Shared { .. }) => {
                    read_back.pause().min(ruleset_monitor.poll_interval())
                }
                _ => RETRY.delay(failures, 1.0),
            };
            // All arms are cancel safe. After a failure, changes wait for the retry.
            tokio::select! {
                () = drain.asked() => return,
                () = desired.changed(), if failures == 0 => {
                    ruleset_monitor.unsubscribe();
                    let rest = earliest.saturating_duration_since(Instant::now());
                    if !rest.is_zero() && tokio::time::timeout(rest, drain.asked()).await.is_ok() {
                        return;
                    }
                    self.begin("services or endpoints changed");
                    result = self.pass();
                }
                () = ruleset_monitor.wait_for_change(pause, || self.was_changed()) => {
                    ruleset_monitor.unsubscribe();
                    self.begin(if failures > 0 { "trying again" } else { "periodic" });
                    result = self.pass().and_then(|()| self.verify_ruleset(&mut read_back));
                    ruleset_monitor.mark_verified();
                }
            }
        }
    }

    fn begin(&self, reason: &'static str) {
        self.sync_health.begin_pass();
        self.status.started(reason);
    }

    /// Compiles and commits the Services that are marked.
    pub fn pass(&mut self) -> Result<(), SyncError> {
        self.pending.add(self.desired.take_pending_changes());
        self.commit_marked()?;
        self.record_committed();
        Ok(())
    }

    /// Updates the metrics of changes.
    fn record_committed(&mut self) {
        let pending = std::mem::take(&mut self.pending);
        let counts = [pending.services, pending.slices];
        for ((total, gauge), count) in
            self.metrics.changes.iter().zip(&self.metrics.pending).zip(counts)
        {
            total.inc_by(count);
            gauge.sub(i64::try_from(count).unwrap_or(i64::MAX));
        }
        let now = SystemTime::now();
        // A trigger in the future comes from a clock that is ahead; it is not measured.
        for took in pending.triggers.iter().filter_map(|at| now.duration_since(*at).ok()) {
            self.metrics.programming_seconds.observe(took.as_secs_f64());
        }
    }

    fn commit_marked(&mut self) -> Result<(), SyncError> {
        let started = Instant::now();
        let desired = self.desired.clone();
        let (pass, layout) = {
            let mut plane = desired.updated_plane();
            (plane.pass(), plane.layout().clone())
        };
        match pass {
            Pass::Change(transaction) if transaction.is_empty() => return Ok(()),
            Pass::Change(transaction) => {
                self.change(&layout, &transaction)?;
                self.metrics.partial_sync_seconds.observe(started.elapsed().as_secs_f64());
            }
            Pass::Reload => {
                self.load()?;
                self.metrics.full_sync_seconds.observe(started.elapsed().as_secs_f64());
            }
        }
        self.metrics.sync_seconds.observe(started.elapsed().as_secs_f64());
        Ok(())
    }

    fn change(&mut self, layout: &Layout, transaction: &Transaction) -> Result<(), SyncError> {
        let committed = self.commit(|batch| transaction.encode(layout, batch));
        if let Err(error) = committed {
            // The kernel's state differs from the model, or is unknown.
            self.desired.plane().invalidate();
            return Err(SyncError::Change(error));
        }
        let changed = transaction.added.len().saturating_add(transaction.removed.len());
        self.metrics.elements_changed.inc_by(changed as u64);
        let stale = stale_flows(transaction);
        if !stale.is_empty() {
            self.cleanup_queue.send(CleanupRequest::Stale(stale));
        }
        Ok(())
    }

    /// Loads tables of the other name, then deletes those that served until now.
    fn load(&mut self) -> Result<(), SyncError> {
        let loaded = self.load_alongside();
        if loaded.is_err() {
            self.desired.plane().invalidate();
        }
        loaded
    }

    fn load_alongside(&mut self) -> Result<(), SyncError> {
        let families = self.desired.plane().layout().families.clone();
        let mut found = table_swap::find_tables(&mut self.session, &self.name, &families)
            .map_err(SyncError::ReadBack)?;
        let next = swap::next_table(found.each_ref().map(NamedTables::state));
        if next == 1 {
            found.swap(0, 1);
        }
        let [new, old] = found;
        self.detach_unused(&new, &old).map_err(SyncError::Load)?;
        let (mut load, layout) = {
            let mut plane = self.desired.plane();
            plane.rename(&new.table);
            (plane.load(), plane.layout().clone())
        };
        self.copy_affinity(&mut load, &old);
        self.commit_load(&load, &layout).map_err(SyncError::Load)?;
        self.detach_tables(&old).map_err(SyncError::Load)?;
        self.commit(|batch| {
            old.shapes.iter().for_each(|(family, _)| clear_table(&old.table, *family, batch));
        })
        .inspect_err(|_| self.metrics.cleanup_failures.inc())
        .map_err(SyncError::Load)?;
        tracing::info!(
            elements = load.entries.len(),
            table = layout.table,
            "loaded the nftables tables"
        );
        self.cleanup_queue
            .send(CleanupRequest::Except(AllowedEndpoints::from_elements(load.entries.iter())));
        drop(load);
        proto_daemon::heap::trim();
        Ok(())
    }

    /// Copies the session affinity that packets wrote into the old tables, so that clients keep their endpoints.
    fn copy_affinity(&mut self, load: &mut Load, old: &NamedTables) {
        let families = load.remembering();
        let there = |family: &Family| old.shapes.iter().any(|(f, _)| f == family);
        for family in families.into_iter().filter(there) {
            match self.session.elements(family, &old.table, Map::Affinity.name()) {
                Ok(clients) => load.remember(family, clients),
                Err(error) => {
                    let error = chain(&error);
                    tracing::warn!(
                        error,
                        "cannot read session affinity from the old table; clients may reach other endpoints than before"
                    );
                }
            }
        }
    }

    /// Ensures that no packet traverses the tables that are to be replaced. Fails if another process owns the serving
    /// ones.
    fn detach_unused(&mut self, new: &NamedTables, old: &NamedTables) -> Result<(), CommitError> {
        if self.ownership != Ownership::Ours {
            return self.detach_tables(new);
        }
        // An empty change; the kernel refuses it if another process owns the table.
        self.commit(|batch| {
            for (family, _) in &old.shapes {
                batch.push(*family, &Command::NewTable(Table::named(&old.table), IfExists::Keep));
            }
        })?;
        self.detach_tables(new)
    }

    /// Deletes the base chains' rules and waits until packets in flight have left the tables.
    fn detach_tables(&mut self, tables: &NamedTables) -> Result<(), CommitError> {
        if tables.state() != TableState::Serving {
            return Ok(());
        }
        self.commit(|batch| {
            for (family, shape) in &tables.shapes {
                swap::delete_entry_rules(*family, &tables.table, shape, batch);
            }
        })?;
        std::thread::sleep(DETACH_DELAY);
        Ok(())
    }

    fn commit_load(&mut self, load: &Load, layout: &Layout) -> Result<(), CommitError> {
        match self.commit(|batch| load.encode(layout, batch)) {
            Err(CommitError::Send { .. }) if load.entries.len() > CHUNK_LEN => {}
            other => return other,
        }
        tracing::warn!(
            "the kernel rejects a netlink message of this size; loading the tables in chunks"
        );
        // Packets enter only after the last chunk.
        let (tables, entrances): (Vec<_>, Vec<_>) = load
            .tables
            .iter()
            .map(|(family, table)| {
                let (closed, rules) = swap::split_entry_rules(table);
                ((*family, closed), (*family, rules))
            })
            .unzip();
        let empty = Load { tables, entries: ElementsByMap::default() };
        self.commit(|batch| empty.encode(layout, batch))?;
        for run in load.entries.runs() {
            for entries in run.entries.chunks(CHUNK_LEN) {
                self.commit(|batch| Run { entries, ..run }.encode(layout, batch))?;
            }
        }
        self.commit(|batch| {
            for (family, rules) in &entrances {
                rules.iter().for_each(|rule| batch.push(*family, &Command::NewRule(rule.clone())));
            }
        })
    }

    /// Commits what `encode` appends; if other programs can commit too, on the condition that the generation is the
    /// expected one.
    fn commit(&mut self, encode: impl Fn(&mut Batch)) -> Result<(), CommitError> {
        let mut based_on = match &mut self.ownership {
            Ownership::Ours => None,
            Ownership::Shared { generation } => {
                *generation = generation.or_else(|| self.session.generation().ok());
                *generation
            }
        };
        let mut conflicts: u32 = 0;
        loop {
            let mut batch = self.session.batch(based_on);
            encode(&mut batch);
            if batch.is_empty() {
                return Ok(());
            }
            match (self.session.commit(batch), &mut self.ownership) {
                (Ok(()), Ownership::Ours) => return Ok(()),
                (Ok(()), Ownership::Shared { generation }) => {
                    // After a conflict the recorded generation is too old, so the next check reads the tables back.
                    *generation = generation.map(|generation| generation.wrapping_add(1));
                    return Ok(());
                }
                (Err(CommitError::Conflict), _) if conflicts < CONFLICTS_MAX => {
                    conflicts = conflicts.saturating_add(1);
                    let now = self.session.generation().map_err(|_| CommitError::Conflict)?;
                    based_on = Some(now);
                }
                (Err(error), _) => return Err(error),
            }
        }
    }

    /// Logs which Services are over their budget, when that changes.
    fn log_over_budget(&mut self) {
        let over_budget = self.desired.plane().over_budget().clone();
        if let Some(first) = over_budget.difference(&self.over_budget).next() {
            tracing::warn!(
                service = %first,
                services = over_budget.len(),
                "services exceed their budget of set elements, or that of their namespace; their remaining ports and addresses are not forwarded"
            );
        }
        self.over_budget = over_budget;
    }

    /// Publishes the result of a pass; returns the number of failures in a row.
    fn publish(&mut self, result: Result<(), SyncError>, failures: u32) -> u32 {
        self.sync_health.record_pass(result.is_ok());
        self.desired.publish();
        self.log_over_budget();
        match result {
            Ok(()) => {
                self.desired.publish_announced();
                let services = self.desired.plane().services_len();
                self.metrics.services.set(i64::try_from(services).unwrap_or(i64::MAX));
                let bare = self.desired.plane().without_local_endpoints();
                for (policy, count) in ["internal", "external"].into_iter().zip(bare) {
                    let gauge = self.metrics.without_local_endpoints.with_label_values(&[policy]);
                    gauge.set(i64::try_from(count).unwrap_or(i64::MAX));
                }
                let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
                self.metrics.last_sync.set(now.as_secs_f64());
                self.status.done(format!("{services} services"));
                self.ready = None;
                0
            }
            Err(error) => {
                self.metrics.failures.inc();
                tracing::warn!(
                    error = %chain(&error),
                    "cannot sync the nftables ruleset; the previous one stays, retried after a back-off"
                );
                self.status.failed(chain(&error));
                failures.saturating_add(1)
            }
        }
    }
}

#[cfg(test)]
mod tests;
