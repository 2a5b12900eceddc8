//! Requests for objects of other API servers: which answers say that an object is deleted, and what a slow server holds up.

use std::sync::Mutex;

use proto_api::ObjectKey;
use proto_api::names::{Names, Profile};
use proto_client::testing::{StubRequest, StubServer, json_response};

use super::*;

const SERVICE: &str = "ns/birds:443";
const API_SERVICE: &str = "/apis/apiregistration.k8s.io/v1/apiservices/v1.e.com";

struct World {
    server: ApiServer,
    kinds: Arc<Kinds>,
    bird: Id,
    answers: Arc<Mutex<Vec<(String, u16, Value)>>>,
}

/// A server with one kind of another server. Paths without an answer are not found, without a name; those that end with `/slow` get none.
async fn start() -> World {
    let answers: Arc<Mutex<Vec<(String, u16, Value)>>> = Arc::default();
    let of = answers.clone();
    let stub = StubServer::start(move |request: &StubRequest| {
        if request.path.ends_with("/slow") {
            return None;
        }
        let answers = of.lock().unwrap();
        let found = answers.iter().find(|(path, ..)| *path == request.path);
        let none = json!({"kind": "Status", "code": 404, "reason": "NotFound"});
        Some(found.map_or_else(
            || json_response(404, &none),
            |(_, code, body)| json_response(*code, body),
        ))
    });
    let client = stub.await.client();
    let kinds = Arc::new(Kinds::new(Names::new(Profile::Kubernetes)));
    let (versions, service) = (vec!["v1".to_owned()], SERVICE.to_owned());
    let kind = kinds.add(CollectedKind {
        group: "e.com".to_owned(),
        version: "v1".into(),
        plural: "birds".into(),
        kind: "Bird".into(),
        namespaced: true,
        source: KindSource::OtherServer { versions, service },
    });
    let bird = Id { kind, key: ObjectKey::new("default", "wren") };
    World { server: ApiServer::new(client, kinds.clone()), kinds, bird, answers }
}

fn bird_path(name: &str) -> String {
    format!("/apis/e.com/v1/namespaces/default/birds/{name}")
}

fn not_found(name: &str) -> Value {
    json!({"kind": "Status", "code": 404, "reason": "NotFound", "details": {"name": name, "kind": "birds"}})
}

fn api_service(name: &str, available: &str) -> Value {
    json!({
        "spec": {"group": "e.com", "version": "v1", "service": {"namespace": "ns", "name": name}},
        "status": {"conditions": [{"type": "Available", "status": available}]},
    })
}

#[tokio::test]
async fn only_the_known_server_says_that_an_object_is_deleted() {
    let World { server, bird, answers, .. } = start().await;
    let of_bird = |body: Value| (bird_path("wren"), 404, body);
    let of_service = |body: Value| (API_SERVICE.to_owned(), 200, body);
    let same = of_service(api_service("birds", "True"));
    let unknown = [
        ("the path is not served", vec![same.clone()]),
        ("another name", vec![of_bird(not_found("robin")), same.clone()]),
        ("its APIService is gone", vec![of_bird(not_found("wren"))]),
        (
            "another server",
            vec![of_bird(not_found("wren")), of_service(api_service("nests", "True"))],
        ),
        ("it is away", vec![of_bird(not_found("wren")), of_service(api_service("birds", "False"))]),
    ];
    for (why, all) in unknown {
        *answers.lock().unwrap() = all;
        assert!(server.find(&bird).await.is_err(), "{why}");
    }
    *answers.lock().unwrap() = vec![of_bird(not_found("wren")), same];
    assert!(server.find(&bird).await.unwrap().is_none());
}

#[tokio::test]
async fn a_definition_in_whose_place_another_server_is_says_nothing_of_its_objects() {
    let World { server, kinds, bird, answers } = start().await;
    let known = kinds.get(bird.kind).unwrap();
    let source = KindSource::Definition { versions: vec!["v1".to_owned()] };
    kinds.update(bird.kind, CollectedKind { source, ..(*known).clone() });
    let of_bird = (bird_path("wren"), 404, not_found("wren"));
    let local = json!({"spec": {"group": "e.com", "version": "v1"}});
    *answers.lock().unwrap() =
        vec![of_bird.clone(), (API_SERVICE.to_owned(), 200, api_service("birds", "True"))];
    assert!(server.find(&bird).await.is_err(), "another server");
    *answers.lock().unwrap() = vec![of_bird.clone(), (API_SERVICE.to_owned(), 200, local)];
    assert!(server.find(&bird).await.unwrap().is_none());
    *answers.lock().unwrap() = vec![of_bird];
    assert!(server.find(&bird).await.unwrap().is_none(), "no APIService of it");
}

#[tokio::test]
async fn a_slow_server_holds_up_only_requests_to_other_servers() {
    let World { server, kinds, bird, answers } = start().await;
    let slow = Id { key: ObjectKey::new("default", "slow"), ..bird.clone() };
    let pod = Id { kind: kinds.find("v1", "Pod").unwrap(), key: ObjectKey::new("default", "p") };
    let found = json!({"metadata": {"name": "p", "namespace": "default"}});
    *answers.lock().unwrap() = vec![("/api/v1/namespaces/default/pods/p".to_owned(), 200, found)];
    let server = &server;
    let find = |id: Id| async move { server.find(&id).await.map(|found| found.is_some()) };
    let mut asked = Vec::new();
    for _ in 0..TO_ONE_MAX {
        asked.push(find(slow.clone()));
    }
    let slow_ones = futures_util::future::join_all(asked);
    let others = async {
        // After the slow ones have been sent.
        tokio::task::yield_now().await;
        (find(bird).await, find(pod).await)
    };
    let (slow_ones, (busy, pod)) = tokio::join!(slow_ones, others);
    assert!(matches!(busy, Err(ObjectRequestError::Busy(_))), "{busy:?}");
    assert!(pod.unwrap(), "this server's objects do not wait");
    for answer in slow_ones {
        assert!(matches!(answer, Err(ObjectRequestError::NoAnswer(_))), "{answer:?}");
    }
}
