//! Servers in the process of their tests: independent of each other, and gone without a trace.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on has failed")]

use std::path::Path;
use std::time::Duration;

use apiserver_testing::{Cluster, Config};
use bytes::Bytes;
use http::Request;
use orch_apiserver::config::AuthorizationMode;
use proto_api::Collection;
use proto_api::names::{Names, Profile};
use proto_client::config::file;
use proto_client::dynamic::{Dynamic, get_json};
use proto_client::request;
use proto_client::{Client, ClientError, DeleteParams, ListParams, SharedToken, WriteParams};
use serde_json::{Value, json};

fn maps_of_default() -> Collection {
    let text = str::to_owned;
    let (group, version, plural) = (String::new(), text("v1"), text("configmaps"));
    Collection { group, version, plural, namespace: Some(text("default")) }
}

fn maps(client: &Client) -> Dynamic {
    Dynamic::new(client.clone(), maps_of_default())
}

fn map(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}})
}

async fn create(client: &Client, name: &str) -> Result<Value, ClientError> {
    maps(client).create(&map(name), &WriteParams::default()).await
}

async fn names(client: &Client) -> Vec<String> {
    let list = maps(client).list(&ListParams::default()).await.unwrap();
    let items = list["items"].as_array().unwrap().iter();
    items.map(|item| item["metadata"]["name"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn several_are_independent() {
    let clusters = [Cluster::start().await.unwrap(), Cluster::start().await.unwrap()];
    let definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "boats.example.com"},
        "spec": {
            "group": "example.com",
            "scope": "Namespaced",
            "names": {"plural": "boats", "kind": "Boat"},
            "versions": [{"name": "v1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": {"type": "object"}}}],
        },
    });
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("a.json"), definition.to_string()).unwrap();
    clusters[0].load(dir.path()).await.unwrap();
    let clients = clusters.each_ref().map(|cluster| cluster.client().unwrap());
    create(&clients[0], "only-here").await.unwrap();
    create(&clients[1], "only-there").await.unwrap();
    assert_eq!(
        (names(&clients[0]).await, names(&clients[1]).await),
        (vec!["only-here".to_owned()], vec!["only-there".to_owned()])
    );
    let boats = |client: &Client| {
        let path = "/apis/example.com/v1/namespaces/default/boats".to_owned();
        let client = client.clone();
        async move { get_json(&client, request::get(path)).await }
    };
    assert!(boats(&clients[0]).await.is_ok());
    assert!(boats(&clients[1]).await.unwrap_err().is_not_found());
    let [first, second] = clusters;
    first.stop().await;
    assert!(create(&clients[0], "late").await.is_err(), "it has ended");
    create(&clients[1], "more").await.unwrap();
    drop(second);
    assert!(create(&clients[1], "late").await.is_err(), "dropped is ended");
}

#[tokio::test]
async fn states_are_put_back() {
    let cluster = Cluster::start().await.unwrap();
    let client = cluster.client().unwrap();
    create(&client, "a").await.unwrap();
    cluster.save("one").await.unwrap();
    maps(&client).delete("a", &DeleteParams::default()).await.unwrap();
    create(&client, "b").await.unwrap();
    cluster.restore("one").await.unwrap();
    assert_eq!(names(&client).await, ["a"]);
    cluster.restore("start").await.unwrap();
    assert_eq!(names(&client).await, [""; 0]);
    assert!(cluster.restore("two").await.is_err());
    cluster.stop().await;
}

#[tokio::test]
async fn test_clients_have_the_given_user() {
    let authorization = vec![AuthorizationMode::Rbac];
    let cluster = Cluster::with(Config { authorization, ..Cluster::config() }).await.unwrap();
    let (admin, jane) = (cluster.client().unwrap(), cluster.client_of("jane", &["dev"]).unwrap());
    create(&admin, "a").await.unwrap();
    let denied = create(&jane, "b").await.unwrap_err();
    assert!(denied.is_forbidden() && denied.to_string().contains("jane"), "{denied}");
    let nobody = jane.anonymous().unwrap();
    let denied = create(&nobody, "b").await.unwrap_err().to_string();
    assert!(denied.contains("system:anonymous"), "{denied}");
    let separate = jane.separate().unwrap();
    assert!(create(&separate, "b").await.unwrap_err().to_string().contains("jane"));
    assert!(cluster.restore("start").await.is_ok());
    let path = "/store/restore?name=start";
    let refused = jane.call(Request::post(path).body(Bytes::new()).unwrap()).await.unwrap_err();
    assert!(refused.is_forbidden(), "{refused}");
    cluster.stop().await;
}

#[tokio::test]
async fn other_clients_come_over_loopback() {
    let cluster = Cluster::start().await.unwrap();
    create(&cluster.client().unwrap(), "a").await.unwrap();
    let text = cluster.kubeconfig().await.unwrap();
    assert_eq!(cluster.kubeconfig().await.unwrap(), text, "one listener");
    let config = file::parse(Path::new("kubeconfig"), &text, None).unwrap();
    let other = Client::new(&config, Names::new(Profile::Kubernetes), "other/1").unwrap();
    assert_eq!(names(&other).await, ["a"]);
    cluster.stop().await;
    assert!(create(&other, "late").await.is_err());
}

#[tokio::test]
async fn a_watch_ends_with_its_cluster() {
    let cluster = Cluster::start().await.unwrap();
    let client = cluster.client().unwrap();
    let path = "/api/v1/namespaces/default/configmaps?watch=true";
    let response = client.open(Request::get(path).body(Bytes::new()).unwrap()).await.unwrap();
    let body = tokio::spawn(http_body_util::BodyExt::collect(response.into_body()));
    cluster.stop().await;
    let _ended = body.await.unwrap();
}

#[tokio::test]
async fn a_token_counts_and_not_the_user_of_the_connection() {
    let cluster = Cluster::start().await.unwrap();
    let client = cluster.client().unwrap();
    let account =
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "robot"}});
    let accounts = Collection { plural: "serviceaccounts".to_owned(), ..maps_of_default() };
    let path = accounts.item("robot", Some("token"));
    let accounts = Dynamic::new(client.clone(), accounts);
    accounts.create(&account, &WriteParams::default()).await.unwrap();
    let asked =
        json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}});
    let params = WriteParams::default();
    let post = request::create(path, &params, request::JSON, Bytes::from(asked.to_string()));
    let made = get_json(&client, post).await.unwrap();
    let of = |text: &str| {
        let token = SharedToken::default();
        assert!(token.set(text));
        client.with_token(token)
    };
    let robot = of(made["status"]["token"].as_str().unwrap());
    let review = json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
        "spec": {"nonResourceAttributes": {"path": "/", "verb": "get"}}});
    let reviews = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews".to_owned();
    let body = || Bytes::from(review.to_string());
    let ask = request::create(reviews, &params, request::JSON, body());
    get_json(&robot, ask).await.unwrap();
    let restore = || Request::post("/store/restore").body(Bytes::new()).unwrap();
    let refused = robot.call(restore()).await.unwrap_err();
    assert!(refused.is_forbidden(), "the token is not of an administrator: {refused}");
    let wrong = create(&of("wrong"), "a").await.unwrap_err();
    assert!(wrong.code() == Some(401), "{wrong}");
    client.call(restore()).await.unwrap();
    cluster.stop().await;
}

#[tokio::test]
async fn an_unread_response_does_not_block_the_shutdown() {
    let shutdown_deadline = Duration::from_millis(100);
    let cluster = Cluster::with(Config { shutdown_deadline, ..Cluster::config() }).await.unwrap();
    let client = cluster.client().unwrap();
    // More than the buffers of a connection take.
    let data = json!({"a": "x".repeat(900 << 10)});
    for name in ["a", "b", "c", "d"] {
        let mut map = map(name);
        map["data"] = data.clone();
        maps(&client).create(&map, &WriteParams::default()).await.unwrap();
    }
    let path = "/api/v1/namespaces/default/configmaps";
    let get = || Request::get(path).body(Bytes::new()).unwrap();
    let unread = client.open(get()).await.unwrap();
    let text = cluster.kubeconfig().await.unwrap();
    let config = file::parse(Path::new("kubeconfig"), &text, None).unwrap();
    let other = Client::new(&config, Names::new(Profile::Kubernetes), "other/1").unwrap();
    let unread_there = other.open(get()).await.unwrap();
    cluster.stop().await;
    drop((unread, unread_there));
}
