//! Watching a server whose every answer is given by hand: resuming, starting over, and telling what
//! changed meanwhile.

use proto_api::core::v1::ConfigMap;
use proto_api::{Collection, ObjectKey};
use proto_daemon::drain::{Drain, DrainOutcome};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::*;
use crate::reflector::{Change, Reflector, Store};
use crate::testing::{ReceivedRequest, Server};

fn map(name: &str, version: u32) -> Value {
    let metadata = json!({"namespace": "a", "name": name, "resourceVersion": version.to_string()});
    json!({"kind": "ConfigMap", "apiVersion": "v1", "metadata": metadata})
}

fn list(version: u32, token: &str, items: &[Value]) -> Value {
    json!({"kind": "ConfigMapList", "apiVersion": "v1",
        "metadata": {"resourceVersion": version.to_string(), "continue": token}, "items": items})
}

struct Bench {
    server: Server,
    changes: mpsc::UnboundedReceiver<String>,
    store: Store<String>,
    drain: Drain,
}

impl Bench {
    async fn start() -> Self {
        Self::new(Server::plain().await, 1 << 20).await
    }

    /// With a client that reads responses of at most that many bytes.
    async fn new(server: Server, body_len_max: usize) -> Self {
        let client = server.client().with_body_len_max(body_len_max);
        let api = client.within::<ConfigMap>("a");
        let version = |map: ConfigMap| map.metadata.resource_version;
        let reflector = Reflector::projected(api, ListParams::labels("x=y"), version);
        let (store, drain) = (reflector.store(), Drain::default());
        let (tell, changes) = mpsc::unbounded_channel();
        tokio::spawn(reflector.run(drain.watch(), move |change| {
            let text = match change {
                Change::Applied { key, new, old: None } => format!("{}@{new} is new", key.name),
                Change::Applied { key, new, old: Some(old) } => {
                    format!("{}@{new} was {old}", key.name)
                }
                Change::Deleted { key, old } => format!("{}@{old} is gone", key.name),
                Change::Synced => "synced".to_owned(),
            };
            let _ = tell.send(text);
        }));
        Self { server, changes, store, drain }
    }

    /// The next request, whose query must hold each of `parts`.
    async fn asked(&mut self, parts: &[&str]) -> ReceivedRequest {
        let asked = self.server.asked().await;
        assert!(
            asked.line.starts_with("GET /api/v1/namespaces/a/configmaps?labelSelector=x%3Dy"),
            "{}",
            asked.line
        );
        for part in parts {
            assert!(asked.line.contains(part), "{part} in {}", asked.line);
        }
        asked
    }

    async fn told(&mut self, expected: &[&str]) {
        for expected in expected {
            let told = self.changes.recv().await.expect("reflector runs");
            assert_eq!(told, *expected);
        }
    }
}

#[tokio::test]
async fn lists_in_pages_then_watches_and_resumes_where_it_broke() {
    let mut bench = Bench::start().await;
    bench
        .asked(&["resourceVersion=0", "limit=500"])
        .await
        .reply(200, &list(5, "t", &[map("a", 1)]));
    assert!(!bench.store.is_synced());
    bench.asked(&["continue=t"]).await.reply(200, &list(5, "", &[map("b", 2)]));
    bench.told(&["a@1 is new", "b@2 is new", "synced"]).await;
    bench.store.synced().await;
    assert_eq!(bench.store.len(), 2);
    let followed = bench.store.followed();
    assert!(!*followed.borrow(), "listed only");

    let stream =
        bench.asked(&["watch=true&allowWatchBookmarks=true&resourceVersion=5&"]).await.stream();
    stream.event("MODIFIED", &map("a", 6));
    stream.event("DELETED", &map("b", 7));
    stream.event(
        "BOOKMARK",
        &json!({"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"resourceVersion": "9"}}),
    );
    bench.told(&["a@6 was 1", "b@2 is gone"]).await;
    assert!(*followed.borrow());
    drop(stream);
    let asked = bench.asked(&["&resourceVersion=9&"]).await;
    assert!(!*followed.borrow(), "until the next watch is open");
    let stream = asked.stream();
    stream.event("ADDED", &map("c", 10));
    bench.told(&["c@10 is new"]).await;
    assert!(*followed.borrow());
    stream.break_off();
    let stream = bench.asked(&["&resourceVersion=10&"]).await.stream();
    assert_eq!(
        bench.store.get(&ObjectKey::new("a", "c")).as_deref().map(String::as_str),
        Some("10")
    );

    assert_eq!(bench.drain.drain(Duration::from_secs(30)).await, DrainOutcome::Finished);
    stream.closed().await;
}

#[tokio::test]
async fn an_expired_version_is_listed_again_and_only_differences_are_reported() {
    let mut bench = Bench::start().await;
    bench
        .asked(&["resourceVersion=0"])
        .await
        .reply(200, &list(5, "", &[map("a", 1), map("b", 2), map("c", 3)]));
    bench.told(&["a@1 is new", "b@2 is new", "c@3 is new", "synced"]).await;
    // Once as an error instead of the watch, once as an event in it.
    bench.asked(&["watch=true"]).await.refuse(410, "Expired");
    let asked = bench.asked(&["limit=500"]).await;
    assert!(!asked.line.contains("resourceVersion"), "the most recent: {}", asked.line);
    asked.reply(200, &list(20, "", &[map("a", 1), map("c", 15), map("d", 16)]));
    bench.told(&["c@15 was 3", "d@16 is new", "b@2 is gone", "synced"]).await;

    let stream = bench.asked(&["watch=true", "&resourceVersion=20&"]).await.stream();
    stream.event(
        "ERROR",
        &json!({"kind": "Status", "apiVersion": "v1", "code": 410, "reason": "Expired"}),
    );
    bench.asked(&["limit=500"]).await.reply(200, &list(30, "", &[map("a", 1)]));
    bench.told(&["c@15 is gone", "d@16 is gone", "synced"]).await;
}

#[tokio::test]
async fn a_watch_survives_errors_of_the_server() {
    let mut bench = Bench::start().await;
    bench.asked(&["resourceVersion=0"]).await.refuse(403, "Forbidden");
    bench.asked(&["resourceVersion=0"]).await.reply_bytes(200, "application/json", b"{".to_vec());
    bench.asked(&["resourceVersion=0"]).await.reply(200, &list(5, "t", &[map("a", 1)]));
    bench.asked(&["continue=t"]).await.refuse(410, "Expired");
    let asked = bench.asked(&[]).await;
    assert!(!asked.line.contains("limit="), "at once: {}", asked.line);
    asked.reply(200, &list(6, "", &[map("a", 1)]));
    bench.told(&["a@1 is new", "synced"]).await;
    let stream = bench.asked(&["&resourceVersion=6&"]).await.stream();
    stream.event("MODIFIED", &json!({"kind": "Secret", "apiVersion": "v1", "metadata": {}}));
    bench.asked(&["&resourceVersion=6&"]).await.stream();
}

#[tokio::test]
async fn metadata_only_objects_are_requested_and_read() {
    let mut server = Server::plain().await;
    let collection = Collection {
        group: "example.org".to_owned(),
        version: "v1".to_owned(),
        plural: "things".to_owned(),
        namespace: None,
    };
    let api = server.client().metadata(collection);
    let reflector =
        Reflector::projected(api.clone(), ListParams::default(), |object| object.metadata.uid);
    let (store, drain) = (reflector.store(), Drain::default());
    tokio::spawn(reflector.run(drain.watch(), |_| {}));
    let accepts = |asked: &ReceivedRequest, form: &str| {
        let accept = asked.headers["accept"].to_str().expect("text");
        let ranges = accept
            .split(',')
            .all(|range| range.ends_with(&format!(";as={form};g=meta.k8s.io;v=v1")));
        assert!(ranges, "{accept}");
    };
    let partial = |name: &str| {
        let metadata = json!({"name": name, "uid": "u", "resourceVersion": "6"});
        json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": metadata})
    };
    let asked = server.asked().await;
    assert!(asked.line.starts_with("GET /apis/example.org/v1/things?"), "{}", asked.line);
    accepts(&asked, "PartialObjectMetadataList");
    asked.reply(200, &list(5, "", &[partial("a")]));
    store.synced().await;
    let asked = server.asked().await;
    accepts(&asked, "PartialObjectMetadata");
    asked.stream().event("ADDED", &partial("b"));
    let getting = tokio::spawn(async move { api.get("a").await });
    let asked = server.asked().await;
    accepts(&asked, "PartialObjectMetadata");
    asked.reply(200, &partial("a"));
    assert_eq!(getting.await.expect("ended").expect("read").metadata.name, "a");
}

#[tokio::test]
async fn a_page_that_is_longer_than_is_read_is_requested_in_smaller_ones() {
    let mut bench = Bench::new(Server::plain().await, 1_000).await;
    let long: Vec<Value> = (0..20).map(|n| map(&format!("m{n}"), 1)).collect();
    bench.asked(&["resourceVersion=0", "limit=500"]).await.reply(200, &list(5, "", &long));
    let smaller = bench.asked(&["limit=250"]).await;
    assert!(!smaller.line.contains("resourceVersion"), "{}", smaller.line);
    smaller.reply(200, &list(5, "t", &[map("a", 1)]));
    bench.asked(&["limit=250", "continue=t"]).await.reply(200, &list(5, "", &[map("b", 2)]));
    bench.told(&["a@1 is new", "b@2 is new", "synced"]).await;
}
