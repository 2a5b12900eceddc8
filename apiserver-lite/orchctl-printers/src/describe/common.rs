//! Parts of many kinds: labels, annotations, owners, conditions, events.

use proto_api::names::Names;
use serde_json::{Map, Value};

use super::{Context, Page};
use crate::{age, objects};

/// Longest annotation that stands on one line.
const ANNOTATION_LEN_MAX: usize = 140;

/// Name, and namespace if it has one.
pub(super) fn name(page: &mut Page, object: &Value) {
    page.field(0, "Name", objects::name(object));
    let namespace = objects::namespace(object);
    if !namespace.is_empty() {
        page.field(0, "Namespace", namespace);
    }
}

/// Labels and annotations.
pub(super) fn labels(page: &mut Page, object: &Value, context: Context<'_>) {
    label_lines(page, 0, "Labels", objects::map_at(object, "/metadata/labels"));
    annotations(page, object, context);
}

pub(super) fn label_lines(
    page: &mut Page,
    level: usize,
    title: &str,
    labels: Option<&Map<String, Value>>,
) {
    let mut lines: Vec<String> = labels
        .into_iter()
        .flatten()
        .map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or_default()))
        .collect();
    lines.sort();
    title_lines(page, level, title, &lines);
}

/// A title with the first line next to it and the others below.
pub(super) fn title_lines(page: &mut Page, level: usize, title: &str, lines: &[String]) {
    let (first, rest) = match lines.split_first() {
        Some((first, rest)) => (first.as_str(), rest),
        None => ("<none>", &[][..]),
    };
    page.field(level, title, first);
    for line in rest {
        page.line(0, format!("\t{line}"));
    }
}

/// Annotations without that of apply, which repeats the object.
pub(super) fn annotations(page: &mut Page, object: &Value, context: Context<'_>) {
    let annotations = objects::map_at(object, "/metadata/annotations");
    title_lines(page, 0, "Annotations", &annotation_lines(annotations, context.names));
}

/// A line for each annotation but that of apply; long ones have lines of their own.
pub(super) fn annotation_lines(
    annotations: Option<&Map<String, Value>>,
    names: &Names,
) -> Vec<String> {
    let applied = names.sub_label("kubectl", "last-applied-configuration");
    let mut sorted: Vec<(&String, &str)> = annotations
        .into_iter()
        .flatten()
        .filter(|(key, _)| **key != applied)
        .map(|(key, value)| (key, value.as_str().unwrap_or_default()))
        .collect();
    sorted.sort();
    let mut lines = Vec::new();
    for (key, value) in sorted {
        let value = value.strip_suffix('\n').unwrap_or(value);
        if value.contains('\n') || key.len() + value.len() + 2 > ANNOTATION_LEN_MAX {
            lines.push(format!("{key}:"));
            lines.extend(value.split('\n').map(|line| format!("  {}", shortened(line))));
        } else {
            lines.push(format!("{key}: {value}"));
        }
    }
    lines
}

fn shortened(line: &str) -> String {
    if line.chars().count() <= ANNOTATION_LEN_MAX {
        line.to_owned()
    } else {
        let start: String = line.chars().take(ANNOTATION_LEN_MAX).collect();
        format!("{start}...")
    }
}

/// `ReplicaSet/web-1`, of the owner that controls it.
pub(super) fn controller(object: &Value) -> Option<String> {
    let owners = objects::list_at(object, "/metadata/ownerReferences").iter();
    let mut owners = owners.filter(|owner| owner.get("controller") == Some(&Value::Bool(true)));
    let owner = owners.next()?;
    Some(format!("{}/{}", objects::text_at(owner, "/kind"), objects::text_at(owner, "/name")))
}

/// A time in words, as `Thu, 26 Nov 2026 06:30:46 +0000`; empty for none.
pub(super) fn time(object: &Value, pointer: &str) -> String {
    age::long(objects::text_at(object, pointer)).unwrap_or_default()
}

/// `Creation` of an object.
pub(super) fn created(page: &mut Page, object: &Value) {
    page.field(0, "CreationTimestamp", time(object, "/metadata/creationTimestamp"));
}

/// How a pod or container is confined by seccomp, if its security context says so.
pub(super) fn seccomp(page: &mut Page, level: usize, owner: &Value) {
    let text = |pointer: &str| objects::text_at(owner, pointer);
    let pointer = "/securityContext/seccompProfile";
    if owner.pointer(pointer).is_none() {
        return;
    }
    let kind = text("/securityContext/seccompProfile/type");
    page.field(level, "SeccompProfile", kind);
    if kind == "Localhost" {
        let file = text("/securityContext/seccompProfile/localhostProfile");
        page.field(level, "LocalhostProfile", file);
    }
}

/// The nodes on which pods of an owner may be. A template shows what it has: kubectl before 1.31 never does, later ones always do.
pub(super) fn placement(page: &mut Page, level: usize, owner: &Value, is_pod: bool) {
    let nodes = objects::map_at(owner, "/spec/nodeSelector");
    if is_pod || nodes.is_some_and(|nodes| !nodes.is_empty()) {
        label_lines(page, level, "Node-Selectors", nodes);
    }
    let mut tolerations: Vec<&Value> =
        objects::list_at(owner, "/spec/tolerations").iter().collect();
    tolerations.sort_by_key(|one| objects::text_at(one, "/key"));
    let tolerations: Vec<String> = tolerations.into_iter().map(toleration).collect();
    if is_pod || !tolerations.is_empty() {
        title_lines(page, level, "Tolerations", &tolerations);
    }
}

/// How the pods of an owner are spread, if it says so.
pub(super) fn spread(page: &mut Page, level: usize, owner: &Value) {
    let spread = objects::list_at(owner, "/spec/topologySpreadConstraints");
    let mut spread: Vec<&Value> = spread.iter().collect();
    spread.sort_by_key(|one| objects::text_at(one, "/topologyKey"));
    let spread: Vec<String> = spread.into_iter().map(spread_constraint).collect();
    if !spread.is_empty() {
        title_lines(page, level, "Topology Spread Constraints", &spread);
    }
}

/// `zone:DoNotSchedule when max skew 1 is exceeded for selector app=x`.
fn spread_constraint(one: &Value) -> String {
    let text = |pointer: &str| objects::text_at(one, pointer);
    let (key, action) = (text("/topologyKey"), text("/whenUnsatisfiable"));
    let line = format!("{key}:{action} when max skew {} is exceeded", number(one, "/maxSkew"));
    match one.get("labelSelector") {
        Some(_) => format!("{line} for selector {}", selector(one, "/labelSelector")),
        None => line,
    }
}

/// `key=value:NoExecute op=Exists for 300s`.
fn toleration(one: &Value) -> String {
    let text = |pointer: &str| objects::text_at(one, pointer);
    let mut line = text("/key").to_owned();
    if !text("/value").is_empty() {
        line = format!("{line}={}", text("/value"));
    }
    if !text("/effect").is_empty() {
        line = format!("{line}:{}", text("/effect"));
    }
    if text("/operator") == "Exists" && text("/value").is_empty() {
        let space = if line.is_empty() { "" } else { " " };
        line = format!("{line}{space}op=Exists");
    }
    if one.get("tolerationSeconds").is_some() {
        line = format!("{line} for {}s", word(one, "/tolerationSeconds", "0"));
    }
    line
}

/// A selector of labels in one line.
pub(super) fn selector(object: &Value, pointer: &str) -> String {
    objects::label_selector(object, pointer).unwrap_or_else(|| "<none>".to_owned())
}

/// Texts of a list.
pub(super) fn texts<'a>(object: &'a Value, pointer: &str) -> Vec<&'a str> {
    objects::list_at(object, pointer).iter().filter_map(Value::as_str).collect()
}

/// A value as a word; `<unset>` for none.
pub(super) fn word(object: &Value, pointer: &str, unset: &str) -> String {
    match object.pointer(pointer) {
        None | Some(Value::Null) => unset.to_owned(),
        Some(value) => crate::jsonpath::text_of(value),
    }
}

/// Yes or no of the API, as descriptions have it.
pub(super) fn boolean(object: &Value, pointer: &str) -> &'static str {
    match object.pointer(pointer).and_then(Value::as_bool) {
        Some(true) => "True",
        Some(false) => "False",
        None => "<unset>",
    }
}

/// A whole number; zero for none.
pub(super) fn number(object: &Value, pointer: &str) -> i64 {
    object.pointer(pointer).and_then(Value::as_i64).unwrap_or_default()
}

/// Conditions of a workload: type, status, reason.
pub(super) fn conditions(page: &mut Page, object: &Value) {
    let conditions = objects::list_at(object, "/status/conditions");
    if conditions.is_empty() {
        return;
    }
    page.line(0, "Conditions:\n  Type\tStatus\tReason\n  ----\t------\t------");
    for one in conditions {
        let text = |pointer: &str| objects::text_at(one, pointer);
        page.line(1, format!("{} \t{}\t{}", text("/type"), text("/status"), text("/reason")));
    }
}

/// What happened to the object, the last thing last.
pub(super) fn events(page: &mut Page, events: &[Value], context: Context<'_>) {
    if events.is_empty() {
        page.field(0, "Events", "<none>");
        return;
    }
    page.line(
        0,
        "Events:\n  Type\tReason\tAge\tFrom\tMessage\n  ----\t------\t----\t----\t-------",
    );
    for event in events {
        let text = |pointer: &str| objects::text_at(event, pointer);
        let from = match text("/source/component") {
            "" => text("/reportingComponent"),
            component => component,
        };
        let message = text("/message").trim();
        let seen = age::of_event(event, context.now);
        page.line(1, format!("{}\t{}\t{seen}\t{from}\t{message}", text("/type"), text("/reason")));
    }
}
