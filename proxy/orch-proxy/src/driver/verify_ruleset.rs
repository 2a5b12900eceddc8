//! Looking at what is in the kernel, and putting right what others have changed there.
//!
//! The ruleset's generation says that somebody has committed. It is asked for before anything is read, so that a change
//! which comes between two reads shows at the next look.

use std::time::{Duration, Instant};

use proxy_kernel::Transport;
use proxy_rules::diff::{Difference, diff, differs_in_shape};

use super::{Driver, Ownership, SyncError};

/// Reading all elements back takes at most one part in so many of the time, whatever others commit. What they
/// most likely do, delete or flush tables, chains and rules, shows without reading elements.
const READ_BACK_SHARE: u32 = 20;

/// When to read all elements back.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReadBack {
    every: Duration,
    /// Not before.
    earliest: Instant,
    /// Though nothing seems to have happened.
    latest: Instant,
}

impl ReadBack {
    /// Nothing was read back yet; from now on it is, so often.
    pub(super) fn new(every: Duration) -> Self {
        let now = Instant::now();
        Self { every, earliest: now, latest: now + every }
    }

    fn is_due(&self, changed: bool) -> bool {
        let now = Instant::now();
        now >= self.latest || (changed && now >= self.earliest)
    }

    /// One was done, and took so long.
    fn done(&mut self, took: Duration) {
        let now = Instant::now();
        let rest = took * READ_BACK_SHARE;
        self.earliest = now + rest;
        self.latest = now + self.every.max(rest);
    }

    /// How long until the next one, if nothing happens.
    pub(super) fn pause(&self) -> Duration {
        self.latest.saturating_duration_since(Instant::now())
    }
}

impl<T: Transport> Driver<T> {
    /// Looks whether the tables are still as they should be, as closely as it is time for.
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

    /// Reads the tables back and puts right what differs.
    pub fn repair(&mut self) -> Result<(), SyncError> {
        let before = self.ownership;
        if let Ownership::Anybodys { generation } = &mut self.ownership {
            // Asked before reading: what others commit meanwhile may not have been read, and shows at the next look.
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

    /// Loads the tables again if anything but elements is not as it should be.
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

    /// Whether somebody has committed since we did.
    pub(super) fn was_changed(&mut self) -> bool {
        match self.ownership {
            Ownership::Ours => false,
            Ownership::Anybodys { generation } => {
                self.session.generation().is_ok_and(|now| Some(now) != generation)
            }
        }
    }
}
