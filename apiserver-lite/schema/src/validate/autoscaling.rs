//! Validation of HorizontalPodAutoscalers in the stored version.

use super::{FieldErrors, names, numbers, selector};
use crate::object::Object;
use crate::value::{Map, Path, Value};

/// Longest stabilization window in seconds.
const WINDOW_SECONDS_MAX: i64 = 3600;
/// Longest period of a scaling policy in seconds.
const PERIOD_SECONDS_MAX: i64 = 1800;

/// Metric types and their required fields.
const SOURCES: &[(&str, &str)] = &[
    ("ContainerResource", "containerResource"),
    ("External", "external"),
    ("Object", "object"),
    ("Pods", "pods"),
    ("Resource", "resource"),
];

pub(super) fn check(object: &Object, errors: &mut FieldErrors) {
    let path = Path::ROOT;
    let path = path.field("spec");
    let empty = Map::new();
    let spec = object.spec().unwrap_or(&empty);
    check_bounds(spec, &path, errors);
    let target = path.field("scaleTargetRef");
    let reference = spec.map("scaleTargetRef").unwrap_or(&empty);
    for field in ["kind", "name"] {
        let (text, here) = (reference.str(field), target.field(field));
        if text.is_empty() {
            errors.required(&here, "");
        } else {
            errors.complaints(&here, text, names::path_segment(text));
        }
    }
    let list = path.field("metrics");
    for (at, metric) in spec.maps("metrics").enumerate() {
        check_metric(metric, &list.index(at), errors);
    }
    let behavior = path.field("behavior");
    for direction in ["scaleUp", "scaleDown"] {
        let rules = spec.map("behavior").and_then(|behavior| behavior.map(direction));
        if let Some(rules) = rules {
            check_rules(rules, &behavior.field(direction), errors);
        }
    }
}

fn check_bounds(spec: &Map, path: &Path<'_>, errors: &mut FieldErrors) {
    let (least, most) = (spec.int("minReplicas"), spec.int("maxReplicas").unwrap_or(0));
    if let Some(least) = least.filter(|least| *least < 1) {
        errors.invalid(&path.field("minReplicas"), least, "must be greater than or equal to 1");
    }
    let here = path.field("maxReplicas");
    if most < 1 {
        errors.invalid(&here, most, "must be greater than 0");
    }
    if least.is_some_and(|least| most < least) {
        errors.invalid(&here, most, "must be greater than or equal to `minReplicas`");
    }
}

fn check_metric(metric: &Map, path: &Path<'_>, errors: &mut FieldErrors) {
    let kind = metric.str("type");
    let Some((_, field)) = SOURCES.iter().find(|(name, _)| *name == kind) else {
        if kind.is_empty() {
            errors.required(&path.field("type"), "must specify a metric source type");
        } else {
            let known: Vec<&str> = SOURCES.iter().map(|(name, _)| *name).collect();
            errors.not_supported(&path.field("type"), kind, &known);
        }
        return;
    };
    let here = path.field(field);
    let Some(source) = metric.map(field) else {
        let detail = "must populate information for the given metric source";
        errors.required(&here, detail);
        return;
    };
    if matches!(kind, "Resource" | "ContainerResource") && source.str("name").is_empty() {
        errors.required(&here.field("name"), "must specify a resource name");
    }
    if let Some(identifier) = source.map("metric") {
        let metric = here.field("metric");
        if identifier.str("name").is_empty() {
            errors.required(&metric.field("name"), "must specify a metric name");
        }
        selector::check(identifier.map("selector"), &metric.field("selector"), errors);
    }
    let empty = Map::new();
    check_target(source.map("target").unwrap_or(&empty), &here.field("target"), errors);
}

fn check_target(target: &Map, path: &Path<'_>, errors: &mut FieldErrors) {
    let kind = target.str("type");
    if kind.is_empty() {
        errors.required(&path.field("type"), "must specify a metric target type");
    } else if !matches!(kind, "AverageValue" | "Utilization" | "Value") {
        let detail = "must be either Utilization, Value, or AverageValue";
        errors.invalid(&path.field("type"), kind, detail);
    }
    for field in ["value", "averageValue"] {
        let amount = target.get(field).and_then(numbers::amount);
        if amount.is_some_and(|amount| amount.is_zero() || amount.is_negative()) {
            let value = target.get(field).cloned().unwrap_or_default();
            errors.invalid(&path.field(field), value, "must be positive");
        }
    }
    if let Some(share) = target.int("averageUtilization").filter(|share| *share < 1) {
        errors.invalid(&path.field("averageUtilization"), share, "must be greater than 0");
    }
}

fn check_rules(rules: &Map, path: &Path<'_>, errors: &mut FieldErrors) {
    let field = "stabilizationWindowSeconds";
    if let Some(seconds) = rules.int(field) {
        let here = path.field(field);
        if seconds < 0 {
            errors.invalid(&here, seconds, "must be greater than or equal to zero");
        } else if seconds > WINDOW_SECONDS_MAX {
            let detail = format!("must be less than or equal to {WINDOW_SECONDS_MAX}");
            errors.invalid(&here, seconds, &detail);
        }
    }
    let select = rules.str("selectPolicy");
    if rules.contains("selectPolicy") && !matches!(select, "Disabled" | "Max" | "Min") {
        errors.not_supported(&path.field("selectPolicy"), select, &["Disabled", "Max", "Min"]);
    }
    let list = path.field("policies");
    for (at, policy) in rules.maps("policies").enumerate() {
        let here = list.index(at);
        let kind = policy.str("type");
        if !matches!(kind, "Percent" | "Pods") {
            errors.not_supported(&here.field("type"), kind, &["Percent", "Pods"]);
        }
        for field in ["value", "periodSeconds"] {
            let number = policy.int(field).unwrap_or(0);
            if number <= 0 {
                errors.invalid(
                    &here.field(field),
                    Value::from(number),
                    "must be greater than zero",
                );
            } else if field == "periodSeconds" && number > PERIOD_SECONDS_MAX {
                let detail = format!("must be less than or equal to {PERIOD_SECONDS_MAX}");
                errors.invalid(&here.field(field), number, &detail);
            }
        }
    }
}
