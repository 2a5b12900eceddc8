//! Objects of other API servers go with their namespaces.

use std::path::Path;

use apiserver_controller_io::namespace_content::delete_content;
use proto_client::Client;
use proto_client::config::file;
use serde_json::{Value, json};

use super::{NAME, World, wait_for};
use crate::support::TestServer;

pub fn client(server: &TestServer) -> Client {
    let config = file::parse(Path::new("config"), server.kubeconfig(), None).expect("a kubeconfig");
    Client::new(&config, server.names, "controllers").expect("a client")
}

pub fn flunder(namespace: &str, name: &str) -> Value {
    json!({"apiVersion": "wardle.example.com/v1alpha1", "kind": "Flunder", "metadata": {
        "name": name, "namespace": namespace, "uid": format!("uid-{name}"), "resourceVersion": "1"}})
}

/// What is left, as `namespace/name`.
pub fn left(world: &World) -> Vec<String> {
    let all = world.backend.flunders.lock().unwrap();
    let text = |object: &Value, field: &str| object["metadata"][field].as_str().unwrap().to_owned();
    all.iter().map(|one| format!("{}/{}", text(one, "namespace"), text(one, "name"))).collect()
}

#[tokio::test]
async fn objects_of_other_servers_go_with_their_namespace() {
    let test = "objects_of_other_servers_go_with_their_namespace";
    let Some(world) = World::new(test).await else { return };
    world.ready().await;
    for (namespace, name) in [("gone", "a"), ("gone", "b"), ("stays", "c")] {
        world.backend.flunders.lock().unwrap().push(flunder(namespace, name));
    }
    let client = client(&world.server);
    let remains = delete_content(&client, "gone").await;
    assert_eq!((remains.failures, remains.undiscovered), (Vec::new(), Vec::new()));
    assert_eq!(left(&world), ["stays/c"]);
    // What a server has that does not answer is not known: the namespace waits.
    let endpoints = "/api/v1/namespaces/default/endpoints/api";
    world.server.delete(endpoints).await.expect(200);
    wait_for(&world.server, NAME, "EndpointsNotFound").await;
    let remains = delete_content(&client, "stays").await;
    let [why] = &remains.undiscovered[..] else { panic!("{remains:?}") };
    assert!(why.starts_with("wardle.example.com/v1alpha1: "), "{why}");
    assert_eq!(left(&world), ["stays/c"]);
}
