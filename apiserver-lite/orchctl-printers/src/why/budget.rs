//! A PodDisruptionBudget: why it allows no eviction.

use super::{Case, Finding, Verdict, deletion, last_event, reason_of, workload};
use crate::{objects, state};
use serde_json::Value;

/// Why no pod may be evicted.
pub(super) fn explain(case: &Case, now: i64) -> Verdict {
    let budget = &case.object;
    let mut findings: Vec<Finding> = deletion(budget, now).into_iter().collect();
    let count = |field: &str| state::number(budget, &format!("/status/{field}"), 0);
    let (allowed, expected) = (count("disruptionsAllowed"), count("expectedPods"));
    let (healthy, wanted) = (count("currentHealthy"), count("desiredHealthy"));
    if allowed > 0 && findings.is_empty() {
        return Verdict::Well(format!(
            "{allowed} of {expected} pods may be evicted now: {healthy} are healthy, {wanted} have to be"
        ));
    }
    let [written, seen] = ["/metadata/generation", "/status/observedGeneration"]
        .map(|at| state::number(budget, at, 0));
    let uncounted = last_event(&case.events, &["UnmanagedPods", "CalculateExpectedPodCountFailed"]);
    let numbers = format!("{healthy} of {expected} pods are healthy, {wanted} have to be");
    let condition = state::condition(budget, "DisruptionAllowed");
    let failure = condition.filter(|one| objects::text_at(one, "/reason") == "SyncFailed");
    if let Some(failure) = failure {
        findings.push(Finding::stuck(
            "its pods cannot be counted",
            reason_of(failure),
            "see to the controllers that own its pods: percentages need their number of replicas",
        ));
    } else if seen < written {
        findings.push(Finding::waiting(
            "its last change has not been seen yet",
            format!("status.observedGeneration is {seen}, metadata.generation {written}"),
            "wait, or look whether the controller manager runs",
        ));
    } else if condition.is_none() {
        findings.push(Finding::waiting(
            "its pods have not been counted yet",
            "it has no condition DisruptionAllowed",
            "wait, or look whether the controller manager runs",
        ));
    } else if let Some(message) = uncounted.filter(|_| expected == 0) {
        findings.push(Finding::stuck(
            "its pods cannot be counted",
            message,
            "give them a controller with replicas, or set minAvailable to a number",
        ));
    } else if expected == 0 {
        findings.push(Finding::stuck(
            "it selects no pod",
            "status.expectedPods is 0",
            "compare spec.selector with the labels of the pods: orchctl get pods --show-labels",
        ));
    } else if wanted >= expected && budget.pointer("/spec/minAvailable").is_some_and(Value::is_i64)
    {
        findings.push(Finding::stuck(
            "no more pods exist than it keeps",
            numbers,
            "have more replicas than minAvailable, or lower it; if fewer pods exist than are wanted, see to what owns them",
        ));
    } else if wanted >= expected {
        findings.push(Finding::stuck(
            "it never allows an eviction",
            numbers,
            "allow one to go: lower minAvailable, or raise maxUnavailable",
        ));
    } else if allowed == 0 {
        findings.push(Finding::waiting(
            "too few of its pods are healthy",
            numbers,
            "see to its pods; evictions go on when they are ready",
        ));
    }
    if expected > 0 {
        findings.extend(workload::of_pods(case, now));
    }
    Verdict::Wrong(findings)
}
