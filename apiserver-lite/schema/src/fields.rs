//! Field selectors: the selectable fields of each kind, and their values.

use std::borrow::Cow;

use crate::object::custom::CUSTOM;
use crate::object::{Kind, Object};
use crate::value::Value;

/// Selectable fields of kinds without a list of their own.
const COMMON: &[&str] = &["metadata.name", "metadata.namespace"];

/// Selectable fields of the kinds for which Kubernetes 1.25 lists them.
fn own_fields(kind: &Kind) -> Option<&'static [&'static str]> {
    Some(match (kind.short_group, kind.kind()) {
        ("", "Pod") => &[
            "metadata.name",
            "metadata.namespace",
            "spec.nodeName",
            // The old name of `spec.nodeName`.
            "spec.host",
            "spec.restartPolicy",
            "spec.schedulerName",
            "spec.serviceAccountName",
            "status.phase",
            "status.podIP",
            "status.podIPs",
            "status.nominatedNodeName",
        ],
        ("", "Event") => &[
            "metadata.name",
            "metadata.namespace",
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
            "metadata.name",
            "metadata.namespace",
            "regarding.kind",
            "regarding.namespace",
            "regarding.name",
            "regarding.uid",
            "regarding.apiVersion",
            "regarding.resourceVersion",
            "regarding.fieldPath",
            "reason",
            "reportingController",
            "type",
        ],
        ("", "Secret") => &["metadata.name", "metadata.namespace", "type"],
        ("", "Node") => &["metadata.name", "spec.unschedulable"],
        ("", "Namespace") => &["metadata.name", "status.phase"],
        ("", "ReplicationController") => {
            &["metadata.name", "metadata.namespace", "status.replicas"]
        }
        ("batch", "Job") => &["metadata.name", "metadata.namespace", "status.successful"],
        ("certificates", "CertificateSigningRequest") => &["metadata.name", "spec.signerName"],
        // Besides those that the definition names.
        (CUSTOM, _) if kind.namespaced() => COMMON,
        (CUSTOM, _) => &["metadata.name"],
        _ => return None,
    })
}

/// The selectable fields of `kind`; of a custom kind those that its definition need not name.
pub fn supported(kind: &Kind) -> impl Iterator<Item = &'static str> {
    own_fields(kind).unwrap_or(COMMON).iter().copied()
}

/// Whether `field` of `kind` is selectable.
pub fn is_supported(kind: &Kind, field: &str) -> bool {
    supported(kind).any(|name| name == field) || is_defined(kind, field)
}

/// Whether the definition of a custom kind makes the field selectable in this version.
pub fn is_defined(kind: &Kind, field: &str) -> bool {
    let version = kind.custom_version();
    version.is_some_and(|version| version.selectable_fields.iter().any(|one| one.name == field))
}

/// Kubernetes' message for a field that is not selectable.
pub fn not_supported(kind: &Kind, field: &str) -> String {
    match own_fields(kind) {
        _ if kind.is("batch", "Job") => format!("field label {field:?} not supported for Job"),
        Some(_) => format!("field label not supported: {field}"),
        None => {
            let [name, namespace] = COMMON else { return String::new() };
            format!("{field:?} is not a known field selector: only {name:?}, {namespace:?}")
        }
    }
}

/// The value of `field` as text; empty if unset, `None` if it is not selectable.
pub fn value_of<'a>(object: &'a Object, field: &str) -> Option<Cow<'a, str>> {
    if !supported(&object.kind).any(|name| name == field) {
        let version = object.kind.custom_version()?;
        let found = version.selectable_fields.iter().find(|one| one.name == field)?;
        let path: Vec<&str> = found.path.iter().map(String::as_str).collect();
        return Some(text(object, &path, ""));
    }
    let special = match (object.kind.kind(), field) {
        ("Event", "source") => {
            let source = object.str_at(&["source", "component"]);
            let reporter = object.fields.str("reportingComponent");
            Some(if source.is_empty() { reporter } else { source })
        }
        ("Pod", "spec.host") => Some(object.str_at(&["spec", "nodeName"])),
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

/// The scalar at `path` as text, or `zero`.
fn text<'a>(object: &'a Object, path: &[&str], zero: &'static str) -> Cow<'a, str> {
    match object.fields.at(path) {
        Some(Value::String(text)) => Cow::Borrowed(text),
        Some(Value::Bool(flag)) => Cow::Owned(flag.to_string()),
        Some(Value::Int(number)) => Cow::Owned(number.to_string()),
        _ => Cow::Borrowed(zero),
    }
}

#[cfg(test)]
mod tests {
    use proto_api::names::{Names, Profile};

    use super::*;
    use crate::Engine;

    /// Messages of Kubernetes 1.25 for fields that are not selectable.
    #[test]
    fn fields_that_kubernetes_refuses_are_refused_in_its_words() {
        let engine = Engine::new(Names::new(Profile::Kubernetes));
        let common = |field: &str| {
            format!(
                "\"{field}\" is not a known field selector: only \"metadata.name\", \"metadata.namespace\""
            )
        };
        let own = |field: &str| format!("field label not supported: {field}");
        for (version, kind, field, words) in [
            // From 1.31 on.
            ("v1", "Service", "spec.type", common("spec.type")),
            ("v1", "Service", "spec.clusterIP", common("spec.clusterIP")),
            ("v1", "ConfigMap", "data", common("data")),
            ("apps/v1", "ReplicaSet", "status.replicas", common("status.replicas")),
            ("batch/v1", "CronJob", "status.successful", common("status.successful")),
            ("v1", "Pod", "spec.hostNetwork", own("spec.hostNetwork")),
            ("v1", "Node", "metadata.namespace", own("metadata.namespace")),
            ("v1", "Namespace", "metadata.namespace", own("metadata.namespace")),
            ("events.k8s.io/v1", "Event", "source", own("source")),
            (
                "certificates.k8s.io/v1",
                "CertificateSigningRequest",
                "metadata.namespace",
                own("metadata.namespace"),
            ),
            (
                "batch/v1",
                "Job",
                "spec.x",
                "field label \"spec.x\" not supported for Job".to_owned(),
            ),
        ] {
            let kind = engine.kind_of(version, kind).expect(kind);
            assert!(!is_supported(kind, field), "{} {field}", kind.kind());
            assert_eq!(not_supported(kind, field), words);
        }
    }

    #[test]
    fn every_field_of_the_table_is_one_and_has_a_value() {
        let engine = Engine::new(Names::new(Profile::Kubernetes));
        for kind in engine.kinds().iter().filter(|kind| kind.resource.is_some()) {
            assert!(is_supported(kind, "metadata.name"), "{}", kind.kind());
            let empty = Object::new(std::sync::Arc::clone(kind));
            for field in supported(kind) {
                let top = field.split('.').next().unwrap_or_default();
                assert!(kind.has_field(top), "{} has no {field}", kind.kind());
                assert!(value_of(&empty, field).is_some(), "{} {field}", kind.kind());
            }
        }
    }
}
