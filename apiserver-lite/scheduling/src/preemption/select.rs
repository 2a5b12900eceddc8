//! The dry run of a preemption on the nodes that it might help.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{Candidate, DisruptionBudget, might_help, select_victims, why_not_eligible};
use crate::nodes::NodeLoad;
use crate::pod_info::PodInfo;
use crate::profile::CandidateNumber;
use crate::refusal::Refusal;
use crate::select_node::{FitError, PodFilters};
use crate::ties::search_offset;

/// Most candidates that are looked for where a pod's place depends on the pods of other nodes: each step looks at all of them.
const CANDIDATES_INTER_POD: usize = 16;
/// Most requirements of selectors and entries of claims that one dry run looks at, of all its nodes and victims: some seconds. What it has found by
/// then counts.
const REQUIREMENTS_MAX: usize = 50_000_000;
/// What a look at one node counts for, at least: as many comparisons take about as long.
const LOOK_COST: usize = 100;

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

/// Where the search for candidates begins and ends.
#[derive(Clone, Copy, Debug)]
pub struct SearchBounds {
    /// How often the pod has been tried before: each attempt begins at another node.
    pub attempt: u32,
    /// How many candidates are enough.
    pub candidates: CandidateNumber,
}

/// Finds nodes on which `pod` fits once pods of lower priority end.
pub fn find_preemptions(
    pod: &PodInfo,
    loads: &[NodeLoad],
    error: &FitError,
    nominated: &str,
    budgets: &[Arc<DisruptionBudget>],
    filters: &PodFilters<'_>,
    bounds: SearchBounds,
) -> Preemption {
    if let Some(refused) = check_eligibility(pod, loads, error, nominated) {
        return refused;
    }
    let refusals = |nth: usize| error.refusals.get(nth).map_or(&[][..], Vec::as_slice);
    let depends_on_pods = pod.constraints.can_be_helped_by_pods()
        || pod.constraints.has_anti_affinity()
        || loads
            .iter()
            .flat_map(|load| &load.constraining)
            .any(|p| p.constraints.has_anti_affinity());
    let mut helpful: Vec<usize> =
        (0..loads.len()).filter(|nth| might_help(refusals(*nth))).collect();
    let mut most = bounds.candidates.for_nodes(helpful.len());
    if depends_on_pods {
        most = most.min(CANDIDATES_INTER_POD);
    }
    let offset = search_offset(&pod.uid, bounds.attempt, helpful.len());
    helpful.rotate_left(offset);
    let mut dry_run = DryRun::new(pod, loads, filters, depends_on_pods);
    let (candidates, mut reasons) = dry_run.search(&helpful, budgets, most);
    if !candidates.is_empty() {
        return Preemption::Candidates(candidates);
    }
    let unhelpful = loads.len().saturating_sub(helpful.len());
    if unhelpful > 0 {
        reasons.insert(UNHELPFUL.to_owned(), unhelpful);
    }
    let why = summarize(loads.len(), reasons);
    Preemption::Impossible { why, clears: !helpful.is_empty() || !nominated.is_empty() }
}

/// What [`find_preemptions`] gives for a pod that fits on no node whatever pods end.
pub fn refuse_preemption(
    pod: &PodInfo,
    loads: &[NodeLoad],
    error: &FitError,
    nominated: &str,
) -> Preemption {
    check_eligibility(pod, loads, error, nominated).unwrap_or_else(|| {
        let why = summarize(loads.len(), [(UNHELPFUL.to_owned(), loads.len())].into());
        Preemption::Impossible { why, clears: !nominated.is_empty() }
    })
}

/// Why a pod may not preempt others now, with the node that is nominated for it; none if it may.
fn check_eligibility(
    pod: &PodInfo,
    loads: &[NodeLoad],
    error: &FitError,
    nominated: &str,
) -> Option<Preemption> {
    let own = loads.iter().position(|load| load.node.name == nominated);
    let refusals = |nth: usize| error.refusals.get(nth).map_or(&[][..], Vec::as_slice);
    let lacks_help = own.is_some_and(|nth| !might_help(refusals(nth)));
    let why = why_not_eligible(pod, own.and_then(|nth| loads.get(nth)), lacks_help)?;
    Some(Preemption::Impossible { why: why.to_owned(), clears: false })
}

fn summarize(nodes: usize, reasons: Reasons) -> String {
    let mut reasons: Vec<String> =
        reasons.into_iter().map(|(reason, count)| format!("{count} {reason}")).collect();
    reasons.sort();
    format!("0/{nodes} nodes are available: {}.", reasons.join(", "))
}

/// How many nodes are no candidates for each reason.
type Reasons = BTreeMap<String, usize>;

/// A node that was refused for reasons which do not depend on its pods.
const UNHELPFUL: &str = "Preemption is not helpful for scheduling";
/// A node without pods of lower priority, or on which they are not in the way.
const NO_VICTIMS: &str = "No preemption victims found for incoming pod";

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
        // Each look takes its time, also at a pod without requirements.
        let least = if depends_on_pods { loads.len() } else { LOOK_COST };
        let cost = filters.cost(loads, depends_on_pods).max(least);
        let (changed, requirements_left) = (loads.to_vec(), Some(REQUIREMENTS_MAX));
        Self { pod, loads, filters, depends_on_pods, changed, cost, requirements_left }
    }

    /// The candidates among the nodes, in their order, and why the others are none. It ends with enough of them, unless each violates a budget: then all nodes
    /// are looked at, as far as [`REQUIREMENTS_MAX`] goes.
    fn search(
        &mut self,
        nodes: &[usize],
        budgets: &[Arc<DisruptionBudget>],
        most: usize,
    ) -> (Vec<Candidate>, Reasons) {
        let (mut candidates, mut reasons) = (Vec::<Candidate>::new(), Reasons::new());
        let mut note = |reason: String, nodes: usize| {
            let count = reasons.entry(reason).or_default();
            *count = count.saturating_add(nodes);
        };
        let mut spares_budgets = false;
        for (looked_at, nth) in nodes.iter().enumerate() {
            match self.find_victims(*nth, budgets) {
                Ok(candidate) => {
                    spares_budgets |= candidate.violations == 0;
                    candidates.push(candidate);
                }
                Err(_) if self.requirements_left.is_none() => {
                    let left = nodes.len().saturating_sub(looked_at);
                    note("node(s) were not tried: preemption would take too long".to_owned(), left);
                    break;
                }
                Err(refusals) if refusals.is_empty() => note(NO_VICTIMS.to_owned(), 1),
                Err(refusals) => {
                    refusals.iter().for_each(|refusal| note(refusal.to_string(), 1));
                }
            }
            // Where all violate budgets, others may not.
            if spares_budgets && candidates.len() >= most {
                break;
            }
        }
        (candidates, reasons)
    }

    /// The pods that have to end on a node.
    ///
    /// # Errors
    /// Why the pod does not fit there without any of them, or nothing if there are none; or there was no time to find out.
    fn find_victims(
        &mut self,
        nth: usize,
        budgets: &[Arc<DisruptionBudget>],
    ) -> Result<Candidate, Vec<Refusal>> {
        let Some(load) = self.loads.get(nth) else { return Err(Vec::new()) };
        // Each pod is compared with each budget.
        self.charge(load.pods.len().saturating_mul(budgets.len()));
        // The first look is at the node without all of them.
        let mut first = None;
        let candidate = select_victims(self.pod, nth, load, budgets, |with| {
            let checked = self.check(nth, with);
            let fits = checked.is_ok();
            first.get_or_insert(checked);
            fits
        });
        if first.is_some()
            && let Some(slot) = self.changed.get_mut(nth)
        {
            slot.clone_from(load);
        }
        let refusals = first.and_then(Result::err).unwrap_or_default();
        // Without an answer each pod counts as one that has to end.
        candidate.filter(|_| self.requirements_left.is_some()).ok_or(refusals)
    }

    fn charge(&mut self, comparisons: usize) {
        self.requirements_left =
            self.requirements_left.and_then(|left| left.checked_sub(comparisons));
    }

    fn check(&mut self, nth: usize, with: &NodeLoad) -> Result<(), Vec<Refusal>> {
        if let Some(slot) = self.changed.get_mut(nth) {
            slot.clone_from(with);
        }
        self.charge(self.cost);
        match self.requirements_left {
            Some(_) => self.filters.fits_on(nth, &self.changed, self.depends_on_pods),
            None => Err(Vec::new()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::examples::{names, node, pod, profile};
    use crate::pod_affinity::NamespaceLabels;
    use crate::preemption::select_candidate;
    use crate::select_node::{SelectionRules, StorageView};
    use crate::volumes::{BindingAnnotations, StorageSnapshot};

    fn preemption(pod: &PodInfo, loads: &[NodeLoad], refusals: Vec<Vec<Refusal>>) -> Preemption {
        preemption_among(pod, loads, refusals, &[], 0)
    }

    fn preemption_among(
        pod: &PodInfo,
        loads: &[NodeLoad],
        refusals: Vec<Vec<Refusal>>,
        budgets: &[Arc<DisruptionBudget>],
        attempt: u32,
    ) -> Preemption {
        let annotations = BindingAnnotations::new(names());
        let storage = StorageSnapshot::default();
        let view = StorageView { storage: &storage, annotations: &annotations };
        let (namespaces, profile) = (NamespaceLabels::new(), profile());
        let rules = SelectionRules { profile: &profile, namespaces: &namespaces };
        let filters = PodFilters::new(pod, rules, view).unwrap_or_else(|why| panic!("{why}"));
        let bounds = SearchBounds { attempt, candidates: CandidateNumber::default() };
        find_preemptions(pod, loads, &FitError { refusals }, "", budgets, &filters, bounds)
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
    fn a_pod_that_fits_nowhere_whatever_ends_preempts_nothing() {
        let wanting = PodInfo { priority: 10, ..pod("p", 1, 0) };
        let all = loads(&[1, 2]);
        let refused = || vec![Refusal::Claims("no such claim".into())];
        let error = FitError { refusals: vec![refused(), refused()] };
        let unhelpful =
            "0/2 nodes are available: 2 Preemption is not helpful for scheduling.".to_owned();
        for (nominated, clears) in [("", false), ("n0", true)] {
            let expected = Preemption::Impossible { why: unhelpful.clone(), clears };
            assert_eq!(refuse_preemption(&wanting, &all, &error, nominated), expected);
        }
        let never = PodInfo { may_preempt: false, ..wanting };
        let why = "not eligible due to preemptionPolicy=Never.".to_owned();
        let expected = Preemption::Impossible { why, clears: false };
        assert_eq!(refuse_preemption(&never, &all, &error, ""), expected);
    }

    fn all_lack_cpu(loads: &[NodeLoad]) -> Vec<Vec<Refusal>> {
        loads.iter().map(|_| vec![Refusal::Insufficient("cpu".into())]).collect()
    }

    /// Nodes with a pod each, one of which has required anti-affinity.
    fn loads_with_anti_affinity(priorities: &[i32]) -> Vec<NodeLoad> {
        let mut all = loads(priorities);
        all.iter_mut().take(1).for_each(|load| load.add(alone()));
        all
    }

    /// A pod of the highest priority with required anti-affinity.
    fn alone() -> PodInfo {
        let mut alone = PodInfo { priority: i32::MAX, ..pod("alone", 1, 0) };
        alone.constraints.anti_affinity.push(crate::placement::Term {
            pods: "app=nothing".parse().ok(),
            namespaces: ["ns".to_owned()].into(),
            namespace_selector: None,
            topology_key: "zone".into(),
        });
        alone
    }

    /// One node of 200 has a pod that no budget protects: it is found, wherever the search begins.
    #[test]
    fn the_search_goes_on_while_each_candidate_violates_a_budget() {
        let wanting = PodInfo { priority: 50, ..pod("p", 2000, 0) };
        let budgets = [Arc::new(budget())];
        for (spared, least) in [(Some(150), 1), (None, 200)] {
            let all = loads_with_budget(200, spared);
            for attempt in 0..5 {
                let refused = all_lack_cpu(&all);
                let found = preemption_among(&wanting, &all, refused, &budgets, attempt);
                let Preemption::Candidates(found) = found else { panic!("{found:?}") };
                assert!(found.len() >= least, "{attempt}: {} of {least}", found.len());
                let best = select_candidate(found).expect("a candidate");
                assert_eq!(spared.map_or(1, |_| 0), best.violations, "{attempt}");
                assert!(spared.is_none_or(|spared| spared == best.nth), "{attempt}");
            }
        }
    }

    /// Nodes with a pod each that the budget protects, but for one. The first has a pod with required anti-affinity besides.
    fn loads_with_budget(count: usize, spared: Option<usize>) -> Vec<NodeLoad> {
        let mut all = loads(&vec![0; count]);
        for (nth, load) in all.iter_mut().enumerate().filter(|(nth, _)| Some(*nth) != spared) {
            let mut protected = pod(&format!("p{nth}"), 3000, 0);
            protected.labels.insert("app".into(), "db".into());
            *load = NodeLoad::empty(load.node.clone());
            load.add(protected);
        }
        all.iter_mut().take(1).for_each(|load| load.add(alone()));
        all
    }

    fn budget() -> DisruptionBudget {
        DisruptionBudget {
            namespace: "ns".into(),
            pods: "app=db".parse().ok(),
            allowed: 0,
            disrupted: Default::default(),
        }
    }

    /// Wherever the search begins, it passes the nodes without pods of lower priority.
    #[test]
    fn nodes_without_victims_do_not_end_the_search() {
        let wanting = PodInfo { priority: 50, ..pod("p", 2000, 0) };
        let mut priorities = vec![100; 500];
        for free in [0, 64, 499] {
            priorities[free] = 0;
            let all = loads_with_anti_affinity(&priorities);
            for attempt in 0..3 {
                let found = preemption_among(&wanting, &all, all_lack_cpu(&all), &[], attempt);
                let Preemption::Candidates(found) = found else { panic!("{free}: {found:?}") };
                assert_eq!(found.iter().map(|one| one.nth).collect::<Vec<_>>(), [free]);
            }
            priorities[free] = 100;
        }
    }

    #[test]
    fn each_attempt_begins_at_another_node() {
        let wanting = PodInfo { priority: 50, ..pod("p", 2000, 0) };
        let all = loads_with_anti_affinity(&[0; 200]);
        let first = |attempt: u32| {
            let found = preemption_among(&wanting, &all, all_lack_cpu(&all), &[], attempt);
            let Preemption::Candidates(found) = found else { panic!("{found:?}") };
            assert_eq!(found.len(), CANDIDATES_INTER_POD);
            found.first().map(|one| one.nth)
        };
        let firsts: std::collections::BTreeSet<_> = (0..10).map(first).collect();
        assert!(firsts.len() > 5, "{firsts:?}");
        assert_eq!(first(3), first(3));
    }

    /// Where the search has found enough, it ends.
    #[test]
    fn the_search_ends_with_enough_candidates_if_one_violates_no_budget() {
        let wanting = PodInfo { priority: 50, ..pod("p", 2000, 0) };
        let all = loads_with_budget(60, Some(30));
        for attempt in 0..5 {
            let budgets = [Arc::new(budget())];
            let found = preemption_among(&wanting, &all, all_lack_cpu(&all), &budgets, attempt);
            let Preemption::Candidates(found) = found else { panic!("{found:?}") };
            let spares = found.iter().position(|one| one.violations == 0).expect("it is found");
            assert_eq!(found.len(), CANDIDATES_INTER_POD.max(spares + 1), "{attempt}");
            let best = select_candidate(found);
            assert_eq!(best.map(|one| (one.nth, one.violations)), Some((30, 0)), "{attempt}");
        }
    }

    #[test]
    fn the_message_says_what_no_preemption_changes() {
        let mut all = loads(&[5, 5, 5]);
        // Without the pod of lower priority the other one is still in the way.
        all[0].add(PodInfo { priority: 100, ..pod("x", 1000, 0) });
        let wanting = PodInfo { priority: 10, ..pod("p", 3500, 0) };
        let refused = vec![
            vec![Refusal::Insufficient("cpu".into())],
            vec![Refusal::NodeAffinity],
            vec![Refusal::NodeAffinity],
        ];
        let why = "0/3 nodes are available: 1 Insufficient cpu, 2 Preemption is not helpful for scheduling.";
        let expected = Preemption::Impossible { why: why.into(), clears: true };
        assert_eq!(preemption(&wanting, &all, refused), expected);
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
            assert_eq!(dry_run.find_victims(0, &[]).is_ok(), found, "{left}");
            assert_eq!(dry_run.requirements_left, rest);
            assert_eq!(format!("{:?}", dry_run.changed), format!("{all:?}"), "as before");
        }
    }
}
