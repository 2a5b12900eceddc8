//! NodeMetrics and PodMetrics as objects: the metadata of what they measure, and what it uses.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use apiserver_schema::{Kind, Map, Object, Value};
use proto_api::{Quantity, Time, duration};

use crate::usage::{UsageSample, UsedBy};

/// The NodeMetrics of a node. `kind` is the kind NodeMetrics, `now` the time since 1970.
pub fn node_metrics(
    kind: &Arc<Kind>,
    node: &Object,
    measured: &UsageSample<UsedBy>,
    now: Duration,
) -> Object {
    let mut object = measured_object(kind, node, measured, now);
    object.fields.insert("usage", usage(&measured.used));
    object
}

pub fn pod_metrics(
    kind: &Arc<Kind>,
    pod: &Object,
    measured: &UsageSample<BTreeMap<String, UsedBy>>,
    now: Duration,
) -> Object {
    let mut object = measured_object(kind, pod, measured, now);
    let containers = measured.used.iter().map(|(name, used)| {
        let mut container = Map::new();
        container.insert("name", name.as_str());
        container.insert("usage", usage(used));
        Value::Map(container)
    });
    object.fields.insert("containers", Value::List(containers.collect()));
    object
}

/// An object with the name and labels of what was measured. It exists as of now, as metrics-server's do.
fn measured_object<T>(
    kind: &Arc<Kind>,
    of: &Object,
    measured: &UsageSample<T>,
    now: Duration,
) -> Object {
    let mut object = Object::new(kind.clone());
    object.set_meta_str("name", of.name());
    if kind.namespaced() {
        object.set_meta_str("namespace", of.namespace());
    }
    let labels = of.metadata().and_then(|metadata| metadata.get("labels")).cloned();
    let metadata = object.metadata_mut();
    if let Some(labels) = labels {
        metadata.insert("labels", labels);
    }
    metadata.insert("creationTimestamp", time(now));
    object.fields.insert("timestamp", time(measured.at));
    object.fields.insert("window", duration::format(measured.window));
    object
}

fn time(since_1970: Duration) -> Value {
    let seconds = i64::try_from(since_1970.as_secs()).unwrap_or(i64::MAX);
    Value::from(Time::from_unix(seconds).to_string())
}

fn usage(used: &UsedBy) -> Map {
    let cpu = format!("{}n", used.cpu_nanos).parse::<Quantity>().unwrap_or_default();
    let memory = Quantity::from_bytes(i64::try_from(used.memory).unwrap_or(i64::MAX));
    let mut usage = Map::new();
    usage.insert("cpu", cpu.to_string());
    usage.insert("memory", memory.to_string());
    usage
}

#[cfg(test)]
mod tests {
    use apiserver_schema::Engine;
    use proto_api::names::{Names, Profile};

    use super::*;

    #[test]
    fn the_objects_that_clients_see() {
        let engine = Engine::new(Names::new(Profile::Kubernetes));
        let kind =
            |plural: &str| engine.resource("metrics.k8s.io", "v1beta1", plural).expect("served");
        let of = |plural: &str| engine.resource("", "v1", plural).expect("served").clone();
        let mut node = Object::new(of("nodes"));
        node.set_meta_str("name", "n1");
        node.metadata_mut().map_or_insert("labels").insert("zone", "a");
        let used = UsedBy { cpu_nanos: 250_000_001, memory: 3 << 20 };
        let (at, window) = (Duration::from_millis(1_000_000_250), Duration::from_millis(15_200));
        let now = Duration::from_secs(1_000_000_003);
        let measured = UsageSample { at, window, used };
        let json = |object: &Object| String::from_utf8(engine.encode_json(object)).expect("text");
        let object = node_metrics(kind("nodes"), &node, &measured, now);
        assert_eq!(
            json(&object),
            r#"{"kind":"NodeMetrics","apiVersion":"metrics.k8s.io/v1beta1","metadata":{"name":"n1","creationTimestamp":"2001-09-09T01:46:43Z","labels":{"zone":"a"}},"timestamp":"1970-01-12T13:46:40Z","window":"15.2s","usage":{"cpu":"250000001n","memory":"3Mi"}}"#
        );
        let mut pod = Object::new(of("pods"));
        pod.set_meta_str("name", "web");
        pod.set_meta_str("namespace", "a");
        let idle = UsedBy { cpu_nanos: 0, memory: 1000 };
        let used = BTreeMap::from([("c".to_owned(), used), ("d".to_owned(), idle)]);
        let object = pod_metrics(kind("pods"), &pod, &UsageSample { at, window, used }, now);
        assert!(json(&object).contains(
            r#""window":"15.2s","containers":[{"name":"c","usage":{"cpu":"250000001n","memory":"3Mi"}},{"name":"d","usage":{"cpu":"0","memory":"1k"}}]"#
        ), "{}", json(&object));
        // Both forms of the wire hold the same.
        let bytes = engine.encode_protobuf(&object);
        let back = engine.decode_any(
            apiserver_schema::Format::Protobuf,
            &bytes,
            apiserver_schema::Strictness::Ignore,
        );
        assert_eq!(json(&back.expect("decoded").object), json(&object));
    }
}
