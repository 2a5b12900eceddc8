//! Validation of ResourceQuotas.

use std::collections::BTreeSet;

use super::{FieldErrors, resources};
use crate::enums;
use crate::object::Object;
use crate::value::{Map, Path, Value};

/// Scopes that exclude each other.
const CONFLICTING: [(&str, &str); 2] =
    [("BestEffort", "NotBestEffort"), ("Terminating", "NotTerminating")];
/// Resources that can be counted within any scope but `BestEffort`, which is of pods without requests: it counts `pods` only.
const OF_PODS: &[&str] =
    &["cpu", "limits.cpu", "limits.memory", "memory", "pods", "requests.cpu", "requests.memory"];

pub(super) fn check(object: &Object, errors: &mut FieldErrors) {
    let path = Path::ROOT;
    let empty = Map::new();
    let spec = object.spec().unwrap_or(&empty);
    let here = path.field("spec");
    check_amounts(spec, "hard", &here, errors);
    check_scopes(spec, &here, errors);
    if let Some(selector) = spec.map("scopeSelector") {
        check_selector(spec, selector, &here.field("scopeSelector"), errors);
    }
}

pub(super) fn check_update(old: &Object, new: &Object, errors: &mut FieldErrors) {
    let scopes = |object: &Object| -> BTreeSet<String> {
        let list = object.spec().map(|spec| spec.list("scopes")).unwrap_or_default();
        list.iter().filter_map(Value::as_str).map(str::to_owned).collect()
    };
    if scopes(old) != scopes(new) {
        let path = Path::ROOT;
        let spec = path.field("spec");
        let list = new.spec().map(|spec| spec.list("scopes").to_vec()).unwrap_or_default();
        errors.invalid(&spec.field("scopes"), list, "field is immutable");
    }
}

fn check_scopes(spec: &Map, path: &Path<'_>, errors: &mut FieldErrors) {
    let list = path.field("scopes");
    let scopes: BTreeSet<&str> = spec.list("scopes").iter().filter_map(Value::as_str).collect();
    // Each message repeats the list: one of a kind suffices.
    let mut refuse = |is_wrong: bool, why: &str| {
        if is_wrong {
            errors.invalid(&list, spec.list("scopes").to_vec(), why);
        }
    };
    let is_unknown = |scope: &&str| !enums::QUOTA_SCOPES.contains(scope);
    refuse(scopes.iter().any(is_unknown), "unsupported scope");
    refuse(!fit_resources(spec, &scopes), "unsupported scope applied to resource");
    refuse(conflict(&scopes), "conflicting scopes");
}

fn check_selector(spec: &Map, selector: &Map, path: &Path<'_>, errors: &mut FieldErrors) {
    let list = path.field("matchExpressions");
    let mut scopes = BTreeSet::new();
    for one in selector.maps("matchExpressions") {
        let (scope, operator) = (one.str("scopeName"), one.str("operator"));
        if !enums::QUOTA_SCOPES.contains(&scope) {
            errors.invalid(&list.field("scopeName"), scope, "unsupported scope");
        }
        if scope != "PriorityClass" && enums::QUOTA_SCOPES.contains(&scope) && operator != "Exists"
        {
            let why = "must be 'Exist' only operator when scope is any of ResourceQuotaScopeTerminating, ResourceQuotaScopeNotTerminating, ResourceQuotaScopeBestEffort, ResourceQuotaScopeNotBestEffort or ResourceQuotaScopeCrossNamespacePodAffinity";
            errors.invalid(&list.field("operator"), operator, why);
        }
        check_operator(one, operator, &list, errors);
        scopes.insert(scope);
    }
    if !fit_resources(spec, &scopes) {
        errors.invalid(&list, selector.clone(), "unsupported scope applied to resource");
    }
    if conflict(&scopes) {
        errors.invalid(&list, spec.list("scopes").to_vec(), "conflicting scopes");
    }
}

/// Checks that an expression has values if its operator takes some.
fn check_operator(one: &Map, operator: &str, path: &Path<'_>, errors: &mut FieldErrors) {
    let values = one.list("values");
    let list = path.field("values");
    match operator {
        "In" | "NotIn" if values.is_empty() => errors.required(
            &list,
            "must be at least one value when `operator` is 'In' or 'NotIn' for scope selector",
        ),
        "Exists" | "DoesNotExist" if !values.is_empty() => errors.invalid(
            &list,
            values.to_vec(),
            "must be no value when `operator` is 'Exist' or 'DoesNotExist' for scope selector",
        ),
        known if enums::QUOTA_OPERATORS.contains(&known) => {}
        _ => errors.invalid(&path.field("operator"), operator, "not a valid selector operator"),
    }
}

fn conflict(scopes: &BTreeSet<&str>) -> bool {
    CONFLICTING.iter().any(|(one, other)| scopes.contains(one) && scopes.contains(other))
}

/// Whether every resource that has no domain can be counted within all of the scopes.
fn fit_resources(spec: &Map, scopes: &BTreeSet<&str>) -> bool {
    // A scope that does not exist is an error of its own.
    enums::QUOTA_SCOPES
        .iter()
        .filter(|scope| scopes.contains(*scope))
        .all(|scope| fits_resources(spec, scope))
}

fn fits_resources(spec: &Map, scope: &str) -> bool {
    let mut named = spec.map("hard").into_iter().flat_map(Map::iter).map(|(name, _)| name);
    named.all(|name| match scope {
        "BestEffort" => name == "pods" || !resources::is_standard(name),
        _ => {
            OF_PODS.contains(&name)
                || !enums::QUOTA_SCOPES.contains(&scope)
                || !resources::is_standard(name)
        }
    })
}

pub(super) fn check_status(object: &Object, errors: &mut FieldErrors) {
    let path = Path::ROOT;
    let empty = Map::new();
    let status = object.status().unwrap_or(&empty);
    for field in ["hard", "used"] {
        check_amounts(status, field, &path.field("status"), errors);
    }
}

fn check_amounts(map: &Map, field: &str, path: &Path<'_>, errors: &mut FieldErrors) {
    let list = path.field(field);
    for (name, value) in map.map(field).into_iter().flat_map(Map::iter) {
        let here = list.key(name);
        resources::check_quota_name(name, &here, errors);
        resources::check_amount(name, value, &here, errors);
    }
}
