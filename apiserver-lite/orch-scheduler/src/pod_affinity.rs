//! Pod affinity, pod anti-affinity and topology spread constraints, as far as they are required; what is preferred only is left to
//! the scores.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use proto_api::core::v1::{Pod, PodAffinityTerm, TopologySpreadConstraint};
use proto_api::meta::v1::LabelSelector;
use proto_api::selectors::Selector;

use crate::filter::{Refusal, matches_selector};
use crate::node_info::NodeInfo;
use crate::nodes::NodeLoad;
use crate::pod_info::{PodInfo, PodPhase, add};

/// The labels of namespaces, by name.
pub type NamespaceLabels = BTreeMap<String, BTreeMap<String, String>>;

/// A pod's affinity, anti-affinity and topology spread constraints.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PlacementConstraints {
    /// Only where such a pod is.
    affinity: Vec<Term>,
    /// Not where such a pod is; holds for pods that come later as well.
    anti_affinity: Vec<Term>,
    /// Evenly over the values of a label.
    topology_spread: Vec<Spread>,
}

/// Selected pods and the topology key whose values are the domains.
#[derive(Clone, Debug, PartialEq)]
struct Term {
    pods: Option<Selector>,
    namespaces: BTreeSet<String>,
    namespaces_with: Option<Selector>,
    topology_key: String,
}

/// Some pods of the same namespace, and how unevenly they may lie.
#[derive(Clone, Debug, PartialEq)]
struct Spread {
    pods: Option<Selector>,
    topology_key: String,
    max_skew: i64,
    min_domains: usize,
}

impl PlacementConstraints {
    /// From the API's object.
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

    /// Whether a pod that comes somewhere can make a place for this one.
    pub fn is_wanted(&self) -> bool {
        !self.affinity.is_empty() || !self.topology_spread.is_empty()
    }

    /// Whether it keeps other pods away.
    pub fn has_anti_affinity(&self) -> bool {
        !self.anti_affinity.is_empty()
    }
}

/// No selector selects nothing, an empty one everything.
fn selector(selector: Option<&LabelSelector>) -> Option<Selector> {
    selector.and_then(|selector| Selector::from_label_selector(selector, "labelSelector").ok())
}

impl Term {
    fn of(term: &PodAffinityTerm, own: &str) -> Self {
        let mut namespaces: BTreeSet<String> = term.namespaces.iter().cloned().collect();
        if namespaces.is_empty() && term.namespace_selector.is_none() {
            namespaces.insert(own.to_owned());
        }
        Self {
            pods: selector(term.label_selector.as_ref()),
            namespaces,
            namespaces_with: selector(term.namespace_selector.as_ref()),
            topology_key: term.topology_key.clone(),
        }
    }

    fn means(&self, pod: &PodInfo, namespaces: &NamespaceLabels) -> bool {
        let namespace = &pod.key.namespace;
        let nothing = BTreeMap::new();
        let labels = namespaces.get(namespace).unwrap_or(&nothing);
        let there = self.namespaces.contains(namespace)
            || self.namespaces_with.as_ref().is_some_and(|selector| selector.matches(labels));
        there && self.pods.as_ref().is_some_and(|selector| selector.matches(&pod.labels))
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

    fn means(&self, own: &PodInfo, other: &PodInfo) -> bool {
        own.key.namespace == other.key.namespace
            && self.pods.as_ref().is_some_and(|selector| selector.matches(&other.labels))
    }

    /// The places where one pod more is not too many.
    ///
    /// Only nodes with the labels of all constraints count.
    fn open<'a>(
        &self,
        pod: &PodInfo,
        loads: &[NodeLoad],
        labels: impl Iterator<Item = &'a str> + Clone,
    ) -> BTreeSet<String> {
        let mut counts: BTreeMap<&String, i64> = BTreeMap::new();
        let has_all = |load: &&NodeLoad| {
            labels.clone().all(|label| load.node.labels.contains_key(label))
                && matches_selector(pod, &load.node)
        };
        for load in loads.iter().filter(has_all) {
            let Some(place) = load.node.labels.get(&self.topology_key) else { continue };
            let staying = load.residents.iter().filter(|other| other.phase == PodPhase::Active);
            let here = staying.filter(|other| self.means(pod, other)).count();
            add(counts.entry(place).or_default(), i64::try_from(here).unwrap_or(i64::MAX));
        }
        let too_few = counts.len() < self.min_domains;
        let least = if too_few { 0 } else { counts.values().copied().min().unwrap_or(0) };
        let more = i64::from(self.means(pod, pod));
        let fits = |count: i64| count.saturating_add(more).saturating_sub(least) <= self.max_skew;
        counts
            .into_iter()
            .filter(|(_, count)| fits(*count))
            .map(|(place, _)| place.clone())
            .collect()
    }
}

/// What the pods that are there mean for one pod: worked out once, then asked for every node.
#[derive(Debug, Default)]
pub struct InterPodState {
    /// Label and value of places with a pod that this one wants to be apart from.
    avoided: BTreeSet<(String, String)>,
    /// The same for pods that want to be apart from this one.
    closed: BTreeSet<(String, String)>,
    /// By label, the places where the pods are that this one wants to be near.
    affinity: Vec<(String, Affinity)>,
    /// By label, the places where it would not make the spread too uneven.
    topology_spread: Vec<(String, BTreeSet<String>)>,
}

#[derive(Debug)]
enum Affinity {
    /// Only there.
    At(BTreeSet<String>),
    /// There is no such pod yet, and this is one: it may be the first, anywhere.
    First,
}

impl InterPodState {
    /// Looks around for `pod`.
    pub fn of(pod: &PodInfo, loads: &[NodeLoad], namespaces: &NamespaceLabels) -> Self {
        let constraints = &pod.constraints;
        let domains = |label: &str, terms: &[Term]| -> BTreeSet<String> {
            let all = |other: &Arc<PodInfo>| terms.iter().all(|t| t.means(other, namespaces));
            let meant = loads.iter().filter(|load| load.residents.iter().any(all));
            meant.filter_map(|load| load.node.labels.get(label).cloned()).collect()
        };
        let mut found = Self::default();
        for term in &constraints.anti_affinity {
            let domains = domains(&term.topology_key, std::slice::from_ref(term));
            found
                .avoided
                .extend(domains.into_iter().map(|value| (term.topology_key.clone(), value)));
        }
        for load in loads {
            let terms = load
                .residents
                .iter()
                .filter(|p| p.constraints.has_anti_affinity())
                .flat_map(|p| &p.constraints.anti_affinity);
            for term in terms.filter(|term| term.means(pod, namespaces)) {
                if let Some(value) = load.node.labels.get(&term.topology_key) {
                    found.closed.insert((term.topology_key.clone(), value.clone()));
                }
            }
        }
        // A pod there counts only if all terms mean it, and only who would be meant by all may be the first.
        let affinity = constraints.affinity.iter();
        let affinity: Vec<_> = affinity
            .map(|term| (&term.topology_key, domains(&term.topology_key, &constraints.affinity)))
            .collect();
        let first = affinity.iter().all(|(_, domains)| domains.is_empty())
            && constraints.affinity.iter().all(|term| term.means(pod, namespaces));
        for (label, domains) in affinity {
            let affinity = if first { Affinity::First } else { Affinity::At(domains) };
            found.affinity.push((label.clone(), affinity));
        }
        for spread in &constraints.topology_spread {
            let labels =
                constraints.topology_spread.iter().map(|spread| spread.topology_key.as_str());
            found
                .topology_spread
                .push((spread.topology_key.clone(), spread.open(pod, loads, labels)));
        }
        found
    }

    /// Why the node is none for the pod; nothing if it may be.
    pub fn refusal(&self, node: &NodeInfo) -> Option<Refusal> {
        let is_at = |domains: &BTreeSet<(String, String)>| {
            domains.iter().any(|(label, value)| node.labels.get(label) == Some(value))
        };
        if is_at(&self.closed) {
            return Some(Refusal::OthersKeepApart);
        }
        let affinity = |(label, affinity): &(String, Affinity)| {
            let value = node.labels.get(label);
            value.is_some_and(|value| match affinity {
                Affinity::At(domains) => domains.contains(value),
                Affinity::First => true,
            })
        };
        if !self.affinity.iter().all(affinity) {
            return Some(Refusal::NotNear);
        }
        if is_at(&self.avoided) {
            return Some(Refusal::NotApart);
        }
        if self.topology_spread.iter().any(|(label, _)| !node.labels.contains_key(label)) {
            return Some(Refusal::NoPlace);
        }
        let is_open = |(label, domains): &(String, BTreeSet<String>)| {
            node.labels.get(label).is_some_and(|value| domains.contains(value))
        };
        (!self.topology_spread.iter().all(is_open)).then_some(Refusal::Uneven)
    }
}

#[cfg(test)]
mod tests;
