//! ResourceQuotas: amounts stay exact however many clients create at once, and a refused or failed write costs nothing.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::support::TestServer;

const QUOTAS: &str = "/api/v1/namespaces/default/resourcequotas";
const PODS: &str = "/api/v1/namespaces/default/pods";
const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const SERVICES: &str = "/api/v1/namespaces/default/services";

/// Creates a quota that has been counted, as the controller would.
async fn limit(server: &TestServer, name: &str, hard: Value, used: Value) {
    let body = json!({"metadata": {"name": name}, "spec": {"hard": hard}});
    let mut made = server.post(QUOTAS, body.to_string()).await.expect(201);
    made["status"] = json!({"hard": hard, "used": used});
    server.put(&format!("{QUOTAS}/{name}/status"), &made).await.expect(200);
}

async fn used(server: &TestServer, name: &str) -> Value {
    server.get(&format!("{QUOTAS}/{name}")).await.expect(200)["status"]["used"].clone()
}

fn pod(name: &str) -> String {
    let container = json!({"name": "a", "image": "i"});
    json!({"metadata": {"name": name}, "spec": {"containers": [container]}}).to_string()
}

fn map(name: &str) -> String {
    json!({"metadata": {"name": name}}).to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn sixty_four_clients_get_exactly_what_is_left() {
    let server = Arc::new(TestServer::start().await);
    limit(
        &server,
        "a",
        json!({"pods": "40", "count/pods": "100"}),
        json!({"pods": "3", "count/pods": "3"}),
    )
    .await;
    limit(&server, "b", json!({"pods": "50"}), json!({"pods": "0"})).await;
    let clients: Vec<_> = (0..64)
        .map(|client| {
            let server = server.clone();
            tokio::spawn(async move {
                let mut made = 0;
                for nth in 0..3 {
                    let reply = server.post(PODS, pod(&format!("p-{client}-{nth}"))).await;
                    match reply.code() {
                        201 => made += 1,
                        403 => {
                            let message = reply.json()["message"].as_str().expect("text").to_owned();
                            let why = "exceeded quota: a, requested: pods=1, used: pods=40, limited: pods=40";
                            assert!(message.ends_with(why), "{message}");
                        }
                        other => panic!("{other}: {}", reply.json_or_null()),
                    }
                }
                made
            })
        })
        .collect();
    let mut made = 0;
    for client in clients {
        made += client.await.expect("no panic");
    }
    let pods = server.get(PODS).await.expect(200)["items"].as_array().map(Vec::len);
    assert_eq!((made, pods), (37, Some(37)));
    assert_eq!(used(&server, "a").await, json!({"pods": "40", "count/pods": "40"}));
    assert_eq!(used(&server, "b").await, json!({"pods": "37"}));
}

#[tokio::test]
async fn only_objects_that_are_stored_are_charged() {
    let server = TestServer::start().await;
    limit(&server, "q", json!({"configmaps": "2"}), json!({"configmaps": "0"})).await;
    let is_used =
        async |amount: &str| assert_eq!(used(&server, "q").await, json!({"configmaps": amount}));
    server.post(&format!("{MAPS}?dryRun=All"), map("a")).await.expect(201);
    is_used("0").await;
    server.post(MAPS, map("a")).await.expect(201);
    server.post(MAPS, map("a")).await.expect(409);
    server.post(MAPS, map("A_")).await.expect(422);
    is_used("1").await;
    server.post(MAPS, r#"{"metadata":{"generateName":"b-"}}"#).await.expect(201);
    is_used("2").await;
    let forbidden = server.post(&format!("{MAPS}?dryRun=All"), map("c")).await.expect(403);
    assert_eq!(
        forbidden["message"],
        "configmaps \"c\" is forbidden: exceeded quota: q, requested: configmaps=1, used: configmaps=2, limited: configmaps=2"
    );
    // Updates and deletions go on.
    let full = json!({"metadata": {"name": "a"}, "data": {"k": "v"}});
    server.put(&format!("{MAPS}/a"), &full).await.expect(200);
    server.delete(&format!("{MAPS}/a")).await.expect(200);
    is_used("2").await;
}

/// Admission reads `status.hard`, as in Kubernetes: a file with a quota and what it counts can be applied at once.
#[tokio::test]
async fn a_quota_limits_what_its_status_names() {
    let server = TestServer::start().await;
    let body = json!({"metadata": {"name": "q"}, "spec": {"hard": {"configmaps": "2"}}});
    server.post(QUOTAS, body.to_string()).await.expect(201);
    server.post(MAPS, map("a")).await.expect(201);
    let quota = format!("{QUOTAS}/q");
    let mut made = server.get(&quota).await.expect(200);
    made["status"] = json!({"hard": {"configmaps": "2"}});
    server.put(&format!("{quota}/status"), &made).await.expect(200);
    let refused = server.post(MAPS, map("b")).await.expect(403);
    let why = "status unknown for quota: q, resources: configmaps";
    assert!(refused["message"].as_str().is_some_and(|text| text.ends_with(why)), "{refused}");
    server.post(PODS, pod("p")).await.expect(201);
    let more = json!({"spec": {"hard": {"pods": "0"}}}).to_string();
    server.merge_patch(&quota, &more).await.expect(200);
    server.post(PODS, pod("uncounted")).await.expect(201);
}

#[tokio::test]
async fn an_update_is_charged_for_what_it_adds() {
    let server = TestServer::start().await;
    let hard = json!({"services": "1", "services.nodeports": "1"});
    limit(&server, "q", hard, json!({"services": "0", "services.nodeports": "0"})).await;
    let service = |ports: &[u16]| {
        let ports: Vec<Value> =
            ports.iter().map(|port| json!({"name": format!("p{port}"), "port": port})).collect();
        json!({"metadata": {"name": "s"}, "spec": {"ports": ports}})
    };
    server.post(SERVICES, service(&[1, 2]).to_string()).await.expect(201);
    let path = format!("{SERVICES}/s");
    let to_node_port = json!({"spec": {"type": "NodePort"}}).to_string();
    let refused = server.merge_patch(&path, &to_node_port).await.expect(403);
    let why = "exceeded quota: q, requested: services.nodeports=2, used: services.nodeports=0, limited: services.nodeports=1";
    assert!(refused["message"].as_str().is_some_and(|text| text.ends_with(why)), "{refused}");
    let fewer =
        json!({"spec": {"ports": [{"name": "p1", "port": 1}], "type": "NodePort"}}).to_string();
    server.merge_patch(&path, &fewer).await.expect(200);
    assert_eq!(used(&server, "q").await, json!({"services": "1", "services.nodeports": "1"}));
}
