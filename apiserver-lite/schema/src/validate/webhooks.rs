//! Validation of MutatingWebhookConfigurations and ValidatingWebhookConfigurations.

use std::collections::BTreeSet;

use super::{FieldErrors, names, selector};
use crate::enums;
use crate::object::Object;
use crate::value::{Map, Path, Value};

const SIDE_EFFECTS: &[&str] = &["None", "NoneOnDryRun"];
/// Most match conditions of a webhook.
const CONDITIONS_MAX: usize = 64;
/// Versions of AdmissionReview, one of which a webhook must know.
const REVIEW_VERSIONS: &[&str] = &["v1", "v1beta1"];
const URL_FORM: &str = "; desired format: https://host[/path]";

pub(super) fn check(object: &Object, errors: &mut FieldErrors) {
    let path = Path::ROOT;
    let list = path.field("webhooks");
    let mut seen = BTreeSet::new();
    for (at, webhook) in object.fields.maps("webhooks").enumerate() {
        let here = list.index(at);
        check_webhook(webhook, &here, errors);
        let name = webhook.str("name");
        if !name.is_empty() && !seen.insert(name) {
            errors.duplicate(&here.field("name"), name);
        }
    }
}

fn check_webhook(webhook: &Map, path: &Path<'_>, errors: &mut FieldErrors) {
    check_name(webhook.str("name"), &path.field("name"), errors);
    let rules = path.field("rules");
    for (at, rule) in webhook.maps("rules").enumerate() {
        check_rule(rule, &rules.index(at), errors);
    }
    for (field, supported) in [
        ("failurePolicy", enums::WEBHOOK_FAILURE_POLICIES),
        ("matchPolicy", enums::WEBHOOK_MATCH_POLICIES),
        ("reinvocationPolicy", enums::WEBHOOK_REINVOCATION_POLICIES),
    ] {
        if webhook.contains(field) && !supported.contains(&webhook.str(field)) {
            errors.not_supported(&path.field(field), webhook.str(field), supported);
        }
    }
    let side_effects = path.field("sideEffects");
    match webhook.get("sideEffects").and_then(Value::as_str) {
        None => {
            let detail = format!("must specify one of {}", SIDE_EFFECTS.join(", "));
            errors.required(&side_effects, &detail);
        }
        Some(class) if !SIDE_EFFECTS.contains(&class) => {
            errors.not_supported(&side_effects, class, SIDE_EFFECTS);
        }
        Some(_) => {}
    }
    if let Some(seconds) = webhook.int("timeoutSeconds").filter(|secs| !(1..=30).contains(secs)) {
        let detail = "the timeout value must be between 1 and 30 seconds";
        errors.invalid(&path.field("timeoutSeconds"), seconds, detail);
    }
    for field in ["namespaceSelector", "objectSelector"] {
        selector::check(webhook.map(field), &path.field(field), errors);
    }
    check_client(webhook, &path.field("clientConfig"), errors);
    check_conditions(webhook, &path.field("matchConditions"), errors);
    let versions = webhook.list("admissionReviewVersions");
    check_versions(versions, &path.field("admissionReviewVersions"), errors);
}

/// Conditions have names, each its own, and expressions, which are compiled elsewhere.
fn check_conditions(webhook: &Map, path: &Path<'_>, errors: &mut FieldErrors) {
    errors.at_most(path, webhook.list("matchConditions").len(), CONDITIONS_MAX);
    let mut seen = BTreeSet::new();
    for (at, condition) in webhook.maps("matchConditions").enumerate() {
        let here = path.index(at);
        let (name, place) = (condition.str("name"), here.field("name"));
        if condition.str("expression").trim().is_empty() {
            errors.required(&here.field("expression"), "");
        }
        if name.is_empty() {
            errors.required(&place, "");
            continue;
        }
        for wrong in names::qualified_name(name) {
            errors.invalid(&place, name, &wrong);
        }
        if !seen.insert(name) {
            errors.duplicate(&place, name);
        }
    }
}

/// A name is a subdomain of at least three labels.
fn check_name(name: &str, path: &Path<'_>, errors: &mut FieldErrors) {
    let wrong = names::dns_subdomain(name);
    if name.is_empty() {
        errors.required(path, "");
    } else if !wrong.is_empty() {
        errors.invalid(path, name, &wrong.join(","));
    } else if name.split('.').count() < 3 {
        let detail = "should be a domain with at least three segments separated by dots";
        errors.invalid(path, name, detail);
    }
}

fn check_rule(rule: &Map, path: &Path<'_>, errors: &mut FieldErrors) {
    let operations = path.field("operations");
    check_all_or_some(rule.list("operations"), "operations", &operations, errors);
    for (at, operation) in texts(rule, "operations") {
        if !enums::WEBHOOK_OPERATIONS.contains(&operation) {
            errors.not_supported(&operations.index(at), operation, enums::WEBHOOK_OPERATIONS);
        }
    }
    check_all_or_some(rule.list("apiGroups"), "API groups", &path.field("apiGroups"), errors);
    let versions = path.field("apiVersions");
    check_all_or_some(rule.list("apiVersions"), "API versions", &versions, errors);
    for (at, _) in texts(rule, "apiVersions").filter(|(_, version)| version.is_empty()) {
        errors.required(&versions.index(at), "");
    }
    check_resources(rule, &path.field("resources"), errors);
    if rule.contains("scope") && !enums::WEBHOOK_SCOPES.contains(&rule.str("scope")) {
        errors.not_supported(&path.field("scope"), rule.str("scope"), enums::WEBHOOK_SCOPES);
    }
}

fn texts<'a>(map: &'a Map, field: &str) -> impl Iterator<Item = (usize, &'a str)> {
    map.list(field).iter().map(|value| value.as_str().unwrap_or_default()).enumerate()
}

/// A list has entries, and `*` is its only one.
fn check_all_or_some(list: &[Value], what: &str, path: &Path<'_>, errors: &mut FieldErrors) {
    if list.is_empty() {
        errors.required(path, "");
    }
    if list.len() > 1 && list.iter().any(|value| value.as_str() == Some("*")) {
        let detail = format!("if '*' is present, must not specify other {what}");
        errors.invalid(path, list.to_vec(), &detail);
    }
}

fn check_resources(rule: &Map, path: &Path<'_>, errors: &mut FieldErrors) {
    let all = rule.list("resources");
    if all.is_empty() {
        errors.required(path, "");
    }
    let (mut every_subresource_of, mut of_every_resource) = (BTreeSet::new(), BTreeSet::new());
    let (mut has_everything, mut has_all, mut has_plain) = (false, false, false);
    for (at, text) in texts(rule, "resources") {
        let here = path.index(at);
        has_everything |= text == "*/*";
        has_all |= text == "*";
        if text.is_empty() {
            errors.required(&here, "");
            continue;
        }
        let Some((resource, subresource)) = text.split_once('/') else {
            has_plain = text != "*";
            continue;
        };
        if every_subresource_of.contains(resource) {
            let detail = format!("if '{resource}/*' is present, must not specify {text}");
            errors.invalid(&here, text, &detail);
        }
        if of_every_resource.contains(subresource) {
            let detail = format!("if '*/{subresource}' is present, must not specify {text}");
            errors.invalid(&here, text, &detail);
        }
        if subresource == "*" {
            every_subresource_of.insert(resource);
        }
        if resource == "*" {
            of_every_resource.insert(subresource);
        }
    }
    if all.len() > 1 && has_everything {
        let detail = "if '*/*' is present, must not specify other resources";
        errors.invalid(path, all.to_vec(), detail);
    }
    if has_all && has_plain {
        let detail = "if '*' is present, must not specify other resources without subresources";
        errors.invalid(path, all.to_vec(), detail);
    }
}

fn check_versions(versions: &[Value], path: &Path<'_>, errors: &mut FieldErrors) {
    if versions.is_empty() {
        let detail = format!("must specify one of {}", REVIEW_VERSIONS.join(", "));
        errors.required(path, &detail);
        return;
    }
    let mut seen = BTreeSet::new();
    for (at, version) in versions.iter().filter_map(Value::as_str).enumerate() {
        if seen.insert(version) {
            errors.complaints(&path.index(at), version, names::dns_1035_label(version));
        } else {
            errors.invalid(&path.index(at), version, "duplicate version");
        }
    }
    if !REVIEW_VERSIONS.iter().any(|known| seen.contains(known)) {
        let detail = format!("must include at least one of {}", REVIEW_VERSIONS.join(", "));
        errors.invalid(path, versions.to_vec(), &detail);
    }
}

fn check_client(webhook: &Map, path: &Path<'_>, errors: &mut FieldErrors) {
    let empty = Map::new();
    let client = webhook.map("clientConfig").unwrap_or(&empty);
    match (client.contains("url"), client.map("service")) {
        (true, None) => check_url(client.str("url"), &path.field("url"), errors),
        (false, Some(service)) => check_service(service, &path.field("service"), errors),
        _ => errors.required(path, "exactly one of url or service is required"),
    }
}

fn check_url(url: &str, path: &Path<'_>, errors: &mut FieldErrors) {
    let unusable = |c: char| c.is_ascii_control() || c == ' ';
    if url.contains(unusable) {
        let detail = format!("url must be a valid URL: parse {url:?}: invalid character{URL_FORM}");
        errors.required(path, &detail);
        return;
    }
    let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
    if scheme != "https" {
        let detail = format!("'https' is the only allowed URL scheme{URL_FORM}");
        errors.invalid(path, scheme, &detail);
    }
    let (rest, fragment) = rest.split_once('#').unwrap_or((rest, ""));
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    let authority = rest.split('/').next().unwrap_or_default();
    // What has no scheme is a path.
    let authority = if scheme.is_empty() { "" } else { authority };
    let (user, host) = match authority.rsplit_once('@') {
        Some((user, host)) => (Some(user), host),
        None => (None, authority),
    };
    if host.is_empty() {
        errors.invalid(path, host, &format!("host must be provided{URL_FORM}"));
    }
    if let Some(user) = user {
        errors.invalid(path, user, "user information is not permitted in the URL");
    }
    if !fragment.is_empty() {
        errors.invalid(path, fragment, "fragments are not permitted in the URL");
    }
    if !query.is_empty() {
        errors.invalid(path, query, "query parameters are not permitted in the URL");
    }
}

fn check_service(service: &Map, path: &Path<'_>, errors: &mut FieldErrors) {
    for field in ["name", "namespace"] {
        if service.str(field).is_empty() {
            errors.required(&path.field(field), &format!("service {field} is required"));
        }
    }
    let port = service.int("port").unwrap_or(0);
    if !(1..=65535).contains(&port) {
        let detail = "port is not valid: must be between 1 and 65535, inclusive";
        errors.invalid(&path.field("port"), port, detail);
    }
    check_path(service.str("path"), &path.field("path"), errors);
}

/// The path of a service: segments that are subdomains.
fn check_path(text: &str, path: &Path<'_>, errors: &mut FieldErrors) {
    if matches!(text, "" | "/") {
        return;
    }
    if text == "//" {
        errors.invalid(path, text, "segment[0] may not be empty");
        return;
    }
    let segments = text.strip_prefix('/').unwrap_or_else(|| {
        errors.invalid(path, text, "must start with a '/'");
        text
    });
    let segments = segments.strip_suffix('/').unwrap_or(segments);
    for (at, segment) in segments.split('/').enumerate() {
        if segment.is_empty() {
            errors.invalid(path, text, &format!("segment[{at}] may not be empty"));
            continue;
        }
        for why in names::dns_subdomain(segment) {
            errors.invalid(path, text, &format!("segment[{at}]: {why}"));
        }
    }
}
