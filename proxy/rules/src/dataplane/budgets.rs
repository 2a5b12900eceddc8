//! What the Services of each namespace cost together, and which of them wait until others cost less.

use std::collections::BTreeSet;
use std::ops::Bound::{Excluded, Unbounded};

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
    /// Which of them has its turn. They are compiled one after the other once there is room, so that one that is too large keeps no other waiting.
    at_turn: Option<ServiceId>,
    /// Whether a Service has cost less since the first of them had its turn.
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
        // A turn frees nothing: what a Service may cost has grown since it waits.
        work.was_freed |= now < before && work.at_turn.as_ref() != Some(id);
        if waits {
            work.waiting.insert(id.clone());
        } else {
            work.waiting.remove(id);
        }
        if work.used == 0 && work.waiting.is_empty() {
            self.by_namespace.remove(id.namespace());
        }
    }

    /// The Service that has its turn after `compiled`; none while another has it, and none at the end until a Service costs less.
    pub(super) fn next_waiting(&mut self, compiled: &ServiceId) -> Option<ServiceId> {
        let work = self.by_namespace.get_mut(compiled.namespace())?;
        let last = work.at_turn.take_if(|at| at == compiled || !work.waiting.contains(at));
        if work.at_turn.is_none() {
            let after =
                last.and_then(|last| work.waiting.range((Excluded(last), Unbounded)).next());
            work.at_turn = after.cloned().or_else(|| {
                let freed = std::mem::take(&mut work.was_freed);
                work.waiting.first().filter(|_| freed).cloned()
            });
            return work.at_turn.clone();
        }
        None
    }
}
