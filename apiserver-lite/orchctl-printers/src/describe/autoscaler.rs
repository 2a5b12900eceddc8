//! An autoscaler.

use serde_json::Value;

use super::common::{self, number, word};
use super::{Context, Page};
use crate::objects;

pub(super) fn describe(page: &mut Page, object: &Value, context: Context<'_>) {
    common::name(page, object);
    common::labels(page, object, context);
    common::created(page, object);
    let target = |field: &str| objects::text_at(object, &format!("/spec/scaleTargetRef/{field}"));
    page.field(0, "Reference", format!("{}/{}", target("kind"), target("name")));
    page.field(0, "Metrics", "( current / target )");
    let current = objects::list_at(object, "/status/currentMetrics");
    for (at, metric) in objects::list_at(object, "/spec/metrics").iter().enumerate() {
        let now = current.get(at).unwrap_or(&Value::Null);
        page.line(1, metric_line(metric, now));
    }
    page.field(0, "Min replicas", word(object, "/spec/minReplicas", "<unset>"));
    page.field(0, "Max replicas", number(object, "/spec/maxReplicas").to_string());
    if object.pointer("/spec/behavior").is_some() {
        page.line(0, "Behavior:");
        for (title, field) in [("Scale Up", "scaleUp"), ("Scale Down", "scaleDown")] {
            if let Some(rules) = object.pointer(&format!("/spec/behavior/{field}")) {
                behavior(page, title, rules);
            }
        }
    }
    let (has, wants) =
        (number(object, "/status/currentReplicas"), number(object, "/status/desiredReplicas"));
    page.field(0, &format!("{} pods", target("kind")), format!("{has} current / {wants} desired"));
    let conditions = objects::list_at(object, "/status/conditions");
    if !conditions.is_empty() {
        page.line(0, "Conditions:");
        page.line(1, "Type\tStatus\tReason\tMessage");
        page.line(1, "----\t------\t------\t-------");
    }
    for one in conditions {
        let cells = ["/type", "/status", "/reason", "/message"];
        page.line(1, cells.map(|pointer| objects::text_at(one, pointer)).join("\t"));
    }
}

/// What is measured, its value and the one that is wanted.
fn metric_line(metric: &Value, now: &Value) -> String {
    let kind = objects::text_at(metric, "/type");
    let field = format!(
        "{}{}",
        kind.get(..1).unwrap_or_default().to_lowercase(),
        kind.get(1..).unwrap_or_default()
    );
    let at = |part: &str| format!("/{field}/{part}");
    let text = |part: &str| objects::text_at(metric, &at(part));
    let value = |part: &str| {
        let now = word(now, &at(&format!("current/{part}")), "<unknown>");
        let wanted = word(metric, &at(&format!("target/{part}")), "<auto>");
        format!("{now} / {wanted}")
    };
    let is_average = metric.pointer(&at("target/averageValue")).is_some();
    let name = text("metric/name");
    match kind {
        "External" if is_average => {
            format!("\"{name}\" (target average value):\t{}", value("averageValue"))
        }
        "External" => format!("\"{name}\" (target value):\t{}", value("value")),
        "Pods" => format!("\"{name}\" on pods:\t{}", value("averageValue")),
        "Object" => {
            let object =
                format!("{}/{}", text("describedObject/kind"), text("describedObject/name"));
            let (which, part) =
                if is_average { ("average value", "averageValue") } else { ("value", "value") };
            format!("\"{name}\" on {object} (target {which}):\t{}", value(part))
        }
        "Resource" | "ContainerResource" => {
            let container = match text("container") {
                "" => String::new(),
                name => format!(" of container \"{name}\""),
            };
            let what = format!("resource {}{container} on pods", text("name"));
            if is_average {
                return format!("{what}:\t{}", value("averageValue"));
            }
            let percent = |tree: &Value, part: &str| {
                tree.pointer(&at(part)).and_then(Value::as_i64).map(|share| format!("{share}%"))
            };
            let used = percent(now, "current/averageUtilization")
                .map(|share| format!("{share} ({})", word(now, &at("current/averageValue"), "0")));
            let used = used.unwrap_or_else(|| "<unknown>".to_owned());
            let wanted = percent(metric, "target/averageUtilization");
            let wanted = wanted.unwrap_or_else(|| "<auto>".to_owned());
            format!("{what}  (as a percentage of request):\t{used} / {wanted}")
        }
        other => format!("<unknown metric type \"{other}\">"),
    }
}

/// How fast the number of pods may change in one direction.
fn behavior(page: &mut Page, title: &str, rules: &Value) {
    page.line(1, format!("{title}:"));
    if rules.get("stabilizationWindowSeconds").is_some() {
        let seconds = number(rules, "/stabilizationWindowSeconds");
        page.line(2, format!("Stabilization Window: {seconds} seconds"));
    }
    let policies = objects::list_at(rules, "/policies");
    if !policies.is_empty() {
        page.line(2, format!("Select Policy: {}", word(rules, "/selectPolicy", "Max")));
        page.line(2, "Policies:");
    }
    for one in policies {
        let (value, period) = (number(one, "/value"), number(one, "/periodSeconds"));
        let kind = objects::text_at(one, "/type");
        page.line(3, format!("- Type: {kind}\tValue: {value}\tPeriod: {period} seconds"));
    }
}
