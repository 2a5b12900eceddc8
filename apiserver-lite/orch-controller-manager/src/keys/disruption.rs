//! The keys of PodDisruptionBudgets that a change affects.

use std::sync::Arc;

use apiserver_controller_io::informers::Informers;
use apiserver_controllers::addresses::is_ready;
use apiserver_controllers::disruption;
use proto_api::ObjectKey;
use proto_api::core::v1::Pod;
use proto_api::policy::v1::PodDisruptionBudget;
use proto_api::selectors::Selector;
use proto_client::Change;

use super::{ReconcileKey, WatchedKind, split};

impl WatchedKind for PodDisruptionBudget {
    fn keys(change: &Change<Self>, _: &Informers) -> Vec<ReconcileKey> {
        let Some((key, Some(_), _)) = split(change) else { return Vec::new() };
        vec![ReconcileKey::Disruption(key.clone())]
    }
}

/// The budgets whose counts may change between two states of a pod.
pub(super) fn keys_of_pod(
    informers: &Informers,
    key: &ObjectKey,
    new: Option<&Arc<Pod>>,
    old: Option<&Arc<Pod>>,
) -> Vec<ReconcileKey> {
    let budgets = informers.budgets.within(&key.namespace);
    if budgets.is_empty()
        || new.map(|pod| counted_fields(pod)) == old.map(|pod| counted_fields(pod))
    {
        return Vec::new();
    }
    let covers = |budget: &PodDisruptionBudget| {
        let selector = budget.spec.selector.as_ref();
        let selector =
            selector.and_then(|s| Selector::from_label_selector(s, "spec.selector").ok());
        selector.is_some_and(|selector| {
            [new, old].into_iter().flatten().any(|pod| selector.matches(&pod.metadata.labels))
        })
    };
    let budgets = budgets.into_iter().filter(|budget| covers(budget));
    budgets
        .map(|budget| ReconcileKey::Disruption(ObjectKey::from_metadata(&budget.metadata)))
        .collect()
}

/// The fields of a pod that budgets count.
fn counted_fields(pod: &Pod) -> impl PartialEq + use<> {
    let going = pod.metadata.deletion_timestamp.is_some();
    let owner = disruption::controller(pod).map(|owner| owner.uid.clone());
    (pod.metadata.uid.clone(), pod.metadata.labels.clone(), going, is_ready(pod), owner)
}

/// The budgets of a namespace that depend on the scale of a workload, if it changes.
pub(super) fn keys_of_scale(
    informers: &Informers,
    namespace: &str,
    new: Option<Option<i32>>,
    old: Option<Option<i32>>,
) -> Vec<ReconcileKey> {
    if new == old {
        return Vec::new();
    }
    let budgets = informers.budgets.within(namespace).into_iter();
    let budgets = budgets.filter(|budget| disruption::needs_scale(budget));
    budgets
        .map(|budget| ReconcileKey::Disruption(ObjectKey::from_metadata(&budget.metadata)))
        .collect()
}
