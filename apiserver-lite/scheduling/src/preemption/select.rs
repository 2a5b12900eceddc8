//! The dry run of a preemption on every node that it might help.

use std::sync::Arc;

use super::{Candidate, DisruptionBudget, might_help, select_victims, why_not_eligible};
use crate::nodes::NodeLoad;
use crate::pod_info::PodInfo;
use crate::select_node::{FitError, PodFilters};

/// Nodes that are candidates for one pod: a tenth of all, but at least this many. Four times as many are looked at.
const CANDIDATES_MIN: usize = 100;
/// The same for pods whose place depends on the pods of other nodes: each step looks at all of them.
const CANDIDATES_INTER_POD: usize = 16;
/// Most requirements of selectors and entries of claims that one dry run looks at, of all its nodes and victims: some seconds. What it has found by
/// then counts.
const REQUIREMENTS_MAX: usize = 50_000_000;

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
    let mut dry_run = DryRun::new(pod, loads, filters, depends_on_pods);
    for nth in helpful {
        looked_at = looked_at.saturating_add(1);
        candidates.extend(dry_run.find_victims(nth, budgets));
        let is_over = dry_run.requirements_left.is_none();
        if is_over || candidates.len() == most || looked_at >= most.saturating_mul(4) {
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

/// Nodes with fewer pods.
struct DryRun<'a> {
    pod: &'a PodInfo,
    loads: &'a [NodeLoad],
    filters: &'a PodFilters<'a>,
    depends_on_pods: bool,
    /// The loads, of which one may have fewer pods.
    changed: Vec<NodeLoad>,
    /// The requirements and claims that each look at a node costs.
    cost: usize,
    /// Of [`REQUIREMENTS_MAX`]; none once they did not suffice.
    requirements_left: Option<usize>,
}

impl<'a> DryRun<'a> {
    fn new(
        pod: &'a PodInfo,
        loads: &'a [NodeLoad],
        filters: &'a PodFilters<'a>,
        depends_on_pods: bool,
    ) -> Self {
        let cost = filters.cost(loads, depends_on_pods);
        let (changed, requirements_left) = (loads.to_vec(), Some(REQUIREMENTS_MAX));
        Self { pod, loads, filters, depends_on_pods, changed, cost, requirements_left }
    }

    /// The pods that have to end on a node; none if that does not help, or there was no time to find out.
    fn find_victims(&mut self, nth: usize, budgets: &[Arc<DisruptionBudget>]) -> Option<Candidate> {
        let load = self.loads.get(nth)?;
        let candidate = select_victims(self.pod, nth, load, budgets, |with| self.fits(nth, with));
        if let Some(slot) = self.changed.get_mut(nth) {
            slot.clone_from(load);
        }
        // Without an answer each pod counts as one that has to end.
        candidate.filter(|_| self.requirements_left.is_some())
    }

    fn fits(&mut self, nth: usize, with: &NodeLoad) -> bool {
        if let Some(slot) = self.changed.get_mut(nth) {
            slot.clone_from(with);
        }
        self.requirements_left =
            self.requirements_left.and_then(|left| left.checked_sub(self.cost));
        self.requirements_left.is_some()
            && self.filters.fits_on(nth, &self.changed, self.depends_on_pods)
    }
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
        let filters = PodFilters::new(pod, rules, view).unwrap_or_else(|why| panic!("{why}"));
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

    #[test]
    fn a_dry_run_ends_with_its_budget() {
        let mut wanting = PodInfo { priority: 10, ..pod("p", 2000, 0) };
        wanting.constraints.anti_affinity.push(crate::placement::Term {
            pods: "app=db".parse().ok(),
            namespaces: ["ns".to_owned()].into(),
            namespace_selector: None,
            topology_key: "zone".into(),
        });
        let all = loads(&[5, 3]);
        let annotations = BindingAnnotations::new(names());
        let storage = StorageSnapshot::default();
        let view = StorageView { storage: &storage, annotations: &annotations };
        let (namespaces, profile) = (NamespaceLabels::new(), profile());
        let rules = SelectionRules { profile: &profile, namespaces: &namespaces };
        let filters = PodFilters::new(&wanting, rules, view).unwrap_or_else(|why| panic!("{why}"));
        let mut dry_run = DryRun::new(&wanting, &all, &filters, true);
        assert_eq!(dry_run.cost, 2 * 2, "two pods, a term with a requirement");
        // One look without the pods of lower priority, and one with the first of them again.
        for (left, found, rest) in [(8, true, Some(0)), (7, false, None), (3, false, None)] {
            dry_run.requirements_left = Some(left);
            assert_eq!(dry_run.find_victims(0, &[]).is_some(), found, "{left}");
            assert_eq!(dry_run.requirements_left, rest);
            assert_eq!(format!("{:?}", dry_run.changed), format!("{all:?}"), "as before");
        }
    }
}
