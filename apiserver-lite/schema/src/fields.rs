//! Field selectors: which fields of a kind can be selected on, and what an object holds in them.

use std::borrow::Cow;

use crate::object::{Kind, Object};
use crate::value::Value;

/// Fields of every kind.
const COMMON: &[&str] = &["metadata.name", "metadata.namespace"];

/// The fields besides `metadata.name` and `metadata.namespace`.
fn own_fields(kind: &Kind) -> &'static [&'static str] {
    match (kind.short_group, kind.kind) {
        ("", "Pod") => &[
            "spec.nodeName",
            "spec.restartPolicy",
            "spec.schedulerName",
            "spec.serviceAccountName",
            "status.phase",
            "status.podIP",
            "status.podIPs",
            "status.nominatedNodeName",
        ],
        ("", "Event") => &[
            "involvedObject.kind",
            "involvedObject.namespace",
            "involvedObject.name",
            "involvedObject.uid",
            "involvedObject.apiVersion",
            "involvedObject.resourceVersion",
            "involvedObject.fieldPath",
            "reason",
            "reportingComponent",
            "source",
            "type",
        ],
        ("events", "Event") => &[
            "regarding.kind",
            "regarding.namespace",
            "regarding.name",
            "regarding.uid",
            "regarding.apiVersion",
            "regarding.resourceVersion",
            "regarding.fieldPath",
            "reason",
            "reportingController",
            "source",
            "type",
        ],
        ("", "Secret") => &["type"],
        ("", "Node") => &["spec.unschedulable"],
        ("", "Namespace") => &["status.phase"],
        ("", "ReplicationController") | ("apps", "ReplicaSet") => &["status.replicas"],
        ("batch", "Job") => &["status.successful"],
        ("certificates", "CertificateSigningRequest") => &["spec.signerName"],
        _ => &[],
    }
}

/// The fields that objects of `kind` can be selected by.
pub fn supported(kind: &Kind) -> impl Iterator<Item = &'static str> {
    COMMON.iter().chain(own_fields(kind)).copied()
}

/// Whether objects of `kind` can be selected by `field`.
pub fn is_supported(kind: &Kind, field: &str) -> bool {
    supported(kind).any(|name| name == field)
}

/// What `object` holds in `field`, as text; empty when unset, `None` when the field cannot be selected by.
pub fn value_of<'a>(object: &'a Object, field: &str) -> Option<Cow<'a, str>> {
    if !is_supported(&object.kind, field) {
        return None;
    }
    let special = match (object.kind.kind, field) {
        ("Event", "source") => {
            let (component, reporter) = match object.kind.short_group {
                "events" => ("deprecatedSource", "reportingController"),
                _ => ("source", "reportingComponent"),
            };
            let source = object.str_at(&[component, "component"]);
            Some(if source.is_empty() { object.fields.str(reporter) } else { source })
        }
        ("Job", "status.successful") => return Some(text(object, &["status", "succeeded"], "0")),
        ("Pod", "status.podIPs") => {
            let ips = object.status().map_or(&[][..], |status| status.list("podIPs"));
            let ips: Vec<&str> = ips.iter().filter_map(|ip| Some(ip.as_map()?.str("ip"))).collect();
            return Some(Cow::Owned(ips.join(",")));
        }
        _ => None,
    };
    if let Some(value) = special {
        return Some(Cow::Borrowed(value));
    }
    let path: Vec<&str> = field.split('.').collect();
    let zero = match field {
        "spec.unschedulable" => "false",
        "status.replicas" => "0",
        _ => "",
    };
    Some(text(object, &path, zero))
}

/// What stands at `path`, as text.
fn text<'a>(object: &'a Object, path: &[&str], zero: &'static str) -> Cow<'a, str> {
    match object.fields.at(path) {
        Some(Value::String(text)) => Cow::Borrowed(text),
        Some(Value::Bool(flag)) => Cow::Owned(flag.to_string()),
        Some(Value::Int(number)) => Cow::Owned(number.to_string()),
        _ => Cow::Borrowed(zero),
    }
}
