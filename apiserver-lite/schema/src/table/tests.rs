//! Tests of table rows.

use proto_api::Time;
use proto_api::names::{Names, Profile};
use serde_json::{Value as Json, json};

use super::{ColumnDefinitions, Include, TableOptions, encode, human_duration};
use crate::list::ListMeta;
use crate::{Engine, Format, Strictness};

const NOW: &str = "2026-01-01T12:00:00Z";

fn table(object: &Json, columns: ColumnDefinitions, include: Include) -> Json {
    let engine = Engine::new(Names::new(Profile::Kubernetes));
    let body = object.to_string();
    let object =
        engine.decode_any(Format::Json, body.as_bytes(), Strictness::Strict).expect(&body).object;
    let now = NOW.parse::<Time>().ok().and_then(Time::unix).expect("a time");
    let options = TableOptions { api_version: "meta.k8s.io/v1", columns, include, now };
    let meta = ListMeta { resource_version: "7".to_owned(), ..ListMeta::default() };
    let bytes = encode(&engine, options, &object.kind, &meta, [&object]);
    serde_json::from_slice(&bytes).expect("JSON")
}

fn cells(object: &Json) -> Json {
    table(object, ColumnDefinitions::Included, Include::None)["rows"][0]["cells"].clone()
}

fn pod(status: Json) -> Json {
    json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "web", "creationTimestamp": "2026-01-01T11:55:00Z"},
        "spec": {"nodeName": "n1", "initContainers": [{"name": "i"}, {"name": "j"}],
            "containers": [{"name": "c"}, {"name": "d"}]},
        "status": status})
}

#[test]
fn a_table_describes_itself_and_its_objects() {
    let got =
        table(&pod(json!({"phase": "Succeeded"})), ColumnDefinitions::Included, Include::Metadata);
    assert_eq!(got["kind"], "Table");
    assert_eq!(got["metadata"], json!({"resourceVersion": "7"}));
    let first = json!({"name": "Name", "type": "string", "format": "name", "description": "", "priority": 0});
    assert_eq!(got["columnDefinitions"][0], first);
    let row = &got["rows"][0];
    assert_eq!(row["object"]["kind"], "PartialObjectMetadata");
    assert_eq!(row["object"]["metadata"]["name"], "web");
    assert_eq!(row["conditions"][0]["reason"], "Succeeded");
    let next = table(&pod(json!({})), ColumnDefinitions::Omitted, Include::None);
    assert!(next["columnDefinitions"].is_null() && next["rows"][0]["object"].is_null());
}

#[test]
fn pod_rows_have_readiness_status_and_restarts() {
    let running = json!({"name": "c", "ready": true, "state": {"running": {}}});
    let cases = [
        (json!({"phase": "Pending"}), json!(["web", "0/2", "Pending", 0, "5m"])),
        (
            json!({"phase": "Running", "containerStatuses": [
                running,
                {"name": "d", "restartCount": 3, "state": {"waiting": {"reason": "CrashLoopBackOff"}},
                 "lastState": {"terminated": {"finishedAt": "2026-01-01T11:59:00Z"}}},
            ]}),
            json!(["web", "1/2", "CrashLoopBackOff", "3 (60s ago)", "5m"]),
        ),
        (
            json!({"phase": "Running", "containerStatuses": [running, running]}),
            json!(["web", "2/2", "Running", 0, "5m"]),
        ),
        (
            json!({"phase": "Pending", "initContainerStatuses": [
                {"name": "i", "state": {"terminated": {"exitCode": 0}}},
                {"name": "j", "state": {"running": {}}},
            ]}),
            json!(["web", "0/2", "Init:1/2", 0, "5m"]),
        ),
        (
            json!({"phase": "Pending", "initContainerStatuses": [
                {"name": "i", "restartCount": 1, "state": {"terminated": {"exitCode": 3}}},
            ]}),
            json!(["web", "0/2", "Init:ExitCode:3", 1, "5m"]),
        ),
        (
            json!({"phase": "Failed", "containerStatuses": [
                {"name": "c", "state": {"terminated": {"exitCode": 137, "signal": 9}}},
            ]}),
            json!(["web", "0/2", "Signal:9", 0, "5m"]),
        ),
        (
            json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}], "containerStatuses": [
                {"name": "d", "state": {"terminated": {"exitCode": 0, "reason": "Completed"}}}, running,
            ]}),
            json!(["web", "1/2", "Running", 0, "5m"]),
        ),
        (
            json!({"phase": "Running", "containerStatuses": [
                {"name": "c", "state": {"waiting": {"reason": "ImagePullBackOff"}}},
                {"name": "d", "state": {"waiting": {"reason": "ContainerCreating"}}},
            ]}),
            json!(["web", "0/2", "ImagePullBackOff", 0, "5m"]),
        ),
        (
            json!({"phase": "Failed", "reason": "Evicted"}),
            json!(["web", "0/2", "Evicted", 0, "5m"]),
        ),
    ];
    for (status, expect) in cases {
        let got = cells(&pod(status.clone()));
        assert_eq!(json!(got.as_array().expect("cells")[..5]), expect, "{status}");
    }
    let mut doomed = pod(json!({"phase": "Running", "podIP": "10.1.0.2"}));
    doomed["metadata"]["deletionTimestamp"] = json!(NOW);
    let expect =
        json!(["web", "0/2", "Terminating", 0, "5m", "10.1.0.2", "n1", "<none>", "<none>"]);
    assert_eq!(cells(&doomed), expect);
}

fn check(cases: &[(Json, Json)]) {
    for (object, expect) in cases {
        assert_eq!(cells(object), *expect, "{object}");
    }
}

#[test]
fn services_workloads_and_nodes() {
    let created = json!({"name": "x", "creationTimestamp": "2025-12-31T12:00:00Z"});
    check(&[
        (
            json!({"apiVersion": "v1", "kind": "Service", "metadata": created, "spec": {
                "type": "NodePort", "clusterIP": "10.0.0.1", "selector": {"app": "a", "b": "c"},
                "ports": [{"port": 80, "protocol": "TCP", "nodePort": 30080}, {"port": 53, "protocol": "UDP"}]}}),
            json!([
                "x",
                "NodePort",
                "10.0.0.1",
                "<none>",
                "80:30080/TCP,53/UDP",
                "24h",
                "app=a,b=c"
            ]),
        ),
        (
            json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": created,
                "spec": {"replicas": 3, "selector": {"matchLabels": {"a": "b"},
                    "matchExpressions": [{"key": "k", "operator": "In", "values": ["v", "w"]}]},
                    "template": {"spec": {"containers": [{"name": "c", "image": "i:1"}]}}},
                "status": {"readyReplicas": 2, "updatedReplicas": 3, "availableReplicas": 1}}),
            json!(["x", "2/3", 3, 1, "24h", "c", "i:1", "a=b,k in (v,w)"]),
        ),
        (
            json!({"apiVersion": "v1", "kind": "Node",
                "metadata": {"name": "x", "labels": {"node-role.kubernetes.io/control-plane": ""}},
                "spec": {"unschedulable": true},
                "status": {"conditions": [{"type": "Ready", "status": "True"}],
                    "addresses": [{"type": "InternalIP", "address": "192.0.2.1"}],
                    "nodeInfo": {"kubeletVersion": "v1.25.0", "osImage": "Debian"}}}),
            json!([
                "x",
                "Ready,SchedulingDisabled",
                "control-plane",
                "<unknown>",
                "v1.25.0",
                "192.0.2.1",
                "<none>",
                "Debian",
                "<unknown>",
                "<unknown>"
            ]),
        ),
    ]);
}

#[test]
fn small_kinds() {
    let created = json!({"name": "x", "creationTimestamp": "2025-12-31T12:00:00Z"});
    check(&[
        (
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": created, "data": {"a": "1"}, "binaryData": {"b": "AA=="}}),
            json!(["x", 2, "24h"]),
        ),
        (
            json!({"apiVersion": "v1", "kind": "Endpoints", "metadata": created, "subsets": [{
                "addresses": [{"ip": "10.1.0.1"}, {"ip": "10.1.0.2"}, {"ip": "fd00::1"}, {"ip": "10.1.0.4"}],
                "ports": [{"port": 80}]}]}),
            json!(["x", "10.1.0.1:80,10.1.0.2:80,[fd00::1]:80 + 1 more...", "24h"]),
        ),
        (
            json!({"apiVersion": "v1", "kind": "LimitRange", "metadata": created}),
            json!(["x", "2025-12-31T12:00:00Z"]),
        ),
        (
            json!({"apiVersion": "v1", "kind": "Event", "metadata": {"name": "x.1"}, "reason": "Pulled", "type": "Normal",
                "involvedObject": {"kind": "Pod", "name": "web"}, "source": {"component": "agent", "host": "n1"},
                "lastTimestamp": "2026-01-01T11:59:30Z", "message": "done\n", "count": 4}),
            json!([
                "30s",
                "Normal",
                "Pulled",
                "pod/web",
                "",
                "agent, n1",
                "done",
                "<unknown>",
                4,
                "x.1"
            ]),
        ),
    ]);
}

#[test]
fn durations_have_at_most_two_units() {
    let cases = [
        (-5, "<invalid>"),
        (-1, "0s"),
        (0, "0s"),
        (119, "119s"),
        (120, "2m"),
        (312, "5m12s"),
        (600, "10m"),
        (10_799, "179m"),
        (10_800, "3h"),
        (12_000, "3h20m"),
        (86_400, "24h"),
        (172_800, "2d"),
        (190_800, "2d5h"),
        (700_000, "8d"),
        (63_072_000, "2y"),
        (70_000_000, "2y80d"),
        (252_288_000, "8y"),
    ];
    for (seconds, expect) in cases {
        assert_eq!(human_duration(seconds), expect, "{seconds}");
    }
}

#[test]
fn api_services_show_who_serves_them() {
    let of = |spec: Json, conditions: Json| {
        let object = json!({"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
            "metadata": {"name": "v1.a", "creationTimestamp": "2026-01-01T11:55:00Z"},
            "spec": spec, "status": {"conditions": conditions}});
        cells(&object)
    };
    let condition = |status: &str, reason: &str| json!([{"type": "Available", "status": status, "reason": reason}]);
    let service = json!({"service": {"namespace": "n", "name": "s"}});
    assert_eq!(of(json!({"group": "a"}), json!([])), json!(["v1.a", "Local", "Unknown", "5m"]));
    assert_eq!(
        of(service.clone(), condition("True", "Passed")),
        json!(["v1.a", "n/s", "True", "5m"])
    );
    let failed = of(service, condition("False", "MissingEndpoints"));
    assert_eq!(failed, json!(["v1.a", "n/s", "False (MissingEndpoints)", "5m"]));
}

/// `kubectl get deployment web --subresource=scale`.
#[test]
fn a_scale_says_how_many_are_wanted_and_there() {
    let scale = json!({"apiVersion": "autoscaling/v1", "kind": "Scale",
        "metadata": {"name": "web", "creationTimestamp": "2026-01-01T11:55:00Z"},
        "spec": {"replicas": 3}, "status": {"replicas": 2, "selector": "a=b"}});
    let got = table(&scale, ColumnDefinitions::Included, Include::None);
    let columns = got["columnDefinitions"].as_array().expect("columns").iter();
    let names: Vec<&str> = columns.filter_map(|column| column["name"].as_str()).collect();
    assert_eq!(names, ["Name", "Desired", "Available", "Age"]);
    assert_eq!(cells(&scale), json!(["web", 3, 2, "5m"]));
}
