//! The filters InterPodAffinity and PodTopologySpread: required pod affinity, anti-affinity and topology spread.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use proto_api::selectors::Selector;

use crate::filter::find_untolerated;
use crate::node_info::NodeInfo;
use crate::node_selector::matches_selector;
use crate::nodes::NodeLoad;
use crate::placement::{Spread, Term};
use crate::pod_info::{PodInfo, PodPhase};
use crate::profile::{Filter, Profile};
use crate::refusal::Refusal;
use crate::resource_amounts::add;

/// The labels of namespaces, by name.
pub type NamespaceLabels = BTreeMap<String, Arc<BTreeMap<String, String>>>;

impl Term {
    /// Whether the term selects a pod.
    pub fn selects(&self, pod: &PodInfo, namespaces: &NamespaceLabels) -> bool {
        proto_api::count_steps!(1);
        let namespace = &pod.key.namespace;
        let by_labels = |selector: &Selector| {
            let nothing = BTreeMap::new();
            selector.matches(namespaces.get(namespace).map_or(&nothing, Arc::as_ref))
        };
        let in_namespace = self.namespaces.contains(namespace)
            || self.namespace_selector.as_ref().is_some_and(by_labels);
        in_namespace && self.pods.as_ref().is_some_and(|selector| selector.matches(&pod.labels))
    }
}

impl Spread {
    /// Whether the constraint of `pod` counts another pod.
    pub fn selects(&self, pod: &PodInfo, other: &PodInfo) -> bool {
        proto_api::count_steps!(1);
        pod.key.namespace == other.key.namespace
            && self.pods.as_ref().is_some_and(|selector| selector.matches(&other.labels))
    }

    /// The domains in which `pod` keeps within the maximum skew. `counted` are the nodes with the keys of all its
    /// constraints.
    fn allowed_domains(&self, pod: &PodInfo, counted: &[CountedNode<'_>]) -> SpreadDomains {
        let mut counts: BTreeMap<&String, i64> = BTreeMap::new();
        for load in counted.iter().filter(|node| node.counts_for(self)).map(|node| node.load) {
            let Some(domain) = load.node.labels.get(&self.topology_key) else { continue };
            let active = load.pods.iter().filter(|other| other.phase == PodPhase::Active);
            let count = active.filter(|other| self.selects(pod, other)).count();
            add(counts.entry(domain).or_default(), i64::try_from(count).unwrap_or(i64::MAX));
        }
        let too_few_domains = counts.len() < self.min_domains;
        let minimum = if too_few_domains { 0 } else { counts.values().copied().min().unwrap_or(0) };
        let own = i64::from(self.selects(pod, pod));
        let fits = |count: i64| count.saturating_add(own).saturating_sub(minimum) <= self.max_skew;
        // A domain that no node counts for is an empty one.
        if !fits(0) {
            return SpreadDomains::None;
        }
        let full = counts.into_iter().filter(|(_, count)| !fits(*count));
        SpreadDomains::AllBut(full.map(|(domain, _)| domain.clone()).collect())
    }
}

/// A node whose pods count for those spread constraints of a pod that include it.
pub(crate) struct CountedNode<'a> {
    pub(crate) load: &'a NodeLoad,
    /// Whether it matches the node selector and affinity of the pod.
    matches_affinity: bool,
    /// Whether the pod tolerates its taints.
    is_tolerated: bool,
}

impl CountedNode<'_> {
    pub(crate) fn counts_for(&self, spread: &Spread) -> bool {
        (self.matches_affinity || !spread.inclusion.by_affinity)
            && (self.is_tolerated || !spread.inclusion.by_taints)
    }
}

/// The nodes with the topology keys of all constraints: only their pods count.
pub(crate) fn counted_nodes<'a>(
    pod: &PodInfo,
    constraints: &[Spread],
    loads: &'a [NodeLoad],
) -> Vec<CountedNode<'a>> {
    let keys: BTreeSet<&String> = constraints.iter().map(|spread| &spread.topology_key).collect();
    let has_keys = |load: &&NodeLoad| {
        proto_api::count_steps!(keys.len());
        keys.iter().all(|key| load.node.labels.contains_key(*key))
    };
    let by_taints = constraints.iter().any(|spread| spread.inclusion.by_taints);
    let counted = |load: &'a NodeLoad| CountedNode {
        load,
        matches_affinity: matches_selector(pod, &load.node),
        is_tolerated: !by_taints || find_untolerated(&pod.tolerations, &load.node.taints).is_none(),
    };
    loads.iter().filter(has_keys).map(counted).collect()
}

/// Domains: values of topology keys.
#[derive(Debug, Default)]
struct Domains(BTreeMap<String, BTreeSet<String>>);

impl Domains {
    fn have(&self, key: &str, value: &str) -> bool {
        self.0.get(key).is_some_and(|values| values.contains(value))
    }

    fn add(&mut self, key: &str, value: &str) {
        match self.0.get_mut(key) {
            Some(values) => drop(values.insert(value.to_owned())),
            None => drop(self.0.insert(key.to_owned(), [value.to_owned()].into())),
        }
    }

    /// Whether the node is in one of them.
    fn include(&self, node: &NodeInfo) -> bool {
        let is_in = |(key, values): (&String, &BTreeSet<String>)| {
            node.labels.get(key).is_some_and(|value| values.contains(value))
        };
        self.0.iter().any(is_in)
    }
}

/// The effect of all assigned pods on one pod, computed once per cycle and then checked for every node.
#[derive(Debug, Default)]
pub struct InterPodState {
    /// The domains that the pod's anti-affinity excludes.
    excluded: Domains,
    /// The domains whose pods exclude this pod.
    excluded_by_pods: Domains,
    /// The domains that satisfy the affinity terms, by topology key.
    affinity: BTreeMap<String, AffinityDomains>,
    /// The domains that each spread constraint allows, by topology key.
    topology_spread: Vec<(String, SpreadDomains)>,
}

/// The domains that a spread constraint allows.
#[derive(Debug)]
enum SpreadDomains {
    None,
    AllBut(BTreeSet<String>),
}

impl SpreadDomains {
    fn allow(&self, domain: &str) -> bool {
        matches!(self, Self::AllBut(full) if !full.contains(domain))
    }
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
    pub fn new(
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
        if !spreads.is_empty() && profile.asks(Filter::PodTopologySpread) {
            let counted = counted_nodes(pod, spreads, loads);
            let allowed = |spread: &Spread| {
                (spread.topology_key.clone(), spread.allowed_domains(pod, &counted))
            };
            state.topology_spread = spreads.iter().map(allowed).collect();
        }
        state
    }

    /// At most how many requirements of selectors [`Self::new`] looks at.
    pub fn cost(pod: &PodInfo, loads: &[NodeLoad]) -> usize {
        let sum = |weights: &mut dyn Iterator<Item = usize>| weights.fold(0, usize::saturating_add);
        let pods = sum(&mut loads.iter().map(|load| load.pods.len()));
        let constraints = &pod.constraints;
        let terms = constraints.affinity.iter().chain(&constraints.anti_affinity).map(Term::weight);
        let spread = constraints.topology_spread.iter().map(Spread::weight);
        let own = sum(&mut terms.chain(spread));
        let constraining = loads.iter().flat_map(|load| &load.constraining);
        let theirs = constraining.flat_map(|other| &other.constraints.anti_affinity);
        pods.saturating_mul(own).saturating_add(sum(&mut theirs.map(Term::weight)))
    }

    fn of_affinity(pod: &PodInfo, loads: &[NodeLoad], namespaces: &NamespaceLabels) -> Self {
        let mut state = Self::default();
        for load in loads {
            state.add_excluded(pod, load, namespaces);
            state.add_excluded_by(pod, load, namespaces);
        }
        state.affinity = affinity_domains(pod, loads, namespaces);
        state
    }

    /// Adds the domains of a node whose pods the anti-affinity of `pod` selects.
    fn add_excluded(&mut self, pod: &PodInfo, load: &NodeLoad, namespaces: &NamespaceLabels) {
        for term in &pod.constraints.anti_affinity {
            let Some(value) = load.node.labels.get(&term.topology_key) else { continue };
            if !self.excluded.have(&term.topology_key, value)
                && load.pods.iter().any(|other| term.selects(other, namespaces))
            {
                self.excluded.add(&term.topology_key, value);
            }
        }
    }

    /// Adds the domains of a node whose pods have anti-affinity that selects `pod`.
    fn add_excluded_by(&mut self, pod: &PodInfo, load: &NodeLoad, namespaces: &NamespaceLabels) {
        for constraints in load.constraining.iter().map(|other| &other.constraints) {
            for term in &constraints.anti_affinity {
                let Some(value) = load.node.labels.get(&term.topology_key) else { continue };
                if !self.excluded_by_pods.have(&term.topology_key, value)
                    && term.selects(pod, namespaces)
                {
                    self.excluded_by_pods.add(&term.topology_key, value);
                }
            }
            let excess = constraints.excess.iter();
            for excess in excess.filter(|excess| excess.reaches(&pod.key.namespace)) {
                for (key, value) in excess.domains(&load.node) {
                    self.excluded_by_pods.add(key, value);
                }
            }
        }
    }

    /// Why the node is not feasible for the pod; none if it is.
    pub fn refusal(&self, node: &NodeInfo) -> Option<Refusal> {
        if let Some(refusal) = self.refusal_by_spread(node) {
            return Some(refusal);
        }
        let affinity = |(label, affinity): (&String, &AffinityDomains)| {
            let value = node.labels.get(label);
            value.is_some_and(|value| match affinity {
                AffinityDomains::In(domains) => domains.contains(value),
                AffinityDomains::Any => true,
            })
        };
        if !self.affinity.iter().all(affinity) {
            return Some(Refusal::PodAffinity);
        }
        if self.excluded.include(node) {
            return Some(Refusal::PodAntiAffinity);
        }
        self.excluded_by_pods.include(node).then_some(Refusal::ExistingAntiAffinity)
    }

    /// The first constraint that refuses the node says why.
    fn refusal_by_spread(&self, node: &NodeInfo) -> Option<Refusal> {
        self.topology_spread.iter().find_map(|(label, domains)| match node.labels.get(label) {
            None => Some(Refusal::TopologySpreadLabel),
            Some(value) => (!domains.allow(value)).then_some(Refusal::TopologySpread),
        })
    }
}

/// The domains that satisfy the affinity of `pod`, by topology key. A pod counts only if all terms select it, and the first pod must be selected by all of its
/// terms.
fn affinity_domains(
    pod: &PodInfo,
    loads: &[NodeLoad],
    namespaces: &NamespaceLabels,
) -> BTreeMap<String, AffinityDomains> {
    let terms = &pod.constraints.affinity;
    if terms.is_empty() {
        return BTreeMap::new();
    }
    let selects = |other: &PodInfo| terms.iter().all(|term| term.selects(other, namespaces));
    let mut domains: BTreeMap<&String, BTreeSet<String>> =
        terms.iter().map(|term| (&term.topology_key, BTreeSet::new())).collect();
    for load in loads.iter().filter(|load| load.pods.iter().any(|other| selects(other))) {
        for (key, values) in &mut domains {
            values.extend(load.node.labels.get(*key).cloned());
        }
    }
    let is_first = domains.values().all(BTreeSet::is_empty) && selects(pod);
    let of_key = |(key, values): (&String, BTreeSet<String>)| {
        let values = if is_first { AffinityDomains::Any } else { AffinityDomains::In(values) };
        (key.clone(), values)
    };
    domains.into_iter().map(of_key).collect()
}

#[cfg(test)]
mod tests;
