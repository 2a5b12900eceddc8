//! The constraints that a pod sets for its placement relative to other pods, and its preferences: pod affinity, anti-affinity and topology spread.

use std::collections::{BTreeMap, BTreeSet};

use proto_api::core::v1::{
    Pod, PodAffinityTerm, TopologySpreadConstraint, WeightedPodAffinityTerm,
};
use proto_api::meta::v1::LabelSelector;
use proto_api::selectors::Selector;

use crate::excess_terms::ExcessTerms;
use crate::features::SchedulingFeatures;
use crate::profile::ScoredNodes;

/// The policy by which only some nodes count for a constraint.
const HONOR: &str = "Honor";

/// A pod's affinity, anti-affinity and topology spread constraints.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PlacementConstraints {
    /// Terms of which each needs a selected pod in the node's domain.
    pub affinity: Vec<Term>,
    /// Terms that exclude domains with a selected pod, and later pods from this pod's domain.
    pub anti_affinity: Vec<Term>,
    /// Constraints with `whenUnsatisfiable: DoNotSchedule`.
    pub topology_spread: Vec<Spread>,
    /// Preferred affinity, and anti-affinity with negative weights.
    pub preferred: Vec<WeightedTerm>,
    /// Constraints with `whenUnsatisfiable: ScheduleAnyway`.
    pub preferred_spread: Vec<Spread>,
    /// The nodes that these score.
    pub scored: ScoredNodes,
    /// What stands for all of them in a pod that has too many.
    pub excess: Option<Box<ExcessTerms>>,
}

/// A preferred term.
#[derive(Clone, Debug, PartialEq)]
pub struct WeightedTerm {
    /// Negative for anti-affinity.
    pub weight: i64,
    pub term: Term,
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
    /// The nodes that count.
    pub inclusion: NodeInclusion,
}

/// Which nodes count for a topology spread constraint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeInclusion {
    /// Only those that match the node selector and affinity of the pod.
    pub by_affinity: bool,
    /// Only those whose taints the pod tolerates.
    pub by_taints: bool,
}

impl Default for NodeInclusion {
    fn default() -> Self {
        Self { by_affinity: true, by_taints: false }
    }
}

impl PlacementConstraints {
    /// Reads the constraints of an API object.
    pub fn from_pod(pod: &Pod, features: SchedulingFeatures) -> Self {
        if let Some(excess) = ExcessTerms::from_pod(pod) {
            return Self { excess: Some(Box::new(excess)), ..Self::default() };
        }
        let rules = pod.spec.affinity.as_ref();
        let affinity = rules.and_then(|rules| rules.pod_affinity.as_ref());
        let anti_affinity = rules.and_then(|rules| rules.pod_anti_affinity.as_ref());
        let terms = |terms: &[PodAffinityTerm]| -> Vec<Term> {
            terms.iter().map(|term| Term::from_term(term, &pod.metadata.namespace)).collect()
        };
        let weighted = |preferred: &[WeightedPodAffinityTerm], sign: i64| -> Vec<WeightedTerm> {
            let of = |preferred: &WeightedPodAffinityTerm| WeightedTerm {
                weight: sign.saturating_mul(i64::from(preferred.weight)),
                term: Term::from_term(&preferred.pod_affinity_term, &pod.metadata.namespace),
            };
            preferred.iter().map(of).collect()
        };
        let attracting = affinity.map_or_else(Vec::new, |affinity| {
            weighted(&affinity.preferred_during_scheduling_ignored_during_execution, 1)
        });
        let repelling = anti_affinity.map_or_else(Vec::new, |anti_affinity| {
            weighted(&anti_affinity.preferred_during_scheduling_ignored_during_execution, -1)
        });
        let spread = |when: &str| -> Vec<Spread> {
            let all = pod.spec.topology_spread_constraints.iter();
            all.filter(|spread| spread.when_unsatisfiable == when)
                .map(|spread| Spread::from_constraint(spread, &pod.metadata.labels, features))
                .collect()
        };
        Self {
            affinity: affinity.map_or_else(Vec::new, |affinity| {
                terms(&affinity.required_during_scheduling_ignored_during_execution)
            }),
            anti_affinity: anti_affinity.map_or_else(Vec::new, |anti_affinity| {
                terms(&anti_affinity.required_during_scheduling_ignored_during_execution)
            }),
            topology_spread: spread("DoNotSchedule"),
            preferred: attracting.into_iter().chain(repelling).collect(),
            preferred_spread: spread("ScheduleAnyway"),
            scored: ScoredNodes::WithAllKeys,
            excess: None,
        }
    }

    /// Whether the pod is spread, by its own constraints or by default.
    pub fn has_spread(&self) -> bool {
        !self.topology_spread.is_empty() || !self.preferred_spread.is_empty()
    }

    /// Whether a pod that is assigned to a node can make the node feasible for this one.
    pub fn can_be_helped_by_pods(&self) -> bool {
        !self.affinity.is_empty() || !self.topology_spread.is_empty()
    }

    /// Whether the pod prefers to be near or far from others.
    pub fn has_preferences(&self) -> bool {
        !self.preferred.is_empty()
    }

    /// Whether later pods are better or worse placed near this one.
    pub fn attracts_or_repels(&self) -> bool {
        !self.preferred.is_empty() || !self.affinity.is_empty()
    }

    /// Whether they decide about the placement of later pods.
    pub fn concern_others(&self) -> bool {
        self.attracts_or_repels() || self.has_anti_affinity()
    }

    /// Whether there are anti-affinity terms.
    pub fn has_anti_affinity(&self) -> bool {
        !self.anti_affinity.is_empty()
            || self.excess.as_ref().is_some_and(|excess| excess.has_anti_affinity())
    }
}

/// A missing selector selects nothing, an empty one everything.
fn selector(selector: Option<&LabelSelector>) -> Option<Selector> {
    selector.and_then(|selector| Selector::from_label_selector(selector, "labelSelector").ok())
}

impl Term {
    /// The requirements that a comparison with a pod looks at, and one for the term itself.
    pub fn weight(&self) -> usize {
        weight(self.pods.iter().chain(&self.namespace_selector))
    }

    fn from_term(term: &PodAffinityTerm, namespace: &str) -> Self {
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

/// The requirements of the selectors and one.
fn weight<'a>(selectors: impl Iterator<Item = &'a Selector>) -> usize {
    selectors.map(|selector| selector.requirements().len()).fold(1, usize::saturating_add)
}

impl Spread {
    /// As that of a term.
    pub fn weight(&self) -> usize {
        weight(self.pods.iter())
    }

    fn from_constraint(
        constraint: &TopologySpreadConstraint,
        labels: &BTreeMap<String, String>,
        features: SchedulingFeatures,
    ) -> Self {
        let min_domains = constraint.min_domains.filter(|_| features.min_domains);
        let min_domains = min_domains.and_then(|min| usize::try_from(min).ok());
        let mut pods = selector(constraint.label_selector.as_ref());
        if features.match_label_keys {
            let of_key = |key: &String| Some((key.clone(), labels.get(key)?.clone()));
            let own: BTreeMap<_, _> =
                constraint.match_label_keys.iter().filter_map(of_key).collect();
            if !own.is_empty() {
                let own = Selector::from_map(&own);
                pods = Some(pods.map_or(own.clone(), |pods| own.and(&pods)));
            }
        }
        let honors = |policy: &Option<String>, default: bool| match policy.as_deref() {
            Some(policy) if features.inclusion_policies => policy == HONOR,
            _ => default,
        };
        let default = NodeInclusion::default();
        Self {
            pods,
            topology_key: constraint.topology_key.clone(),
            max_skew: i64::from(constraint.max_skew),
            min_domains: min_domains.unwrap_or(1),
            inclusion: NodeInclusion {
                by_affinity: honors(&constraint.node_affinity_policy, default.by_affinity),
                by_taints: honors(&constraint.node_taints_policy, default.by_taints),
            },
        }
    }
}
