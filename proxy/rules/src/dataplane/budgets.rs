//! What the Services of each namespace cost together, and which of them wait until others cost less.

use std::collections::{BTreeMap, BTreeSet};
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
    waiting: BTreeMap<ServiceId, Refused>,
    /// Which of them has its turn. They are compiled one after the other once there is room, so that one that is too large keeps no other waiting.
    at_turn: Option<ServiceId>,
    /// Whether a Service has cost less since the first of them had its turn.
    was_freed: bool,
}

/// What a Service that waits costs, and the allowance that was too little for it.
#[derive(Clone, Copy, Debug)]
struct Refused {
    used: usize,
    allowance: usize,
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

    /// A Service that cost as much as the first number costs the second; it needs more than the namespace has left if an allowance was `too_little` for it.
    /// `has_changed`: its description or endpoints are others than before, and not only its allowance.
    pub(super) fn record(
        &mut self,
        id: &ServiceId,
        (before, now): (usize, usize),
        too_little: Option<usize>,
        has_changed: bool,
    ) {
        if !self.by_namespace.contains_key(id.namespace()) {
            if now == 0 && too_little.is_none() {
                return;
            }
            self.by_namespace.insert(id.namespace().into(), NamespaceWork::default());
        }
        let Some(work) = self.by_namespace.get_mut(id.namespace()) else { return };
        work.used = work.used.saturating_add(now).saturating_sub(before);
        // A Service that still waits after its turn starts no other turns by costing less, unless it is another one now: so they come to an end.
        let waits_on = too_little.is_some() && work.at_turn.as_ref() == Some(id) && !has_changed;
        work.was_freed |= now < before && !waits_on;
        match too_little {
            Some(allowance) => {
                work.waiting.insert(id.clone(), Refused { used: now, allowance });
            }
            None => {
                work.waiting.remove(id);
            }
        }
        if work.used == 0 && work.waiting.is_empty() {
            self.by_namespace.remove(id.namespace());
        }
    }

    /// The Service that has its turn after `compiled`; none while another has it, and none at the end until a Service costs less. Those that may cost no
    /// more than what was too little for them are passed over.
    pub(super) fn next_waiting(&mut self, compiled: &ServiceId) -> Option<ServiceId> {
        let namespace_max = self.namespace_max;
        let work = self.by_namespace.get_mut(compiled.namespace())?;
        let last = work.at_turn.take_if(|at| at == compiled || !work.waiting.contains_key(at));
        if work.at_turn.is_some() {
            return None;
        }
        let left = namespace_max.saturating_sub(work.used);
        let has_room = |(_, refused): &(&ServiceId, &Refused)| {
            left.saturating_add(refused.used).min(WORK_MAX) > refused.allowance
        };
        let after =
            last.and_then(|last| work.waiting.range((Excluded(last), Unbounded)).find(has_room));
        let next = after.or_else(|| {
            let freed = std::mem::take(&mut work.was_freed);
            work.waiting.iter().filter(|_| freed).find(has_room)
        });
        work.at_turn = next.map(|(id, _)| id.clone());
        work.at_turn.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A namespace of 4,000: `a` costs 2,200, `b` was refused with 1,800 left, and a part of `c` has taken these.
    fn waiting() -> (Budgets, [ServiceId; 3]) {
        let ids = ["a", "b", "c"].map(|name| ServiceId::new("ns", name));
        let mut budgets = Budgets { namespace_max: 4000, ..Budgets::default() };
        budgets.record(&ids[0], (0, 2200), None, true);
        budgets.record(&ids[1], (0, 0), Some(1800), true);
        budgets.record(&ids[2], (0, 1800), Some(1800), true);
        (budgets, ids)
    }

    #[test]
    fn a_service_that_goes_at_its_turn_makes_room_for_those_before_it() {
        let (mut budgets, [a, b, c]) = waiting();
        assert_eq!(budgets.next_waiting(&c), None, "nothing was freed");
        budgets.record(&a, (2200, 1500), None, true);
        assert_eq!(budgets.next_waiting(&a), Some(c.clone()), "there is less for b than before");
        budgets.record(&c, (1800, 0), None, true);
        assert_eq!(budgets.next_waiting(&c), Some(b.clone()));
        budgets.record(&b, (0, 2400), None, true);
        assert_eq!(budgets.next_waiting(&b), None);
    }

    #[test]
    fn a_service_that_grows_and_shrinks_gives_no_turn_in_vain() {
        let (mut budgets, [a, _, c]) = waiting();
        let mut turns = 0;
        for _ in 0..100 {
            for (before, now) in [(2200, 2199), (2199, 2200)] {
                budgets.record(&a, (before, now), None, true);
                if let Some(next) = budgets.next_waiting(&a) {
                    assert_eq!(next, c);
                    turns += 1;
                    // It needs 2,000, and takes the part that fits.
                    let left = budgets.allowance(&c, 1800);
                    budgets.record(&c, (1800, 1800), Some(left), false);
                    assert_eq!(budgets.next_waiting(&c), None);
                }
            }
        }
        assert_eq!(turns, 1);
    }

    /// `c` is changed so that it costs less and still waits, in the pass in which it has its turn.
    #[test]
    fn a_service_that_is_changed_at_its_turn_makes_room_for_those_before_it() {
        for (has_changed, next) in [(true, Some("b")), (false, None)] {
            let (mut budgets, [a, b, c]) = waiting();
            budgets.record(&a, (2200, 1500), None, true);
            assert_eq!(budgets.next_waiting(&a), Some(c.clone()));
            budgets.record(&c, (1800, 300), Some(2500), has_changed);
            assert_eq!(budgets.next_waiting(&c), next.map(|_| b));
        }
    }
}
