//! A HorizontalPodAutoscaler: why it does not scale.

use serde_json::Value;

use super::{Case, Finding, Verdict, deletion, reason_of, true_condition};
use crate::{objects, state};

/// Why an autoscaler does not scale.
pub(super) fn explain(case: &Case, now: i64) -> Verdict {
    let autoscaler = &case.object;
    let mut findings: Vec<Finding> = deletion(autoscaler, now).into_iter().collect();
    // Version 1 has them in an annotation.
    let has_conditions = objects::text_at(autoscaler, "/apiVersion") != "autoscaling/v1";
    if has_conditions && objects::list_at(autoscaler, "/status/conditions").is_empty() {
        findings.push(Finding::waiting(
            "its controller has not acted on it yet",
            "it has no conditions",
            "wait, or look whether the controller manager runs",
        ));
    }
    let target = target(autoscaler);
    findings.extend(false_condition(autoscaler, "AbleToScale").map(|condition| {
        Finding::stuck(
            format!("it cannot scale {target}"),
            reason_of(condition),
            "see whether spec.scaleTargetRef names an object that is there and can be scaled",
        )
    }));
    findings.extend(false_condition(autoscaler, "ScalingActive").map(unscaled));
    if let Some(condition) = true_condition(autoscaler, "ScalingLimited") {
        let reason = objects::text_at(condition, "/reason");
        // At the minimum nothing is missing.
        if reason == "TooManyReplicas" {
            findings.push(Finding::stuck(
                "it wants more replicas than it may have",
                reason_of(condition),
                "raise spec.maxReplicas if the cluster has room",
            ));
        }
    }
    if !findings.is_empty() {
        return Verdict::Wrong(findings);
    }
    let count = |field: &str| state::number(autoscaler, &format!("/status/{field}"), 0);
    Verdict::Well(format!(
        "it scales {target}: {} replicas, {} wanted",
        count("currentReplicas"),
        count("desiredReplicas")
    ))
}

/// Its metrics give it no number.
fn unscaled(condition: &Value) -> Finding {
    let next = match objects::text_at(condition, "/reason") {
        "ScalingDisabled" => "its target has 0 replicas, which switches it off: scale it to 1",
        "FailedGetResourceMetric" => {
            "look whether metrics are there: orchctl top pod; each container needs a request of the resource"
        }
        "InvalidSelector" => "give its target a selector",
        _ => "see to what it says of its metrics",
    };
    Finding::stuck("it has no metric to scale by", reason_of(condition), next)
}

fn target(autoscaler: &Value) -> String {
    let [kind, name] = ["kind", "name"]
        .map(|field| objects::text_at(autoscaler, &format!("/spec/scaleTargetRef/{field}")));
    format!("{}/{name}", kind.to_lowercase())
}

fn false_condition<'a>(object: &'a Value, kind: &str) -> Option<&'a Value> {
    state::condition(object, kind).filter(|one| objects::text_at(one, "/status") == "False")
}
