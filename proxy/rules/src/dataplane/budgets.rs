//! What the Services of each namespace cost together, and which of them wait until others cost less.

use std::collections::BTreeSet;

use crate::budget::{NAMESPACE_WORK_MAX, WORK_MAX};
use crate::hash::FastMap;
use crate::model::ServiceId;

/// The work of all Services.
#[derive(Clone, Debug)]
pub(super) struct Budgets {
    /// What the Services of a namespace may cost.
    pub(super) namespace_max: usize,
    by_namespace: FastMap<Box<str>, NamespaceWork>,
    /// Services of which something is left out.
    pub(super) exceeded: BTreeSet<ServiceId>,
}

#[derive(Clone, Debug, Default)]
struct NamespaceWork {
    used: usize,
    /// Services that got less than they may have alone.
    waiting: BTreeSet<ServiceId>,
    /// Whether a Service has cost less since one of them was compiled.
    was_freed: bool,
}

impl Default for Budgets {
    fn default() -> Self {
        Self {
            namespace_max: NAMESPACE_WORK_MAX,
            by_namespace: FastMap::default(),
            exceeded: BTreeSet::new(),
        }
    }
}

impl Budgets {
    /// What a Service may cost that costs `used` now.
    pub(super) fn allowance(&self, id: &ServiceId, used: usize) -> usize {
        let of_all = self.by_namespace.get(id.namespace()).map_or(0, |work| work.used);
        self.namespace_max.saturating_sub(of_all.saturating_sub(used)).min(WORK_MAX)
    }

    /// A Service that cost `before` costs `now`, and needs more than the namespace has left if it `waits`.
    pub(super) fn record(&mut self, id: &ServiceId, before: usize, now: usize, waits: bool) {
        if !self.by_namespace.contains_key(id.namespace()) {
            if now == 0 && !waits {
                return;
            }
            self.by_namespace.insert(id.namespace().into(), NamespaceWork::default());
        }
        let Some(work) = self.by_namespace.get_mut(id.namespace()) else { return };
        work.used = work.used.saturating_add(now).saturating_sub(before);
        work.was_freed |= now < before;
        if waits {
            work.waiting.insert(id.clone());
        } else if work.waiting.remove(id) {
            // There may be room for the next one.
            work.was_freed = true;
        }
        if work.used == 0 && work.waiting.is_empty() {
            self.by_namespace.remove(id.namespace());
        }
    }

    /// The first Service that waits, if others of its namespace cost less than when it was compiled.
    pub(super) fn next_waiting(&mut self, namespace: &str) -> Option<ServiceId> {
        let work = self.by_namespace.get_mut(namespace)?;
        let freed = std::mem::take(&mut work.was_freed);
        work.waiting.first().filter(|_| freed).cloned()
    }
}
