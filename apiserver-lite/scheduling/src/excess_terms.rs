//! Bounds on the affinity terms and topology spread constraints of a pod. Each is compared with all pods, on the scheduler's one task: a pod beyond the bounds
//! is not scheduled.

use std::collections::BTreeSet;

use proto_api::core::v1::{Pod, PodAffinityTerm, WeightedPodAffinityTerm};
use proto_api::meta::v1::LabelSelector;

use crate::node_info::NodeInfo;

/// Most terms of affinity and anti-affinity between pods and topology spread constraints of a pod, required and preferred.
pub const TERMS_MAX: usize = 500;
/// Most requirements of all their selectors.
pub const REQUIREMENTS_MAX: usize = 5_000;

/// What is kept of the terms of a pod that has too many of them. Where it runs all the same, because others have placed it, its required anti-affinity keeps
/// off more than it says: all pods of the namespaces that one of its terms reaches, from the domains of all its topology keys.
#[derive(Clone, Debug, PartialEq)]
pub struct ExcessTerms {
    pub terms: usize,
    pub requirements: usize,
    /// The topology keys of the required anti-affinity.
    topology_keys: BTreeSet<String>,
    /// The namespaces of its terms by name.
    namespaces: BTreeSet<String>,
    /// Whether a term selects namespaces by label.
    selects_namespaces: bool,
}

impl ExcessTerms {
    /// Those of a pod beyond the bounds; none of others.
    pub fn from_pod(pod: &Pod) -> Option<Self> {
        let rules = pod.spec.affinity.as_ref();
        let near = rules.and_then(|rules| rules.pod_affinity.as_ref());
        let far = rules.and_then(|rules| rules.pod_anti_affinity.as_ref());
        let mut counts = TermCounts::default();
        if let Some(near) = near {
            counts.add(&near.required_during_scheduling_ignored_during_execution);
            counts.add_weighted(&near.preferred_during_scheduling_ignored_during_execution);
        }
        let excluding = far.map_or(&[][..], |far| {
            counts.add_weighted(&far.preferred_during_scheduling_ignored_during_execution);
            &far.required_during_scheduling_ignored_during_execution
        });
        counts.add(excluding);
        for spread in &pod.spec.topology_spread_constraints {
            counts.count([spread.label_selector.as_ref(), None]);
            // Each may be a requirement.
            let keys = spread.match_label_keys.len();
            counts.requirements = counts.requirements.saturating_add(keys);
        }
        let TermCounts { terms, requirements } = counts;
        if terms <= TERMS_MAX && requirements <= REQUIREMENTS_MAX {
            return None;
        }
        let names = |term: &PodAffinityTerm| match term.namespaces.is_empty() {
            true => vec![pod.metadata.namespace.clone()],
            false => term.namespaces.clone(),
        };
        Some(Self {
            terms,
            requirements,
            topology_keys: excluding.iter().map(|term| term.topology_key.clone()).collect(),
            namespaces: excluding.iter().flat_map(names).collect(),
            selects_namespaces: excluding.iter().any(|term| term.namespace_selector.is_some()),
        })
    }

    /// Whether there is required anti-affinity.
    pub fn has_anti_affinity(&self) -> bool {
        !self.topology_keys.is_empty()
    }

    /// Whether the anti-affinity may select pods of the namespace.
    pub fn reaches(&self, namespace: &str) -> bool {
        self.has_anti_affinity() && (self.selects_namespaces || self.namespaces.contains(namespace))
    }

    /// The domains of the node from which it keeps pods off.
    pub fn domains<'a>(&'a self, node: &'a NodeInfo) -> impl Iterator<Item = (&'a str, &'a str)> {
        let labels = node.labels.iter().filter(|(key, _)| self.topology_keys.contains(*key));
        labels.map(|(key, value)| (key.as_str(), value.as_str()))
    }
}

#[derive(Default)]
struct TermCounts {
    terms: usize,
    requirements: usize,
}

impl TermCounts {
    fn add(&mut self, terms: &[PodAffinityTerm]) {
        for term in terms {
            self.count([term.label_selector.as_ref(), term.namespace_selector.as_ref()]);
        }
    }

    fn add_weighted(&mut self, terms: &[WeightedPodAffinityTerm]) {
        for term in terms.iter().map(|weighted| &weighted.pod_affinity_term) {
            self.count([term.label_selector.as_ref(), term.namespace_selector.as_ref()]);
        }
    }

    fn count(&mut self, selectors: [Option<&LabelSelector>; 2]) {
        self.terms = self.terms.saturating_add(1);
        for selector in selectors.into_iter().flatten() {
            self.requirements = self
                .requirements
                .saturating_add(selector.match_labels.len())
                .saturating_add(selector.match_expressions.len());
        }
    }
}

#[cfg(test)]
mod tests;
