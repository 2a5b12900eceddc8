//! The pod of one node: the template with tolerations, revision, and the affinity to the node.

use apiserver_scheduling::node_selector::NAME_FIELD;
use proto_api::apps::v1::DaemonSet;
use proto_api::core::v1::{
    Affinity, NodeAffinity, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, Pod, PodSpec,
    Toleration,
};
use proto_api::meta::v1::OwnerReference;
use proto_api::names::Names;

use crate::node_fit::required;
use crate::pods::{REVISION_LABEL, from_template};

/// Annotation of sets that were created by old versions of the API, and the label of their pods.
const GENERATION_ANNOTATION: &str = "deprecated.daemonset.template.generation";
const GENERATION_LABEL: &str = "pod-template-generation";

/// The pod for this node.
pub(super) fn new_pod(
    names: &Names,
    set: &DaemonSet,
    hash: &str,
    node: &str,
    reference: OwnerReference,
) -> Pod {
    let mut pod = from_template(&set.spec.template, &set.metadata, reference);
    add_tolerations(names, &mut pod.spec);
    let generation = set.metadata.annotations.get(GENERATION_ANNOTATION);
    if let Some(generation) = generation.filter(|text| text.parse::<i64>().is_ok()) {
        pod.metadata.labels.insert(GENERATION_LABEL.to_owned(), generation.clone());
    }
    pod.metadata.labels.insert(REVISION_LABEL.to_owned(), hash.to_owned());
    select_node(&mut pod.spec, node);
    pod
}

/// The tolerations of all pods of the set: their nodes' troubles do not end them.
pub(super) fn add_tolerations(names: &Names, spec: &mut PodSpec) {
    const SURVIVED: [(&str, &str); 6] = [
        ("not-ready", "NoExecute"),
        ("unreachable", "NoExecute"),
        ("disk-pressure", "NoSchedule"),
        ("memory-pressure", "NoSchedule"),
        ("pid-pressure", "NoSchedule"),
        ("unschedulable", "NoSchedule"),
    ];
    let network = spec.host_network.then_some(("network-unavailable", "NoSchedule"));
    for (taint, effect) in SURVIVED.into_iter().chain(network) {
        let toleration = Toleration {
            key: names.sub_label("node", taint),
            operator: "Exists".to_owned(),
            effect: effect.to_owned(),
            ..Toleration::default()
        };
        let same = |other: &&mut Toleration| {
            (&other.key, &other.operator, &other.value, &other.effect)
                == (&toleration.key, &toleration.operator, &toleration.value, &toleration.effect)
        };
        match spec.tolerations.iter_mut().find(same) {
            // One with a limit becomes one without.
            Some(same) => *same = toleration,
            None => spec.tolerations.push(toleration),
        }
    }
}

/// Replaces the required node affinity, which the node matches already, by the node's name.
fn select_node(spec: &mut PodSpec, node: &str) {
    let name = NodeSelectorRequirement {
        key: NAME_FIELD.to_owned(),
        operator: "In".to_owned(),
        values: vec![node.to_owned()],
    };
    let term = NodeSelectorTerm { match_fields: vec![name], ..NodeSelectorTerm::default() };
    let affinity = spec.affinity.get_or_insert_with(Affinity::default);
    let affinity = affinity.node_affinity.get_or_insert_with(NodeAffinity::default);
    affinity.required_during_scheduling_ignored_during_execution =
        Some(NodeSelector { node_selector_terms: vec![term] });
}

/// The node of a pod: where it runs, or else where its affinity wants it. None if neither says one node.
pub(super) fn node_of(pod: &Pod) -> Option<&str> {
    if !pod.spec.node_name.is_empty() {
        return Some(&pod.spec.node_name);
    }
    let terms = &required(pod.spec.affinity.as_ref())?.node_selector_terms;
    let mut fields = terms.iter().flat_map(|term| &term.match_fields);
    let name = fields.find(|field| field.key == NAME_FIELD && field.operator == "In")?;
    match &name.values[..] {
        [node] => Some(node),
        _ => None,
    }
}
