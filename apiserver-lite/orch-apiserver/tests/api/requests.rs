//! Single requests: responses to valid and invalid input.

use crate::support::{TestServer, kubernetes, orch, reply};
use http::{Method, Request};
use http_body_util::Full;
use orch_apiserver::Config;
use orch_apiserver::config::{Anonymous, AuthorizationMode};
use serde_json::{Value, json};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const PODS: &str = "/api/v1/namespaces/default/pods";

fn pod(name: &str) -> Value {
    json!({"metadata": {"name": name}, "spec": {"containers": [{"name": "c", "image": "i"}]}})
}

#[tokio::test]
async fn statuses_by_request() {
    let server = TestServer::start().await;
    let big = format!(r#"{{"data":{{"a":"{}"}}}}"#, "x".repeat(3 << 20));
    let table: Vec<(Method, &str, &str, u16, &str)> = vec![
        (Method::GET, "/api/v1/namespaces/default/configmaps/none", "", 404, "NotFound"),
        (Method::GET, "/api/v1/widgets", "", 404, "NotFound"),
        (Method::GET, "/apis/nothing.io/v1/widgets", "", 404, "NotFound"),
        (Method::GET, "/nowhere", "", 404, "NotFound"),
        (Method::GET, "/api/v1/namespaces/default/pods/none/nothing", "", 404, "NotFound"),
        (Method::GET, "/api/v1/namespaces/default/nodes", "", 404, "NotFound"),
        (Method::POST, "/api/v1/configmaps", "{}", 405, "MethodNotAllowed"),
        (Method::PUT, MAPS, "{}", 405, "MethodNotAllowed"),
        (
            Method::POST,
            "/apis/apps/v1/namespaces/default/deployments/d/status",
            "{}",
            405,
            "MethodNotAllowed",
        ),
        (Method::POST, MAPS, "{", 400, "BadRequest"),
        (Method::POST, MAPS, "[]", 400, "BadRequest"),
        (Method::POST, MAPS, r#"{"kind":"Pod","apiVersion":"v1"}"#, 400, "BadRequest"),
        (Method::POST, MAPS, r#"{"metadata":{"name":"a","namespace":"b"}}"#, 400, "BadRequest"),
        (
            Method::POST,
            MAPS,
            r#"{"metadata":{"name":"a","resourceVersion":"5"}}"#,
            400,
            "BadRequest",
        ),
        (Method::POST, MAPS, "{}", 422, "Invalid"),
        (Method::POST, MAPS, r#"{"metadata":{"name":"A_b"}}"#, 422, "Invalid"),
        (Method::POST, MAPS, &big, 413, "RequestEntityTooLarge"),
        (
            Method::POST,
            "/api/v1/namespaces/none/configmaps",
            r#"{"metadata":{"name":"a"}}"#,
            404,
            "NotFound",
        ),
        (Method::GET, "/api/v1/pods?labelSelector=a%20in", "", 400, "BadRequest"),
        (Method::GET, "/api/v1/pods?fieldSelector=spec.nothing%3Da", "", 400, "BadRequest"),
        (Method::GET, "/api/v1/pods?resourceVersion=x", "", 400, "BadRequest"),
        (Method::GET, "/api/v1/pods?continue=x", "", 400, "BadRequest"),
        (Method::GET, "/api/v1/pods?resourceVersionMatch=Exact", "", 422, "Invalid"),
        (Method::GET, "/api/v1/pods?resourceVersion=99999", "", 504, "Timeout"),
        (Method::GET, "/api/v1/namespaces/default/pods/%2e%2e%2fsecrets", "", 400, "BadRequest"),
        (Method::DELETE, "/api/v1/namespaces/default", "", 403, "Forbidden"),
        (
            Method::POST,
            "/api/v1/namespaces/default/configmaps?dryRun=Some",
            r#"{"metadata":{"name":"a"}}"#,
            422,
            "Invalid",
        ),
    ];
    for (method, path, body, code, reason) in table {
        let reply = server.call(method.clone(), path, "application/json", body.to_owned()).await;
        let status = reply.json();
        assert_eq!(
            (reply.code(), status["reason"].as_str()),
            (code, Some(reason)),
            "{method} {path}: {status}"
        );
        assert_eq!(status["kind"], "Status");
        assert_eq!(status["code"], code);
    }
}

/// As in Kubernetes, which serves the older way to watch still.
#[tokio::test]
async fn escaped_paths_and_the_older_way_to_watch_are_served() {
    let server = TestServer::start().await;
    server.post(MAPS, r#"{"metadata":{"name":"m"}}"#).await.expect(201);
    let escaped = MAPS.replace("namespaces", "n%61mespaces");
    assert_eq!(server.get(&escaped).await.expect(200)["kind"], "ConfigMapList");
    let watched = MAPS.replace("namespaces", "watch/namespaces");
    for path in [&watched, &format!("{watched}/m")] {
        assert_eq!(server.watch(path).await.next_short().await, "ADDED m", "{path}");
    }
    server.delete(&watched).await.expect(405);
    server.get(&format!("{watched}/m/status")).await.expect(404);
}

#[tokio::test]
async fn errors_name_the_field() {
    let server = TestServer::start().await;
    let wrong = json!({"metadata": {"name": "a"}, "spec": {"containers": [{"name": "c", "ports": [{"containerPort": "x"}]}]}});
    let status = server.post(PODS, wrong.to_string()).await.expect(400);
    assert!(
        status["message"].as_str().unwrap().contains("spec.containers[0].ports[0].containerPort"),
        "{status}"
    );
    let invalid =
        json!({"metadata": {"name": "a"}, "spec": {"containers": [{"name": "C!", "image": "i"}]}});
    let status = server.post(PODS, invalid.to_string()).await.expect(422);
    assert_eq!(status["details"]["causes"][0]["field"], "spec.containers[0].name", "{status}");
}

/// Services are selectable by type from Kubernetes 1.31 on; older servers return this error.
#[tokio::test]
async fn fields_that_cannot_be_selected_by_are_refused_in_kubernetes_words() {
    let server = TestServer::start().await;
    for (path, words) in [
        (
            "services?fieldSelector=spec.type%3DNodePort",
            "\"spec.type\" is not a known field selector: only \"metadata.name\", \"metadata.namespace\"",
        ),
        ("pods?fieldSelector=spec.image%3Da", "field label not supported: spec.image"),
        (
            "nodes?fieldSelector=metadata.namespace%3Da",
            "field label not supported: metadata.namespace",
        ),
    ] {
        let status = server.get(&format!("/api/v1/{path}")).await.expect(400);
        assert_eq!(status["message"], words);
        assert_eq!(status["reason"], "BadRequest");
    }
    server.get("/api/v1/pods?fieldSelector=spec.host%3Dn").await.expect(200);
}

#[tokio::test]
async fn unknown_fields_warn_or_fail() {
    let server = TestServer::start().await;
    let body = r#"{"metadata":{"name":"a"},"nonsense":1}"#;
    let status = server.post(&format!("{MAPS}?fieldValidation=Strict"), body).await.expect(400);
    let words = "ConfigMap in version \"v1\" cannot be handled as a ConfigMap: strict decoding error: unknown field \"nonsense\"";
    assert_eq!(status["message"], words);
    let deployment = r#"{"metadata":{"name":"a"},"spec":{"replicas":"many"}}"#;
    let list = "/apis/apps/v1/namespaces/default/deployments";
    let status = server.post(list, deployment).await.expect(400);
    let words = "Deployment in version \"v1\" cannot be handled as a Deployment: ";
    assert!(status["message"].as_str().unwrap().starts_with(words), "without the group: {status}");
    let warned = server.post(&format!("{MAPS}?dryRun=All"), body).await;
    assert_eq!(warned.headers["warning"], "299 - \"unknown field \\\"nonsense\\\"\"");
    let quiet = server.post(&format!("{MAPS}?fieldValidation=Ignore"), body).await;
    assert_eq!(quiet.code(), 201);
    assert!(!quiet.headers.contains_key("warning"));
    let strict = format!("{MAPS}/a?fieldValidation=Strict");
    let status = server.merge_patch(&strict, r#"{"nonsense":1}"#).await.expect(422);
    let words = "strict decoding error: unknown field \"nonsense\"";
    assert!(status["message"].as_str().unwrap().ends_with(words), "{status}");
    assert_eq!(status["details"]["causes"][0]["field"], "patch");
}

#[tokio::test]
async fn media_types() {
    let server = TestServer::start().await;
    let protobuf = "application/vnd.kubernetes.protobuf";
    assert_eq!(server.accept(MAPS, "text/html").await.code(), 406);
    assert_eq!(server.call(Method::POST, MAPS, "text/plain", "a").await.code(), 415);
    assert_eq!(server.call(Method::POST, MAPS, protobuf, "garbage").await.code(), 400);
    let yaml = server
        .call(Method::POST, MAPS, "application/yaml", "metadata: {name: made}\ndata: {a: b}\n")
        .await;
    assert_eq!(yaml.expect(201)["data"]["a"], "b");
    let bytes = server.accept(&format!("{MAPS}/made"), protobuf).await;
    assert_eq!(bytes.headers["content-type"], protobuf);
    assert!(bytes.body.starts_with(b"k8s\0"));
    assert_eq!(
        server.call(Method::POST, MAPS, protobuf, bytes.body.clone()).await.code(),
        400,
        "has a resourceVersion"
    );
    let list = server.accept(MAPS, protobuf).await;
    assert!(list.body.starts_with(b"k8s\0"));
    let table = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json";
    let table = server.accept(MAPS, table).await.expect(200);
    assert_eq!(
        (table["kind"].as_str(), table["rows"][0]["cells"][0].as_str()),
        (Some("Table"), Some("made"))
    );
    let partial =
        "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io,application/json";
    let partial = server.accept(MAPS, partial).await.expect(200);
    assert_eq!(partial["kind"], "PartialObjectMetadataList");
    assert!(partial["items"][0].get("data").is_none());
}

#[tokio::test]
async fn anonymous_and_denied() {
    let config = Config { anonymous: Anonymous::HealthOnly, ..Config::for_tests(kubernetes()) };
    let server = TestServer::with(config).await;
    let ask =
        |path: &'static str| Request::get(path).header("host", "t").body(Full::default()).unwrap();
    let mut nobody = server.connect(false).await;
    let refused = reply(nobody.send_request(ask("/api/v1/pods")).await.unwrap()).await;
    assert_eq!(refused.expect(401)["reason"], "Unauthorized");
    let health = reply(nobody.send_request(ask("/livez")).await.unwrap()).await;
    assert_eq!((health.code(), health.body.as_ref()), (200, b"ok".as_ref()));
    server.get("/api/v1/pods").await.expect(200);

    let config = Config {
        authorization: vec![AuthorizationMode::AlwaysDeny],
        ..Config::for_tests(kubernetes())
    };
    let server = TestServer::with(config).await;
    let mut nobody = server.connect(false).await;
    let denied =
        reply(nobody.send_request(ask("/api/v1/namespaces/a/pods/b/log")).await.unwrap()).await;
    let message = denied.expect(403)["message"].clone();
    assert!(
        message.as_str().unwrap().contains(
            "User \"system:anonymous\" cannot get resource \"pods/log\" in API group \"\" in the namespace \"a\""
        ),
        "{message}"
    );
    let wrong = ask("/api");
    let (mut parts, body) = wrong.into_parts();
    parts.headers.insert("authorization", "Bearer nonsense".parse().unwrap());
    let refused = reply(nobody.send_request(Request::from_parts(parts, body)).await.unwrap()).await;
    assert_eq!(refused.code(), 401);
}

#[tokio::test]
async fn pods_are_completed() {
    let server = TestServer::start().await;
    let made = server.post(PODS, pod("p").to_string()).await.expect(201);
    let names = server.names;
    assert_eq!(made["status"]["phase"], "Pending");
    assert_eq!(made["status"]["qosClass"], "BestEffort");
    assert_eq!(made["spec"]["serviceAccountName"], "default");
    assert_eq!(
        made["spec"]["containers"][0]["volumeMounts"][0]["mountPath"],
        names.service_account_dir()
    );
    assert_eq!(made["spec"]["tolerations"].as_array().unwrap().len(), 2);
    for toleration in made["spec"]["tolerations"].as_array().unwrap() {
        assert_eq!(toleration["tolerationSeconds"], 300, "{toleration}");
    }
    assert_eq!(made["spec"]["priority"], 0);
    let missing = json!({"metadata": {"name": "q"}, "spec": {"serviceAccountName": "robot", "containers": [{"name": "c", "image": "i"}]}});
    let status = server.post(PODS, missing.to_string()).await.expect(403);
    assert!(
        status["message"].as_str().unwrap().ends_with("serviceaccount \"robot\" not found"),
        "{status}"
    );
}

#[tokio::test]
async fn services_get_addresses_and_ports() {
    let server = TestServer::start().await;
    let path = "/api/v1/namespaces/default/services";
    let service =
        |name: &str, spec: Value| json!({"metadata": {"name": name}, "spec": spec}).to_string();
    let ports = json!([{"port": 80}]);
    let made = server
        .post(path, service("a", json!({"type": "NodePort", "ports": ports})))
        .await
        .expect(201);
    let (address, port) =
        (made["spec"]["clusterIP"].clone(), made["spec"]["ports"][0]["nodePort"].clone());
    assert!(address.as_str().unwrap().starts_with("10."));
    assert_eq!(made["spec"]["clusterIPs"], json!([address]));
    let taken = server
        .post(path, service("b", json!({"clusterIP": address, "ports": ports})))
        .await
        .expect(422);
    assert!(
        taken["message"].as_str().unwrap().contains("provided IP is already allocated"),
        "{taken}"
    );
    let taken = json!({"type": "NodePort", "ports": [{"port": 80, "nodePort": port}]});
    let taken = server.post(path, service("b", taken)).await.expect(422);
    assert!(
        taken["message"].as_str().unwrap().contains("provided port is already allocated"),
        "{taken}"
    );
    let outside = json!({"type": "NodePort", "ports": [{"port": 80, "nodePort": 80}]});
    let outside = server.post(path, service("b", outside)).await.expect(422);
    assert!(outside["message"].as_str().unwrap().contains("30000-32767"), "{outside}");
    let headless = server
        .post(path, service("h", json!({"clusterIP": "None", "ports": ports})))
        .await
        .expect(201);
    assert_eq!(headless["spec"]["clusterIPs"], json!(["None"]));
    // An update without the allocated values keeps them.
    let update = json!({"metadata": {"name": "a"}, "spec": {"type": "NodePort", "ports": [{"port": 80, "targetPort": 8080}]}});
    let kept = server.put(&format!("{path}/a"), &update).await.expect(200);
    assert_eq!(
        (&kept["spec"]["clusterIP"], &kept["spec"]["ports"][0]["nodePort"]),
        (&address, &port)
    );
    // Fields of the old type are removed.
    let plain = server.merge_patch(&format!("{path}/a"), r#"{"spec":{"type":"ClusterIP"}}"#).await;
    let plain = plain.expect(200);
    assert!(plain["spec"].get("externalTrafficPolicy").is_none(), "{plain}");
    assert!(plain["spec"]["ports"][0].get("nodePort").is_none(), "{plain}");
    // The values of a deleted Service are free again.
    server.delete(&format!("{path}/a")).await.expect(200);
    server
        .post(path, service("b", json!({"clusterIP": address, "ports": ports})))
        .await
        .expect(201);
}

#[tokio::test]
async fn tokens_are_believed_while_their_objects_exist() {
    let server = TestServer::start().await;
    server.post(PODS, pod("p").to_string()).await.expect(201);
    let path = "/api/v1/namespaces/default/serviceaccounts/default/token";
    let short = server.post(path, r#"{"spec":{"expirationSeconds":60}}"#).await.expect(422);
    assert!(short["message"].as_str().unwrap().contains("10 minutes"), "{short}");
    // A dry run returns a TokenRequest without a valid token.
    let dry = server.post(&format!("{path}?dryRun=All"), "{}").await.expect(201);
    assert_eq!(dry["status"]["token"], "", "{dry}");
    assert!(dry["status"]["expirationTimestamp"].is_string(), "{dry}");
    server.post(&format!("{path}?dryRun=Some"), "{}").await.expect(422);
    for secs in [i64::MIN, -1, 0, 599, (1 << 32) + 1, i64::MAX] {
        let wish = json!({"spec": {"expirationSeconds": secs}});
        server.post(path, wish.to_string()).await.expect(422);
    }
    let wish =
        json!({"spec": {"boundObjectRef": {"kind": "Pod", "apiVersion": "v1", "name": "p"}}});
    let made = server.post(path, wish.to_string()).await.expect(201);
    let token = made["status"]["token"].as_str().unwrap().to_owned();
    let review = json!({"spec": {"token": token}}).to_string();
    let reviews = "/apis/authentication.k8s.io/v1/tokenreviews";
    let answer = server.post(reviews, review.clone()).await.expect(201);
    assert_eq!(
        answer["status"]["user"]["username"], "system:serviceaccount:default:default",
        "{answer}"
    );
    let groups =
        ["system:serviceaccounts", "system:serviceaccounts:default", "system:authenticated"];
    assert_eq!(answer["status"]["user"]["groups"], json!(groups), "{answer}");
    assert_eq!(answer["status"]["user"]["extra"]["authentication.kubernetes.io/pod-name"][0], "p");
    server.delete(&format!("{PODS}/p")).await.expect(200);
    let answer = server.post(reviews, review).await.expect(201);
    assert!(answer["status"].get("authenticated").is_none_or(|yes| yes == false), "{answer}");
}

#[tokio::test]
async fn both_profiles_name_things_their_way() {
    let server = TestServer::with(Config::for_tests(orch())).await;
    let list = server.get("/api/v1/namespaces").await.expect(200);
    let names: Vec<&str> = list["items"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|n| n["metadata"]["name"].as_str())
        .collect();
    assert_eq!(names, ["default", "orch-node-lease", "orch-public", "orch-system"]);
    server.get("/apis/coordination.orch.io/v1/leases").await.expect(200);
    server.get("/apis/coordination.k8s.io/v1/leases").await.expect(404);
    let service = server.get("/api/v1/namespaces/default/services/orch").await.expect(200);
    assert_eq!(service["spec"]["clusterIP"], "10.96.0.1");
    let protobuf = server.accept("/api/v1/namespaces", "application/vnd.orch.protobuf").await;
    assert_eq!(protobuf.code(), 200);
    let groups = server.get("/apis").await.expect(200);
    assert!(
        groups["groups"].as_array().unwrap().iter().any(|group| group["name"] == "storage.orch.io")
    );
}

#[tokio::test]
async fn discovery_and_health() {
    let server = TestServer::start().await;
    for path in [
        "/api",
        "/apis",
        "/api/v1",
        "/apis/apps",
        "/apis/apps/v1",
        "/version",
        "/openid/v1/jwks",
        "/openapi/v2",
    ] {
        server.get(path).await.expect(200);
    }
    let core = server.get("/api/v1").await.json();
    let find = |name: &str| {
        core["resources"].as_array().unwrap().iter().find(|row| row["name"] == name).cloned()
    };
    assert_eq!(find("pods").unwrap()["shortNames"], json!(["po"]));
    assert_eq!(find("pods/eviction").unwrap()["group"], "policy");
    let verbose = server.get("/readyz?verbose").await;
    assert!(String::from_utf8_lossy(&verbose.body).contains("[+]ping ok"));
    let metrics = server.get("/metrics").await;
    let text = String::from_utf8_lossy(&metrics.body).into_owned();
    assert!(text.contains("apiserver_request_total{"), "{text}");
    assert_eq!(server.get("/livez/none").await.code(), 404);
}

#[tokio::test]
async fn a_small_range_is_shared_out_exactly() {
    let range = "10.0.0.0/29".parse().unwrap();
    let config = Config { service_ranges: vec![range], ..Config::for_tests(kubernetes()) };
    let server = std::sync::Arc::new(TestServer::with(config).await);
    let creates = (0..8).map(|n| {
        let server = server.clone();
        tokio::spawn(async move {
            let body =
                json!({"metadata": {"name": format!("s{n}")}, "spec": {"ports": [{"port": 80}]}});
            server.post("/api/v1/namespaces/default/services", body.to_string()).await
        })
    });
    let mut addresses = Vec::new();
    let mut refused = 0;
    for create in creates.collect::<Vec<_>>() {
        let reply = create.await.unwrap();
        match reply.code() {
            201 => addresses.push(reply.json()["spec"]["clusterIP"].as_str().unwrap().to_owned()),
            422 => refused += 1,
            other => panic!("{other}"),
        }
    }
    addresses.sort();
    addresses.dedup();
    // Six usable addresses, one of which is the `kubernetes` Service's.
    assert_eq!((addresses.len(), refused), (5, 3), "{addresses:?}");
}

#[tokio::test]
async fn a_watch_over_websocket_is_a_message_an_event() {
    use futures_util::StreamExt as _;
    let server = TestServer::start().await;
    let path = "/api/v1/namespaces/default/configmaps";
    let mut events = server.websocket(&format!("{path}?watch=true")).await;
    for name in ["a", "b"] {
        let body = format!(r#"{{"metadata":{{"name":"{name}"}}}}"#);
        server.post(path, body).await.expect(201);
        let message = events.next().await.unwrap().unwrap().into_text().unwrap();
        let event: serde_json::Value = serde_json::from_str(&message).unwrap();
        assert_eq!(
            (&event["type"], &event["object"]["metadata"]["name"]),
            (&"ADDED".into(), &name.into())
        );
    }
    server.stop().await;
    while let Some(Ok(_)) = events.next().await {}
}

#[tokio::test]
async fn an_account_decides_about_token_and_pull_secrets() {
    let server = TestServer::start().await;
    let accounts = "/api/v1/namespaces/default/serviceaccounts";
    let robot = json!({"metadata": {"name": "robot"}, "imagePullSecrets": [{"name": "registry"}],
        "automountServiceAccountToken": false});
    server.post(accounts, robot.to_string()).await.expect(201);
    let made = async |name: &str, fields: Value| {
        let mut pod = pod(name);
        pod["spec"].as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        server.post(PODS, pod.to_string()).await.expect(201)["spec"].clone()
    };
    let has_token = |spec: &Value| {
        let volumes = spec["volumes"].as_array().cloned().unwrap_or_default();
        volumes
            .iter()
            .any(|volume| volume["name"].as_str().unwrap().starts_with("kube-api-access-"))
    };
    let of_robot = json!({"serviceAccountName": "robot"});
    let plain = made("a", of_robot.clone()).await;
    assert_eq!(plain["imagePullSecrets"], json!([{"name": "registry"}]));
    assert!(!has_token(&plain), "{plain}");
    let own = json!({"serviceAccountName": "robot", "automountServiceAccountToken": true,
        "imagePullSecrets": [{"name": "mine"}]});
    let own = made("b", own).await;
    assert_eq!(own["imagePullSecrets"], json!([{"name": "mine"}]));
    assert!(has_token(&own), "the pod decides: {own}");
    assert!(has_token(&made("c", json!({})).await));
    let without = made("d", json!({"automountServiceAccountToken": false})).await;
    assert!(!has_token(&without), "{without}");
}

#[tokio::test]
async fn deletions_answer_with_the_object_or_a_status() {
    let server = TestServer::start().await;
    let storage = "/apis/storage.k8s.io/v1";
    let claim =
        json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}});
    let volume = json!({"attacher": "d", "nodeName": "n", "source": {"persistentVolumeName": "v"}});
    for (list, more, kind) in [
        (MAPS.to_owned(), json!({}), "Status"),
        ("/api/v1/namespaces/default/secrets".to_owned(), json!({}), "Status"),
        (
            "/api/v1/namespaces/default/persistentvolumeclaims".to_owned(),
            json!({"spec": claim}),
            "PersistentVolumeClaim",
        ),
        (format!("{storage}/csidrivers"), json!({"spec": {}}), "CSIDriver"),
        (format!("{storage}/csinodes"), json!({"spec": {"drivers": []}}), "CSINode"),
        (
            format!("{storage}/namespaces/default/csistoragecapacities"),
            json!({"storageClassName": "c"}),
            "Status",
        ),
        (format!("{storage}/volumeattachments"), json!({"spec": volume}), "VolumeAttachment"),
    ] {
        let mut object = json!({"metadata": {"name": "x"}});
        object.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        server.post(&list, object.to_string()).await.expect(201);
        let one = format!("{list}/x");
        let found = server.get(&one).await.expect(200);
        server.put(&one, &found).await.expect(200);
        let label = r#"{"metadata":{"labels":{"a":"b"},"finalizers":null}}"#;
        server.merge_patch(&one, label).await.expect(200);
        let listed = server.get(&list).await.expect(200);
        assert!(listed["kind"].as_str().unwrap().ends_with("List"), "{listed}");
        assert_eq!(server.delete(&one).await.expect(200)["kind"], kind, "{list}");
        server.get(&one).await.expect(404);
        assert_eq!(server.delete(&list).await.expect(200)["kind"], "Status", "{list}");
    }
}

#[tokio::test]
async fn answers_are_indented_on_demand_and_heads_have_no_body() {
    let server = TestServer::start().await;
    server.post(MAPS, r#"{"metadata":{"name":"a"},"data":{"k":"v"}}"#).await.expect(201);
    let one = format!("{MAPS}/a");
    for path in [one.as_str(), MAPS] {
        let (plain, pretty) =
            (server.get(path).await, server.get(&format!("{path}?pretty=true")).await);
        assert_eq!(plain.json(), pretty.json(), "{path}");
        let lines =
            |reply: &crate::support::Reply| String::from_utf8_lossy(&reply.body).lines().count();
        assert!(lines(&plain) == 1 && lines(&pretty) > 5, "{path}");
        let head = server.call(Method::HEAD, path, "application/json", "").await;
        assert_eq!((head.code(), head.body.len()), (200, 0), "{path}");
        assert_eq!(head.headers["content-type"], "application/json");
    }
    let head = server.call(Method::HEAD, &format!("{MAPS}/none"), "application/json", "").await;
    assert_eq!((head.code(), head.body.len()), (404, 0));
}

/// Scripts look for `"phase": "Running"` in what curl prints.
#[tokio::test]
async fn answers_to_people_are_indented_and_failures_too() {
    let server = TestServer::start().await;
    let lines = async |path: &str, agent: &str| {
        let request = Request::get(path).header("host", "test").header("user-agent", agent);
        let reply = server.send(request.body(Full::default()).expect("valid")).await;
        assert!(reply.json().is_object(), "{path}");
        String::from_utf8_lossy(&reply.body).lines().count()
    };
    let missing = format!("{MAPS}/none");
    for path in [MAPS, missing.as_str(), "/apis", "/apis/apps", "/api/v1"] {
        for agent in ["curl/7.88.1", "Wget/1.21.3", "Mozilla/5.0 (X11; Linux x86_64)"] {
            assert!(lines(path, agent).await > 5, "{path} {agent}");
        }
        assert_eq!(lines(path, "kubectl/v1.25.0").await, 1, "{path}");
        assert_eq!(lines(&format!("{path}?pretty=false"), "curl/7.88.1").await, 1, "{path}");
        assert!(lines(&format!("{path}?pretty=true"), "kubectl/v1.25.0").await > 5, "{path}");
    }
    for path in ["/", "/version"] {
        assert!(lines(path, "kubectl/v1.25.0").await > 5, "{path}");
    }
}

#[tokio::test]
async fn a_watch_is_not_sent_in_yaml() {
    let server = TestServer::start().await;
    let path = format!("{MAPS}?watch=true&timeoutSeconds=1");
    assert_eq!(server.accept(&path, "application/yaml").await.code(), 406);
    let other = server.accept(&path, "application/yaml, application/json;q=0.5").await;
    assert_eq!(other.code(), 200);
    assert_eq!(other.headers["content-type"], "application/json");
}

#[tokio::test]
async fn a_list_of_metadata_in_yaml_is_yaml() {
    let server = TestServer::start().await;
    server.post(MAPS, r#"{"metadata":{"name":"a"},"data":{"k":"v"}}"#).await.expect(201);
    let accept = "application/yaml;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io";
    let list = server.accept(MAPS, accept).await;
    assert_eq!(list.code(), 200);
    assert_eq!(list.headers["content-type"], "application/yaml");
    let text = String::from_utf8_lossy(&list.body);
    assert!(text.starts_with("apiVersion: meta.k8s.io/v1\nitems:\n- metadata:\n"), "{text}");
    assert!(text.contains("\nkind: PartialObjectMetadataList\n"), "{text}");
}

/// Values of a byte or two each: as a tree they would take many times the memory of the body.
#[tokio::test]
async fn bodies_of_too_many_values_are_refused() {
    let server = TestServer::start().await;
    let many = |start: &str, item: &str, end: &str| {
        format!(
            "{start}{}{end}",
            vec![item; (3_000_000 - start.len()) / (item.len() + 1)].join(",")
        )
    };
    let containers = many(r#"{"metadata":{"name":"p"},"spec":{"containers":["#, "{}", "]}}");
    let some = format!(r#"{{"spec":{{"containers":[{}]}}}}"#, vec!["{}"; 60_000].join(","));
    let numbers = many(r#"{"data":["#, "0", "]}");
    let dry = format!("{PODS}?dryRun=All");
    let patched = format!("{MAPS}/m");
    server.post(MAPS, r#"{"metadata":{"name":"m"}}"#).await.expect(201);
    for (method, path, media, body) in [
        (Method::POST, dry.as_str(), "application/json", &containers),
        (Method::POST, &dry, "application/yaml", &some),
        (Method::POST, MAPS, "application/json", &numbers),
        (Method::PATCH, &patched, "application/merge-patch+json", &numbers),
        (Method::PATCH, &patched, "application/json-patch+json", &numbers),
    ] {
        let request = Request::builder()
            .method(method.clone())
            .uri(path)
            .header("host", "test")
            .header("content-type", media)
            .body(Full::new(body.clone().into()))
            .unwrap();
        let refused = server.send(request).await;
        let refused = refused.expect(413);
        assert_eq!(refused["reason"], "RequestEntityTooLarge", "{method} {path}: {refused}");
        let message = refused["message"].as_str().unwrap_or_default();
        assert!(message.contains("split it into several objects"), "{message}");
    }
}
