//! Kinds served in several versions: which version is stored, and conversion between versions.
//!
//! Versions of a kind share most fields; the differences are a table of renamed fields, or a function.

use std::sync::Arc;

use apiserver_schema::custom::CustomVersion;
use apiserver_schema::{Engine, Kind, Map, Object};
use proto_api::names::Names;

mod autoscalers;
mod disruption_budgets;
mod endpoint_slices;
#[cfg(test)]
mod tests;

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
        ("autoscaling", "v1" | "v2beta2", "HorizontalPodAutoscaler") => ("autoscaling", "v2"),
        ("flowcontrol.apiserver", "v1beta1", _) => ("flowcontrol.apiserver", "v1beta2"),
        (
            "batch" | "coordination" | "discovery" | "node" | "policy" | "rbac.authorization"
            | "scheduling" | "storage",
            "v1beta1",
            _,
        ) => (kind.short_group, "v1"),
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
    if object.kind.api_version != kind.api_version {
        to_stored(&object.kind, &mut fields);
        from_stored(kind, &mut fields);
    }
    Object { kind: kind.clone(), fields }
}

/// Brings the fields of an object of `kind` into the form in which they are stored. Versions without a row have the same fields.
fn to_stored(kind: &Kind, fields: &mut Map) {
    match (kind.short_group, kind.version()) {
        ("events", _) => EVENT_FIELDS.iter().for_each(|(core, own)| rename(fields, own, core)),
        ("autoscaling", "v1") => autoscalers::v1_to_v2(fields),
        ("discovery", "v1beta1") => endpoint_slices::v1beta1_to_v1(kind.names(), fields),
        ("policy", "v1beta1") => disruption_budgets::v1beta1_to_v1(kind.names(), fields),
        _ => {}
    }
}

/// The reverse of [`to_stored`].
fn from_stored(kind: &Kind, fields: &mut Map) {
    match (kind.short_group, kind.version()) {
        ("events", _) => EVENT_FIELDS.iter().for_each(|(core, own)| rename(fields, core, own)),
        ("autoscaling", "v1") => autoscalers::v2_to_v1(fields),
        ("discovery", "v1beta1") => endpoint_slices::v1_to_v1beta1(kind.names(), fields),
        ("policy", "v1beta1") => disruption_budgets::v1_to_v1beta1(kind.names(), fields),
        _ => {}
    }
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
