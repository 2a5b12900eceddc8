//! Valid objects to mutate: one invalid field in a valid object reaches more code than a random object.

use anyhow::{Context as _, Result};
use bytes::Bytes;
use cluster::apply::apply;
use http::Request;
use proto_api::names::Names;
use proto_api::schema::ResourceDescriptor;
use proto_client::Client;
use serde_json::{Value as Json, json};

use crate::{NAMESPACE, Target};

/// All that attackers make is named so.
pub const PREFIX: &str = "attack-";

/// Makes the attackers' namespace.
pub async fn prepare(target: &Target) -> Result<()> {
    let namespace =
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}});
    apply(&target.client, &namespace.to_string()).await
}

/// A token of a new service account, which has no role.
pub async fn service_account_token(client: &Client, name: &str) -> Result<String> {
    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount",
        "metadata": {"name": name, "namespace": NAMESPACE}});
    apply(client, &account.to_string()).await?;
    let path = format!("/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{name}/token");
    let request = Request::post(path).header("content-type", "application/json");
    let answer = client.call(request.body(Bytes::from_static(b"{\"spec\":{}}"))?).await?;
    let answer: Json = serde_json::from_slice(&answer.body)?;
    let token = answer["status"]["token"].as_str();
    token.map(ToOwned::to_owned).context("the answer has no token")
}

/// A valid object of a resource; only its metadata for kinds that need nothing else.
pub fn base(resource: &ResourceDescriptor, api_version: &str, name: &str, names: &Names) -> Json {
    let mut object = spec(resource, names);
    let metadata = json!({"name": name});
    if let Some(map) = object.as_object_mut() {
        map.insert("apiVersion".into(), api_version.into());
        map.insert("kind".into(), resource.kind.into());
        map.insert("metadata".into(), metadata);
    }
    object
}

fn pod_spec() -> Json {
    json!({
        "terminationGracePeriodSeconds": 1,
        "containers": [{
            "name": "main", "image": "orch.local/demo:1", "imagePullPolicy": "Never",
            "command": ["/bin/sh", "-c", "exec sleep 1000"],
            "ports": [{"containerPort": 80}],
        }],
    })
}

fn workload() -> Json {
    json!({
        "selector": {"matchLabels": {"app": "attack"}},
        "template": {"metadata": {"labels": {"app": "attack"}}, "spec": pod_spec()},
    })
}

fn spec(resource: &ResourceDescriptor, names: &Names) -> Json {
    match (resource.group, resource.plural) {
        ("", "pods") => json!({"spec": pod_spec()}),
        ("", "podtemplates") => {
            json!({"template": {"metadata": {"labels": {"a": "b"}}, "spec": pod_spec()}})
        }
        ("", "replicationcontrollers") => json!({"spec": {
            "replicas": 0, "selector": {"app": "attack"},
            "template": {"metadata": {"labels": {"app": "attack"}}, "spec": pod_spec()},
        }}),
        ("apps", "deployments" | "replicasets" | "daemonsets") => json!({"spec": workload()}),
        ("apps", "statefulsets") => {
            let mut spec = workload();
            spec["serviceName"] = "attack".into();
            json!({"spec": spec})
        }
        ("apps", "controllerrevisions") => json!({"revision": 1, "data": {}}),
        ("batch", "jobs") => json!({"spec": {"template": {"spec": restart_never()}}}),
        ("batch", "cronjobs") => json!({"spec": {
            "schedule": "* * * * *", "jobTemplate": {"spec": {"template": {"spec": restart_never()}}},
        }}),
        ("", "services") => json!({"spec": {"selector": {"a": "b"}, "ports": [{"port": 80}]}}),
        ("", "endpoints") => {
            json!({"subsets": [{"addresses": [{"ip": "10.9.9.9"}], "ports": [{"port": 80}]}]})
        }
        ("discovery", "endpointslices") => json!({
            "addressType": "IPv4", "endpoints": [{"addresses": ["10.9.9.9"]}], "ports": [{"port": 80, "protocol": "TCP", "name": "a"}],
        }),
        ("", "persistentvolumes") => json!({"spec": {
            "capacity": {"storage": "1Mi"}, "accessModes": ["ReadWriteOnce"], "hostPath": {"path": "/tmp/attack"}, "storageClassName": "attack",
        }}),
        ("", "persistentvolumeclaims") => json!({"spec": {
            "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Mi"}}, "storageClassName": "attack",
        }}),
        ("", "secrets") => json!({"type": "Opaque", "data": {"a": "AA=="}}),
        ("", "limitranges") => {
            json!({"spec": {"limits": [{"type": "Container", "max": {"cpu": "1"}}]}})
        }
        ("", "resourcequotas") => json!({"spec": {"hard": {"pods": "1000"}}}),
        ("", "events") => {
            json!({"involvedObject": {"namespace": NAMESPACE, "name": "a"}, "reason": "a", "message": "a"})
        }
        _ => cluster_spec(resource, names),
    }
}

/// The same for kinds that are not of pods, workloads and their network.
fn cluster_spec(resource: &ResourceDescriptor, names: &Names) -> Json {
    match (resource.group, resource.plural) {
        ("policy", "poddisruptionbudgets") => {
            json!({"spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "attack"}}}})
        }
        ("scheduling", "priorityclasses") => json!({"value": 10}),
        ("storage", "storageclasses") => json!({"provisioner": "attack.example.com"}),
        ("storage", "csidrivers") => json!({"spec": {}}),
        ("storage", "volumeattachments") => json!({"spec": {
            "attacher": "attack.example.com", "nodeName": "none", "source": {"persistentVolumeName": "none"},
        }}),
        ("node", "runtimeclasses") => json!({"handler": "attack"}),
        ("autoscaling", "horizontalpodautoscalers") => json!({"spec": {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "a"}, "maxReplicas": 3,
        }}),
        ("networking", "ingresses") => {
            json!({"spec": {"defaultBackend": {"service": {"name": "a", "port": {"number": 80}}}}})
        }
        ("networking", "networkpolicies") => json!({"spec": {"podSelector": {}}}),
        ("networking", "ingressclasses") => json!({"spec": {"controller": "example.com/a"}}),
        ("coordination", "leases") => {
            json!({"spec": {"holderIdentity": "a", "leaseDurationSeconds": 10}})
        }
        ("certificates", "certificatesigningrequests") => json!({"spec": {
            "request": "AA==", "signerName": format!("{}/kube-apiserver-client", names.label_domain()), "usages": ["client auth"],
        }}),
        ("authentication", "tokenreviews") => json!({"spec": {"token": "a.b.c"}}),
        ("authorization", _) => {
            json!({"spec": {"user": "a", "resourceAttributes": {"verb": "get", "resource": "pods"}}})
        }
        _ => json!({}),
    }
}

fn restart_never() -> Json {
    let mut spec = pod_spec();
    spec["restartPolicy"] = "Never".into();
    spec
}
