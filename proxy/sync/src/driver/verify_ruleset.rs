//! Compares the kernel's tables with the desired ones and repairs what other programs changed.
//!
//! The generation of the ruleset changes with every commit of any program. It is read before the tables, so that a
//! commit between two reads is found by the next check.

use std::time::{Duration, Instant};

use proxy_kernel::Transport;
use proxy_rules::diff::{Difference, diff, differs_in_shape};

use super::{Driver, Ownership, SyncError};

/// Reading back all elements takes at most one part in this many of the time. Deleted or flushed tables, chains and
/// rules are found without reading elements.
const READ_BACK_SHARE: u32 = 20;
/// Bound of the time between two read-backs.
const REST_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// When to read back all elements.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReadBack {
    every: Duration,
    /// If the generation changed, not before this.
    earliest: Instant,
    /// If it did not change, at this.
    latest: Instant,
}

impl ReadBack {
    /// Due now, then every `every`.
    pub(super) fn new(every: Duration) -> Self {
        let now = Instant::now();
        Self { every, earliest: now, latest: now + every }
    }

    fn is_due(&self, changed: bool) -> bool {
        let now = Instant::now();
        now >= self.latest || (changed && now >= self.earliest)
    }

    /// Records a read-back and its duration.
    fn done(&mut self, took: Duration) {
        let now = Instant::now();
        let rest = took.saturating_mul(READ_BACK_SHARE).min(REST_MAX);
        self.earliest = now + rest;
        self.latest = now + self.every.max(rest);
    }

    /// Time until the next one, if nothing changes.
    pub(super) fn pause(&self) -> Duration {
        self.latest.saturating_duration_since(Instant::now())
    }
}

impl<T: Transport> Driver<T> {
    /// Checks the tables as thoroughly as is due.
    pub(super) fn verify_ruleset(&mut self, read_back: &mut ReadBack) -> Result<(), SyncError> {
        let changed = self.was_changed();
        if read_back.is_due(changed) {
            let started = Instant::now();
            self.repair()?;
            read_back.done(started.elapsed());
        } else if changed {
            self.repair_shape()?;
        }
        Ok(())
    }

    /// Reads the tables back and repairs the differences.
    pub fn repair(&mut self) -> Result<(), SyncError> {
        let before = self.ownership;
        if let Ownership::Shared { generation } = &mut self.ownership {
            // Read before the tables: a later commit may not be in what is read, and shows at the next check.
            *generation = Some(self.session.generation().map_err(SyncError::ReadBack)?);
        }
        self.repair_as_read().inspect_err(|_| self.ownership = before)
    }

    fn repair_as_read(&mut self) -> Result<(), SyncError> {
        let (tables, layout) = {
            let plane = self.desired.plane();
            (plane.tables(), plane.layout().clone())
        };
        for (family, should) in tables {
            let is = self.session.read_table(family, &layout.table).map_err(SyncError::ReadBack)?;
            match diff(family, is.as_ref(), &should) {
                Difference::Elements(transaction) if transaction.is_empty() => {}
                Difference::Elements(transaction) => {
                    self.metrics.repairs.inc();
                    tracing::warn!(
                        family = family.name(),
                        missing = transaction.added.len(),
                        extra = transaction.removed.len(),
                        "another program changed elements of the proxy's sets; repairing"
                    );
                    self.change(&layout, &transaction)?;
                }
                Difference::Shape(why) => {
                    self.metrics.repairs.inc();
                    tracing::warn!(
                        family = family.name(),
                        why,
                        "another program changed the proxy's tables; loading them again"
                    );
                    return self.load();
                }
            }
        }
        Ok(())
    }

    /// Loads the tables if chains, rules or sets differ, without reading elements.
    pub fn repair_shape(&mut self) -> Result<(), SyncError> {
        let (tables, layout) = {
            let plane = self.desired.plane();
            (plane.skeletons(), plane.layout().clone())
        };
        for (family, should) in tables {
            let is = self.session.read_shape(family, &layout.table).map_err(SyncError::ReadBack)?;
            if let Some(why) = differs_in_shape(is.as_ref(), &should) {
                self.metrics.repairs.inc();
                tracing::warn!(
                    family = family.name(),
                    why,
                    "another program changed the proxy's tables; loading them again"
                );
                return self.load();
            }
        }
        Ok(())
    }

    /// Whether another program has committed since the proxy did.
    pub(super) fn was_changed(&mut self) -> bool {
        match self.ownership {
            Ownership::Ours => false,
            Ownership::Shared { generation } => {
                self.session.generation().is_ok_and(|now| Some(now) != generation)
            }
        }
    }
}
