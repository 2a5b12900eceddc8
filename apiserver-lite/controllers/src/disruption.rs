//! The disruption controller: counts the pods of each PodDisruptionBudget and computes how many evictions are allowed. The API server decrements
//! the number on each eviction and notes the pod; a noted pod that is not deleted within two minutes no longer counts as disrupted.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use proto_api::core::v1::Pod;
use proto_api::event_report::{EventKind, EventReport, reference};
use proto_api::meta::v1::{Condition, OwnerReference};
use proto_api::names::Names;
use proto_api::policy::v1::{PodDisruptionBudget, PodDisruptionBudgetStatus};
use proto_api::selectors::Selector;
use proto_api::{IntOrString, Time};

use crate::Plan;
use crate::addresses::{is_ready, is_terminating};
use crate::api_writes::ApiWrite;

/// Seconds within which an evicted pod has to be terminating.
const DELETION_SECS: i64 = 120;

/// The workload that defines the desired number of pods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnerScale {
    pub uid: String,
    pub replicas: i32,
}

/// The pods of the namespace that the budget selects.
pub fn covered<P: AsRef<Pod> + Clone>(budget: &PodDisruptionBudget, pods: &[P]) -> Vec<P> {
    let selector = budget.spec.selector.as_ref();
    let selector = selector.and_then(|s| Selector::from_label_selector(s, "spec.selector").ok());
    let Some(selector) = selector else { return Vec::new() };
    let covers = |pod: &&P| selector.matches(&pod.as_ref().metadata.labels);
    pods.iter().filter(covers).cloned().collect()
}

/// Whether the budget is relative to the desired number of pods instead of the current one.
pub fn needs_scale(budget: &PodDisruptionBudget) -> bool {
    let spec = &budget.spec;
    spec.max_unavailable.is_some() || matches!(spec.min_available, Some(IntOrString::String(_)))
}

/// The controller of the pod.
pub fn controller(pod: &Pod) -> Option<&OwnerReference> {
    pod.metadata.owner_references.iter().find(|owner| owner.controller == Some(true))
}

/// Plans the status. `pods` are those that the budget selects; `scale_of` finds the scale of a pod's controller.
pub fn plan<P: AsRef<Pod>>(
    names: &Names,
    budget: &PodDisruptionBudget,
    pods: &[P],
    scale_of: impl Fn(&OwnerReference) -> Option<OwnerScale>,
    now: Time,
) -> Plan {
    let pods: Vec<&Pod> = pods.iter().map(AsRef::as_ref).collect();
    let (mut next, mut events, mut plan) = (budget.clone(), Vec::new(), Plan::default());
    match expectation(budget, &pods, scale_of) {
        Ok(expected) => {
            let noted = &budget.status.disrupted_pods;
            let (disrupted, overdue, due) = still_expected(noted, &pods, now);
            plan.requeue_after = due;
            next.status = status(budget, &expected, &pods, disrupted, now);
            if expected.unmanaged {
                events.push(unmanaged());
            }
            for pod in overdue {
                events.push((Some(pod), EventKind::Warning, "NotDeleted", not_deleted(budget)));
            }
        }
        Err(why) => {
            next.status.disruptions_allowed = 0;
            set_condition(&mut next.status, "SyncFailed", &why.to_string(), now);
            let message = format!("Failed to calculate the number of expected pods: {why}");
            let reason = "CalculateExpectedPodCountFailed";
            events.push((None, EventKind::Warning, reason, message));
        }
    }
    if pods.is_empty() {
        events.push((None, EventKind::Normal, "NoPods", "No matching pods found".to_owned()));
    }
    if next.status != budget.status {
        let report = |(pod, kind, reason, message): Saying<'_>| {
            let about = pod.map_or_else(|| reference(budget, names), |pod| reference(pod, names));
            EventReport { about, kind, reason: reason.into(), message }
        };
        plan.reports = events.into_iter().map(report).collect();
        plan.writes.push(ApiWrite::UpdateStatus(next.into()));
    }
    plan
}

/// Pod (the budget if none), type, reason and message of an event.
type Saying<'a> = (Option<&'a Pod>, EventKind, &'static str, String);

fn unmanaged<'a>() -> Saying<'a> {
    let message = "Pods selected by this PodDisruptionBudget were found to be unmanaged. As a result, the status of the PDB \
                   cannot be calculated correctly, which may result in undefined behavior. To account for these pods \
                   please set \".spec.minAvailable\" field of the PDB to an integer value.";
    (None, EventKind::Warning, "UnmanagedPods", message.to_owned())
}

fn not_deleted(budget: &PodDisruptionBudget) -> String {
    let metadata = &budget.metadata;
    let (namespace, name) = (&metadata.namespace, &metadata.name);
    format!("Pod was expected by PDB {namespace}/{name} to be deleted but it wasn't")
}

/// The counts that a budget requires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Expected {
    pods: i32,
    healthy: i32,
    /// Whether some pods have no controller and are not counted.
    unmanaged: bool,
}

/// Why the number of expected pods is not known. The budget says so in its condition until it or the pods change.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
enum ExpectationError {
    /// The controller of a pod is unknown or has no scale.
    #[error("found no controllers for pod {0:?}")]
    NoController(String),
    /// A number of pods is neither a number nor a percentage.
    #[error("{0:?} is not a percentage")]
    NotPercentage(IntOrString),
}

fn expectation(
    budget: &PodDisruptionBudget,
    pods: &[&Pod],
    scale_of: impl Fn(&OwnerReference) -> Option<OwnerScale>,
) -> Result<Expected, ExpectationError> {
    let spec = &budget.spec;
    if let Some(unavailable) = &spec.max_unavailable {
        let (whole, unmanaged) = expected_scale(pods, scale_of)?;
        let unavailable = share(unavailable, whole)?;
        let healthy = whole.saturating_sub(unavailable).max(0);
        return Ok(Expected { pods: whole, healthy, unmanaged });
    }
    match &spec.min_available {
        Some(IntOrString::Int(healthy)) => {
            let count = i32::try_from(pods.len()).unwrap_or(i32::MAX);
            Ok(Expected { pods: count, healthy: (*healthy).max(0), unmanaged: false })
        }
        Some(available) => {
            let (whole, unmanaged) = expected_scale(pods, scale_of)?;
            Ok(Expected { pods: whole, healthy: share(available, whole)?, unmanaged })
        }
        None => Ok(Expected { pods: 0, healthy: 0, unmanaged: false }),
    }
}

/// The sum of the scales of the pods' controllers, and whether some pod has none.
fn expected_scale(
    pods: &[&Pod],
    scale_of: impl Fn(&OwnerReference) -> Option<OwnerScale>,
) -> Result<(i32, bool), ExpectationError> {
    let mut scales: BTreeMap<String, i32> = BTreeMap::new();
    let (mut known, mut unmanaged) = (BTreeSet::new(), false);
    for pod in pods {
        let Some(owner) = controller(pod) else {
            unmanaged = true;
            continue;
        };
        if !known.insert(&owner.uid) {
            continue;
        }
        let scale = scale_of(owner);
        let scale =
            scale.ok_or_else(|| ExpectationError::NoController(pod.metadata.name.clone()))?;
        scales.insert(scale.uid, scale.replicas.max(0));
    }
    let whole = scales.values().fold(0i32, |sum, replicas| sum.saturating_add(*replicas));
    Ok((whole, unmanaged))
}

/// A number or a percentage of `whole`, rounded up.
fn share(value: &IntOrString, whole: i32) -> Result<i32, ExpectationError> {
    let percent = match value {
        IntOrString::Int(number) => return Ok((*number).max(0)),
        IntOrString::String(text) => text.strip_suffix('%').and_then(|text| text.parse().ok()),
    };
    let percent: i64 = percent.ok_or_else(|| ExpectationError::NotPercentage(value.clone()))?;
    let part = i64::from(whole).saturating_mul(percent.max(0));
    let rounded = part.saturating_add(99).div_euclid(100);
    Ok(i32::try_from(rounded).unwrap_or(i32::MAX))
}

/// The evicted pods that are expected to terminate, the overdue ones, and when the next becomes overdue.
fn still_expected<'a>(
    noted: &BTreeMap<String, Time>,
    pods: &[&'a Pod],
    now: Time,
) -> (BTreeMap<String, Time>, Vec<&'a Pod>, Option<Duration>) {
    let (mut expected, mut overdue) = (BTreeMap::new(), Vec::new());
    let mut due: Option<u64> = None;
    for pod in pods.iter().filter(|pod| !is_terminating(pod)) {
        let Some(since) = noted.get(&pod.metadata.name) else { continue };
        let left = left_secs(*since, now);
        if left == 0 {
            overdue.push(*pod);
            continue;
        }
        expected.insert(pod.metadata.name.clone(), *since);
        due = Some(due.map_or(left, |earlier| earlier.min(left)));
    }
    (expected, overdue, due.map(Duration::from_secs))
}

/// Seconds until an eviction noted at `since` is overdue; a time in the future counts as now.
fn left_secs(since: Time, now: Time) -> u64 {
    let age = now.unix().unwrap_or(0).saturating_sub(since.unix().unwrap_or(0)).max(0);
    u64::try_from(DELETION_SECS.saturating_sub(age)).unwrap_or(0)
}

fn status(
    budget: &PodDisruptionBudget,
    expected: &Expected,
    pods: &[&Pod],
    disrupted_pods: BTreeMap<String, Time>,
    now: Time,
) -> PodDisruptionBudgetStatus {
    let healthy = |pod: &&&Pod| {
        !is_terminating(pod) && !disrupted_pods.contains_key(&pod.metadata.name) && is_ready(pod)
    };
    let healthy = i32::try_from(pods.iter().filter(healthy).count()).unwrap_or(i32::MAX);
    // A budget without pods allows no eviction: the first pods could be evicted before they are counted.
    let allowed = healthy.saturating_sub(expected.healthy).max(0);
    let allowed = if expected.pods > 0 { allowed } else { 0 };
    let mut status = PodDisruptionBudgetStatus {
        observed_generation: budget.metadata.generation,
        disrupted_pods,
        disruptions_allowed: allowed,
        current_healthy: healthy,
        desired_healthy: expected.healthy,
        expected_pods: expected.pods,
        conditions: budget.status.conditions.clone(),
    };
    let reason = if allowed > 0 { "SufficientPods" } else { "InsufficientPods" };
    set_condition(&mut status, reason, "", now);
    status
}

/// Sets the condition DisruptionAllowed; its transition time changes only with its status.
fn set_condition(status: &mut PodDisruptionBudgetStatus, reason: &str, message: &str, now: Time) {
    let is = if status.disruptions_allowed > 0 { "True" } else { "False" };
    let mut condition = Condition {
        type_: "DisruptionAllowed".to_owned(),
        status: is.to_owned(),
        observed_generation: status.observed_generation,
        last_transition_time: now,
        reason: reason.to_owned(),
        message: message.to_owned(),
    };
    match status.conditions.iter_mut().find(|other| other.type_ == condition.type_) {
        Some(other) => {
            if other.status == condition.status {
                condition.last_transition_time = other.last_transition_time;
            }
            *other = condition;
        }
        None => status.conditions.push(condition),
    }
}

#[cfg(test)]
mod tests;
