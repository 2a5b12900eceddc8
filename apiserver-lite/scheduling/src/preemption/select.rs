//! The dry run of a preemption on every node that it might help.

use std::sync::Arc;

use super::{Candidate, DisruptionBudget, might_help, select_victims, why_not_eligible};
use crate::nodes::NodeLoad;
use crate::pod_info::PodInfo;
use crate::select_node::{FitError, PodFilters};

/// Nodes that are candidates for one pod: a tenth of all, but at least so many. Four times as many are looked at.
const CANDIDATES_MIN: usize = 100;
/// The same for pods whose place depends on the pods of other nodes: each step looks at all of them.
const CANDIDATES_INTER_POD: usize = 16;

/// The result of an attempt to preempt.
#[derive(Debug, PartialEq)]
pub enum Preemption {
    /// On each of these nodes the pod fits once others end; at least one.
    Candidates(Vec<Candidate>),
    /// No pod can end for it.
    Impossible {
        /// The message.
        why: String,
        /// Whether an earlier nomination has to go.
        clears: bool,
    },
}

/// Finds nodes on which `pod` fits once pods of lower priority end.
pub fn find_preemptions(
    pod: &PodInfo,
    loads: &[NodeLoad],
    error: &FitError,
    nominated: &str,
    budgets: &[Arc<DisruptionBudget>],
    filters: &PodFilters<'_>,
) -> Preemption {
    let own = loads.iter().position(|load| load.node.name == nominated);
    let refusals = |nth: usize| error.refusals.get(nth).map_or(&[][..], Vec::as_slice);
    let lacks_help = own.is_some_and(|nth| !might_help(refusals(nth)));
    let own = own.and_then(|nth| loads.get(nth));
    if let Some(why) = why_not_eligible(pod, own, lacks_help) {
        return Preemption::Impossible { why: why.to_owned(), clears: false };
    }
    let depends_on_pods = pod.constraints.can_be_helped_by_pods()
        || pod.constraints.has_anti_affinity()
        || loads
            .iter()
            .flat_map(|load| &load.constraining)
            .any(|p| p.constraints.has_anti_affinity());
    let most = match depends_on_pods {
        true => CANDIDATES_INTER_POD,
        false => CANDIDATES_MIN.max(loads.len() / 10),
    };
    let mut helpful = (0..loads.len()).filter(|nth| might_help(refusals(*nth))).peekable();
    let is_helpful = helpful.peek().is_some();
    let (mut candidates, mut looked_at) = (Vec::new(), 0_usize);
    let mut changed = loads.to_vec();
    for nth in helpful {
        let Some(load) = loads.get(nth) else { continue };
        looked_at = looked_at.saturating_add(1);
        let fits = |with: &NodeLoad| {
            if let Some(slot) = changed.get_mut(nth) {
                slot.clone_from(with);
            }
            filters.fits_on(nth, &changed, depends_on_pods)
        };
        candidates.extend(select_victims(pod, nth, load, budgets, fits));
        if let Some(slot) = changed.get_mut(nth) {
            slot.clone_from(load);
        }
        if candidates.len() == most || looked_at >= most.saturating_mul(4) {
            break;
        }
    }
    if !candidates.is_empty() {
        return Preemption::Candidates(candidates);
    }
    let all = loads.len();
    let mut reasons = Vec::new();
    for (count, reason) in [
        (looked_at, "No preemption victims found for incoming pod"),
        (all.saturating_sub(looked_at), "Preemption is not helpful for scheduling"),
    ] {
        if count > 0 {
            reasons.push(format!("{count} {reason}"));
        }
    }
    reasons.sort();
    let why = format!("0/{all} nodes are available: {}.", reasons.join(", "));
    Preemption::Impossible { why, clears: is_helpful || !nominated.is_empty() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::examples::{names, node, pod, profile};
    use crate::pod_affinity::NamespaceLabels;
    use crate::preemption::select_candidate;
    use crate::refusal::Refusal;
    use crate::select_node::{SelectionRules, StorageView};
    use crate::volumes::{BindingAnnotations, StorageSnapshot};

    fn preemption(pod: &PodInfo, loads: &[NodeLoad], refusals: Vec<Vec<Refusal>>) -> Preemption {
        let annotations = BindingAnnotations::new(names());
        let storage = StorageSnapshot::default();
        let view = StorageView { storage: &storage, annotations: &annotations };
        let (namespaces, profile) = (NamespaceLabels::new(), profile());
        let rules = SelectionRules { profile: &profile, namespaces: &namespaces };
        let filters = PodFilters::of(pod, rules, view).unwrap_or_else(|why| panic!("{why}"));
        find_preemptions(pod, loads, &FitError { refusals }, "", &[], &filters)
    }

    fn loads(priorities: &[i32]) -> Vec<NodeLoad> {
        let load = |(nth, priority): (usize, &i32)| {
            let mut load = NodeLoad::empty(Arc::new(node(&format!("n{nth}"))));
            load.add(PodInfo { priority: *priority, ..pod(&format!("p{nth}"), 3000, 0) });
            load
        };
        priorities.iter().enumerate().map(load).collect()
    }

    #[test]
    fn a_node_is_found_or_the_message_says_why_not() {
        let wanting = PodInfo { priority: 10, ..pod("p", 2000, 0) };
        let cpu = || vec![Refusal::Insufficient("cpu".into())];
        let all = loads(&[5, 3, 10]);
        let Preemption::Candidates(found) = preemption(&wanting, &all, vec![cpu(), cpu(), cpu()])
        else {
            panic!("a node is found")
        };
        let found = select_candidate(found).unwrap();
        assert_eq!((found.nth, found.victims.len()), (1, 1));
        let refused = vec![vec![Refusal::NodeAffinity], vec![Refusal::NodeAffinity], cpu()];
        let why = "0/3 nodes are available: 1 No preemption victims found for incoming pod, 2 Preemption is not helpful for scheduling.";
        assert_eq!(
            preemption(&wanting, &all, refused),
            Preemption::Impossible { why: why.into(), clears: true }
        );
        let never = PodInfo { may_preempt: false, ..wanting };
        let why = "not eligible due to preemptionPolicy=Never.";
        assert_eq!(
            preemption(&never, &all, vec![cpu(), cpu(), cpu()]),
            Preemption::Impossible { why: why.into(), clears: false }
        );
    }
}
