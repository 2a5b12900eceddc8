//! What a pod says about the pods around it: near these, apart from those, spread evenly over zones. The required
//! parts only; what is merely preferred is left to the scores.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use proto_api::core::v1::{Pod, PodAffinityTerm, TopologySpreadConstraint};
use proto_api::meta::v1::LabelSelector;
use proto_api::selectors::Selector;

use crate::facts::{Life, NodeFacts, PodFacts, add};
use crate::filter::{Refusal, matches_selector};
use crate::nodes::NodeLoad;

/// The labels of namespaces, by name.
pub type NamespaceLabels = BTreeMap<String, BTreeMap<String, String>>;

/// A pod's wishes about other pods.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Company {
    /// Only where such a pod is.
    near: Vec<Term>,
    /// Not where such a pod is; holds for pods that come later as well.
    apart: Vec<Term>,
    /// Evenly over the values of a label.
    spread: Vec<Spread>,
}

/// Some pods, and the label whose value says which nodes are one place.
#[derive(Clone, Debug, PartialEq)]
struct Term {
    pods: Option<Selector>,
    namespaces: BTreeSet<String>,
    namespaces_with: Option<Selector>,
    place: String,
}

/// Some pods of the same namespace, and how unevenly they may lie.
#[derive(Clone, Debug, PartialEq)]
struct Spread {
    pods: Option<Selector>,
    place: String,
    max_skew: i64,
    min_places: usize,
}

impl Company {
    /// From the API's object.
    pub fn of(pod: &Pod) -> Self {
        let affinity = pod.spec.affinity.as_ref();
        let near = affinity.and_then(|affinity| affinity.pod_affinity.as_ref());
        let apart = affinity.and_then(|affinity| affinity.pod_anti_affinity.as_ref());
        let terms = |terms: &[PodAffinityTerm]| -> Vec<Term> {
            terms.iter().map(|term| Term::of(term, &pod.metadata.namespace)).collect()
        };
        let spread = pod.spec.topology_spread_constraints.iter();
        let binding = spread.filter(|constraint| constraint.when_unsatisfiable == "DoNotSchedule");
        Self {
            near: near.map_or_else(Vec::new, |near| {
                terms(&near.required_during_scheduling_ignored_during_execution)
            }),
            apart: apart.map_or_else(Vec::new, |apart| {
                terms(&apart.required_during_scheduling_ignored_during_execution)
            }),
            spread: binding.map(Spread::of).collect(),
        }
    }

    /// Whether a pod that comes somewhere can make a place for this one.
    pub fn is_wanted(&self) -> bool {
        !self.near.is_empty() || !self.spread.is_empty()
    }

    /// Whether it keeps other pods away.
    pub fn keeps_apart(&self) -> bool {
        !self.apart.is_empty()
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
            place: term.topology_key.clone(),
        }
    }

    fn means(&self, pod: &PodFacts, namespaces: &NamespaceLabels) -> bool {
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
        let min_places = constraint.min_domains.and_then(|min| usize::try_from(min).ok());
        Self {
            pods: selector(constraint.label_selector.as_ref()),
            place: constraint.topology_key.clone(),
            max_skew: i64::from(constraint.max_skew),
            min_places: min_places.unwrap_or(1),
        }
    }

    fn means(&self, own: &PodFacts, other: &PodFacts) -> bool {
        own.key.namespace == other.key.namespace
            && self.pods.as_ref().is_some_and(|selector| selector.matches(&other.labels))
    }

    /// The places where one pod more is not too many.
    ///
    /// Only nodes with the labels of all constraints count.
    fn open<'a>(
        &self,
        pod: &PodFacts,
        loads: &[NodeLoad],
        labels: impl Iterator<Item = &'a str> + Clone,
    ) -> BTreeSet<String> {
        let mut counts: BTreeMap<&String, i64> = BTreeMap::new();
        let has_all = |load: &&NodeLoad| {
            labels.clone().all(|label| load.node.labels.contains_key(label))
                && matches_selector(pod, &load.node)
        };
        for load in loads.iter().filter(has_all) {
            let Some(place) = load.node.labels.get(&self.place) else { continue };
            let staying = load.residents.iter().filter(|other| other.life == Life::Active);
            let here = staying.filter(|other| self.means(pod, other)).count();
            add(counts.entry(place).or_default(), i64::try_from(here).unwrap_or(i64::MAX));
        }
        let too_few = counts.len() < self.min_places;
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
pub struct Neighbours {
    /// Label and value of places with a pod that this one wants to be apart from.
    avoided: BTreeSet<(String, String)>,
    /// The same for pods that want to be apart from this one.
    closed: BTreeSet<(String, String)>,
    /// By label, the places where the pods are that this one wants to be near.
    near: Vec<(String, Near)>,
    /// By label, the places where it would not make the spread too uneven.
    spread: Vec<(String, BTreeSet<String>)>,
}

#[derive(Debug)]
enum Near {
    /// Only there.
    At(BTreeSet<String>),
    /// There is no such pod yet, and this is one: it may be the first, anywhere.
    First,
}

impl Neighbours {
    /// Looks around for `pod`.
    pub fn of(pod: &PodFacts, loads: &[NodeLoad], namespaces: &NamespaceLabels) -> Self {
        let company = &pod.company;
        let places = |label: &str, terms: &[Term]| -> BTreeSet<String> {
            let all = |other: &Arc<PodFacts>| terms.iter().all(|t| t.means(other, namespaces));
            let meant = loads.iter().filter(|load| load.residents.iter().any(all));
            meant.filter_map(|load| load.node.labels.get(label).cloned()).collect()
        };
        let mut found = Self::default();
        for term in &company.apart {
            let places = places(&term.place, std::slice::from_ref(term));
            found.avoided.extend(places.into_iter().map(|value| (term.place.clone(), value)));
        }
        for load in loads {
            let terms = load
                .residents
                .iter()
                .filter(|p| p.company.keeps_apart())
                .flat_map(|p| &p.company.apart);
            for term in terms.filter(|term| term.means(pod, namespaces)) {
                if let Some(value) = load.node.labels.get(&term.place) {
                    found.closed.insert((term.place.clone(), value.clone()));
                }
            }
        }
        // A pod there counts only if all terms mean it, and only who would be meant by all may be the first.
        let near = company.near.iter();
        let near: Vec<_> =
            near.map(|term| (&term.place, places(&term.place, &company.near))).collect();
        let first = near.iter().all(|(_, places)| places.is_empty())
            && company.near.iter().all(|term| term.means(pod, namespaces));
        for (label, places) in near {
            let near = if first { Near::First } else { Near::At(places) };
            found.near.push((label.clone(), near));
        }
        for spread in &company.spread {
            let labels = company.spread.iter().map(|spread| spread.place.as_str());
            found.spread.push((spread.place.clone(), spread.open(pod, loads, labels)));
        }
        found
    }

    /// Why the node is none for the pod; nothing if it may be.
    pub fn refusal(&self, node: &NodeFacts) -> Option<Refusal> {
        let is_at = |places: &BTreeSet<(String, String)>| {
            places.iter().any(|(label, value)| node.labels.get(label) == Some(value))
        };
        if is_at(&self.closed) {
            return Some(Refusal::OthersKeepApart);
        }
        let near = |(label, near): &(String, Near)| {
            let value = node.labels.get(label);
            value.is_some_and(|value| match near {
                Near::At(places) => places.contains(value),
                Near::First => true,
            })
        };
        if !self.near.iter().all(near) {
            return Some(Refusal::NotNear);
        }
        if is_at(&self.avoided) {
            return Some(Refusal::NotApart);
        }
        if self.spread.iter().any(|(label, _)| !node.labels.contains_key(label)) {
            return Some(Refusal::NoPlace);
        }
        let is_open = |(label, places): &(String, BTreeSet<String>)| {
            node.labels.get(label).is_some_and(|value| places.contains(value))
        };
        (!self.spread.iter().all(is_open)).then_some(Refusal::Uneven)
    }
}

#[cfg(test)]
mod tests;
