//! Extreme numbers from clients: the response is a Status or an object, and the server keeps serving.

#[path = "../../../schema/tests/support/integers.rs"]
mod integers;

use bytes::Bytes;
use http::{Method, Request};
use http_body_util::Full;
use hyper::client::conn::http1::SendRequest;
use integers::{PathStep, paths, text, with_number};
use proto_api::schema::{self, ResourceDescriptor};
use serde_json::{Value, json};

use crate::support::TestServer;

const PODS: &str = "/api/v1/namespaces/default/pods";

/// Values of `timeoutSeconds`.
const LENGTHS: [&str; 5] = ["9223372036854775807", "4294967296", "2147483647", "0", "1"];

#[tokio::test]
async fn any_timeout_of_a_watch_or_list_is_answered() {
    let server = TestServer::start().await;
    for length in LENGTHS {
        let mut events =
            server.watch(&format!("/api/v1/namespaces?watch=1&timeoutSeconds={length}")).await;
        let first = events.next().await.expect("an event");
        assert_eq!(first["type"], "ADDED", "{length}");
        server.get(&format!("{PODS}?timeoutSeconds={length}")).await.expect(200);
    }
    for wrong in ["x", "1.5", "9223372036854775808"] {
        let reply = server.get(&format!("{PODS}?watch=1&timeoutSeconds={wrong}")).await;
        assert_eq!(reply.code(), 400, "{wrong}");
        assert_eq!(server.get(&format!("{PODS}?timeoutSeconds={wrong}")).await.code(), 400);
    }
}

/// A bound pod with `number` as its grace period is refused or can be deleted, by dry run and eviction too.
#[tokio::test]
async fn a_pod_with_any_grace_is_refused_or_deleted() {
    let server = TestServer::start().await;
    let mut made = 0;
    for (at, number) in integers::NUMBERS.into_iter().enumerate() {
        let pod = json!({"metadata": {"name": format!("p{at}")}, "spec": {
            "nodeName": "n", "terminationGracePeriodSeconds": number,
            "containers": [{"name": "c", "image": "i"}]}});
        let path = format!("{PODS}/p{at}");
        match server.post(PODS, pod.to_string()).await.code() {
            201 => made += 1,
            code => {
                assert_eq!(code, 422, "{number}");
                continue;
            }
        }
        server.delete(&format!("{path}?dryRun=All")).await.expect(200);
        let marked = server.delete(&path).await.expect(200);
        let grace = marked["metadata"]["deletionGracePeriodSeconds"].as_i64().unwrap_or(0);
        assert!((0..=2_147_483_647).contains(&grace), "{number}: {marked}");
        // Without a grace period it is removed already.
        let code = server.delete(&format!("{path}?gracePeriodSeconds=0")).await.code();
        assert_eq!(code, if grace == 0 { 404 } else { 200 }, "{number}");
    }
    assert!(made > 0);
    server.get("/readyz").await;
}

/// Valid objects of kinds with required fields, so that the code behind a number runs.
fn accepted(kind: &str) -> Option<Value> {
    let pod = json!({"containers": [{"name": "c", "image": "i"}], "nodeName": "n"});
    let template = |policy: &str| {
        json!({"metadata": {"labels": {"a": "b"}}, "spec": {"restartPolicy": policy,
            "containers": [{"name": "c", "image": "i"}]}})
    };
    let selector = json!({"matchLabels": {"a": "b"}});
    let workload =
        json!({"selector": selector, "serviceName": "s", "template": template("Always")});
    let target = json!({"kind": "Deployment", "name": "d"});
    let claim =
        json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}});
    let spec = match kind {
        "Pod" => pod,
        "PodTemplate" => return Some(json!({"template": template("Always")})),
        "ReplicationController" => json!({"selector": {"a": "b"}, "template": template("Always")}),
        "Deployment" | "ReplicaSet" | "DaemonSet" | "StatefulSet" => workload,
        "Job" => json!({"template": template("Never")}),
        "CronJob" => {
            json!({"schedule": "@daily", "jobTemplate": {"spec": {"template": template("Never")}}})
        }
        "Service" => json!({"ports": [{"port": 80}], "type": "NodePort"}),
        "PersistentVolumeClaim" => claim,
        "PersistentVolume" => {
            json!({"accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"},
            "hostPath": {"path": "/x"}})
        }
        "HorizontalPodAutoscaler" => json!({"maxReplicas": 3, "scaleTargetRef": target}),
        "NetworkPolicy" => json!({"podSelector": {}}),
        "Ingress" => json!({"defaultBackend": {"service": {"name": "s", "port": {"number": 80}}}}),
        "EndpointSlice" => return Some(json!({"addressType": "IPv4", "endpoints": []})),
        "StorageClass" => return Some(json!({"provisioner": "example.com/p"})),
        "RuntimeClass" => return Some(json!({"handler": "runc"})),
        _ => return None,
    };
    Some(json!({"spec": spec}))
}

/// The path of a collection, and the object created in it.
pub(crate) fn collection_and_object(resource: &ResourceDescriptor, group: &str) -> (String, Value) {
    let root = match group {
        "" => format!("/api/{}", resource.version),
        group => format!("/apis/{group}/{}", resource.version),
    };
    let namespace = if resource.namespaced { "namespaces/default/" } else { "" };
    let mut object = accepted(resource.kind).unwrap_or_else(|| json!({}));
    object["metadata"] = json!({"name": "extreme"});
    (format!("{root}/{namespace}{}", resource.plural), object)
}

/// One connection for all requests; it breaks when the server fails to respond.
struct Client(SendRequest<Full<Bytes>>);

impl Client {
    async fn ask(&mut self, method: Method, path: &str, body: &Value, what: &str) -> u16 {
        let media = match method {
            Method::PATCH => "application/merge-patch+json",
            _ => "application/json",
        };
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let request = Request::builder()
            .method(&method)
            .uri(path)
            .header("host", "test")
            .header("accept", "application/json;as=Table;g=meta.k8s.io;v=v1,application/json")
            .header("content-type", media)
            .body(Full::new(Bytes::from(body)))
            .expect("valid");
        let answer = self.0.send_request(request).await;
        let answer = answer.unwrap_or_else(|error| panic!("{method} {what}: {error}"));
        let reply = crate::support::reply(answer).await;
        let code = reply.code();
        assert!(code < 500, "{method} {what}: {}", String::from_utf8_lossy(&reply.body));
        assert!(reply.json().is_object(), "{method} {what}");
        code
    }
}

/// Creates, reads, updates and deletes `object`; a refusal has a Status.
async fn live(client: &mut Client, list: &str, object: &Value, what: &str) -> bool {
    let one = format!("{list}/extreme");
    let trial = format!("{list}?dryRun=All");
    if client.ask(Method::POST, &trial, object, what).await != 201 {
        return false;
    }
    if client.ask(Method::POST, list, object, what).await != 201 {
        return false;
    }
    let mut change = object.clone();
    change["metadata"]["labels"] = json!({"a": "b"});
    for (method, path, body) in [
        (Method::GET, list, &Value::Null),
        (Method::PUT, &one, &change),
        (Method::PATCH, &one, object),
        (Method::DELETE, &format!("{one}?dryRun=All"), &Value::Null),
        (Method::DELETE, &one, &Value::Null),
        (Method::DELETE, &one, &json!({"gracePeriodSeconds": 0})),
    ] {
        client.ask(method, path, body, what).await;
    }
    true
}

/// Sets each number in each integer field of each served kind, statuses included: the response is an object or a Status, and the
/// server keeps serving, watches included.
#[tokio::test]
async fn extreme_numbers_in_every_field_of_every_kind() {
    let server = TestServer::start().await;
    let mut client = Client(server.connect(true).await);
    let (mut fields, mut stored) = (0, 0);
    for resource in schema::resources() {
        if !resource.verbs.contains(&"create") || !resource.verbs.contains(&"list") {
            continue;
        }
        let group = server.names.group(resource.group);
        let group = if resource.group.is_empty() { String::new() } else { group };
        let (list, base) = collection_and_object(resource, &group);
        let mut watch = server.watch(&format!("{list}?watch=1")).await;
        for path in paths(resource.message) {
            // Pod templates are one message: testing one kind that has it is enough.
            if text(&path).contains(".template.spec") && resource.kind != "Deployment" {
                continue;
            }
            fields += 1;
            for number in integers::NUMBERS {
                let object = with_number(&base, &path, number);
                let what = format!("{}{}: {number}", resource.kind, text(&path));
                if path.first() == Some(&PathStep::Field("status")) {
                    if accepted(resource.kind).is_some() && resource.subresource("status").is_some()
                    {
                        client.ask(Method::POST, &list, &base, &what).await;
                        let one = format!("{list}/extreme");
                        let status = format!("{one}/status");
                        client.ask(Method::PATCH, &status, &object, &what).await;
                        client.ask(Method::GET, &list, &Value::Null, &what).await;
                        let now = json!({"gracePeriodSeconds": 0});
                        client.ask(Method::DELETE, &one, &now, &what).await;
                    }
                } else {
                    stored += usize::from(live(&mut client, &list, &object, &what).await);
                }
            }
        }
        // All events of this kind can be watched.
        let mut last = base.clone();
        last["metadata"]["name"] = json!("last");
        if client.ask(Method::POST, &list, &last, "the last").await != 201 {
            continue;
        }
        loop {
            let event = watch.next().await.expect("the watch goes on");
            assert_ne!(event["type"], "ERROR", "{event}");
            if event["object"]["metadata"]["name"] == "last" {
                break;
            }
        }
    }
    assert!(fields > 400 && stored > 300, "{fields} fields, {stored} objects");
    server.get("/readyz").await;
}

/// Numbers in requests to subresources and in list parameters.
#[tokio::test]
async fn extreme_numbers_in_requests_that_are_not_objects() {
    let server = TestServer::start().await;
    let deployments = "/apis/apps/v1/namespaces/default/deployments";
    let mut deployment = accepted("Deployment").expect("one");
    deployment["metadata"] = json!({"name": "d"});
    deployment["spec"].as_object_mut().unwrap().remove("serviceName");
    server.post(deployments, deployment.to_string()).await.expect(201);
    let pod = json!({"metadata": {"name": "p"}, "spec": {"nodeName": "n",
        "containers": [{"name": "c", "image": "i"}]}});
    let mut client = Client(server.connect(true).await);
    for number in integers::NUMBERS {
        let what = format!("{number}");
        let token = json!({"spec": {"expirationSeconds": number}});
        let account = "/api/v1/namespaces/default/serviceaccounts/default/token";
        client.ask(Method::POST, account, &token, &what).await;
        let scale = json!({"metadata": {"name": "d"}, "spec": {"replicas": number}});
        let path = format!("{deployments}/d/scale");
        client.ask(Method::PUT, &path, &scale, &what).await;
        client.ask(Method::PATCH, &path, &json!({"spec": {"replicas": number}}), &what).await;
        client.ask(Method::POST, PODS, &pod, &what).await;
        let eviction =
            json!({"metadata": {"name": "p"}, "deleteOptions": {"gracePeriodSeconds": number}});
        client.ask(Method::POST, &format!("{PODS}/p/eviction"), &eviction, &what).await;
        let options = json!({"gracePeriodSeconds": number});
        client.ask(Method::DELETE, &format!("{PODS}/p?dryRun=All"), &options, &what).await;
        client.ask(Method::DELETE, &format!("{PODS}/p"), &options, &what).await;
        client.ask(Method::DELETE, PODS, &options, &what).await;
        let now = json!({"gracePeriodSeconds": 0});
        client.ask(Method::DELETE, &format!("{PODS}/p"), &now, &what).await;
        for query in ["limit", "timeoutSeconds", "gracePeriodSeconds"] {
            let path = format!("{PODS}?{query}={number}");
            client.ask(Method::GET, &path, &Value::Null, &what).await;
        }
    }
}
