//! Kinds served in several versions: which version is stored, and conversion between versions.
//!
//! Versions of a kind share most fields; the differences are a table of renamed fields, or a function.

use std::sync::Arc;

use apiserver_schema::custom::CustomVersion;
use apiserver_schema::{Engine, Kind, Map, Object};
use proto_api::names::Names;

mod autoscalers;

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
    let (group, version) = match (kind.short_group, kind.version(), kind.kind()) {
        ("events", _, "Event") => ("", "v1"),
        ("autoscaling", "v1", "HorizontalPodAutoscaler") => ("autoscaling", "v2"),
        ("flowcontrol.apiserver", "v1beta1", _) => ("flowcontrol.apiserver", "v1beta2"),
        ("storage", "v1beta1", "CSIStorageCapacity") => ("storage", "v1"),
        _ => return kind.clone(),
    };
    engine.kind(&names.group(group), version, kind.kind()).unwrap_or(kind).clone()
}

/// The kinds of the same objects in their other versions and groups, as far as they have the subresource `subresource`, if that is not empty.
#[must_use]
pub(crate) fn other_versions(
    engine: &Engine,
    names: &Names,
    kind: &Arc<Kind>,
    subresource: &str,
) -> Vec<Arc<Kind>> {
    let stored = stored_kind(engine, names, kind);
    let is_other = |other: &&Arc<Kind>| {
        let Some(row) = other.resource else { return false };
        let has_subresource = subresource.is_empty() || row.subresource(subresource).is_some();
        has_subresource
            && !Arc::ptr_eq(other, kind)
            && Arc::ptr_eq(&stored_kind(engine, names, other), &stored)
    };
    engine.kinds().iter().filter(is_other).cloned().collect()
}

/// Converts `object` to `kind`, another version of its kind.
#[must_use]
pub(crate) fn convert(object: &Object, kind: &Arc<Kind>) -> Object {
    if let Some(version) = kind.custom_version() {
        return read_custom(object, kind, &version);
    }
    let mut fields = object.fields.clone();
    match (object.kind.short_group, object.kind.version(), kind.short_group, kind.version()) {
        ("", _, "events", _) => {
            EVENT_FIELDS.iter().for_each(|(core, own)| rename(&mut fields, core, own))
        }
        ("events", _, "", _) => {
            EVENT_FIELDS.iter().for_each(|(core, own)| rename(&mut fields, own, core))
        }
        ("autoscaling", "v1", _, "v2") => autoscalers::v1_to_v2(&mut fields),
        ("autoscaling", "v2", _, "v1") => autoscalers::v2_to_v1(&mut fields),
        _ => {}
    }
    Object { kind: kind.clone(), fields }
}

/// A stored object of a custom kind as an object of `kind`, one of its versions: they share all fields, but each may have fewer than were stored.
#[must_use]
pub(crate) fn read_custom(object: &Object, kind: &Arc<Kind>, version: &CustomVersion) -> Object {
    let mut fields = object.fields.clone();
    version.rules.prune(&mut fields, &mut Vec::new());
    version.rules.default(&mut fields);
    Object { kind: kind.clone(), fields }
}

/// What autoscaling/v1 has no fields for is kept in annotations of this prefix, metrics and more: see [`autoscalers`].
const METRICS_ANNOTATIONS: &str = "autoscaling.alpha.kubernetes.io/";

fn rename(fields: &mut Map, from: &str, to: &'static str) {
    if let Some(value) = fields.remove(from) {
        fields.insert(to, value);
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
    fn other_versions_are_of_the_same_objects() {
        let names = Names::new(Profile::Kubernetes);
        let engine = Engine::new(names);
        let others = |group: &str, version: &str, kind: &str, subresource: &str| {
            let kind = engine.kind(&names.group(group), version, kind).unwrap();
            let others = other_versions(&engine, names, kind, subresource);
            others.iter().map(|kind| kind.api_version.clone()).collect::<Vec<_>>()
        };
        assert_eq!(others("", "v1", "Event", ""), ["events.k8s.io/v1"]);
        assert_eq!(others("events", "v1", "Event", ""), ["v1"]);
        let autoscaler = "HorizontalPodAutoscaler";
        assert_eq!(others("autoscaling", "v1", autoscaler, "status"), ["autoscaling/v2"]);
        assert!(others("autoscaling", "v1", autoscaler, "scale").is_empty());
        assert!(others("", "v1", "Pod", "").is_empty());
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
