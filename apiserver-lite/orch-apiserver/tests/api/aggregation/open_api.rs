//! OpenAPI of group versions that other API servers serve.

use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::future::join_all;
use serde_json::{Value, json};

use super::{NAME, World, wait_for};
use crate::support::TestServer;

const PATH: &str = "/apis/wardle.example.com/v1alpha1/flunders";
const INDEXED: &str = "apis/wardle.example.com/v1alpha1";

/// The v2 document once it has the paths of the other server.
async fn merged(server: &TestServer) -> Value {
    for _ in 0..2400 {
        let document = server.get("/openapi/v2").await.expect(200);
        if document["paths"][PATH].is_object() {
            return document;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("the v2 document has no path of the other server");
}

#[tokio::test]
async fn documents_have_the_group_versions_of_other_servers() {
    let test = "documents_have_the_group_versions_of_other_servers";
    let Some(world) = World::new(test).await else { return };
    let server = &world.server;
    world.ready().await;
    let document = merged(server).await;
    let definitions = &document["definitions"];
    assert_eq!(definitions["com.example.wardle.Flunder"]["description"], "A bird.");
    let shared = &definitions["io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"];
    assert!(shared["properties"]["name"].is_object(), "this server describes what all share");
    assert!(
        document["paths"].get("/version/").is_none()
            && document["paths"]["/api/v1/pods"].is_object()
    );
    let index = server.get("/openapi/v3").await.expect(200);
    let address = index["paths"][INDEXED]["serverRelativeURL"].as_str().unwrap().to_owned();
    assert_eq!(address, format!("/openapi/v3/{INDEXED}?hash=C0FFEE"));
    assert!(index["paths"].get("version").is_none());
    let theirs = server.get(&address).await.expect(200);
    assert_eq!(theirs["paths"], json!({"theirs": {}}));
    // A server that is away takes nothing with it but its v3 document.
    server.delete("/api/v1/namespaces/default/endpoints/api").await.expect(200);
    wait_for(server, NAME, "EndpointsNotFound").await;
    assert!(server.get("/openapi/v2").await.expect(200)["paths"][PATH].is_object());
    assert!(server.get("/openapi/v3").await.expect(200)["paths"]["api/v1"].is_object());
    server.get(&address).await.expect(503);
    // What is not served any more is not described either.
    let path = format!("/apis/apiregistration.k8s.io/v1/apiservices/{NAME}");
    server.delete(&path).await.expect(200);
    for _ in 0..2400 {
        if server.get("/openapi/v2").await.expect(200)["paths"].get(PATH).is_none() {
            assert!(server.get("/openapi/v3").await.expect(200)["paths"].get(INDEXED).is_none());
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("the v2 document still has the paths of a server that is gone");
}

#[tokio::test]
async fn documents_do_not_wait_for_a_server_that_answers_nothing() {
    let test = "documents_do_not_wait_for_a_server_that_answers_nothing";
    let Some(world) = World::new(test).await else { return };
    world.backend.documents_hang.store(true, Ordering::Relaxed);
    world.ready().await;
    let document = world.server.get("/openapi/v2").await.expect(200);
    assert!(document["paths"]["/api/v1/pods"].is_object());
    assert!(document["paths"].get(PATH).is_none());
    let index = world.server.get("/openapi/v3").await.expect(200);
    assert!(index["paths"]["api/v1"].is_object() && index["paths"].get(INDEXED).is_none());
    // Its objects are served all the same.
    world.server.get(super::FLUNDERS).await.expect(200);
}

/// The time until the documents are fetched again passes on the clock of the test.
#[tokio::test]
async fn documents_of_a_server_that_stops_to_answer_are_kept() {
    let test = "documents_of_a_server_that_stops_to_answer_are_kept";
    let Some(world) = World::new(test).await else { return };
    let (server, backend) = (&world.server, &world.backend);
    world.ready().await;
    merged(server).await;
    let index = server.get("/openapi/v3").await.expect(200);
    let address = index["paths"][INDEXED]["serverRelativeURL"].as_str().unwrap().to_owned();
    backend.documents_fail.store(true, Ordering::Relaxed);
    // A round ends before the next one begins.
    for _ in 0..2 {
        let before = backend.documents.load(Ordering::Relaxed);
        tokio::time::pause();
        tokio::time::advance(Duration::from_secs(61)).await;
        tokio::time::resume();
        // The documents of both versions.
        for _ in 0..2400 {
            if backend.documents.load(Ordering::Relaxed) >= before + 2 {
                break;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        assert!(backend.documents.load(Ordering::Relaxed) >= before + 2, "they are not fetched");
    }
    let document = server.get("/openapi/v2").await.expect(200);
    assert!(document["paths"][PATH].is_object(), "what was published stays");
    let index = server.get("/openapi/v3").await.expect(200);
    assert_eq!(index["paths"][INDEXED]["serverRelativeURL"], address.as_str());
    // The document itself is the other server's.
    server.get(&address).await.expect(503);
}

#[tokio::test]
async fn requests_for_a_document_of_another_server_share_it() {
    let test = "requests_for_a_document_of_another_server_share_it";
    let Some(world) = World::new(test).await else { return };
    let (server, backend) = (&world.server, &world.backend);
    world.ready().await;
    merged(server).await;
    backend.documents_hang.store(true, Ordering::Relaxed);
    let before = backend.documents.load(Ordering::Relaxed);
    let path = format!("/openapi/v3/{INDEXED}");
    let mut all = std::pin::pin!(join_all((0..8).map(|_| server.get(&path))));
    let is_asked = async {
        while backend.documents.load(Ordering::Relaxed) == before {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::select! {
        _ = &mut all => panic!("nothing is to be answered"),
        asked = tokio::time::timeout(Duration::from_secs(60), is_asked) => asked.expect("asked"),
    }
    // Time for the others to be sent too.
    let some = tokio::time::timeout(Duration::from_secs(2), all).await;
    assert!(some.is_err(), "nothing is answered");
    assert_eq!(backend.documents.load(Ordering::Relaxed), before + 1);
    backend.documents_hang.store(false, Ordering::Relaxed);
    let theirs = server.get(&path).await.expect(200);
    assert_eq!(theirs["paths"], json!({"theirs": {}}));
}
