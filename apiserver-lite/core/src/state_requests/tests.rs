//! Saving and putting back, and what must not come in between.

use std::net::IpAddr;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use apiserver_schema::{Format, Strictness};
use apiserver_store::{Expect, Write};
use proto_api::names::{Names, Profile};

use super::*;
use crate::key;
use crate::options::{DeleteOptions, Effects};
use crate::own_writes::{agent, call, request};
use crate::record::Draft;
use crate::request::{Query, Verb};
use crate::saved_states::STATES_MAX;
use crate::verbs::{create_object, delete_object};

fn server(ephemeral: bool) -> Arc<Server> {
    let mut server = Server::for_tests(Names::new(Profile::Kubernetes));
    server.saved_states = ephemeral.then(SavedStates::default);
    Arc::new(server)
}

/// Writes an object as it is.
async fn put(server: &Server, json: &str) {
    let decoded = server.engine.decode_any(Format::Json, json.as_bytes(), Strictness::Strict);
    let object = decoded.unwrap().object;
    let key = key::object(&object.kind, object.namespace(), object.name());
    let draft = Draft::new(&server.engine, object);
    server.store.write(Write::Put { key, expect: Expect::Anything, draft }).await.unwrap();
}

#[tokio::test]
async fn only_administrators_of_ephemeral_servers_put_states_back() {
    let code = |outcome: Result<StateSummary, ApiError>| outcome.err().map(|error| error.code());
    let (admin, other) = (User::server(), User::default());
    let (ephemeral, kept) = (server(true), server(false));
    assert_eq!(code(save(&ephemeral, &other, START).await), Some(403));
    assert_eq!(code(restore(&ephemeral, &other, START).await), Some(403));
    assert_eq!(code(forget(&ephemeral, &other, START).await), Some(403));
    assert_eq!(code(restore(&kept, &other, START).await), Some(403));
    assert_eq!(code(save(&kept, &admin, START).await), Some(400));
    assert_eq!(code(restore(&kept, &admin, START).await), Some(400));
    assert_eq!(code(forget(&kept, &admin, START).await), Some(400));
    assert_eq!(code(restore(&ephemeral, &admin, START).await), Some(404));
    assert_eq!(code(forget(&ephemeral, &admin, START).await), Some(404));
    for name in ["", "a/b", "a b", &"a".repeat(64)] {
        assert_eq!(code(save(&ephemeral, &admin, name).await), Some(400), "{name:?}");
    }
    assert_eq!(code(save(&ephemeral, &admin, START).await), None);
    assert_eq!(code(restore(&ephemeral, &admin, START).await), None);
    assert_eq!(code(forget(&ephemeral, &admin, START).await), None);
    assert_eq!(code(restore(&ephemeral, &admin, START).await), Some(404));
}

#[tokio::test]
async fn states_are_bounded_and_forgotten() {
    let (server, admin) = (server(true), User::server());
    for nth in 0..STATES_MAX {
        save(&server, &admin, &format!("s{nth}")).await.unwrap();
    }
    let full = save(&server, &admin, "more").await.unwrap_err();
    // Nothing that a client should try again by itself.
    assert_eq!((full.code(), full.retry_after_seconds()), (409, None));
    assert!(save(&server, &admin, "s3").await.is_ok(), "in the place of the old one");
    forget(&server, &admin, "s4").await.unwrap();
    assert!(save(&server, &admin, "more").await.is_ok());
}

const THINGS: &str = r#"{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition",
    "metadata":{"name":"things.example.com","uid":"1","generation":1},
    "spec":{"group":"example.com","scope":"Cluster","names":{"plural":"things","kind":"Thing"},
        "versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object"}}}]},
    "status":{"acceptedNames":{"plural":"things","kind":"Thing","listKind":"ThingList"},
        "conditions":[{"type":"Established","status":"True"}]}}"#;

#[tokio::test]
async fn a_kind_whose_definition_is_not_in_a_state_has_no_rules() {
    let (server, admin) = (server(true), User::server());
    save(&server, &admin, "empty").await.unwrap();
    put(&server, THINGS).await;
    let kind = server.resource("example.com", "v1", "things").unwrap();
    assert!(kind.custom_version().is_some());
    save(&server, &admin, "defined").await.unwrap();
    restore(&server, &admin, "empty").await.unwrap();
    // A create that is under way asks this after its write.
    assert!(kind.custom_version().is_none());
    restore(&server, &admin, "defined").await.unwrap();
    let again = server.resource("example.com", "v1", "things").unwrap();
    assert!(again.custom_version().is_some());
}

const ADDRESS: &str = "10.96.0.50";

fn service(name: &str) -> String {
    format!(
        r#"{{"apiVersion":"v1","kind":"Service","metadata":{{"name":"{name}","namespace":"default"}},
        "spec":{{"clusterIP":"{ADDRESS}","ports":[{{"port":80}}]}}}}"#
    )
}

async fn create(server: &Server, name: &str) -> Result<(), ApiError> {
    let kind = server.kind("", "services").unwrap();
    let text = service(name);
    let decoded = server.engine.decode_any(Format::Json, text.as_bytes(), Strictness::Strict);
    let request = request(Verb::Create, kind, "", "default", "");
    let (query, agent) = (Query::default(), agent(server));
    let call = call(server, kind, &request, &query, &agent);
    create_object(&call, decoded.unwrap().object, Effects::Real).await.map(drop)
}

async fn delete(server: &Server, name: &str) -> Result<(), ApiError> {
    let kind = server.kind("", "services").unwrap();
    let request = request(Verb::Delete, kind, "", "default", name);
    let (query, agent) = (Query::default(), agent(server));
    let call = call(server, kind, &request, &query, &agent);
    delete_object(&call, &DeleteOptions::default()).await.map(drop)
}

/// A server that has saved a Service with [`ADDRESS`] as `with`, and no Service as `without`.
async fn with_addresses() -> Arc<Server> {
    let (server, admin) = (server(true), User::server());
    put(
        &server,
        r#"{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"default","uid":"n"}}"#,
    )
    .await;
    save(&server, &admin, "without").await.unwrap();
    create(&server, "a").await.unwrap();
    save(&server, &admin, "with").await.unwrap();
    server
}

fn is_taken(server: &Server) -> bool {
    let address: IpAddr = ADDRESS.parse().unwrap();
    server.allocations.lock().unwrap().has_address(address)
}

#[tokio::test]
async fn a_restore_is_completed_whoever_waits_for_it() {
    let server = with_addresses().await;
    for (name, taken) in [("without", false), ("with", true)] {
        let admin = User::server();
        let mut asked = Box::pin(restore(&server, &admin, name));
        let mut context = Context::from_waker(Waker::noop());
        assert!(matches!(asked.as_mut().poll(&mut context), Poll::Pending));
        drop(asked);
        // In its turn after the one whose client has gone.
        assert_eq!(restore(&server, &admin, "none").await.unwrap_err().code(), 404);
        assert_eq!(is_taken(&server), taken, "{name}");
    }
}

#[tokio::test]
async fn nothing_that_is_under_way_changes_the_allocations_of_a_state() {
    let server = with_addresses().await;
    let admin = User::server();
    for _ in 0..200 {
        let (gone, back) = tokio::join!(delete(&server, "a"), restore(&server, &admin, "with"));
        back.unwrap();
        // Deleted before, or after.
        let there = server.find_in("", "services", "default", "a").is_some();
        assert_eq!(is_taken(&server), there, "{gone:?}");
        restore(&server, &admin, "without").await.unwrap();
        let (made, back) = tokio::join!(create(&server, "b"), restore(&server, &admin, "with"));
        back.unwrap();
        let found = |name: &str| server.find_in("", "services", "default", name).is_some();
        assert!(found("a") && !found("b"), "one Service has an address: {made:?}");
        assert!(is_taken(&server));
    }
}

#[tokio::test]
async fn a_state_is_not_put_back_while_it_is_held() {
    let server = with_addresses().await;
    let admin = User::server();
    let held = server.hold_state().await;
    let mut asked = pin!(restore(&server, &admin, "without"));
    for _ in 0..20 {
        tokio::task::yield_now().await;
        let mut context = Context::from_waker(Waker::noop());
        assert!(matches!(asked.as_mut().poll(&mut context), Poll::Pending));
    }
    assert!(server.find_in("", "services", "default", "a").is_some());
    drop(held);
    asked.await.unwrap();
    assert!(server.find_in("", "services", "default", "a").is_none());
}
