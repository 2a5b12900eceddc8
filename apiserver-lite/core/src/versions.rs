//! Kinds served in several versions: which version is stored, and conversion between versions.
//!
//! Versions of a kind share most fields; the differences are a table of renamed fields, or a function.

use std::sync::Arc;

use apiserver_schema::{Engine, Kind, Map, Object, Value};
use proto_api::names::Names;

/// Fields that differ between core and events.k8s.io Events: core name, then events name.
const EVENT_FIELDS: [(&str, &str); 7] = [
    ("involvedObject", "regarding"),
    ("message", "note"),
    ("source", "deprecatedSource"),
    ("firstTimestamp", "deprecatedFirstTimestamp"),
    ("lastTimestamp", "deprecatedLastTimestamp"),
    ("count", "deprecatedCount"),
    ("reportingComponent", "reportingController"),
];

/// The version in which objects of `kind` are stored; `kind` itself for most kinds.
#[must_use]
pub fn stored_kind(engine: &Engine, names: &Names, kind: &Arc<Kind>) -> Arc<Kind> {
    let (group, version) = match (kind.short_group, kind.version, kind.kind) {
        ("events", _, "Event") => ("", "v1"),
        ("autoscaling", "v1", "HorizontalPodAutoscaler") => ("autoscaling", "v2"),
        ("flowcontrol.apiserver", "v1beta1", _) => ("flowcontrol.apiserver", "v1beta2"),
        ("storage", "v1beta1", "CSIStorageCapacity") => ("storage", "v1"),
        _ => return kind.clone(),
    };
    engine.kind(&names.group(group), version, kind.kind).unwrap_or(kind).clone()
}

/// Converts `object` to `kind`, another version of its kind.
#[must_use]
pub(crate) fn convert(object: &Object, kind: &Arc<Kind>) -> Object {
    let mut fields = object.fields.clone();
    match (object.kind.short_group, object.kind.version, kind.short_group, kind.version) {
        ("", _, "events", _) => {
            EVENT_FIELDS.iter().for_each(|(core, own)| rename(&mut fields, core, own))
        }
        ("events", _, "", _) => {
            EVENT_FIELDS.iter().for_each(|(core, own)| rename(&mut fields, own, core))
        }
        ("autoscaling", "v1", _, "v2") => target_to_metrics(&mut fields),
        ("autoscaling", "v2", _, "v1") => metrics_to_target(&mut fields),
        _ => {}
    }
    Object { kind: kind.clone(), fields }
}

fn rename(fields: &mut Map, from: &str, to: &'static str) {
    if let Some(value) = fields.remove(from) {
        fields.insert(to, value);
    }
}

/// autoscaling/v1 has one target, CPU utilization; v2 a list of metrics. Metrics that v1 cannot express are kept in this
/// annotation, so that a v1 client does not remove them.
const METRICS_ANNOTATION: &str = "autoscaling.alpha.kubernetes.io/metrics";

fn target_to_metrics(fields: &mut Map) {
    let others = take_annotation(fields).and_then(|text| read_json(&text)).unwrap_or_default();
    let spec = fields.map_or_insert("spec");
    let mut metrics = others;
    if let Some(percent) = spec.remove("targetCPUUtilizationPercentage") {
        let target: Map = [("type", Value::from("Utilization")), ("averageUtilization", percent)]
            .into_iter()
            .collect();
        metrics.insert(0, cpu_metric("target", target));
    }
    if !metrics.is_empty() {
        spec.insert("metrics", metrics);
    }
    if let Some(status) = fields.map_mut("status")
        && let Some(percent) = status.remove("currentCPUUtilizationPercentage")
    {
        let current: Map = [("averageUtilization", percent)].into_iter().collect();
        status.insert("currentMetrics", vec![cpu_metric("current", current)]);
    }
}

fn metrics_to_target(fields: &mut Map) {
    let spec = fields.map_or_insert("spec");
    let metrics = spec.list("metrics").to_vec();
    spec.remove("metrics");
    spec.remove("behavior");
    let (own, others): (Vec<_>, Vec<_>) =
        metrics.into_iter().partition(|metric| cpu_percent(metric, "target").is_some());
    if let Some(percent) = own.first().and_then(|metric| cpu_percent(metric, "target")) {
        spec.insert("targetCPUUtilizationPercentage", percent);
    }
    if let Some(status) = fields.map_mut("status") {
        let current =
            status.list("currentMetrics").iter().find_map(|metric| cpu_percent(metric, "current"));
        status.remove("currentMetrics");
        status.remove("conditions");
        current
            .into_iter()
            .for_each(|percent| drop(status.insert("currentCPUUtilizationPercentage", percent)));
    }
    if !others.is_empty() {
        let mut text = Vec::new();
        apiserver_schema::value::write_json(&mut text, &Value::List(others));
        let annotations = fields.map_or_insert("metadata").map_or_insert("annotations");
        annotations.insert(METRICS_ANNOTATION, String::from_utf8_lossy(&text).into_owned());
    }
}

fn cpu_metric(field: &'static str, value: Map) -> Value {
    let resource: Map = [("name", Value::from("cpu")), (field, value.into())].into_iter().collect();
    let metric: Map =
        [("type", Value::from("Resource")), ("resource", resource.into())].into_iter().collect();
    metric.into()
}

fn cpu_percent(metric: &Value, field: &str) -> Option<i64> {
    let resource = metric.as_map()?.map("resource")?;
    (resource.str("name") == "cpu").then(|| resource.map(field)?.int("averageUtilization"))?
}

fn take_annotation(fields: &mut Map) -> Option<String> {
    let annotations = fields.map_mut("metadata")?.map_mut("annotations")?;
    annotations.remove(METRICS_ANNOTATION)?.as_str().map(str::to_owned)
}

fn read_json(text: &str) -> Option<Vec<Value>> {
    match apiserver_schema::value::parse_json(text.as_bytes(), &mut Vec::new()).ok()? {
        Value::List(items) => Some(items),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use apiserver_schema::{Format, Strictness};

    use super::*;
    use proto_api::names::Profile;

    fn check(path: (&str, &str, &str), json: &str) {
        let names = Names::new(Profile::Kubernetes);
        let engine = Engine::new(names);
        let kind = engine.kind(&names.group(path.0), path.1, path.2).unwrap();
        let object =
            engine.decode(kind, Format::Json, json.as_bytes(), Strictness::Strict).unwrap().object;
        let stored = stored_kind(&engine, names, kind);
        assert!(!Arc::ptr_eq(&stored, kind));
        let there = convert(&object, &stored);
        let text = engine.encode_json(&there);
        let read = engine.decode(&stored, Format::Json, &text, Strictness::Strict);
        assert_eq!(read.unwrap().object, there, "fits the stored kind");
        assert_eq!(convert(&there, kind), object, "comes back as it was");
    }

    #[test]
    fn events_keep_everything() {
        check(
            ("events", "v1", "Event"),
            r#"{"metadata":{"name":"e"},"eventTime":"2026-01-01T00:00:00.000000Z","reportingController":"c","reportingInstance":"i",
                "action":"a","reason":"r","regarding":{"kind":"Pod","name":"p"},"note":"n","type":"Normal","deprecatedCount":3}"#,
        );
    }

    #[test]
    fn autoscalers_keep_their_target() {
        check(
            ("autoscaling", "v1", "HorizontalPodAutoscaler"),
            r#"{"metadata":{"name":"h"},"spec":{"scaleTargetRef":{"kind":"Deployment","name":"d"},"maxReplicas":3,
                "targetCPUUtilizationPercentage":50},"status":{"currentReplicas":1,"desiredReplicas":2,"currentCPUUtilizationPercentage":40}}"#,
        );
    }
}
