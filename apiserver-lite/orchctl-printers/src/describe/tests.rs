//! Descriptions of objects with what belongs to them.

use proto_api::names::{Names, Profile};
use serde_json::json;

use super::*;

mod pages;

fn text(object: &Value, related: &Related) -> String {
    let context = Context { names: Names::new(Profile::Kubernetes), now: 100 };
    describe(object, related, context)
}

fn assert_lines(text: &str, lines: &[&str]) {
    let mut rest = text.lines();
    for line in lines {
        assert!(rest.any(|one| one.trim_end() == *line), "{line:?} is not in\n{text}");
    }
}

#[test]
fn a_running_pod() {
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "web", "namespace": "shop", "labels": {"b": "2", "a": "1"},
            "ownerReferences": [{"kind": "ReplicaSet", "name": "web-1", "controller": true}]},
        "spec": {"nodeName": "n1", "containers": [{"name": "c", "image": "i", "ports": [{"containerPort": 80}, {"containerPort": 81}],
            "livenessProbe": {"tcpSocket": {"port": "http"}, "timeoutSeconds": 1},
            "volumeMounts": [{"name": "v", "mountPath": "/v", "readOnly": true, "subPath": "s"}]}],
            "volumes": [{"name": "v", "hostPath": {"path": "/x", "type": ""}}]},
        "status": {"phase": "Running", "hostIP": "1.2.3.4", "podIP": "10.0.0.1", "podIPs": [{"ip": "10.0.0.1"}], "qosClass": "BestEffort",
            "conditions": [{"type": "Ready", "status": "True"}],
            "containerStatuses": [{"name": "c", "containerID": "x://1", "imageID": "sha", "ready": true, "restartCount": 1,
                "state": {"running": {"startedAt": "1970-01-01T00:00:10Z"}},
                "lastState": {"terminated": {"reason": "Error", "exitCode": 7, "startedAt": "1970-01-01T00:00:01Z", "finishedAt": "1970-01-01T00:00:02Z"}}}]},
    });
    let event = json!({"type": "Normal", "reason": "Started", "source": {"component": "kubelet"}, "message": "Started it",
        "lastTimestamp": "1970-01-01T00:01:30Z", "count": 1});
    let related = Related { events: Some(vec![event]), ..Related::default() };
    assert_lines(
        &text(&pod, &related),
        &[
            "Name:         web",
            "Node:         n1/1.2.3.4",
            "Labels:       a=1",
            "              b=2",
            "Status:       Running",
            "IPs:",
            "  IP:           10.0.0.1",
            "Controlled By:  ReplicaSet/web-1",
            "  c:",
            "    Ports:          80/TCP, 81/TCP",
            "    State:          Running",
            "      Started:      Thu, 01 Jan 1970 00:00:10 +0000",
            "    Last State:     Terminated",
            "      Exit Code:    7",
            "    Restart Count:  1",
            "    Liveness:       tcp-socket :http delay=0s timeout=1s period=0s #success=0 #failure=0",
            "      /v from v (ro,path=\"s\")",
            "  Ready   True",
            "    Type:          HostPath (bare host directory volume)",
            "Tolerations:       <none>",
            "Events:",
            "  Normal  Started  10s   kubelet  Started it",
        ],
    );
}

#[test]
fn a_service_names_its_endpoints() {
    let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s", "namespace": "d"},
        "spec": {"type": "NodePort", "clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1"], "ipFamilies": ["IPv4"],
            "ports": [{"port": 80, "targetPort": "http", "protocol": "TCP", "nodePort": 30000}], "sessionAffinity": "None"}});
    let addresses: Vec<Value> = (1..6).map(|at| json!({"ip": format!("10.1.0.{at}")})).collect();
    let endpoints = json!({"subsets": [{"addresses": addresses, "ports": [{"port": 8080}]}]});
    let related = Related { endpoints: Some(endpoints), ..Related::default() };
    assert_lines(
        &text(&service, &related),
        &[
            "Port:              <unset>  80/TCP",
            "TargetPort:        http/TCP",
            "NodePort:          <unset>  30000/TCP",
            "Endpoints:         10.1.0.1:8080,10.1.0.2:8080,10.1.0.3:8080 + 2 more...",
        ],
    );
}

#[test]
fn a_node_sums_what_its_pods_ask_for() {
    let node = json!({"apiVersion": "v1", "kind": "Node",
        "metadata": {"name": "n", "labels": {"node-role.kubernetes.io/worker": ""}},
        "status": {"allocatable": {"cpu": "2", "memory": "1Gi"}}});
    let pod = |cpu: &str| json!({"metadata": {"name": "p", "namespace": "d"}, "spec": {"containers": [{"resources": {"requests": {"cpu": cpu}}}]}});
    let ended = json!({"metadata": {"name": "e"}, "status": {"phase": "Failed"}});
    let pods = vec![pod("500m"), pod("250m"), ended];
    let related = Related { pods, ..Related::default() };
    assert_lines(
        &text(&node, &related),
        &[
            "Roles:              worker",
            "Non-terminated Pods:          (2 in total)",
            "  cpu                750m (37%)  0 (0%)",
        ],
    );
}

#[test]
fn any_kind_is_its_fields() {
    let object = json!({"apiVersion": "example.com/v1", "kind": "Thing", "metadata": {"name": "t", "uid": "u"},
        "spec": {"someList": [1, {"deepField": true}]}});
    assert_lines(
        &text(&object, &Related::default()),
        &[
            "Name:         t",
            "API Version:  example.com/v1",
            "Metadata:",
            "  UID:  u",
            "Spec:",
            "  Some List:",
            "    1",
            "    Deep Field:  true",
        ],
    );
}
