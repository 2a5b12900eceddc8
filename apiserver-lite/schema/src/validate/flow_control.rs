//! Validation of FlowSchemas and PriorityLevelConfigurations.

use std::collections::BTreeSet;

use super::{FieldErrors, names};
use crate::object::Object;
use crate::value::{Map, Path, parse_json};

const PRECEDENCE_MAX: i64 = 10_000;
const QUEUES_MAX: i64 = 10_000_000;
/// Bits of the number that identifies a flow.
const HASH_BITS: f64 = 60.0;
const DISTINGUISHERS: &[&str] = &["ByNamespace", "ByUser"];
const ENABLEMENTS: &[&str] = &["Exempt", "Limited"];
const RESPONSES: &[&str] = &["Queue", "Reject"];
const SUBJECTS: &[&str] = &["Group", "ServiceAccount", "User"];
const VERBS: &[&str] =
    &["create", "delete", "deletecollection", "get", "list", "patch", "proxy", "update", "watch"];
const ALL: &str = "*";
/// The specs of the objects that cannot be changed: kind, name, JSON.
const MANDATORY: [(&str, &str, &str); 4] = [
    (
        "FlowSchema",
        "exempt",
        r#"{"priorityLevelConfiguration":{"name":"exempt"},"matchingPrecedence":1,"rules":[{"subjects":[{"kind":"Group","group":{"name":"system:masters"}}],"resourceRules":[{"verbs":["*"],"apiGroups":["*"],"resources":["*"],"clusterScope":true,"namespaces":["*"]}],"nonResourceRules":[{"verbs":["*"],"nonResourceURLs":["*"]}]}]}"#,
    ),
    (
        "FlowSchema",
        "catch-all",
        r#"{"priorityLevelConfiguration":{"name":"catch-all"},"matchingPrecedence":10000,"distinguisherMethod":{"type":"ByUser"},"rules":[{"subjects":[{"kind":"Group","group":{"name":"system:unauthenticated"}},{"kind":"Group","group":{"name":"system:authenticated"}}],"resourceRules":[{"verbs":["*"],"apiGroups":["*"],"resources":["*"],"clusterScope":true,"namespaces":["*"]}],"nonResourceRules":[{"verbs":["*"],"nonResourceURLs":["*"]}]}]}"#,
    ),
    ("PriorityLevelConfiguration", "exempt", r#"{"type":"Exempt"}"#),
    (
        "PriorityLevelConfiguration",
        "catch-all",
        r#"{"type":"Limited","limited":{"assuredConcurrencyShares":5,"limitResponse":{"type":"Reject"}}}"#,
    ),
];

pub(super) fn check_schema(object: &Object, errors: &mut FieldErrors) {
    let (root, empty) = (Path::ROOT, Map::new());
    let (path, spec) = (root.field("spec"), object.spec().unwrap_or(&empty));
    check_precedence(object.name(), spec, &path, errors);
    if let Some(method) = spec.map("distinguisherMethod") {
        let here = path.field("distinguisherMethod");
        if !DISTINGUISHERS.contains(&method.str("type")) {
            errors.not_supported(&here.field("type"), method.str("type"), DISTINGUISHERS);
        }
    }
    let (level, here) = (
        spec.str_at(&["priorityLevelConfiguration", "name"]),
        path.field("priorityLevelConfiguration"),
    );
    if level.is_empty() {
        errors.required(&here.field("name"), "must reference a priority level");
    } else {
        errors.complaints(&here.field("name"), level, names::dns_subdomain(level));
    }
    let rules = path.field("rules");
    for (at, rule) in spec.maps("rules").enumerate() {
        check_rule(rule, &rules.index(at), errors);
    }
    check_mandatory(object, spec, &path, errors);
    check_status(object, errors);
}

fn check_precedence(name: &str, spec: &Map, path: &Path<'_>, errors: &mut FieldErrors) {
    let precedence = spec.int("matchingPrecedence").unwrap_or_default();
    let here = path.field("matchingPrecedence");
    if precedence <= 0 {
        errors.invalid(&here, precedence, "must be a positive value");
    }
    if precedence > PRECEDENCE_MAX {
        let detail = format!("must not be greater than {PRECEDENCE_MAX}");
        errors.invalid(&here, precedence, &detail);
    }
    if precedence == 1 && name != "exempt" {
        let detail = "only the schema named 'exempt' may have matchingPrecedence 1";
        errors.invalid(&here, precedence, detail);
    }
}

fn check_mandatory(object: &Object, spec: &Map, path: &Path<'_>, errors: &mut FieldErrors) {
    let key = (object.kind.kind(), object.name());
    let Some((_, name, text)) = MANDATORY.iter().find(|(kind, name, _)| (*kind, *name) == key)
    else {
        return;
    };
    let fixed = parse_json(text.as_bytes(), &mut Vec::new()).unwrap_or_default();
    if fixed.as_map() != Some(spec) {
        let detail = format!("spec of '{name}' must equal the fixed value");
        errors.invalid(path, spec.clone(), &detail);
    }
}

fn check_rule(rule: &Map, path: &Path<'_>, errors: &mut FieldErrors) {
    let list = path.field("subjects");
    if rule.list("subjects").is_empty() {
        errors.required(&list, "subjects must contain at least one value");
    }
    for (at, subject) in rule.maps("subjects").enumerate() {
        check_subject(subject, &list.index(at), errors);
    }
    if rule.list("resourceRules").is_empty() && rule.list("nonResourceRules").is_empty() {
        let detail = "at least one of resourceRules and nonResourceRules has to be non-empty";
        errors.required(path, detail);
    }
    let list = path.field("resourceRules");
    for (at, rule) in rule.maps("resourceRules").enumerate() {
        check_resource_rule(rule, &list.index(at), errors);
    }
    let list = path.field("nonResourceRules");
    for (at, rule) in rule.maps("nonResourceRules").enumerate() {
        check_path_rule(rule, &list.index(at), errors);
    }
}

fn check_subject(subject: &Map, path: &Path<'_>, errors: &mut FieldErrors) {
    let kind = subject.str("kind");
    let own = match kind {
        "ServiceAccount" => "serviceAccount",
        "User" => "user",
        "Group" => "group",
        _ => {
            errors.not_supported(&path.field("kind"), kind, SUBJECTS);
            return;
        }
    };
    let here = path.field(own);
    match subject.map(own) {
        None => {
            errors.required(&here, &format!("{own} is required when subject kind is '{kind}'"));
        }
        Some(named) if own == "serviceAccount" => check_account(named, &here, errors),
        Some(named) if named.str("name").is_empty() => errors.required(&here.field("name"), ""),
        Some(_) => {}
    }
    for (other, of) in [("user", "User"), ("serviceAccount", "ServiceAccount"), ("group", "Group")]
    {
        if other != own && subject.contains(other) {
            let detail = format!("{other} is forbidden when subject kind is not '{of}'");
            errors.forbidden(&path.field(other), &detail);
        }
    }
}

fn check_account(account: &Map, path: &Path<'_>, errors: &mut FieldErrors) {
    let (name, namespace) = (account.str("name"), account.str("namespace"));
    if name.is_empty() {
        errors.required(&path.field("name"), "");
    } else if name != ALL {
        errors.complaints(&path.field("name"), name, names::dns_subdomain(name));
    }
    if namespace.is_empty() {
        let detail = "must specify namespace for service account";
        errors.required(&path.field("namespace"), detail);
    } else {
        errors.complaints(&path.field("namespace"), namespace, names::dns_label(namespace));
    }
}

/// Checks that a list is not empty, and that `*` is alone in it; whether to look at its members.
fn check_list(
    rule: &Map,
    field: &str,
    (required, others): (&str, &str),
    path: &Path<'_>,
    errors: &mut FieldErrors,
) -> bool {
    let (list, here) = (rule.list(field), path.field(field));
    if list.is_empty() {
        errors.required(&here, required);
        return false;
    }
    let has_all = list.iter().any(|value| value.as_str() == Some(ALL));
    if has_all && list.len() > 1 {
        let detail = format!("if '*' is present, must not specify other {others}");
        errors.invalid(&here, list.to_vec(), &detail);
    }
    !has_all
}

fn check_verbs(rule: &Map, path: &Path<'_>, errors: &mut FieldErrors) {
    let texts = ("verbs must contain at least one value", "verbs");
    if check_list(rule, "verbs", texts, path, errors) {
        let verbs = rule.list("verbs");
        if !verbs.iter().all(|verb| verb.as_str().is_some_and(|verb| VERBS.contains(&verb))) {
            errors.none_supported(&path.field("verbs"), verbs.to_vec(), VERBS);
        }
    }
}

fn check_resource_rule(rule: &Map, path: &Path<'_>, errors: &mut FieldErrors) {
    check_verbs(rule, path, errors);
    let groups = ("resource rules must supply at least one api group", "api groups");
    check_list(rule, "apiGroups", groups, path, errors);
    let resources = ("resource rules must supply at least one resource", "resources");
    check_list(rule, "resources", resources, path, errors);
    if rule.list("namespaces").is_empty() && rule.is_true("clusterScope") {
        return;
    }
    let required = "resource rules that are not cluster scoped must supply at least one namespace";
    if check_list(rule, "namespaces", (required, "namespaces"), path, errors) {
        let list = path.field("namespaces");
        for (at, namespace) in rule.list("namespaces").iter().enumerate() {
            let namespace = namespace.as_str().unwrap_or_default();
            for detail in names::dns_label(namespace) {
                let intro = "each member of this list must be '*' or a DNS-1123 label; ";
                errors.invalid(&list.index(at), namespace, &format!("{intro}{detail}"));
            }
        }
    }
}

fn check_path_rule(rule: &Map, path: &Path<'_>, errors: &mut FieldErrors) {
    check_verbs(rule, path, errors);
    let texts = ("nonResourceURLs must contain at least one value", "non-resource URLs");
    if check_list(rule, "nonResourceURLs", texts, path, errors) {
        let list = path.field("nonResourceURLs");
        for (at, url) in rule.list("nonResourceURLs").iter().enumerate() {
            let url = url.as_str().unwrap_or_default();
            if let Some(detail) = wrong_path(url) {
                errors.invalid(&list.index(at), url, detail);
            }
        }
    }
}

fn wrong_path(path: &str) -> Option<&'static str> {
    let stars = path.matches('*').count();
    if path.is_empty() {
        Some("must not be empty")
    } else if path == "/" {
        None
    } else if !path.starts_with('/') {
        Some("must start with slash")
    } else if path.contains(' ') {
        Some("must not contain white-space")
    } else if path.contains("//") {
        Some("must not contain double slash")
    } else if stars > 1 || (stars == 1 && !path.ends_with("/*")) {
        Some("wildcard can only do suffix matching")
    } else {
        None
    }
}

pub(super) fn check_level(object: &Object, errors: &mut FieldErrors) {
    let (root, empty) = (Path::ROOT, Map::new());
    let (path, spec) = (root.field("spec"), object.spec().unwrap_or(&empty));
    let of = spec.str("type");
    if (object.name() == "exempt") != (of == "Exempt") {
        let detail = "type must be 'Exempt' if and only if name is 'exempt'";
        errors.invalid(&path.field("type"), of, detail);
    }
    let here = path.field("limited");
    match (of, spec.map("limited")) {
        ("Exempt", Some(_)) => errors.forbidden(&here, "must be nil if the type is not Limited"),
        ("Limited", None) => errors.required(&here, "must not be empty when type is Limited"),
        ("Limited", Some(limited)) => check_limited(limited, &here, errors),
        ("Exempt", None) => {}
        _ => errors.not_supported(&path.field("type"), of, ENABLEMENTS),
    }
    check_mandatory(object, spec, &path, errors);
    check_status(object, errors);
}

fn check_limited(limited: &Map, path: &Path<'_>, errors: &mut FieldErrors) {
    let empty = Map::new();
    check_positive(limited, "assuredConcurrencyShares", path, errors);
    let (response, path) =
        (limited.map("limitResponse").unwrap_or(&empty), path.field("limitResponse"));
    let here = path.field("queuing");
    // As in Kubernetes these texts name a type that is not one of this field's.
    match (response.str("type"), response.map("queuing")) {
        ("Reject", Some(_)) => {
            errors.forbidden(&here, "must be nil if limited.limitResponse.type is not Limited");
        }
        ("Queue", None) => {
            let detail = "must not be empty if limited.limitResponse.type is Limited";
            errors.required(&here, detail);
        }
        ("Queue", Some(queuing)) => check_queuing(queuing, &here, errors),
        ("Reject", None) => {}
        (other, _) => errors.not_supported(&path.field("type"), other, RESPONSES),
    }
}

/// Checks that a number is positive.
fn check_positive(map: &Map, field: &str, path: &Path<'_>, errors: &mut FieldErrors) -> bool {
    let number = map.int(field).unwrap_or_default();
    if number <= 0 {
        errors.invalid(&path.field(field), number, "must be positive");
    }
    number > 0
}

fn check_queuing(queuing: &Map, path: &Path<'_>, errors: &mut FieldErrors) {
    check_positive(queuing, "queueLengthLimit", path, errors);
    let number = |field: &str| queuing.int(field).unwrap_or_default();
    let (queues, hand) = (number("queues"), number("handSize"));
    if check_positive(queuing, "queues", path, errors) && queues > QUEUES_MAX {
        let detail = format!("must not be greater than {QUEUES_MAX}");
        errors.invalid(&path.field("queues"), queues, &detail);
    }
    if !check_positive(queuing, "handSize", path, errors) {
        return;
    }
    let here = path.field("handSize");
    if hand > queues {
        let detail = format!("should not be greater than queues ({queues})");
        errors.invalid(&here, hand, &detail);
    } else if ((queues as f64).log2() * hand as f64).ceil() > HASH_BITS {
        let detail = format!(
            "required entropy bits of deckSize {queues} and handSize {hand} should not be greater than {HASH_BITS}"
        );
        errors.invalid(&here, hand, &detail);
    }
}

pub(super) fn check_status(object: &Object, errors: &mut FieldErrors) {
    let (root, empty) = (Path::ROOT, Map::new());
    let status = root.field("status");
    let list = status.field("conditions");
    let mut seen = BTreeSet::new();
    for (at, condition) in object.status().unwrap_or(&empty).maps("conditions").enumerate() {
        let (of, here) = (condition.str("type"), list.index(at));
        if !seen.insert(of) {
            errors.duplicate(&here.field("type"), of);
        }
        if of.is_empty() {
            errors.required(&here.field("type"), "must not be empty");
        }
    }
}
