//! Validation of PodDisruptionBudgets, PriorityClasses and LimitRanges.

use std::collections::BTreeSet;

use proto_api::Quantity;

use super::{FieldErrors, names, numbers, resources, selector};
use crate::enums;
use crate::object::Object;
use crate::value::{Map, Path};

pub(super) fn check_budget(object: &Object, errors: &mut FieldErrors) {
    let path = Path::ROOT;
    let path = path.field("spec");
    let empty = Map::new();
    let spec = object.spec().unwrap_or(&empty);
    if spec.contains("minAvailable") && spec.contains("maxUnavailable") {
        let detail = "minAvailable and maxUnavailable cannot be both set";
        errors.invalid(&path, spec.clone(), detail);
    }
    for field in ["minAvailable", "maxUnavailable"] {
        numbers::count_or_percent_of_whole(spec, field, &path, errors);
    }
    selector::check(spec.map("selector"), &path.field("selector"), errors);
}

pub(super) fn check_budget_status(object: &Object, errors: &mut FieldErrors) {
    let path = Path::ROOT;
    let path = path.field("status");
    let empty = Map::new();
    let status = object.status().unwrap_or(&empty);
    for field in ["disruptionsAllowed", "currentHealthy", "desiredHealthy", "expectedPods"] {
        numbers::not_negative(status, field, &path, errors);
    }
}

/// Highest priority of classes other than the system's.
const PRIORITY_MAX: i64 = 1_000_000_000;
const SYSTEM: &str = "system-";
const SYSTEM_CLASSES: &[(&str, i64)] =
    &[("system-cluster-critical", 2_000_000_000), ("system-node-critical", 2_000_001_000)];

pub(super) fn check_priority_class(object: &Object, errors: &mut FieldErrors) {
    let path = Path::ROOT;
    let (name, value) = (object.name(), object.fields.int("value").unwrap_or(0));
    if name.starts_with(SYSTEM) {
        let known = SYSTEM_CLASSES.iter().find(|(known, _)| *known == name);
        let why = match known {
            None => Some(format!("{name} is not a known system priority class")),
            Some((_, fixed)) if *fixed != value => {
                Some(format!("value of {name} PriorityClass must be {fixed}"))
            }
            Some(_) if object.fields.is_true("globalDefault") => {
                Some(format!("globalDefault of {name} PriorityClass must be false"))
            }
            Some(_) => None,
        };
        if let Some(why) = why {
            let metadata = path.field("metadata");
            let detail = format!(
                "priority class names with '{SYSTEM}' prefix are reserved for system use only. error: {why}"
            );
            errors.forbidden(&metadata.field("name"), &detail);
        }
    } else if value > PRIORITY_MAX {
        let detail = format!("maximum allowed value of a user defined priority is {PRIORITY_MAX}");
        errors.forbidden(&path.field("value"), &detail);
    }
    let policies = enums::PREEMPTION_POLICIES;
    let policy = object.fields.str("preemptionPolicy");
    errors.one_of(&path.field("preemptionPolicy"), policy, policies);
}

pub(super) fn check_priority_class_update(old: &Object, new: &Object, errors: &mut FieldErrors) {
    let path = Path::ROOT;
    if old.fields.int("value").unwrap_or(0) != new.fields.int("value").unwrap_or(0) {
        errors.forbidden(&path.field("value"), "may not be changed in an update.");
    }
    let policy = new.fields.str("preemptionPolicy");
    if old.fields.str("preemptionPolicy") != policy {
        errors.invalid(&path.field("preemptionPolicy"), policy, "field is immutable");
    }
}

const LIMITED: &[&str] = &["Container", "PersistentVolumeClaim", "Pod"];

pub(super) fn check_limit_range(object: &Object, errors: &mut FieldErrors) {
    let path = Path::ROOT;
    let path = path.field("spec");
    let list = path.field("limits");
    let empty = Map::new();
    let mut seen = BTreeSet::new();
    for (at, limit) in object.spec().unwrap_or(&empty).maps("limits").enumerate() {
        let here = list.index(at);
        let kind = limit.str("type");
        errors.complaints(&here.field("type"), kind, names::qualified_name(kind));
        if !kind.contains('/') && !LIMITED.contains(&kind) {
            let detail = "must be a standard limit type or fully qualified";
            errors.invalid(&here.field("type"), kind, detail);
        }
        if !seen.insert(kind) {
            errors.duplicate(&here.field("type"), kind);
        }
        check_limit(limit, kind, &here, errors);
    }
}

fn check_limit(limit: &Map, kind: &str, path: &Path<'_>, errors: &mut FieldErrors) {
    let mut names = BTreeSet::new();
    for field in ["max", "min", "default", "defaultRequest", "maxLimitRequestRatio"] {
        let list = path.field(field);
        for (name, value) in limit.map(field).into_iter().flat_map(Map::iter) {
            let here = list.key(name);
            if names.insert(name) {
                resources::check_limit_name(name, kind, &here, errors);
            }
            numbers::amount_not_negative(value, &here, errors);
        }
    }
    if kind == "Pod" {
        for field in ["default", "defaultRequest"] {
            if limit.map(field).is_some_and(|map| !map.is_empty()) {
                let detail = "may not be specified when `type` is 'Pod'";
                errors.forbidden(&path.field(field), detail);
            }
        }
    }
    let has_storage =
        |field: &str| limit.map(field).is_some_and(|amounts| amounts.contains("storage"));
    if kind == "PersistentVolumeClaim" && !has_storage("min") && !has_storage("max") {
        let detail =
            "either minimum or maximum storage value is required, but neither was provided";
        errors.required(&path.field("limits"), detail);
    }
    for name in names {
        check_order(limit, name, path, errors);
        check_ratio(limit, name, path, errors);
    }
}

/// Ordered pairs of fields: the lower and higher field, the field to report, and the message.
const ORDER: &[(&str, &str, &str, &str)] = &[
    ("min", "max", "min", "min value {a} is greater than max value {b}"),
    (
        "min",
        "defaultRequest",
        "defaultRequest",
        "min value {a} is greater than default request value {b}",
    ),
    (
        "defaultRequest",
        "max",
        "defaultRequest",
        "default request value {a} is greater than max value {b}",
    ),
    (
        "defaultRequest",
        "default",
        "defaultRequest",
        "default request value {a} is greater than default limit value {b}",
    ),
    ("min", "default", "default", "min value {a} is greater than default value {b}"),
    ("default", "max", "default", "default value {a} is greater than max value {b}"),
];

/// The amount of a resource in a field of a limit.
fn amount_in(limit: &Map, field: &str, name: &str) -> Option<Quantity> {
    numbers::amount(limit.map(field)?.get(name)?)
}

fn check_order(limit: &Map, name: &str, path: &Path<'_>, errors: &mut FieldErrors) {
    let amount = |field: &str| amount_in(limit, field, name);
    for (low, high, named, words) in ORDER {
        if let (Some(a), Some(b)) = (amount(low), amount(high))
            && a > b
        {
            let detail = words.replace("{a}", &a.to_string()).replace("{b}", &b.to_string());
            let value = limit.map(named).and_then(|map| map.get(name)).cloned().unwrap_or_default();
            let here = path.field(named);
            errors.invalid(&here.key(name), value, &detail);
        }
    }
    if !resources::allows_overcommit(name)
        && let (Some(request), Some(default)) = (amount("defaultRequest"), amount("default"))
        && request != default
    {
        let detail = format!(
            "default value {default} must equal to defaultRequest value {request} in {name}"
        );
        let here = path.field("defaultRequest");
        errors.invalid(&here.key(name), request.to_string(), &detail);
    }
}

/// Amounts below this one are compared in thousandths.
const MILLI_MAX: i64 = i64::MAX / 1000;

/// Checks that a ratio of limit to request is at least 1, and that maximum and minimum do not keep it lower anyway.
fn check_ratio(limit: &Map, name: &str, path: &Path<'_>, errors: &mut FieldErrors) {
    let amount = |field: &str| amount_in(limit, field, name);
    let Some(ratio) = amount("maxLimitRequestRatio") else { return };
    let list = path.field("maxLimitRequestRatio");
    let here = list.key(name);
    if ratio < Quantity::from_units(1) {
        let detail = format!("ratio {ratio} is less than 1");
        errors.invalid(&here, ratio.to_string(), &detail);
    }
    let (Some(min), Some(max)) = (amount("min"), amount("max")) else { return };
    let in_milli = [ratio, min, max].iter().all(|amount| amount.value() < MILLI_MAX);
    let (asked, highest) = if in_milli {
        (ratio.as_milli() as f64 / 1000.0, max.as_milli() as f64 / min.as_milli() as f64)
    } else {
        (ratio.value() as f64, max.value() as f64 / min.value() as f64)
    };
    if asked > highest {
        let detail = format!("ratio {ratio} is greater than max/min = {highest:.6}");
        errors.invalid(&here, ratio.to_string(), &detail);
    }
}
