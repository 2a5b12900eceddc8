//! PodNodeSelector: the annotation of a namespace that says on which nodes its pods run. Kubernetes' configuration file of this plugin, with a selector for
//! all namespaces and what each may select, is not read.

use apiserver_schema::{Map, Object};
use proto_api::selectors::{label_key_fault, label_value_fault};

use crate::context::RequestContext;
use crate::status::{ApiError, StatusTarget};

/// The annotation cannot be read. Nothing is created in its namespace until it is corrected.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a label and its value, expected key=value,...")]
struct NotALabel(String);

/// Adds the labels of the namespace's annotation to the node selector of a new pod.
///
/// # Errors
/// 403 when the pod selects another value of a label, 500 when the annotation cannot be read.
pub fn admit(call: &RequestContext<'_>, pod: &mut Object) -> Result<(), ApiError> {
    let annotation = format!("scheduler.alpha.{}", call.server.names.label("node-selector"));
    let namespace = pod.namespace().to_owned();
    let Some(found) = call.server.find_in("", "namespaces", "", &namespace) else { return Ok(()) };
    let text = found.object().str_at(&["metadata", "annotations", &annotation]);
    let wanted = labels(text).map_err(|error| {
        ApiError::internal(format!("annotation {annotation} of namespace {namespace}: {error}"))
    })?;
    if wanted.is_empty() || merge(&wanted, pod.fields.map_or_insert("spec")) {
        return Ok(());
    }
    let about = StatusTarget { name: pod.name(), ..call.about() };
    let why = "pod node label selector conflicts with its namespace node label selector";
    Err(ApiError::forbidden(about, why))
}

/// The labels of a text `key=value,...`.
fn labels(text: &str) -> Result<Vec<(&str, &str)>, NotALabel> {
    let parts = text.split(',').filter(|_| !text.is_empty());
    parts
        .map(|part| {
            let not_a_label = || NotALabel(part.to_owned());
            let (key, value) = part.split_once('=').ok_or_else(not_a_label)?;
            let (key, value) = (key.trim(), value.trim());
            let fault = label_key_fault(key).or_else(|| label_value_fault(value));
            if fault.is_none() { Ok((key, value)) } else { Err(not_a_label()) }
        })
        .collect()
}

/// Adds labels to the node selector of a pod. False, and nothing is added, if it selects another value of one.
fn merge(wanted: &[(&str, &str)], spec: &mut Map) -> bool {
    let own = spec.map("nodeSelector");
    let differs = |(key, value): &(&str, &str)| {
        own.and_then(|own| own.get(key)).is_some_and(|own| own.as_str() != Some(value))
    };
    if wanted.iter().any(differs) {
        return false;
    }
    let wanted = wanted.iter().map(|(key, value)| ((*key).to_owned(), *value));
    spec.map_or_insert("nodeSelector").extend(wanted);
    true
}

#[cfg(test)]
mod tests {
    use apiserver_schema::Value;

    use super::*;

    #[test]
    fn the_annotation_is_a_list_of_labels() {
        assert_eq!(labels(""), Ok(Vec::new()));
        let two = Ok(vec![("example.com/pool", "a"), ("disk", "")]);
        assert_eq!(labels("example.com/pool=a, disk="), two);
        for (text, part) in [("pool", "pool"), ("a=b,", ""), ("a=b=c", "a=b=c"), ("a b=c", "a b=c")]
        {
            assert_eq!(labels(text), Err(NotALabel(part.to_owned())), "{text}");
        }
    }

    #[test]
    fn a_pod_gets_the_labels_that_it_does_not_contradict() {
        let selecting = |labels: &[(&'static str, &'static str)]| -> Map {
            let labels: Map =
                labels.iter().map(|(key, value)| (*key, Value::from(*value))).collect();
            [("nodeSelector", Value::from(labels))].into_iter().collect()
        };
        let wanted = [("pool", "a"), ("disk", "ssd")];
        let mut spec = Map::default();
        assert!(merge(&wanted, &mut spec));
        assert_eq!(spec, selecting(&wanted));
        let mut spec = selecting(&[("zone", "z"), ("pool", "a")]);
        assert!(merge(&wanted, &mut spec));
        assert_eq!(spec, selecting(&[("zone", "z"), ("pool", "a"), ("disk", "ssd")]));
        let mut spec = selecting(&[("pool", "b")]);
        assert!(!merge(&wanted, &mut spec));
        assert_eq!(spec, selecting(&[("pool", "b")]));
    }
}
