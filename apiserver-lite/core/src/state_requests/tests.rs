//! Saving and putting back, and what must not come in between.

use std::net::IpAddr;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use apiserver_schema::{Format, Object, Strictness};
use apiserver_store::{Write, WriteCondition};
use proto_api::names::{Names, Profile};

use super::*;
use crate::internal_requests::{agent, call, request};
use crate::key;
use crate::options::{DeleteOptions, Effects};
use crate::record::{Draft, StoredObject};
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
    put_object(server, decoded.unwrap().object).await;
}

async fn put_object(server: &Server, object: Object) {
    let key = key::object(&object.kind, object.namespace(), object.name());
    let draft = Draft::new(&server.engine, object);
    server.store.write(Write::Put { key, expect: WriteCondition::Anything, draft }).await.unwrap();
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
async fn a_restore_is_completed_although_its_client_disconnects() {
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

/// Writes of this many objects.
fn maps(server: &Server, count: usize) -> Vec<Write<StoredObject>> {
    let kind = server.kind("", "configmaps").unwrap();
    let mut object = Object::new(kind.clone());
    object.set_meta_str("namespace", "busy");
    let write = |nth: usize| {
        let name = nth.to_string();
        object.set_meta_str("name", &name);
        Write::create(key::object(kind, "busy", &name), Draft::new(&server.engine, object.clone()))
    };
    (0..count).map(write).collect()
}

/// Begins `work`, which waits for its first write once that is `written`, and puts the state `with` back meanwhile, if it can be.
async fn interrupted<T>(
    server: &Arc<Server>,
    work: impl Future<Output = T>,
    written: impl Fn() -> bool,
) -> T {
    let admin = User::server();
    let (mut work, mut restored) = (pin!(work), pin!(restore(server, &admin, "with")));
    let mut context = Context::from_waker(Waker::noop());
    // The writer is not done with these when its next request comes, unless this thread is kept waiting: then nothing is under way.
    let mut busy = pin!(server.store.write_all(maps(server, 2000)));
    let _writes = busy.as_mut().poll(&mut context);
    if let Poll::Ready(done) = work.as_mut().poll(&mut context) {
        restored.await.unwrap();
        return done;
    }
    for _ in 0..5000 {
        if written() {
            break;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(written());
    for _ in 0..50 {
        if let Poll::Ready(done) = restored.as_mut().poll(&mut context) {
            done.unwrap();
            return work.await;
        }
        tokio::task::yield_now().await;
        std::thread::sleep(Duration::from_millis(1));
    }
    let (done, restored) = tokio::join!(work, restored);
    restored.unwrap();
    done
}

#[tokio::test]
async fn a_deletion_that_is_under_way_releases_nothing_of_a_state() {
    let server = with_addresses().await;
    let found = || server.find_in("", "services", "default", "a").is_some();
    let gone = interrupted(&server, delete(&server, "a"), || !found()).await;
    assert!(gone.is_ok() && found() && is_taken(&server), "{gone:?}");
    assert!(create(&server, "b").await.is_err(), "one Service has an address");
}

#[tokio::test]
async fn a_definition_that_goes_takes_nothing_of_a_state_with_it() {
    let (server, admin) = (server(true), User::server());
    put(&server, THINGS).await;
    let kind = server.resource("example.com", "v1", "things").unwrap();
    for name in ["a", "b", "c"] {
        let mut thing = Object::new(kind.clone());
        thing.set_meta_str("name", name);
        put_object(&server, thing).await;
    }
    save(&server, &admin, "with").await.unwrap();
    let going = r#""generation":1,"deletionTimestamp":"2026-01-02T03:04:05Z",
        "deletionGracePeriodSeconds":0,"finalizers":["customresourcecleanup.apiextensions.k8s.io"]"#;
    put(&server, &THINGS.replace(r#""generation":1"#, going)).await;
    // It gets its names, says that it goes, and deletes then.
    for _ in 0..2 {
        definition_lifecycle::update_definitions(&server).await.unwrap();
    }
    let count = || server.objects(&kind, "", None).len();
    assert_eq!(count(), 3);
    interrupted(&server, definition_lifecycle::update_definitions(&server), || count() < 3)
        .await
        .unwrap();
    assert_eq!(count(), 3);
}

#[tokio::test]
async fn a_restore_waits_until_the_state_is_released() {
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
