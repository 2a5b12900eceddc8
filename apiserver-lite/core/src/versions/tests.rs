//! Tests: objects come back from the stored version as they were, and each version means the same.

use apiserver_schema::{Format, Object, Strictness};
use proto_api::names::Profile;
use serde_json::{Value, json};

use super::*;

fn engine() -> (Engine, &'static Names) {
    let names = Names::new(Profile::Kubernetes);
    (Engine::with_optional(names, &|_| true), names)
}

fn read(engine: &Engine, version: &str, kind: &str, json: &Value) -> Object {
    let kind = engine.kind_of(version, kind).unwrap();
    let text = json.to_string();
    engine.decode(kind, Format::Json, text.as_bytes(), Strictness::Strict).unwrap().object
}

fn written(engine: &Engine, object: &Object) -> Value {
    serde_json::from_slice(&engine.encode_json(object)).unwrap()
}

/// Converts an object to the stored version, whose document it returns, and back.
fn check(version: &str, kind: &str, json: &Value) -> Value {
    let (engine, names) = engine();
    let object = read(&engine, version, kind, json);
    let stored = stored_kind(&engine, names, &object.kind);
    assert!(!Arc::ptr_eq(&stored, &object.kind));
    let there = convert(&object, &stored);
    let text = engine.encode_json(&there);
    let read = engine.decode(&stored, Format::Json, &text, Strictness::Strict);
    assert_eq!(read.unwrap().object, there, "fits the stored kind");
    assert_eq!(convert(&there, &object.kind), object, "comes back as it was");
    written(&engine, &there)
}

#[test]
fn other_versions_are_of_the_same_objects() {
    let others = |all: bool, version: &str, kind: &str, subresource: &str| {
        let names = Names::new(Profile::Kubernetes);
        let engine = Engine::with_optional(names, &|_| all);
        let kind = engine.kind_of(version, kind).unwrap();
        let others = other_versions(&engine, names, kind, subresource);
        others.iter().map(|kind| kind.api_version.clone()).collect::<Vec<_>>()
    };
    assert_eq!(others(false, "v1", "Event", ""), ["events.k8s.io/v1"]);
    assert_eq!(others(true, "v1", "Event", ""), ["events.k8s.io/v1", "events.k8s.io/v1beta1"]);
    assert_eq!(others(false, "events.k8s.io/v1", "Event", ""), ["v1"]);
    let autoscaler = "HorizontalPodAutoscaler";
    let all = ["autoscaling/v2", "autoscaling/v2beta2"];
    assert_eq!(others(false, "autoscaling/v1", autoscaler, "status"), all);
    assert!(others(false, "autoscaling/v1", autoscaler, "scale").is_empty());
    assert!(others(true, "v1", "Pod", "").is_empty());
    assert!(others(false, "policy/v1", "PodDisruptionBudget", "").is_empty(), "it is off");
    assert_eq!(others(true, "policy/v1", "PodDisruptionBudget", ""), ["policy/v1beta1"]);
}

#[test]
fn every_optional_version_has_a_stored_one() {
    let (engine, names) = engine();
    for row in proto_api::schema::optional_resources() {
        let kind = engine.resource(&names.group(row.group), row.version, row.plural).unwrap();
        let stored = stored_kind(&engine, names, kind);
        assert_eq!(stored.kind(), kind.kind());
        assert_eq!(stored.version(), "v1", "{kind:?}");
    }
}

#[test]
fn events_keep_everything() {
    let event = json!({"metadata": {"name": "e"}, "eventTime": "2026-01-01T00:00:00.000000Z", "reportingController": "c",
        "reportingInstance": "i", "action": "a", "reason": "r", "regarding": {"kind": "Pod", "name": "p"}, "note": "n",
        "type": "Normal", "deprecatedCount": 3});
    for version in ["events.k8s.io/v1", "events.k8s.io/v1beta1"] {
        let stored = check(version, "Event", &event);
        assert_eq!((&stored["message"], &stored["count"]), (&json!("n"), &json!(3)));
    }
}

#[test]
fn autoscalers_keep_their_target() {
    let autoscaler = |spec: Value, status: Value| {
        let mut object = json!({"metadata": {"name": "h"}, "spec": spec, "status": status});
        object["spec"]["scaleTargetRef"] = json!({"kind": "Deployment", "name": "d"});
        object["spec"]["maxReplicas"] = json!(3);
        object
    };
    let kind = "HorizontalPodAutoscaler";
    let status =
        json!({"currentReplicas": 1, "desiredReplicas": 2, "currentCPUUtilizationPercentage": 40});
    let v1 = autoscaler(json!({"targetCPUUtilizationPercentage": 50}), status);
    let stored = check("autoscaling/v1", kind, &v1);
    let metrics = &stored["spec"]["metrics"];
    assert_eq!(metrics[0]["resource"]["target"]["averageUtilization"], 50);

    let spec =
        json!({"metrics": metrics, "behavior": {"scaleDown": {"stabilizationWindowSeconds": 7}}});
    let status = json!({"currentReplicas": 1, "desiredReplicas": 2, "currentMetrics": null, "conditions": [
        {"type": "AbleToScale", "status": "True"}]});
    let beta = autoscaler(spec, status);
    let stored = check("autoscaling/v2beta2", kind, &beta);
    assert_eq!(stored["spec"], beta["spec"]);
    // Between two versions of which neither is stored.
    let (engine, _) = engine();
    let beta = read(&engine, "autoscaling/v2beta2", kind, &beta);
    let v1 = convert(&beta, engine.kind_of("autoscaling/v1", kind).unwrap());
    assert_eq!(written(&engine, &v1)["spec"]["targetCPUUtilizationPercentage"], 50);
    assert_eq!(convert(&v1, &beta.kind), beta);
}

#[test]
fn budgets_select_the_same_pods_in_both_versions() {
    let budget = |selector: Value| json!({"metadata": {"name": "b"}, "spec": {"minAvailable": "50%", "selector": selector}});
    let requirement = |operator: &str| json!({"matchExpressions": [{"key": "pdb.kubernetes.io/deprecated-v1beta1-empty-selector-match", "operator": operator}]});
    for (beta, stored) in [
        (json!({}), requirement("Exists")),
        (requirement("DoesNotExist"), json!({})),
        (json!({"matchLabels": {"a": "b"}}), json!({"matchLabels": {"a": "b"}})),
        (Value::Null, Value::Null),
    ] {
        let found = check("policy/v1beta1", "PodDisruptionBudget", &budget(beta.clone()));
        assert_eq!(found["spec"]["selector"], stored, "{beta}");
    }
    // Beside requirements of the user it is left out.
    let (engine, names) = engine();
    let mut both = requirement("Exists");
    both["matchLabels"] = json!({"a": "b"});
    let both = read(&engine, "policy/v1beta1", "PodDisruptionBudget", &budget(both));
    let stored = convert(&both, &stored_kind(&engine, names, &both.kind));
    let selector = &written(&engine, &stored)["spec"]["selector"];
    assert_eq!(*selector, json!({"matchLabels": {"a": "b"}}));
}

#[test]
fn endpoints_keep_their_topology() {
    let slice = |endpoint: Value| json!({"metadata": {"name": "s"}, "addressType": "IPv4", "endpoints": [endpoint]});
    let (host, zone) = ("kubernetes.io/hostname", "topology.kubernetes.io/zone");
    for (beta, v1) in [
        (
            json!({"topology": {host: "n", zone: "z", "a": "b"}, "nodeName": "n"}),
            json!({"deprecatedTopology": {"a": "b"}, "nodeName": "n", "zone": "z"}),
        ),
        (
            json!({"topology": {host: "other"}, "nodeName": "n"}),
            json!({"deprecatedTopology": {host: "other"}, "nodeName": "n"}),
        ),
        (json!({}), json!({})),
    ] {
        let whole = |mut endpoint: Value| {
            endpoint["addresses"] = json!(["10.0.0.1"]);
            endpoint["hints"] = json!({"forZones": [{"name": "h"}]});
            endpoint
        };
        let stored = check("discovery.k8s.io/v1beta1", "EndpointSlice", &slice(whole(beta)));
        let mut found = stored["endpoints"][0].clone();
        found.as_object_mut().unwrap().remove("conditions");
        assert_eq!(found, whole(v1));
    }
    // Clients of 1.20 say the node by its label only.
    let (engine, names) = engine();
    let old = json!({"addresses": ["10.0.0.1"], "topology": {host: "n"}});
    let old = read(&engine, "discovery.k8s.io/v1beta1", "EndpointSlice", &slice(old));
    let stored = convert(&old, &stored_kind(&engine, names, &old.kind));
    assert_eq!(written(&engine, &stored)["endpoints"][0]["nodeName"], "n");
    let shown = written(&engine, &convert(&stored, &old.kind));
    assert_eq!(shown["endpoints"][0]["topology"], json!({host: "n"}));
}

#[test]
fn other_versions_differ_in_their_name_only() {
    for (version, kind, object) in [
        (
            "batch/v1beta1",
            "CronJob",
            json!({"metadata": {"name": "c"}, "spec": {"schedule": "* * * * *", "timeZone": "UTC", "jobTemplate": {"spec": {
                "backoffLimit": 2, "template": {"spec": {"containers": [{"name": "a", "resources": {}}]}}}}},
                "status": {"lastScheduleTime": "2026-01-01T00:00:00Z"}}),
        ),
        (
            "node.k8s.io/v1beta1",
            "RuntimeClass",
            json!({"metadata": {"name": "r"}, "handler": "h", "overhead": {"podFixed": {"cpu": "1"}}}),
        ),
        (
            "coordination.k8s.io/v1beta1",
            "Lease",
            json!({"metadata": {"name": "l"}, "spec": {"holderIdentity": "me"}}),
        ),
        (
            "rbac.authorization.k8s.io/v1beta1",
            "RoleBinding",
            json!({"metadata": {"name": "b"}, "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "r"},
                "subjects": [{"kind": "User", "name": "u"}]}),
        ),
        (
            "scheduling.k8s.io/v1beta1",
            "PriorityClass",
            json!({"metadata": {"name": "p"}, "value": 5}),
        ),
        (
            "storage.k8s.io/v1beta1",
            "StorageClass",
            json!({"metadata": {"name": "s"}, "provisioner": "p", "reclaimPolicy": "Delete"}),
        ),
    ] {
        check(version, kind, &object);
    }
}
