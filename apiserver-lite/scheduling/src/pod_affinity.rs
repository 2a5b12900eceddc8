//! The filters InterPodAffinity and PodTopologySpread: required pod affinity, anti-affinity and topology spread.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::node_info::NodeInfo;
use crate::node_selector::matches_selector;
use crate::nodes::NodeLoad;
use crate::placement::{Spread, Term};
use crate::pod_info::{PodInfo, PodPhase};
use crate::profile::{Filter, Profile};
use crate::refusal::Refusal;
use crate::resource_amounts::add;

/// The labels of namespaces, by name.
pub type NamespaceLabels = BTreeMap<String, BTreeMap<String, String>>;

impl Term {
    /// Whether the term selects a pod.
    pub fn selects(&self, pod: &PodInfo, namespaces: &NamespaceLabels) -> bool {
        let namespace = &pod.key.namespace;
        let nothing = BTreeMap::new();
        let labels = namespaces.get(namespace).unwrap_or(&nothing);
        let in_namespace = self.namespaces.contains(namespace)
            || self.namespace_selector.as_ref().is_some_and(|selector| selector.matches(labels));
        in_namespace && self.pods.as_ref().is_some_and(|selector| selector.matches(&pod.labels))
    }
}

impl Spread {
    /// Whether the constraint of `pod` counts another pod.
    pub fn selects(&self, pod: &PodInfo, other: &PodInfo) -> bool {
        pod.key.namespace == other.key.namespace
            && self.pods.as_ref().is_some_and(|selector| selector.matches(&other.labels))
    }

    /// The domains in which `pod` keeps within the maximum skew. Only nodes with the topology keys of all constraints count.
    fn allowed_domains<'a>(
        &self,
        pod: &PodInfo,
        loads: &[NodeLoad],
        topology_keys: impl Iterator<Item = &'a str> + Clone,
    ) -> BTreeSet<String> {
        let mut counts: BTreeMap<&String, i64> = BTreeMap::new();
        let counts_node = |load: &&NodeLoad| {
            topology_keys.clone().all(|key| load.node.labels.contains_key(key))
                && matches_selector(pod, &load.node)
        };
        for load in loads.iter().filter(counts_node) {
            let Some(domain) = load.node.labels.get(&self.topology_key) else { continue };
            let active = load.pods.iter().filter(|other| other.phase == PodPhase::Active);
            let count = active.filter(|other| self.selects(pod, other)).count();
            add(counts.entry(domain).or_default(), i64::try_from(count).unwrap_or(i64::MAX));
        }
        let too_few_domains = counts.len() < self.min_domains;
        let minimum = if too_few_domains { 0 } else { counts.values().copied().min().unwrap_or(0) };
        let own = i64::from(self.selects(pod, pod));
        let fits = |count: i64| count.saturating_add(own).saturating_sub(minimum) <= self.max_skew;
        counts
            .into_iter()
            .filter(|(_, count)| fits(*count))
            .map(|(domain, _)| domain.clone())
            .collect()
    }
}

/// The effect of all assigned pods on one pod, computed once per cycle and then checked for every node.
#[derive(Debug, Default)]
pub struct InterPodState {
    /// Topology key and value of the domains that the pod's anti-affinity excludes.
    excluded: BTreeSet<(String, String)>,
    /// Topology key and value of the domains whose pods exclude this pod.
    excluded_by_pods: BTreeSet<(String, String)>,
    /// The domains that satisfy each affinity term, by topology key.
    affinity: Vec<(String, AffinityDomains)>,
    /// The domains that each spread constraint allows, by topology key.
    topology_spread: Vec<(String, BTreeSet<String>)>,
}

#[derive(Debug)]
enum AffinityDomains {
    /// These.
    In(BTreeSet<String>),
    /// Any: no pod matches yet, and this one matches its own terms.
    Any,
}

impl InterPodState {
    /// Computes the state for `pod`, of the filters that the profile asks.
    pub fn of(
        pod: &PodInfo,
        loads: &[NodeLoad],
        namespaces: &NamespaceLabels,
        profile: &Profile,
    ) -> Self {
        let mut state = match profile.asks(Filter::InterPodAffinity) {
            true => Self::of_affinity(pod, loads, namespaces),
            false => Self::default(),
        };
        let spreads = &pod.constraints.topology_spread;
        let spreads = if profile.asks(Filter::PodTopologySpread) { &spreads[..] } else { &[] };
        for spread in spreads {
            let topology_keys = spreads.iter().map(|spread| spread.topology_key.as_str());
            state.topology_spread.push((
                spread.topology_key.clone(),
                spread.allowed_domains(pod, loads, topology_keys),
            ));
        }
        state
    }

    fn of_affinity(pod: &PodInfo, loads: &[NodeLoad], namespaces: &NamespaceLabels) -> Self {
        let constraints = &pod.constraints;
        let domains = |topology_key: &str, terms: &[Term]| -> BTreeSet<String> {
            let all = |other: &Arc<PodInfo>| terms.iter().all(|t| t.selects(other, namespaces));
            let matching = loads.iter().filter(|load| load.pods.iter().any(all));
            matching.filter_map(|load| load.node.labels.get(topology_key).cloned()).collect()
        };
        let mut state = Self::default();
        for term in &constraints.anti_affinity {
            let domains = domains(&term.topology_key, std::slice::from_ref(term));
            state
                .excluded
                .extend(domains.into_iter().map(|value| (term.topology_key.clone(), value)));
        }
        for load in loads {
            let terms = load.constraining.iter().flat_map(|p| &p.constraints.anti_affinity);
            for term in terms.filter(|term| term.selects(pod, namespaces)) {
                if let Some(value) = load.node.labels.get(&term.topology_key) {
                    state.excluded_by_pods.insert((term.topology_key.clone(), value.clone()));
                }
            }
        }
        // A pod counts only if all terms select it, and the first pod must be selected by all of its terms.
        let affinity = constraints.affinity.iter();
        let affinity: Vec<_> = affinity
            .map(|term| (&term.topology_key, domains(&term.topology_key, &constraints.affinity)))
            .collect();
        let first = affinity.iter().all(|(_, domains)| domains.is_empty())
            && constraints.affinity.iter().all(|term| term.selects(pod, namespaces));
        for (label, domains) in affinity {
            let affinity = if first { AffinityDomains::Any } else { AffinityDomains::In(domains) };
            state.affinity.push((label.clone(), affinity));
        }
        state
    }

    /// Why the node is not feasible for the pod; none if it is.
    pub fn refusal(&self, node: &NodeInfo) -> Option<Refusal> {
        let is_in = |domains: &BTreeSet<(String, String)>| {
            domains.iter().any(|(label, value)| node.labels.get(label) == Some(value))
        };
        if is_in(&self.excluded_by_pods) {
            return Some(Refusal::ExistingAntiAffinity);
        }
        let affinity = |(label, affinity): &(String, AffinityDomains)| {
            let value = node.labels.get(label);
            value.is_some_and(|value| match affinity {
                AffinityDomains::In(domains) => domains.contains(value),
                AffinityDomains::Any => true,
            })
        };
        if !self.affinity.iter().all(affinity) {
            return Some(Refusal::PodAffinity);
        }
        if is_in(&self.excluded) {
            return Some(Refusal::PodAntiAffinity);
        }
        if self.topology_spread.iter().any(|(label, _)| !node.labels.contains_key(label)) {
            return Some(Refusal::TopologySpreadLabel);
        }
        let is_allowed = |(label, domains): &(String, BTreeSet<String>)| {
            node.labels.get(label).is_some_and(|value| domains.contains(value))
        };
        (!self.topology_spread.iter().all(is_allowed)).then_some(Refusal::TopologySpread)
    }
}

#[cfg(test)]
mod tests;
