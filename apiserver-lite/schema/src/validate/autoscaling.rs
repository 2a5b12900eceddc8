//! Validation of HorizontalPodAutoscalers in the stored version.

use super::{FieldErrors, names, numbers, selector};
use crate::field_gates::{FieldGate, FieldGates};
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

pub(super) fn check(object: &Object, gates: FieldGates, errors: &mut FieldErrors) {
    let path = Path::ROOT;
    let path = path.field("spec");
    let empty = Map::new();
    let spec = object.spec().unwrap_or(&empty);
    check_bounds(spec, gates, &path, errors);
    let target = path.field("scaleTargetRef");
    let reference = spec.map("scaleTargetRef").unwrap_or(&empty);
    check_reference(reference, &target, errors);
    let list = path.field("metrics");
    for (at, metric) in spec.maps("metrics").enumerate() {
        check_metric(metric, &list.index(at), errors);
    }
    let mut types = spec.maps("metrics").map(|metric| metric.str("type"));
    if spec.int("minReplicas") == Some(0)
        && !types.any(|kind| ["External", "Object"].contains(&kind))
    {
        let detail = "must specify at least one Object or External metric to support scaling to zero replicas";
        errors.forbidden(&list, detail);
    }
    let behavior = path.field("behavior");
    for direction in ["scaleUp", "scaleDown"] {
        let rules = spec.map("behavior").and_then(|behavior| behavior.map(direction));
        if let Some(rules) = rules {
            check_rules(rules, &behavior.field(direction), errors);
        }
    }
}

/// Checks that counts in a status are not negative.
pub(super) fn check_status(object: &Object, errors: &mut FieldErrors) {
    let path = Path::ROOT;
    let path = path.field("status");
    let empty = Map::new();
    let status = object.status().unwrap_or(&empty);
    for field in ["currentReplicas", "desiredReplicas"] {
        numbers::not_negative(status, field, &path, errors);
    }
}

/// Checks a reference to an object of the same namespace.
fn check_reference(reference: &Map, path: &Path<'_>, errors: &mut FieldErrors) {
    for field in ["kind", "name"] {
        let (text, here) = (reference.str(field), path.field(field));
        if text.is_empty() {
            errors.required(&here, "");
        } else {
            errors.complaints(&here, text, names::path_segment(text));
        }
    }
}

fn check_bounds(spec: &Map, gates: FieldGates, path: &Path<'_>, errors: &mut FieldErrors) {
    let (least, most) = (spec.int("minReplicas"), spec.int("maxReplicas").unwrap_or(0));
    let bound = if gates.has(FieldGate::HpaScaleToZero) { 0 } else { 1 };
    if let Some(least) = least.filter(|least| *least < bound) {
        let detail = format!("must be greater than or equal to {bound}");
        errors.invalid(&path.field("minReplicas"), least, &detail);
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
    if kind.is_empty() {
        errors.required(&path.field("type"), "must specify a metric source type");
    }
    let wanted = SOURCES.iter().find(|(name, _)| *name == kind).map(|(_, field)| *field);
    if wanted.is_none() {
        let known: Vec<&str> = SOURCES.iter().map(|(name, _)| *name).collect();
        errors.not_supported(&path.field("type"), kind, &known);
    }
    let mut sources =
        SOURCES.iter().filter_map(|(_, field)| Some((*field, metric.map(field)?))).peekable();
    // Only the first one is looked into.
    if let Some((field, source)) = sources.peek() {
        check_source(field, source, &path.field(field), errors);
    }
    if let Some(field) = wanted.filter(|field| !metric.contains(field)) {
        let detail = "must populate information for the given metric source";
        errors.required(&path.field(field), detail);
    }
    let sources: Vec<&str> = sources.map(|(field, _)| field).collect();
    if sources.len() > 1 {
        for field in sources.into_iter().filter(|field| Some(*field) != wanted) {
            errors.forbidden(&path.field(field), "must populate the given metric source only");
        }
    }
}

fn check_source(field: &str, source: &Map, path: &Path<'_>, errors: &mut FieldErrors) {
    let empty = Map::new();
    if field == "object" {
        let reference = source.map("describedObject").unwrap_or(&empty);
        check_reference(reference, &path.field("describedObject"), errors);
    }
    let required: &[(&str, &str)] = match field {
        "containerResource" => {
            &[("name", "must specify a resource name"), ("container", "must specify a container")]
        }
        "resource" => &[("name", "must specify a resource name")],
        _ => &[],
    };
    for (part, detail) in required.iter().filter(|(part, _)| source.str(part).is_empty()) {
        errors.required(&path.field(part), detail);
    }
    if required.is_empty() {
        let identifier = source.map("metric").unwrap_or(&empty);
        let (name, metric) = (identifier.str("name"), path.field("metric"));
        match name.is_empty() {
            true => errors.required(&metric.field("name"), "must specify a metric name"),
            false => errors.complaints(&metric.field("name"), name, names::path_segment(name)),
        }
        selector::check(identifier.map("selector"), &metric.field("selector"), errors);
    }
    let target = source.map("target").unwrap_or(&empty);
    let path = path.field("target");
    check_target(target, &path, errors);
    check_amounts(field, target, &path, errors);
}

/// Checks that a target says how much, in one of the ways that its source has.
fn check_amounts(source: &str, target: &Map, path: &Path<'_>, errors: &mut FieldErrors) {
    let has = |field: &str| target.contains(field);
    match source {
        "pods" => {
            let amount = target.get("averageValue").and_then(numbers::amount);
            if amount.is_none_or(|amount| amount.is_zero() || amount.is_negative()) {
                let detail = "must specify a positive target averageValue";
                errors.required(&path.field("averageValue"), detail);
            }
        }
        "object" | "external" => {
            if !has("value") && !has("averageValue") {
                let detail = "must set either a target value for metric or a per-pod target";
                errors.required(&path.field("averageValue"), detail);
            }
            if source == "external" && has("value") && has("averageValue") {
                let detail = "may not set both a target value for metric and a per-pod target";
                errors.forbidden(&path.field("value"), detail);
            }
        }
        _ => {
            if !has("averageUtilization") && !has("averageValue") {
                let detail = "must set either a target raw value or a target utilization";
                errors.required(&path.field("averageUtilization"), detail);
            }
            if has("averageUtilization") && has("averageValue") {
                let detail = "may not set both a target raw value and a target utilization";
                errors.forbidden(&path.field("averageValue"), detail);
            }
        }
    }
}

fn check_target(target: &Map, path: &Path<'_>, errors: &mut FieldErrors) {
    let kind = target.str("type");
    if kind.is_empty() {
        errors.required(&path.field("type"), "must specify a metric target type");
    }
    if !matches!(kind, "AverageValue" | "Utilization" | "Value") {
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
