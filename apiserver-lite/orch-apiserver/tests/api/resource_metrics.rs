//! The metrics API (`metrics.k8s.io`): made of the pages of node agents.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::Response;
use orch_apiserver::Config;
use proto_client::testing::{StubRequest, StubServer};
use serde_json::{Value, json};

use crate::proxy;
use crate::support::{TestServer, kubernetes, orch};
use crate::tls;

const METRICS: &str = "/apis/metrics.k8s.io/v1beta1";

/// A node agent that serves one page, and a refusal while there is none.
struct Agent {
    address: SocketAddr,
    page: Arc<Mutex<Option<String>>>,
}

impl Agent {
    async fn start() -> Self {
        let (acceptor, _) = tls::self_signed(&["127.0.0.1"], None);
        let page: Arc<Mutex<Option<String>>> = Arc::default();
        let served = page.clone();
        let answer = move |request: &StubRequest| {
            let is_page = request.method == "GET" && request.path == "/metrics/resource";
            let page = served.lock().unwrap().clone().filter(|_| is_page);
            let response = Response::builder().status(if page.is_some() { 200 } else { 503 });
            // Each request is on a connection of its own.
            let response = response.header("connection", "close");
            Some(response.body(Bytes::from(page.unwrap_or_default())).unwrap())
        };
        let server = StubServer::start_at([127, 0, 0, 1].into(), Some(acceptor), answer).await;
        Self { address: server.address, page }
    }

    fn serve(&self, page: Option<String>) {
        *self.page.lock().unwrap() = page;
    }
}

/// The page of a node at a second, with the CPU seconds of the node and of the containers of the pods `web` and `elsewhere`.
fn page(at: u64, node: f64, containers: [f64; 2]) -> String {
    let millis = at * 1000;
    let [c, d] = containers;
    let mut page = format!(
        "node_cpu_usage_seconds_total {node} {millis}\nnode_memory_working_set_bytes 4096 {millis}\n"
    );
    for (pod, container, cpu) in [("web", "c", c), ("web", "d", d), ("elsewhere", "c", c)] {
        let labels = format!("container=\"{container}\",namespace=\"default\",pod=\"{pod}\"");
        page += &format!(
            "container_cpu_usage_seconds_total{{{labels}}} {cpu} {millis}\n\
             container_memory_working_set_bytes{{{labels}}} 2048 {millis}\n\
             container_start_time_seconds{{{labels}}} 100 {millis}\n"
        );
    }
    page
}

/// Asks until the answer is as wanted; a test whose answer never comes fails.
async fn until(server: &TestServer, path: &str, is_wanted: impl Fn(u16, &Value) -> bool) -> Value {
    for _ in 0..1500 {
        let reply = server.get(path).await;
        let (code, body) = (reply.code(), reply.json_or_null());
        if is_wanted(code, &body) {
            return body;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("{path} never answered as wanted: {}", server.get(path).await.json_or_null());
}

/// A server with the node `n1` of the agent, the node `n2` without one, the running pods `web` on the first and `elsewhere` on the second, and a pending one.
async fn cluster(agent: &Agent) -> TestServer {
    let interval = Duration::from_millis(50);
    let config = Config { resource_metrics_interval: interval, ..Config::for_tests(kubernetes()) };
    let server = TestServer::with(config).await;
    let account = r#"{"metadata":{"name":"default"}}"#;
    server.post("/api/v1/namespaces/default/serviceaccounts", account).await.expect(201);
    let (ip, port) = (agent.address.ip().to_string(), agent.address.port());
    proxy::node(&server, "n1", "InternalIP", &ip, port).await;
    proxy::node(&server, "n2", "InternalIP", &ip, 1).await;
    let pods = "/api/v1/namespaces/default/pods";
    for (name, node, phase) in
        [("web", "n1", "Running"), ("elsewhere", "n2", "Running"), ("new", "n1", "Pending")]
    {
        let pod = json!({
            "metadata": {"name": name, "labels": {"app": name}},
            "spec": {"nodeName": node, "containers": [{"name": "c", "image": "i"}, {"name": "d", "image": "i"}]},
        });
        server.post(pods, pod.to_string()).await.expect(201);
        let status = json!({"status": {"phase": phase}}).to_string();
        server.merge_patch(&format!("{pods}/{name}/status"), &status).await.expect(200);
    }
    server
}

/// A cluster whose agent has answered twice.
async fn measured(agent: &Agent) -> TestServer {
    let server = cluster(agent).await;
    agent.serve(Some(page(1000, 50.0, [10.0, 20.0])));
    // The page is read again and again: once it has been, the next one makes the rate.
    let nodes = format!("{METRICS}/nodes");
    for second in 1001..2000_u16 {
        let since = f64::from(second) - 1000.0;
        let next = page(second.into(), 50.0 + since / 2.0, [10.0 + since / 4.0, 20.0]);
        agent.serve(Some(next));
        tokio::time::sleep(Duration::from_millis(20)).await;
        if server.get(&nodes).await.expect(200)["items"] != json!([]) {
            return server;
        }
    }
    panic!("no metrics");
}

#[tokio::test]
async fn nodes_and_pods_have_metrics() {
    let agent = Agent::start().await;
    let server = measured(&agent).await;
    let nodes = server.get(&format!("{METRICS}/nodes")).await.expect(200);
    assert_eq!((&nodes["kind"], &nodes["metadata"]), (&json!("NodeMetricsList"), &json!({})));
    assert_eq!(nodes["items"].as_array().map(Vec::len), Some(1), "{nodes}");
    let node = server.get(&format!("{METRICS}/nodes/n1")).await.expect(200);
    assert_eq!(node["kind"], "NodeMetrics");
    // Half a CPU, over whatever window.
    assert_eq!(node["usage"], json!({"cpu": "500m", "memory": "4Ki"}));
    assert!(node["window"].as_str().is_some_and(|window| window.ends_with('s')), "{node}");
    assert!(
        node["timestamp"].as_str().is_some_and(|at| at.starts_with("1970-01-01T00:")),
        "{node}"
    );

    let pods = format!("{METRICS}/namespaces/default/pods");
    let pod = server.get(&format!("{pods}/web")).await.expect(200);
    assert_eq!(pod["metadata"]["labels"], json!({"app": "web"}));
    let usage = |container: usize| pod["containers"][container].clone();
    assert_eq!(usage(0), json!({"name": "c", "usage": {"cpu": "250m", "memory": "2Ki"}}));
    assert_eq!(usage(1), json!({"name": "d", "usage": {"cpu": "0", "memory": "2Ki"}}));
    for path in [format!("{METRICS}/pods"), pods.clone(), format!("{pods}?labelSelector=app=web")] {
        let list = server.get(&path).await.expect(200);
        let names: Vec<&Value> =
            list["items"].as_array().unwrap().iter().map(|pod| &pod["metadata"]["name"]).collect();
        assert_eq!(names, ["web"], "{path}: a node says nothing about pods of others");
    }
    for none in ["labelSelector=app=new", "fieldSelector=metadata.name=elsewhere"] {
        let list = server.get(&format!("{pods}?{none}")).await.expect(200);
        assert_eq!(list["items"], json!([]), "{none}");
    }
    for (path, said) in [
        (format!("{METRICS}/nodes/none"), r#"nodes "none" not found"#),
        (format!("{METRICS}/nodes/n2"), r#"nodemetrics.metrics.k8s.io "n2" not found"#),
        (format!("{pods}/none"), r#"pods "none" not found"#),
        (format!("{pods}/new"), r#"pods "new" not found"#),
        (format!("{pods}/elsewhere"), r#"podmetrics.metrics.k8s.io "default/elsewhere" not found"#),
    ] {
        assert_eq!(server.get(&path).await.expect(404)["message"], said);
    }
    // A node that does not answer has no metrics.
    agent.serve(None);
    until(&server, &format!("{METRICS}/nodes/n1"), |code, _| code == 404).await;
    assert_eq!(server.get(&pods).await.expect(200)["items"], json!([]));
}

#[tokio::test]
async fn tables_and_protobuf_show_the_same() {
    let agent = Agent::start().await;
    let server = measured(&agent).await;
    let table = "application/json;as=Table;v=v1;g=meta.k8s.io";
    let nodes = server.accept(&format!("{METRICS}/nodes"), table).await.expect(200);
    let columns: Vec<&Value> = nodes["columnDefinitions"]
        .as_array()
        .unwrap()
        .iter()
        .map(|column| &column["name"])
        .collect();
    assert_eq!(columns, ["Name", "cpu", "memory", "Window"]);
    let cells = nodes["rows"][0]["cells"].as_array().unwrap();
    assert_eq!(cells[..3], [json!("n1"), json!("500m"), json!("4Ki")]);
    let pods = format!("{METRICS}/namespaces/default/pods");
    let rows = server.accept(&pods, table).await.expect(200)["rows"].clone();
    let cells = rows[0]["cells"].as_array().unwrap();
    assert_eq!(
        cells[..3],
        [json!("web"), json!("250m"), json!("4Ki")],
        "the sum of the containers"
    );
    let protobuf = server.accept(&pods, "application/vnd.kubernetes.protobuf").await;
    assert_eq!(protobuf.code(), 200);
    assert!(protobuf.body.starts_with(b"k8s\0"));
    let has = |text: &[u8]| protobuf.body.windows(text.len()).any(|window| window == text);
    assert!(has(b"PodMetricsList") && has(b"250m"));
}

#[tokio::test]
async fn the_group_is_discovered_and_only_read() {
    let server = TestServer::start().await;
    let found = server.get(METRICS).await.expect(200);
    let rows: Vec<[&Value; 3]> = found["resources"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| [&row["name"], &row["kind"], &row["verbs"]])
        .collect();
    let verbs = json!(["get", "list"]);
    assert_eq!(
        rows,
        [
            [&json!("nodes"), &json!("NodeMetrics"), &verbs],
            [&json!("pods"), &json!("PodMetrics"), &verbs]
        ]
    );
    let made = server.post(&format!("{METRICS}/nodes"), r#"{"metadata":{"name":"n"}}"#).await;
    assert_eq!(made.code(), 405);
    assert_eq!(server.get(&format!("{METRICS}/nodes?watch=true")).await.code(), 405);
    assert_eq!(server.get(&format!("{METRICS}/nodes?labelSelector=a+in+(")).await.code(), 400);
    assert_eq!(server.get(&format!("{METRICS}/nodes")).await.expect(200)["items"], json!([]));
    let ours = TestServer::with(Config::for_tests(orch())).await;
    let list = ours.get("/apis/metrics.orch.io/v1beta1/pods").await.expect(200);
    assert_eq!(list["apiVersion"], "metrics.orch.io/v1beta1");
}
