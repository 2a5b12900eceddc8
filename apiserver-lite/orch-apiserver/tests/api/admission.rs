//! What admission completes in new objects.

use serde_json::{Value, json};

use crate::support::TestServer;

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
