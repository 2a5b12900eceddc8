//! Which disruption budgets a change concerns.

use std::sync::Arc;

use proto_api::core::v1::Pod;
use proto_api::policy::v1::PodDisruptionBudget;
use proto_api::selectors::Selector;
use proto_client::{Change, ObjectKey};

use super::{ReconcileKey, Watched, parts};
use crate::controllers::addresses::is_ready;
use crate::controllers::disruption;
use crate::informers::Informers;

impl Watched for PodDisruptionBudget {
    fn tasks(change: &Change<Self>, _: &Informers) -> Vec<ReconcileKey> {
        let Some((key, Some(_), _)) = parts(change) else { return Vec::new() };
        vec![ReconcileKey::Disruption(key.clone())]
    }
}

/// The budgets that see a difference between two states of a pod.
pub(super) fn of_pod(
    informers: &Informers,
    key: &ObjectKey,
    new: Option<&Arc<Pod>>,
    old: Option<&Arc<Pod>>,
) -> Vec<ReconcileKey> {
    let budgets = informers.budgets.within(&key.namespace);
    if budgets.is_empty() || new.map(|pod| seen(pod)) == old.map(|pod| seen(pod)) {
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
    budgets.map(|budget| ReconcileKey::Disruption(ObjectKey::of(&budget.metadata))).collect()
}

/// What budgets count.
fn seen(pod: &Pod) -> impl PartialEq + use<> {
    let going = pod.metadata.deletion_timestamp.is_some();
    let owner = disruption::controller(pod).map(|owner| owner.uid.clone());
    (pod.metadata.uid.clone(), pod.metadata.labels.clone(), going, is_ready(pod), owner)
}

/// The budgets of a namespace that ask for a share of what some workload there is to have, when that changes.
pub(super) fn of_scale(
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
    budgets.map(|budget| ReconcileKey::Disruption(ObjectKey::of(&budget.metadata))).collect()
}
