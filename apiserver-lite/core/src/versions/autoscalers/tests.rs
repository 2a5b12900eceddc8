//! Tests: autoscalers come back from the other version as they were, and annotations of clients do no harm.

use std::sync::Arc;

use apiserver_schema::{Engine, Format, Kind, Object, Strictness};
use proto_api::names::{Names, Profile};

use crate::versions::{METRICS_ANNOTATIONS, convert};

const NAME: &str = "HorizontalPodAutoscaler";

struct Versions {
    engine: Engine,
    v1: Arc<Kind>,
    v2: Arc<Kind>,
}

impl Versions {
    fn new() -> Versions {
        let engine = Engine::new(Names::new(Profile::Kubernetes));
        let kind = |version: &str| engine.kind("autoscaling", version, NAME).unwrap().clone();
        let (v1, v2) = (kind("v1"), kind("v2"));
        Versions { engine, v1, v2 }
    }

    fn read(&self, kind: &Arc<Kind>, json: &str) -> Object {
        let read = self.engine.decode(kind, Format::Json, json.as_bytes(), Strictness::Strict);
        read.unwrap_or_else(|error| panic!("{error}: {json}")).object
    }

    /// Converts, and checks that the result is what a client could send.
    fn convert(&self, object: &Object, to: &Arc<Kind>) -> Object {
        let there = convert(object, to);
        let text = self.text(&there);
        assert_eq!(self.read(to, &text), there, "{text}");
        there
    }

    fn text(&self, object: &Object) -> String {
        String::from_utf8(self.engine.encode_json(object)).unwrap()
    }
}

/// An autoscaler with these metrics, behavior, current metrics, conditions: each a field with its comma, or nothing.
fn v2(metadata: &str, spec: &str, status: &str) -> String {
    format!(
        r#"{{"metadata":{{"name":"h"{metadata}}},"spec":{{"scaleTargetRef":{{"kind":"Deployment","name":"d"}},"minReplicas":1,"maxReplicas":3{spec}}},"status":{{"desiredReplicas":2,"currentReplicas":1{status}}}}}"#
    )
}

const CPU: &str = r#"{"type":"Resource","resource":{"name":"cpu","target":{"type":"Utilization","averageUtilization":50}}}"#;
const OTHERS: [&str; 6] = [
    r#"{"type":"Resource","resource":{"name":"memory","target":{"type":"AverageValue","averageValue":"1Gi"}}}"#,
    r#"{"type":"Resource","resource":{"name":"cpu","target":{"type":"AverageValue","averageValue":"500m"}}}"#,
    r#"{"type":"ContainerResource","containerResource":{"name":"cpu","container":"c","target":{"type":"Utilization","averageUtilization":7}}}"#,
    r#"{"type":"Pods","pods":{"metric":{"name":"m","selector":{"matchLabels":{"a":"b"},"matchExpressions":[{"key":"k","operator":"In","values":["v"]}]}},"target":{"type":"AverageValue","averageValue":"3"}}}"#,
    r#"{"type":"Object","object":{"describedObject":{"kind":"Service","name":"s","apiVersion":"v1"},"metric":{"name":"m"},"target":{"type":"Value","value":"2k"}}}"#,
    r#"{"type":"External","external":{"metric":{"name":"m"},"target":{"type":"Value","value":"1","averageValue":"5"}}}"#,
];
const BEHAVIOR: &str = r#","behavior":{"scaleUp":{"stabilizationWindowSeconds":0,"selectPolicy":"Max","policies":[{"type":"Pods","value":4,"periodSeconds":15}]},"scaleDown":{"stabilizationWindowSeconds":300}}"#;
const CONDITIONS: &str = r#","conditions":[{"type":"AbleToScale","status":"True","lastTransitionTime":"2026-01-01T00:00:00Z","reason":"r","message":"m \"q\""},{"type":"ScalingActive","status":"False","lastTransitionTime":null}]"#;

/// Status metrics of the same kinds.
fn current(metric: &str) -> String {
    let metric = metric.replace(r#""target":{"type":"Utilization","#, r#""current":{"#);
    let metric = metric.replace(r#""target":{"type":"AverageValue","#, r#""current":{"#);
    metric.replace(r#""target":{"type":"Value","#, r#""current":{"#)
}

/// Lists with and without CPU, first, last and twice.
fn lists() -> Vec<Vec<String>> {
    let (cpu, other) = (CPU.to_owned(), |at: usize| OTHERS[at].to_owned());
    let both = r#"{"type":"Resource","resource":{"name":"cpu","target":{"type":"Utilization","averageValue":"100m","averageUtilization":50}}}"#;
    vec![
        vec![],
        vec![cpu.clone()],
        vec![cpu.clone(), other(0), other(3)],
        vec![other(0), cpu.clone()],
        vec![cpu.clone(), cpu.replace("50", "60")],
        vec![both.to_owned()],
        vec![both.to_owned(), other(1)],
        OTHERS.map(str::to_owned).to_vec(),
    ]
}

#[test]
fn v2_comes_back_from_v1() {
    let versions = Versions::new();
    let field = |name: &str, items: &[String]| match items {
        [] => String::new(),
        items => format!(r#","{name}":[{}]"#, items.join(",")),
    };
    for (metadata, behavior, conditions) in
        [("", "", ""), (r#","annotations":{"own":"a"}"#, BEHAVIOR, CONDITIONS), ("", BEHAVIOR, "")]
    {
        for list in lists() {
            let spec = field("metrics", &list) + behavior;
            let list: Vec<String> = list.iter().map(|metric| current(metric)).collect();
            let status = field("currentMetrics", &list) + conditions;
            let object = versions.read(&versions.v2, &v2(metadata, &spec, &status));
            let v1 = versions.convert(&object, &versions.v1);
            let back = versions.convert(&v1, &versions.v2);
            assert_eq!(versions.text(&back), versions.text(&object));
            assert_eq!(back, object);
            // And v1 from v2.
            assert_eq!(versions.convert(&back, &versions.v1), v1);
        }
    }
}

#[test]
fn v1_comes_back_from_v2() {
    let versions = Versions::new();
    let rest = r#""scaleTargetRef":{"kind":"Deployment","name":"d"},"maxReplicas":3"#;
    let bare = format!(r#"{{"metadata":{{"name":"h"}},"spec":{{{rest}}}}}"#);
    let full = format!(
        r#"{{"metadata":{{"name":"h","annotations":{{"own":"a"}}}},"spec":{{{rest},"targetCPUUtilizationPercentage":50}},"status":{{"currentReplicas":1,"desiredReplicas":2,"currentCPUUtilizationPercentage":40}}}}"#
    );
    for text in [bare, full] {
        let object = versions.read(&versions.v1, &text);
        let there = versions.convert(&object, &versions.v2);
        assert_eq!(versions.convert(&there, &versions.v1), object);
    }
}

#[test]
fn v1_shows_the_first_cpu_utilization_and_may_change_it() {
    let versions = Versions::new();
    for (list, want) in [
        (
            vec![CPU, OTHERS[0]],
            r#"[{"type":"Resource","resource":{"name":"cpu","target":{"type":"Utilization","averageUtilization":80}}},MEMORY]"#,
        ),
        (
            vec![OTHERS[0], CPU],
            r#"[MEMORY,{"type":"Resource","resource":{"name":"cpu","target":{"type":"Utilization","averageUtilization":80}}}]"#,
        ),
    ] {
        let text = v2("", &format!(r#","metrics":[{}]"#, list.join(",")), "");
        let object = versions.read(&versions.v2, &text);
        let mut v1 = versions.convert(&object, &versions.v1);
        let spec = v1.fields.map_or_insert("spec");
        assert_eq!(spec.int("targetCPUUtilizationPercentage"), Some(50));
        spec.insert("targetCPUUtilizationPercentage", 80);
        let metrics = want.replace("MEMORY", OTHERS[0]);
        let want = versions.read(&versions.v2, &v2("", &format!(r#","metrics":{metrics}"#), ""));
        assert_eq!(versions.convert(&v1, &versions.v2), want);
        // Without the number only the other metric is left.
        v1.fields.map_or_insert("spec").remove("targetCPUUtilizationPercentage");
        let text = v2("", &format!(r#","metrics":[{}]"#, OTHERS[0]), "");
        assert_eq!(versions.convert(&v1, &versions.v2), versions.read(&versions.v2, &text));
    }
}

#[test]
fn annotations_that_are_no_such_value_are_dropped() {
    let versions = Versions::new();
    let plain = versions.read(&versions.v2, &v2("", "", ""));
    for (name, value) in [
        ("metrics", "x"),
        ("metrics", r#"[1]"#),
        (
            "metrics",
            r#"[{"type":"Resource","resource":{"name":"cpu","target":{"averageUtilization":4294967296}}}]"#,
        ),
        (
            "metrics",
            r#"[{"type":"Pods","pods":{"metric":{"name":"m"},"target":{"averageValue":"many"}}}]"#,
        ),
        ("current-metrics", r#"[{"type":"Pods","pods":{"target":{}}}]"#),
        ("behavior", "[]"),
        ("behavior", r#"{"scaleUp":{"policies":[{"value":"4"}]}}"#),
        ("behavior", r#"{"sideways":{}}"#),
        ("conditions", r#"[{"type":"a","lastTransitionTime":"yesterday"}]"#),
        ("conditions", r#"{"type":"a"}"#),
    ] {
        let mut v1 = versions.convert(&plain, &versions.v1);
        let annotations = v1.fields.map_or_insert("metadata").map_or_insert("annotations");
        annotations.insert(format!("{METRICS_ANNOTATIONS}{name}"), value);
        assert_eq!(versions.convert(&v1, &versions.v2), plain, "{name} {value}");
    }
    // What a client gave a v2 object is not the server's.
    let forged =
        format!(r#","annotations":{{"{METRICS_ANNOTATIONS}behavior":"{{\"scaleUp\":{{}}}}"}}"#);
    let object = versions.read(&versions.v2, &v2(&forged, "", ""));
    let back = versions.convert(&versions.convert(&object, &versions.v1), &versions.v2);
    assert_eq!(back, plain);
}

/// The annotations of an autoscaler as Kubernetes shows it in v1, and the same in v2.
#[test]
fn annotations_of_kubernetes_are_read_and_written() {
    let versions = Versions::new();
    let metrics = r#"[{"type":"Resource","resource":{"name":"memory","targetAverageUtilization":80}},{"type":"Pods","pods":{"metricName":"m","selector":{"matchLabels":{"a":"b"}},"targetAverageValue":"3"}},{"type":"Object","object":{"target":{"kind":"Service","name":"s","apiVersion":"v1"},"metricName":"n","targetValue":"2k"}},{"type":"External","external":{"metricName":"e","metricSelector":{"matchLabels":{"c":"d"}},"targetAverageValue":"5"}}]"#;
    let current = r#"[{"type":"Resource","resource":{"name":"memory","currentAverageUtilization":70,"currentAverageValue":"1Gi"}}]"#;
    let behavior = r#"{"ScaleUp":null,"ScaleDown":{"StabilizationWindowSeconds":10,"SelectPolicy":"Max","Policies":[{"Type":"Pods","Value":4,"PeriodSeconds":15}]}}"#;
    let v2_metrics = r#","metrics":[{"type":"Resource","resource":{"name":"memory","target":{"type":"Utilization","averageUtilization":80}}},{"type":"Pods","pods":{"metric":{"name":"m","selector":{"matchLabels":{"a":"b"}}},"target":{"type":"AverageValue","averageValue":"3"}}},{"type":"Object","object":{"describedObject":{"kind":"Service","name":"s","apiVersion":"v1"},"metric":{"name":"n"},"target":{"type":"Value","value":"2k"}}},{"type":"External","external":{"metric":{"name":"e","selector":{"matchLabels":{"c":"d"}}},"target":{"type":"AverageValue","averageValue":"5"}}}],"behavior":{"scaleDown":{"stabilizationWindowSeconds":10,"selectPolicy":"Max","policies":[{"type":"Pods","value":4,"periodSeconds":15}]}}"#;
    let v2_status = r#","currentMetrics":[{"type":"Resource","resource":{"name":"memory","current":{"averageUtilization":70,"averageValue":"1Gi"}}}]"#;
    let plain = versions.read(&versions.v2, &v2("", "", ""));
    let mut v1 = versions.convert(&plain, &versions.v1);
    let annotations = v1.fields.map_or_insert("metadata").map_or_insert("annotations");
    for (name, value) in
        [("metrics", metrics), ("current-metrics", current), ("behavior", behavior)]
    {
        annotations.insert(format!("{METRICS_ANNOTATIONS}{name}"), value);
    }
    let want = versions.read(&versions.v2, &v2("", v2_metrics, v2_status));
    assert_eq!(versions.convert(&v1, &versions.v2), want);
    let written = versions.convert(&want, &versions.v1);
    let written = |name: &str| {
        let key = format!("{METRICS_ANNOTATIONS}{name}");
        let text = written.fields.str_at(&["metadata", "annotations", &key]).to_owned();
        serde_json::from_str::<serde_json::Value>(&text).unwrap()
    };
    let value = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap();
    assert_eq!(written("metrics"), value(metrics));
    assert_eq!(written("current-metrics"), value(current));
    assert_eq!(written("behavior"), value(&behavior.replace(r#""ScaleUp":null,"#, "")));
}

/// As this server wrote it before.
#[test]
fn annotations_of_v2_are_read() {
    let versions = Versions::new();
    let plain = versions.read(&versions.v2, &v2("", "", ""));
    for other in OTHERS {
        let list = format!("[{other}]");
        let mut v1 = versions.convert(&plain, &versions.v1);
        let annotations = v1.fields.map_or_insert("metadata").map_or_insert("annotations");
        annotations.insert(format!("{METRICS_ANNOTATIONS}metrics"), &*list);
        let want = versions.read(&versions.v2, &v2("", &format!(r#","metrics":{list}"#), ""));
        assert_eq!(versions.convert(&v1, &versions.v2), want);
    }
}
