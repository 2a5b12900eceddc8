//! Table rows of ConfigMaps, Secrets, namespaces, leases, roles, events and other small kinds.

use super::{Cells, age, count, or_none};
use crate::object::Object;
use crate::value::{Map, Value};

pub(super) fn cells(object: &Object, cells: &mut Cells) {
    let empty = Map::new();
    let (spec, status) = (object.spec().unwrap_or(&empty), object.status().unwrap_or(&empty));
    let fields = &object.fields;
    let entries = |field: &str| fields.map(field).map_or(0, Map::len) as i64;
    match object.kind.kind() {
        "ConfigMap" => cells.set("Data", entries("data").saturating_add(entries("binaryData"))),
        "Secret" => {
            cells.set("Type", fields.str("type"));
            cells.set("Data", entries("data"));
        }
        "ServiceAccount" => cells.set("Secrets", fields.list("secrets").len() as i64),
        "Namespace" => cells.set("Status", status.str("phase")),
        "Lease" => cells.set("Holder", spec.str("holderIdentity")),
        "RuntimeClass" => cells.set("Handler", fields.str("handler")),
        "PriorityClass" => {
            cells.set("Value", count(Some(fields), "value"));
            cells.set("Global-Default", fields.is_true("globalDefault"));
        }
        "RoleBinding" | "ClusterRoleBinding" => role_binding(fields, cells),
        "CertificateSigningRequest" => signing_request(spec, status, cells),
        "ResourceQuota" => resource_quota(spec, status, cells),
        "MutatingWebhookConfiguration" | "ValidatingWebhookConfiguration" => {
            cells.set("Webhooks", fields.list("webhooks").len() as i64);
        }
        "APIService" => api_service(spec, status, cells),
        "FlowSchema" => flow_schema(spec, status, cells),
        "PriorityLevelConfiguration" => priority_level(spec, cells),
        "ComponentStatus" => {
            let healthy = fields.maps("conditions").find(|c| c.str("type") == "Healthy");
            let healthy = healthy.unwrap_or(&empty);
            let state = match healthy.str("status") {
                "True" => "Healthy",
                "" => "Unknown",
                _ => "Unhealthy",
            };
            cells.set("Status", state);
            cells.set("Message", healthy.str("message"));
            cells.set("Error", healthy.str("error"));
        }
        _ => {}
    }
}

fn flow_schema(spec: &Map, status: &Map, cells: &mut Cells) {
    cells.set("PriorityLevel", spec.str_at(&["priorityLevelConfiguration", "name"]));
    cells.set("MatchingPrecedence", count(Some(spec), "matchingPrecedence"));
    let method = or_none(spec.str_at(&["distinguisherMethod", "type"]));
    cells.set("DistinguisherMethod", method);
    let dangling = status.maps("conditions").find(|c| c.str("type") == "Dangling");
    cells.set("MissingPL", dangling.map_or("?", |condition| condition.str("status")));
}

fn priority_level(spec: &Map, cells: &mut Cells) {
    cells.set("Type", spec.str("type"));
    let limited = spec.map("limited");
    let queuing = limited.and_then(|limited| limited.map("limitResponse")?.map("queuing"));
    let number = |map: Option<&Map>, field: &str| match map {
        Some(_) => Value::from(count(map, field)),
        None => Value::from("<none>"),
    };
    cells.set("AssuredConcurrencyShares", number(limited, "assuredConcurrencyShares"));
    cells.set("Queues", number(queuing, "queues"));
    cells.set("HandSize", number(queuing, "handSize"));
    cells.set("QueueLengthLimit", number(queuing, "queueLengthLimit"));
}

fn api_service(spec: &Map, status: &Map, cells: &mut Cells) {
    cells.set(
        "Service",
        match spec.map("service") {
            None => "Local".to_owned(),
            Some(service) => format!("{}/{}", service.str("namespace"), service.str("name")),
        },
    );
    let available = status.maps("conditions").find(|c| c.str("type") == "Available");
    cells.set(
        "Available",
        match available.map(|condition| (condition.str("status"), condition.str("reason"))) {
            None => "Unknown".to_owned(),
            Some(("True", _)) => "True".to_owned(),
            Some((state, reason)) => format!("{state} ({reason})"),
        },
    );
}

fn role_binding(fields: &Map, cells: &mut Cells) {
    let role =
        fields.map("roleRef").map(|role| format!("{}/{}", role.str("kind"), role.str("name")));
    cells.set("Role", role.unwrap_or_default());
    let subjects = |kind: &str| {
        let subjects = fields.maps("subjects").filter(|subject| subject.str("kind") == kind);
        let names = subjects.map(|subject| match subject.str("namespace") {
            "" => subject.str("name").to_owned(),
            namespace => format!("{namespace}/{}", subject.str("name")),
        });
        names.collect::<Vec<_>>().join(", ")
    };
    cells.set("Users", subjects("User"));
    cells.set("Groups", subjects("Group"));
    cells.set("ServiceAccounts", subjects("ServiceAccount"));
}

fn signing_request(spec: &Map, status: &Map, cells: &mut Cells) {
    cells.set("SignerName", or_none(spec.str("signerName")));
    cells.set("Requestor", spec.str("username"));
    let has = |kind: &str| status.maps("conditions").any(|c| c.str("type") == kind);
    let mut state = Vec::new();
    state.push(if has("Denied") {
        "Denied"
    } else if has("Approved") {
        "Approved"
    } else {
        "Pending"
    });
    if has("Failed") {
        state.push("Failed");
    }
    if !status.str("certificate").is_empty() {
        state.push("Issued");
    }
    cells.set("Condition", state.join(","));
}

fn resource_quota(spec: &Map, status: &Map, cells: &mut Cells) {
    let (mut requests, mut limits) = (Vec::new(), Vec::new());
    for (name, hard) in spec.map("hard").into_iter().flat_map(Map::iter) {
        let used = match status.str_at(&["used", name]) {
            "" => "0",
            used => used,
        };
        let text = format!("{name}: {used}/{}", hard.as_str().unwrap_or_default());
        if name.starts_with("limits.") { limits.push(text) } else { requests.push(text) }
    }
    cells.set("Request", requests.join(", "));
    cells.set("Limit", limits.join(", "));
}

pub(super) fn event_cells(event: &Object, now: i64, cells: &mut Cells) {
    let fields = &event.fields;
    let new = event.kind.short_group == "events";
    let pick = |core: &'static str, events: &'static str| if new { events } else { core };
    let empty = Map::new();
    let about = fields.map(pick("involvedObject", "regarding")).unwrap_or(&empty);
    let series = fields.map("series");
    let first = [pick("firstTimestamp", "deprecatedFirstTimestamp"), "eventTime"];
    let first = first.iter().find_map(|field| fields.get(field));
    let last = series
        .and_then(|series| series.get("lastObservedTime"))
        .or_else(|| fields.get(pick("lastTimestamp", "deprecatedLastTimestamp")))
        .or(first);
    cells.set("Last Seen", age(last, now));
    cells.set("First Seen", age(first, now));
    cells.set("Type", fields.str("type"));
    cells.set("Reason", fields.str("reason"));
    let object = format!("{}/{}", about.str("kind").to_ascii_lowercase(), about.str("name"));
    cells.set("Object", object);
    cells.set("Subobject", about.str("fieldPath"));
    let source = fields.map(pick("source", "deprecatedSource")).unwrap_or(&empty);
    let parts = [source.str("component"), source.str("host")];
    let parts: Vec<&str> = parts.into_iter().filter(|part| !part.is_empty()).collect();
    let reporter = fields.str(pick("reportingComponent", "reportingController"));
    let source = if parts.is_empty() { reporter.to_owned() } else { parts.join(", ") };
    cells.set("Source", source);
    cells.set("Message", fields.str(pick("message", "note")).trim());
    let seen = series
        .and_then(|series| series.int("count"))
        .or_else(|| fields.int(pick("count", "deprecatedCount")));
    cells.set("Count", Value::Int(seen.unwrap_or(1).max(1)));
}
