//! What admission completes in new objects.

use orch_apiserver::Config;
use orch_apiserver::config::{AdmissionPlugin, PrivilegedContainers};
use serde_json::{Value, json};

use crate::support::{TestServer, kubernetes};

#[tokio::test]
async fn a_new_node_takes_no_pods_until_it_was_seen_ready() {
    let server = TestServer::start().await;
    let taint = json!({"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"});
    let own = json!({"key": "own", "effect": "NoExecute"});
    for (name, given, kept) in [
        ("a", json!([]), json!([taint])),
        ("b", json!([own]), json!([own, taint])),
        ("c", json!([taint]), json!([taint])),
    ] {
        let node = json!({"metadata": {"name": name}, "spec": {"taints": given}});
        let made = server.post("/api/v1/nodes", node.to_string()).await.expect(201);
        assert_eq!(made["spec"]["taints"], kept, "{name}");
    }
    let free = json!({"metadata": {"name": "a"}, "spec": {"taints": []}});
    let freed = server.put("/api/v1/nodes/a", &free).await.expect(200);
    assert_eq!(freed["spec"]["taints"], Value::Null, "updates are not tainted");
}

#[tokio::test]
async fn an_ingress_gets_the_default_class_if_there_is_one() {
    const CLASSES: &str = "/apis/networking.k8s.io/v1/ingressclasses";
    const INGRESSES: &str = "/apis/networking.k8s.io/v1/namespaces/default/ingresses";
    let server = TestServer::start().await;
    let ingress = |name: &str, annotations: Value, spec: Value| {
        let mut spec = spec;
        spec["defaultBackend"] = json!({"service": {"name": "s", "port": {"number": 80}}});
        json!({"metadata": {"name": name, "annotations": annotations}, "spec": spec}).to_string()
    };
    let class = |name: &str| {
        let annotations = json!({"ingressclass.kubernetes.io/is-default-class": "true"});
        json!({"metadata": {"name": name, "annotations": annotations}, "spec": {"controller": "example.com/c"}})
            .to_string()
    };
    let made = async |name: &str, annotations: Value, spec: Value| {
        let made = server.post(INGRESSES, ingress(name, annotations, spec)).await.expect(201);
        made["spec"]["ingressClassName"].clone()
    };
    assert_eq!(made("a", json!({}), json!({})).await, Value::Null);
    server.post(CLASSES, class("one")).await.expect(201);
    assert_eq!(made("b", json!({}), json!({})).await, "one");
    assert_eq!(made("c", json!({}), json!({"ingressClassName": "mine"})).await, "mine");
    let older = json!({"kubernetes.io/ingress.class": "mine"});
    assert_eq!(made("d", older, json!({})).await, Value::Null);
    server.post(CLASSES, class("two")).await.expect(201);
    let refused = server.post(INGRESSES, ingress("e", json!({}), json!({}))).await.expect(403);
    let why = "2 default IngressClasses were found, only 1 allowed";
    assert!(refused["message"].as_str().is_some_and(|text| text.ends_with(why)), "{refused}");
}

#[tokio::test]
async fn the_class_of_a_pod_decides_whether_it_preempts() {
    const CLASSES: &str = "/apis/scheduling.k8s.io/v1/priorityclasses";
    const PODS: &str = "/api/v1/namespaces/default/pods";
    let server = TestServer::start().await;
    let class = json!({"metadata": {"name": "patient"}, "value": 5, "preemptionPolicy": "Never"});
    server.post(CLASSES, class.to_string()).await.expect(201);
    let pod = |name: &str, class: &str, policy: &str| {
        let mut spec = json!({"containers": [{"name": "c", "image": "i"}]});
        for (field, text) in [("priorityClassName", class), ("preemptionPolicy", policy)] {
            if !text.is_empty() {
                spec[field] = json!(text);
            }
        }
        json!({"metadata": {"name": name}, "spec": spec}).to_string()
    };
    for (name, class, given, computed) in [
        ("a", "patient", "PreemptLowerPriority", "Never"),
        ("b", "", "Never", "PreemptLowerPriority"),
    ] {
        let refused = server.post(PODS, pod(name, class, given)).await.expect(403);
        let why = format!(
            "pods \"{name}\" is forbidden: the string value of PreemptionPolicy ({given}) must not be provided in pod spec; \
             priority admission controller computed {computed} from the given PriorityClass name"
        );
        assert_eq!(refused["message"], why);
        let made = server.post(PODS, pod(name, class, "")).await.expect(201);
        assert_eq!(made["spec"]["preemptionPolicy"], computed);
    }
    server.post(PODS, pod("c", "patient", "Never")).await.expect(201);
    let refused = server.post(PODS, pod("d", "missing", "")).await.expect(403);
    let why = "pods \"d\" is forbidden: no PriorityClass with name missing was found";
    assert_eq!(refused["message"], why);
}

#[tokio::test]
async fn one_priority_class_is_the_default() {
    const CLASSES: &str = "/apis/scheduling.k8s.io/v1/priorityclasses";
    let server = TestServer::start().await;
    let class = |name: &str, is_default: bool| json!({"metadata": {"name": name}, "value": 5, "globalDefault": is_default});
    server.post(CLASSES, class("one", true).to_string()).await.expect(201);
    let second = class("two", true).to_string();
    let why = "priorityclasses.scheduling.k8s.io \"two\" is forbidden: PriorityClass one is already marked as default. \
               Only one default can exist";
    assert_eq!(server.post(CLASSES, second.clone()).await.expect(403)["message"], why);
    server.post(CLASSES, class("two", false).to_string()).await.expect(201);
    let path = format!("{CLASSES}/two");
    let marked = r#"{"globalDefault":true}"#;
    assert_eq!(server.merge_patch(&path, marked).await.expect(403)["message"], why);
    let labelled = r#"{"metadata":{"labels":{"a":"b"}}}"#;
    server.merge_patch(&format!("{CLASSES}/one"), labelled).await.expect(200);
    let unmarked = r#"{"globalDefault":false}"#;
    server.merge_patch(&format!("{CLASSES}/one"), unmarked).await.expect(200);
    server.merge_patch(&path, marked).await.expect(200);
}

#[tokio::test]
async fn the_older_way_to_name_the_class_of_an_ingress_is_warned_of() {
    const INGRESSES: &str = "/apis/networking.k8s.io/v1/namespaces/default/ingresses";
    let server = TestServer::start().await;
    let warned = async |name: &str, annotations: Value, class: Value| {
        let backend = json!({"service": {"name": "s", "port": {"number": 80}}});
        let spec = json!({"defaultBackend": backend, "ingressClassName": class});
        let ingress = json!({"metadata": {"name": name, "annotations": annotations}, "spec": spec});
        let made = server.post(INGRESSES, ingress.to_string()).await;
        made.expect(201);
        let all = made.headers.get_all("warning").iter();
        all.filter(|text| {
            text.to_str()
                .unwrap()
                .contains("is deprecated, please use 'spec.ingressClassName' instead")
        })
        .count()
    };
    let older = json!({"kubernetes.io/ingress.class": "mine"});
    assert_eq!(warned("a", older, Value::Null).await, 1);
    assert_eq!(warned("b", json!({}), json!("mine")).await, 0);
    assert_eq!(warned("c", json!({}), Value::Null).await, 0);
}

#[tokio::test]
async fn a_namespace_says_on_which_nodes_its_pods_run() {
    const KEY: &str = "scheduler.alpha.kubernetes.io/node-selector";
    let start = async |enabled: Vec<AdmissionPlugin>| {
        let mut config = Config::for_tests(kubernetes());
        config.admission.enabled = enabled;
        config.admission.disabled = vec![AdmissionPlugin::ServiceAccount];
        let server = TestServer::with(config).await;
        for (name, selector) in [("pool", "pool=a,disk=ssd"), ("broken", "pool")] {
            let body = json!({"metadata": {"name": name, "annotations": {KEY: selector}}});
            server.post("/api/v1/namespaces", body.to_string()).await.expect(201);
        }
        server
    };
    let create = async |server: &TestServer, namespace: &str, selector: Value| {
        let spec = json!({"nodeSelector": selector, "containers": [{"name": "c", "image": "i"}]});
        let pod = json!({"metadata": {"name": "a"}, "spec": spec}).to_string();
        let reply = server.post(&format!("/api/v1/namespaces/{namespace}/pods"), pod).await;
        if reply.code() == 201 {
            server
                .delete(&format!("/api/v1/namespaces/{namespace}/pods/a?gracePeriodSeconds=0"))
                .await
                .expect(200);
        }
        reply
    };
    let usual = start(Vec::new()).await;
    let free = create(&usual, "pool", json!({"pool": "b"})).await.expect(201);
    assert_eq!(free["spec"]["nodeSelector"], json!({"pool": "b"}), "off unless enabled");

    let server = start(vec![AdmissionPlugin::PodNodeSelector]).await;
    for (given, merged) in [
        (Value::Null, json!({"pool": "a", "disk": "ssd"})),
        (json!({"pool": "a", "zone": "z"}), json!({"pool": "a", "disk": "ssd", "zone": "z"})),
    ] {
        let made = create(&server, "pool", given).await.expect(201);
        assert_eq!(made["spec"]["nodeSelector"], merged);
    }
    let refused = create(&server, "pool", json!({"pool": "b"})).await.expect(403);
    assert_eq!(
        refused["message"],
        "pods \"a\" is forbidden: pod node label selector conflicts with its namespace node label selector"
    );
    let other = create(&server, "default", json!({"pool": "b"})).await.expect(201);
    assert_eq!(other["spec"]["nodeSelector"], json!({"pool": "b"}), "no annotation");
    let broken = create(&server, "broken", Value::Null).await.expect(500);
    assert!(
        broken["message"].as_str().unwrap().contains("\"pool\" is not a label and its value"),
        "{broken}"
    );
}

#[tokio::test]
async fn a_privileged_container_is_refused_however_it_comes() {
    let mut config = Config::for_tests(kubernetes());
    config.privileged = PrivilegedContainers::Refused;
    config.admission.disabled = vec![AdmissionPlugin::ServiceAccount];
    let server = TestServer::with(config).await;
    let container = |privileged: bool| json!({"name": "c", "image": "i", "securityContext": {"privileged": privileged}});
    let pod = |privileged| json!({"metadata": {"name": "p"}, "spec": {"containers": [container(privileged)]}});
    const PODS: &str = "/api/v1/namespaces/default/pods";
    server.post(PODS, pod(true).to_string()).await.expect(422);
    server.post(PODS, pod(false).to_string()).await.expect(201);
    let debug = |privileged| {
        let mut container = container(privileged);
        container["name"] = json!("debug");
        json!({"spec": {"ephemeralContainers": [container]}}).to_string()
    };
    let path = format!("{PODS}/p/ephemeralcontainers");
    let refused = server.merge_patch(&path, &debug(true)).await.expect(422);
    let field = "spec.ephemeralContainers[0].securityContext.privileged";
    assert_eq!(refused["details"]["causes"][0]["field"], field);
    server.merge_patch(&path, &debug(false)).await.expect(200);
}
