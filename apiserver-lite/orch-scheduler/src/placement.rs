//! The constraints that a pod sets for its placement beside others: required pod affinity, anti-affinity and topology spread.

use std::collections::BTreeSet;

use proto_api::core::v1::{Pod, PodAffinityTerm, TopologySpreadConstraint};
use proto_api::meta::v1::LabelSelector;
use proto_api::selectors::Selector;

/// A pod's required affinity, anti-affinity and topology spread constraints.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PlacementConstraints {
    /// Terms of which each needs a selected pod in the node's domain.
    pub affinity: Vec<Term>,
    /// Terms that exclude domains with a selected pod, and later pods from this pod's domain.
    pub anti_affinity: Vec<Term>,
    /// Constraints with `whenUnsatisfiable: DoNotSchedule`.
    pub topology_spread: Vec<Spread>,
}

/// Selected pods and the topology key whose values are the domains.
#[derive(Clone, Debug, PartialEq)]
pub struct Term {
    /// The selected pods; none without a selector.
    pub pods: Option<Selector>,
    /// Namespaces by name.
    pub namespaces: BTreeSet<String>,
    /// Namespaces by label.
    pub namespace_selector: Option<Selector>,
    /// The label of nodes whose values are the domains.
    pub topology_key: String,
}

/// A topology spread constraint.
#[derive(Clone, Debug, PartialEq)]
pub struct Spread {
    /// The selected pods; none without a selector.
    pub pods: Option<Selector>,
    /// The label of nodes whose values are the domains.
    pub topology_key: String,
    /// How many more pods than in the emptiest domain are allowed.
    pub max_skew: i64,
    /// The number of domains below which the emptiest one counts as empty.
    pub min_domains: usize,
}

impl PlacementConstraints {
    /// Reads the constraints of an API object.
    pub fn of(pod: &Pod) -> Self {
        let rules = pod.spec.affinity.as_ref();
        let affinity = rules.and_then(|rules| rules.pod_affinity.as_ref());
        let anti_affinity = rules.and_then(|rules| rules.pod_anti_affinity.as_ref());
        let terms = |terms: &[PodAffinityTerm]| -> Vec<Term> {
            terms.iter().map(|term| Term::of(term, &pod.metadata.namespace)).collect()
        };
        let spread = pod.spec.topology_spread_constraints.iter();
        let binding = spread.filter(|constraint| constraint.when_unsatisfiable == "DoNotSchedule");
        Self {
            affinity: affinity.map_or_else(Vec::new, |affinity| {
                terms(&affinity.required_during_scheduling_ignored_during_execution)
            }),
            anti_affinity: anti_affinity.map_or_else(Vec::new, |anti_affinity| {
                terms(&anti_affinity.required_during_scheduling_ignored_during_execution)
            }),
            topology_spread: binding.map(Spread::of).collect(),
        }
    }

    /// Whether a pod that is assigned to a node can make the node feasible for this one.
    pub fn can_be_helped_by_pods(&self) -> bool {
        !self.affinity.is_empty() || !self.topology_spread.is_empty()
    }

    /// Whether there are anti-affinity terms.
    pub fn has_anti_affinity(&self) -> bool {
        !self.anti_affinity.is_empty()
    }
}

/// A missing selector selects nothing, an empty one everything.
fn selector(selector: Option<&LabelSelector>) -> Option<Selector> {
    selector.and_then(|selector| Selector::from_label_selector(selector, "labelSelector").ok())
}

impl Term {
    fn of(term: &PodAffinityTerm, namespace: &str) -> Self {
        let mut namespaces: BTreeSet<String> = term.namespaces.iter().cloned().collect();
        if namespaces.is_empty() && term.namespace_selector.is_none() {
            namespaces.insert(namespace.to_owned());
        }
        Self {
            pods: selector(term.label_selector.as_ref()),
            namespaces,
            namespace_selector: selector(term.namespace_selector.as_ref()),
            topology_key: term.topology_key.clone(),
        }
    }
}

impl Spread {
    fn of(constraint: &TopologySpreadConstraint) -> Self {
        let min_domains = constraint.min_domains.and_then(|min| usize::try_from(min).ok());
        Self {
            pods: selector(constraint.label_selector.as_ref()),
            topology_key: constraint.topology_key.clone(),
            max_skew: i64::from(constraint.max_skew),
            min_domains: min_domains.unwrap_or(1),
        }
    }
}
