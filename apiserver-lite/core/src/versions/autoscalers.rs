//! HorizontalPodAutoscalers: autoscaling/v1 has one target and one current value, CPU utilization; v2 has lists of metrics, and more.
//!
//! What v1 has no fields for is kept in annotations of the v1 object, so that a v1 client that keeps them does not remove it. Their values are
//! JSON as Kubernetes has it there ([`v1_values`]); what v1's types would not bring back, and older values of this server, are JSON of v2.

use apiserver_schema::value::{parse_json, write_json};
use apiserver_schema::{Map, Value};

use super::METRICS_ANNOTATIONS;
use annotation_values::Form;
use v1_values::{Role, read_behavior, read_metrics, write_behavior, write_metrics};

mod annotation_values;
#[cfg(test)]
mod tests;
mod v1_values;

/// Names of the annotations, after the prefix [`METRICS_ANNOTATIONS`].
const METRICS: &str = "metrics";
const CURRENT_METRICS: &str = "current-metrics";
const BEHAVIOR: &str = "behavior";
const CONDITIONS: &str = "conditions";

/// Field of v1's spec.
const TARGET: &str = "targetCPUUtilizationPercentage";
/// Field of v1's status.
const CURRENT: &str = "currentCPUUtilizationPercentage";

pub(super) fn v1_to_v2(fields: &mut Map) {
    let mut remove =
        |name, read: fn(Value) -> Value, form| remove_annotation(fields, name, read, form);
    let behavior = remove(BEHAVIOR, read_behavior, &annotation_values::BEHAVIOR);
    let conditions = remove(CONDITIONS, |conditions| conditions, &annotation_values::CONDITIONS);
    let metrics = |metrics| read_metrics(metrics, Role::Target);
    let metrics = list_of(remove(METRICS, metrics, &annotation_values::METRICS));
    let current = |metrics| read_metrics(metrics, Role::Current);
    let current = list_of(remove(CURRENT_METRICS, current, &annotation_values::CURRENT_METRICS));
    let percent = remove_percent(fields, "spec", TARGET);
    put_list(fields, "spec", "metrics", joined(percent, metrics, Role::Target.field()));
    let percent = remove_percent(fields, "status", CURRENT);
    put_list(fields, "status", "currentMetrics", joined(percent, current, Role::Current.field()));
    if let Some(behavior) = behavior {
        fields.map_or_insert("spec").insert("behavior", behavior);
    }
    if let Some(conditions) = conditions {
        fields.map_or_insert("status").insert("conditions", conditions);
    }
}

pub(super) fn v2_to_v1(fields: &mut Map) {
    let mut remove = |part: &str, field: &str| fields.map_mut(part)?.remove(field);
    let (metrics, behavior) = (remove("spec", "metrics"), remove("spec", "behavior"));
    let (current, conditions) =
        (remove("status", "currentMetrics"), remove("status", "conditions"));
    let (percent, metrics) = split(metrics, Role::Target.field());
    if let Some(percent) = percent {
        fields.map_or_insert("spec").insert(TARGET, percent);
    }
    let (percent, current) = split(current, Role::Current.field());
    if let Some(percent) = percent {
        fields.map_or_insert("status").insert(CURRENT, percent);
    }
    let conditions = conditions.filter(|all| all.as_list().is_some_and(|all| !all.is_empty()));
    for (name, value) in [
        (METRICS, metrics.map(|metrics| write_metrics(metrics, Role::Target))),
        (CURRENT_METRICS, current.map(|metrics| write_metrics(metrics, Role::Current))),
        (BEHAVIOR, behavior.map(write_behavior)),
        (CONDITIONS, conditions),
    ] {
        keep(fields, name, value);
    }
}

fn remove_percent(fields: &mut Map, part: &str, field: &str) -> Option<i64> {
    match fields.map_mut(part)?.remove(field)? {
        Value::Int(percent) => Some(percent),
        _ => None,
    }
}

fn put_list(fields: &mut Map, part: &'static str, field: &'static str, items: Vec<Value>) {
    if !items.is_empty() {
        fields.map_or_insert(part).insert(field, items);
    }
}

/// v1's number, and what it does not say: the other metrics, or all if the number and the others would not bring back the same list.
fn split(metrics: Option<Value>, field: &'static str) -> (Option<i64>, Option<Value>) {
    let Some(Value::List(mut metrics)) = metrics else { return (None, None) };
    let is_cpu = |metric: &Value| cpu_percent(metric, field).is_some();
    let percent = metrics.iter().find_map(|metric| cpu_percent(metric, field));
    let first = percent.map(|percent| cpu_metric(field, percent));
    let is_first = first.is_some() && metrics.first() == first.as_ref();
    if is_first && !metrics.iter().skip(1).any(is_cpu) {
        metrics.remove(0);
    }
    (percent, (!metrics.is_empty()).then_some(Value::List(metrics)))
}

/// The list of which [`split`] made `percent` and `metrics`. A v1 client may have changed the number since: it wins.
fn joined(percent: Option<i64>, mut metrics: Vec<Value>, field: &'static str) -> Vec<Value> {
    let at = metrics.iter().position(|metric| cpu_percent(metric, field).is_some());
    match (at, percent) {
        (None, None) => {}
        (None, Some(percent)) => metrics.insert(0, cpu_metric(field, percent)),
        (Some(at), None) => drop(metrics.remove(at)),
        (Some(at), Some(percent)) => {
            let metric = metrics.get_mut(at).and_then(Value::as_map_mut);
            let resource = metric.and_then(|metric| metric.map_mut("resource"));
            if let Some(value) = resource.and_then(|resource| resource.map_mut(field)) {
                value.insert("averageUtilization", percent);
            }
        }
    }
    metrics
}

fn cpu_metric(field: &'static str, percent: i64) -> Value {
    let mut value: Map = [("averageUtilization", Value::from(percent))].into_iter().collect();
    if field == "target" {
        value.insert("type", "Utilization");
    }
    let resource: Map = [("name", Value::from("cpu")), (field, value.into())].into_iter().collect();
    let metric: Map =
        [("type", Value::from("Resource")), ("resource", resource.into())].into_iter().collect();
    metric.into()
}

fn cpu_percent(metric: &Value, field: &str) -> Option<i64> {
    let metric = metric.as_map().filter(|metric| metric.str("type") == "Resource")?;
    let resource = metric.map("resource").filter(|resource| resource.str("name") == "cpu")?;
    resource.map(field)?.int("averageUtilization")
}

/// Sets an annotation, or removes it: one that a client gave a v2 object would be read as the server's.
fn keep(fields: &mut Map, name: &str, value: Option<Value>) {
    let Some(value) = value else { return drop(take_text(fields, name)) };
    let mut text = Vec::new();
    write_json(&mut text, &value);
    let annotations = fields.map_or_insert("metadata").map_or_insert("annotations");
    annotations.insert(
        format!("{METRICS_ANNOTATIONS}{name}"),
        String::from_utf8_lossy(&text).into_owned(),
    ); // own output is UTF-8
}

fn list_of(value: Option<Value>) -> Vec<Value> {
    match value {
        Some(Value::List(items)) => items,
        _ => Vec::new(),
    }
}

/// Removes an annotation and returns its value as it is read, if that has this form: a client may have written anything.
fn remove_annotation(
    fields: &mut Map,
    name: &str,
    read: fn(Value) -> Value,
    form: &Form,
) -> Option<Value> {
    let text = take_text(fields, name)?;
    let value = read(parse_json(text.as_str()?.as_bytes(), &mut Vec::new()).ok()?);
    form.fits(&value).then_some(value)
}

fn take_text(fields: &mut Map, name: &str) -> Option<Value> {
    let metadata = fields.map_mut("metadata")?;
    let annotations = metadata.map_mut("annotations")?;
    let text = annotations.remove(&format!("{METRICS_ANNOTATIONS}{name}"))?;
    if annotations.is_empty() {
        metadata.remove("annotations");
    }
    Some(text)
}
