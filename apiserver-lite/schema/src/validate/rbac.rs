//! Validation of RBAC roles and bindings.

use proto_api::names::Names;

use super::{FieldErrors, names, selector};
use crate::object::Object;
use crate::value::{Map, Path};

pub(super) fn check_role(object: &Object, errors: &mut FieldErrors) {
    let path = Path::ROOT;
    let list = path.field("rules");
    for (at, rule) in object.fields.maps("rules").enumerate() {
        check_rule(rule, object.kind.namespaced(), &list.index(at), errors);
    }
    if let Some(aggregation) = object.fields.map("aggregationRule") {
        let here = path.field("aggregationRule");
        let list = here.field("clusterRoleSelectors");
        if aggregation.list("clusterRoleSelectors").is_empty() {
            let detail = "at least one clusterRoleSelector required if aggregationRule is non-nil";
            errors.required(&list, detail);
        }
        for (at, one) in aggregation.maps("clusterRoleSelectors").enumerate() {
            selector::check(Some(one), &list.index(at), errors);
        }
    }
}

fn check_rule(rule: &Map, namespaced: bool, path: &Path<'_>, errors: &mut FieldErrors) {
    let empty = |field: &str| rule.list(field).is_empty();
    if empty("verbs") {
        errors.required(&path.field("verbs"), "verbs must contain at least one value");
    }
    if !empty("nonResourceURLs") {
        let here = path.field("nonResourceURLs");
        let urls = || rule.list("nonResourceURLs").to_vec();
        if namespaced {
            let detail = "namespaced rules cannot apply to non-resource URLs";
            errors.invalid(&here, urls(), detail);
        }
        if ["apiGroups", "resources", "resourceNames"].iter().any(|field| !empty(field)) {
            let detail = "rules cannot apply to both regular resources and non-resource URLs";
            errors.invalid(&here, urls(), detail);
        }
        return;
    }
    if empty("apiGroups") {
        let detail = "resource rules must supply at least one api group";
        errors.required(&path.field("apiGroups"), detail);
    }
    if empty("resources") {
        let detail = "resource rules must supply at least one resource";
        errors.required(&path.field("resources"), detail);
    }
}

pub(super) fn check_binding(names: &'static Names, object: &Object, errors: &mut FieldErrors) {
    let path = Path::ROOT;
    let empty = Map::new();
    let group = names.group("rbac.authorization");
    let namespaced = object.kind.namespaced();
    let (role, here) = (object.fields.map("roleRef").unwrap_or(&empty), path.field("roleRef"));
    if role.str("apiGroup") != group {
        errors.not_supported(&here.field("apiGroup"), role.str("apiGroup"), &[&group]);
    }
    let kinds: &[&str] = if namespaced { &["ClusterRole", "Role"] } else { &["ClusterRole"] };
    if !kinds.contains(&role.str("kind")) {
        errors.not_supported(&here.field("kind"), role.str("kind"), kinds);
    }
    check_name(role.str("name"), &here, errors);
    let list = path.field("subjects");
    for (at, subject) in object.fields.maps("subjects").enumerate() {
        check_subject(subject, &group, namespaced, &list.index(at), errors);
    }
}

fn check_name(name: &str, path: &Path<'_>, errors: &mut FieldErrors) {
    if name.is_empty() {
        errors.required(&path.field("name"), "");
    } else {
        errors.complaints(&path.field("name"), name, names::path_segment(name));
    }
}

fn check_subject(
    subject: &Map,
    group: &str,
    namespaced: bool,
    path: &Path<'_>,
    errors: &mut FieldErrors,
) {
    let (name, its_group) = (subject.str("name"), subject.str("apiGroup"));
    if name.is_empty() {
        errors.required(&path.field("name"), "");
    }
    match subject.str("kind") {
        "ServiceAccount" => {
            if !name.is_empty() {
                errors.complaints(&path.field("name"), name, names::dns_subdomain(name));
            }
            if !its_group.is_empty() {
                errors.not_supported(&path.field("apiGroup"), its_group, &[""]);
            }
            if !namespaced && subject.str("namespace").is_empty() {
                errors.required(&path.field("namespace"), "");
            }
        }
        "User" | "Group" => {
            if its_group != group {
                errors.not_supported(&path.field("apiGroup"), its_group, &[group]);
            }
        }
        other => {
            errors.not_supported(&path.field("kind"), other, &["Group", "ServiceAccount", "User"]);
        }
    }
}

/// Checks that `roleRef` of a binding is unchanged.
pub(super) fn check_binding_update(old: &Object, new: &Object, errors: &mut FieldErrors) {
    if old.fields.get("roleRef") != new.fields.get("roleRef") {
        let path = Path::ROOT;
        let value = new.fields.get("roleRef").cloned().unwrap_or_default();
        errors.invalid(&path.field("roleRef"), value, "cannot change roleRef");
    }
}
