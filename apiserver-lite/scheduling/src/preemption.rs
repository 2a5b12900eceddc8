//! The PostFilter extension point DefaultPreemption: which pods of lower priority have to end so that a pod fits on a node.

mod select;

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::sync::Arc;

use proto_api::policy::v1::PodDisruptionBudget;
use proto_api::selectors::Selector;

use crate::nodes::NodeLoad;
use crate::pod_info::{PodInfo, PodPhase};
use crate::refusal::Refusal;

pub use select::{Preemption, SearchBounds, find_preemptions, refuse_preemption};

/// A PodDisruptionBudget, as preemption reads it.
#[derive(Clone, Debug, PartialEq)]
pub struct DisruptionBudget {
    pub namespace: String,
    /// The pods that it protects; none without a selector, or with one that selects all.
    pub pods: Option<Selector>,
    /// Pods that may be disrupted now.
    pub allowed: i64,
    /// Pods whose eviction is under way: they are counted already.
    pub disrupted: BTreeSet<String>,
}

impl DisruptionBudget {
    /// Projects an API object.
    pub fn from_budget(budget: &PodDisruptionBudget) -> Self {
        let selector = budget.spec.selector.as_ref().filter(|selector| {
            !selector.match_labels.is_empty() || !selector.match_expressions.is_empty()
        });
        Self {
            namespace: budget.metadata.namespace.clone(),
            pods: selector.and_then(|of| Selector::from_label_selector(of, "spec.selector").ok()),
            allowed: i64::from(budget.status.disruptions_allowed),
            disrupted: budget.status.disrupted_pods.keys().cloned().collect(),
        }
    }

    /// As in kube-scheduler a pod without labels has no budget, not even by a selector of labels that are missing.
    fn protects(&self, pod: &PodInfo) -> bool {
        !pod.labels.is_empty()
            && self.namespace == pod.key.namespace
            && !self.disrupted.contains(&pod.key.name)
            && self.pods.as_ref().is_some_and(|selector| selector.matches(&pod.labels))
    }
}

/// A node on which a pod fits once these pods are gone.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    /// Index into the loads.
    pub nth: usize,
    /// The pods that have to end, the most important first. At least one.
    pub victims: Vec<Arc<PodInfo>>,
    /// How many of them a disruption budget protects.
    pub violations: usize,
}

/// Why a pod may not preempt others now; none if it may. `lacks_help` says whether its nominated node was refused for reasons that no preemption
/// changes.
pub fn why_not_eligible(
    pod: &PodInfo,
    nominated: Option<&NodeLoad>,
    lacks_help: bool,
) -> Option<&'static str> {
    if !pod.may_preempt {
        return Some("not eligible due to preemptionPolicy=Never.");
    }
    let is_leaving = |other: &&Arc<PodInfo>| {
        other.phase == PodPhase::Terminating && other.priority < pod.priority
    };
    let waits = nominated.is_some_and(|load| load.pods.iter().any(|other| is_leaving(&other)));
    (waits && !lacks_help).then_some("not eligible due to a terminating pod on the nominated node.")
}

/// Whether fewer pods can make a refused node feasible.
pub fn might_help(refusals: &[Refusal]) -> bool {
    refusals.iter().all(|refusal| {
        matches!(
            refusal,
            Refusal::HostPorts
                | Refusal::TooManyPods
                | Refusal::Insufficient(_)
                | Refusal::ExistingAntiAffinity
                | Refusal::PodAntiAffinity
                | Refusal::TopologySpread
                | Refusal::Disk
                | Refusal::MaxVolumeCount
                | Refusal::Extender(_)
        )
    })
}

/// The fewest and least important pods of lower priority that have to leave a node so that `pod` fits; none if it does not fit without all of them.
/// Budgets are violated only where nothing else helps. `fits` says whether the pod fits on the node with this load.
pub fn select_victims(
    pod: &PodInfo,
    nth: usize,
    load: &NodeLoad,
    budgets: &[Arc<DisruptionBudget>],
    mut fits: impl FnMut(&NodeLoad) -> bool,
) -> Option<Candidate> {
    let is_lower = |other: &&Arc<PodInfo>| other.priority < pod.priority;
    let mut lower: Vec<Arc<PodInfo>> = load.pods.iter().filter(is_lower).cloned().collect();
    if lower.is_empty() {
        return None;
    }
    lower.sort_by_key(|pod| importance(pod));
    let mut left = load.without(|other| other.priority < pod.priority);
    if !fits(&left) {
        return None;
    }
    let (protected, free) = split_by_budgets(lower, budgets);
    let mut candidate = Candidate { nth, victims: Vec::new(), violations: 0 };
    for (other, is_protected) in
        protected.into_iter().map(|pod| (pod, true)).chain(free.into_iter().map(|pod| (pod, false)))
    {
        let mut with = left.clone();
        with.add(other.clone());
        if fits(&with) {
            left = with;
        } else {
            candidate.violations = candidate.violations.saturating_add(usize::from(is_protected));
            candidate.victims.push(other);
        }
    }
    candidate.victims.sort_by_key(|pod| importance(pod));
    (!candidate.victims.is_empty()).then_some(candidate)
}

/// The more important, the less: by priority, then by how long they run.
fn importance(pod: &PodInfo) -> (Reverse<i32>, i64) {
    (Reverse(pod.priority), pod.started.unwrap_or(i64::MAX))
}

/// Pods whose end violates a disruption budget, if those before them end as well, and the others.
fn split_by_budgets(
    pods: Vec<Arc<PodInfo>>,
    budgets: &[Arc<DisruptionBudget>],
) -> (Vec<Arc<PodInfo>>, Vec<Arc<PodInfo>>) {
    let mut allowed: Vec<i64> = budgets.iter().map(|budget| budget.allowed).collect();
    pods.into_iter().partition(|pod| {
        let mut violates = false;
        for (budget, allowed) in budgets.iter().zip(&mut allowed) {
            if budget.protects(pod) {
                *allowed = allowed.saturating_sub(1);
                violates |= *allowed < 0;
            }
        }
        violates
    })
}

/// The candidate that does the least harm: the fewest violated budgets, then the lowest priority of its most important victim, the smallest sum of
/// priorities, the fewest victims, and the latest start of the most important ones.
pub fn select_candidate(candidates: Vec<Candidate>) -> Option<Candidate> {
    let harm = |candidate: &Candidate| {
        let victims = &candidate.victims;
        let highest = victims.first().map_or(i32::MIN, |pod| pod.priority);
        // Priorities may be negative, and more pods must not be less harm.
        let offset = i64::from(i32::MAX).saturating_add(1);
        let sums = victims.iter().map(|pod| i64::from(pod.priority).saturating_add(offset));
        let sum = sums.fold(0, i64::saturating_add);
        let top = victims.iter().filter(|pod| pod.priority == highest);
        let earliest = top.map(|pod| pod.started.unwrap_or(i64::MAX)).min();
        (candidate.violations, highest, sum, victims.len(), Reverse(earliest), candidate.nth)
    };
    candidates.into_iter().min_by_key(harm)
}

#[cfg(test)]
mod tests;
