use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use futures_util::FutureExt as _;
use proto_api::names::{Names, Profile};
use proto_client::testing::{StubRequest, StubServer, json_response};
use proto_daemon::drain::Drain;
use proto_daemon::work_queue::{WorkQueue, WorkQueueMetrics};
use serde_json::json;

use super::*;
use crate::index::Index;
use crate::process::OwnershipCaches as _;

fn service(group: &str, version: &str, priority: i32, available: bool) -> Value {
    let status = if available { "True" } else { "False" };
    json!({
        "spec": {"group": group, "version": version, "versionPriority": priority,
            "service": {"name": "s", "namespace": "n"}},
        "status": {"conditions": [{"type": "Available", "status": status}]},
    })
}

fn resource(name: &str, verbs: &[&str]) -> Value {
    json!({"name": name, "kind": name, "namespaced": true, "verbs": verbs})
}

/// What the API server answers, by path. Other paths are refused, those that end with `/strays` with 404 and the others with 503. It never answers a
/// request below `/apis/slow`.
type Answers = Arc<Mutex<Vec<(&'static str, Value)>>>;

/// How often a list of strays was asked for.
static STRAYS: AtomicUsize = AtomicUsize::new(0);

async fn start() -> (Watches, Arc<Kinds>, Answers) {
    let answers = Answers::default();
    let of = answers.clone();
    let server = StubServer::start(move |request: &StubRequest| {
        if request.path.starts_with("/apis/slow") {
            return None;
        }
        let is_stray = request.path.ends_with("/strays");
        STRAYS.fetch_add(usize::from(is_stray), Ordering::Relaxed);
        let refused = if is_stray { 404 } else { 503 };
        let answers = of.lock().unwrap();
        let answer = answers.iter().find(|(path, _)| *path == request.path);
        let refusal = json!({"kind": "Status", "code": refused});
        let (code, body) = answer.map_or((refused, &refusal), |(_, body)| (200, body));
        Some(json_response(code, body))
    });
    let client = server.await.client();
    let kinds = Arc::new(Kinds::new(Names::new(Profile::Kubernetes)));
    let queue = WorkQueue::new(WorkQueueMetrics::new().expect("metrics"), |_| "test");
    let index = Arc::new(Mutex::new(Index::default()));
    let taker = Arc::new(KindChangeHandler { index, queue });
    let drain = Drain::default().watch();
    (Watches::new(client, kinds.clone(), taker, drain), kinds, answers)
}

fn others(kinds: &Kinds) -> Vec<String> {
    let others = kinds.iter().filter(|(_, kind)| kind.is_of_other_server());
    let named = others.map(|(_, kind)| format!("{}/{}/{}", kind.group, kind.version, kind.plural));
    let mut named: Vec<String> = named.collect();
    named.sort();
    named
}

const SERVICES: &str = "/apis/apiregistration.k8s.io/v1/apiservices";
const ALL: &[&str] = &["get", "list", "watch", "patch", "delete"];

#[tokio::test]
async fn kinds_of_other_servers_come_and_go() {
    let (mut watches, kinds, answers) = start().await;
    let set = |all: Vec<(&'static str, Value)>| *answers.lock().unwrap() = all;
    assert_eq!(watches.follow_other_servers().await, Some(INTERVAL), "no list");
    set(vec![(SERVICES, json!({"items": []}))]);
    assert_eq!(watches.follow_other_servers().await, None, "no other server");
    let services = json!({"items": [
        service("e.com", "v1", 20, true), service("e.com", "v1beta1", 10, true),
        service("broken.com", "v1", 10, true), service("down.com", "v1", 10, false)]});
    let v1 = json!({"resources": [resource("birds", ALL), resource("reads", &["get", "list"])]});
    let beta = json!({"resources": [resource("birds", ALL), resource("nests", ALL)]});
    let all = vec![
        (SERVICES, services.clone()),
        ("/apis/e.com/v1", v1.clone()),
        ("/apis/e.com/v1beta1", beta.clone()),
        ("/apis/down.com/v1", v1.clone()),
    ];
    set(all.clone());
    assert_eq!(watches.follow_other_servers().await, Some(INTERVAL));
    let both = ["e.com/v1/birds", "e.com/v1beta1/nests"];
    assert_eq!(others(&kinds), both, "each in its preferred version");
    // A version that cannot be read keeps its kinds, and another one does not take its place.
    set(vec![(SERVICES, services.clone()), ("/apis/e.com/v1beta1", beta)]);
    watches.follow_other_servers().await;
    assert_eq!(others(&kinds), both);
    set(Vec::new());
    watches.follow_other_servers().await;
    assert_eq!(others(&kinds), both, "nothing is known");
    // The next one can be read by now, and the first has lost a kind.
    let more = ("/apis/broken.com/v1", json!({"resources": [resource("stones", ALL)]}));
    let less = ("/apis/e.com/v1beta1", json!({"resources": []}));
    set(vec![(SERVICES, services), ("/apis/e.com/v1", v1), less, more]);
    watches.follow_other_servers().await;
    assert_eq!(others(&kinds), ["broken.com/v1/stones", "e.com/v1/birds"]);
    set(vec![(SERVICES, json!({"items": []}))]);
    watches.follow_other_servers().await;
    assert_eq!(others(&kinds), [""; 0]);
}

#[tokio::test]
async fn a_server_that_does_not_answer_holds_up_no_other() {
    let (mut watches, kinds, answers) = start().await;
    *answers.lock().unwrap() = vec![
        (
            SERVICES,
            json!({"items": [service("slow.com", "v1", 10, true), service("e.com", "v1", 10, true)]}),
        ),
        ("/apis/e.com/v1", json!({"resources": [resource("birds", ALL)]})),
    ];
    assert_eq!(watches.follow_other_servers().await, Some(INTERVAL));
    assert_eq!(others(&kinds), ["e.com/v1/birds"]);
}

#[tokio::test]
async fn a_kind_of_this_server_goes_before_those_of_others() {
    let (mut watches, kinds, answers) = start().await;
    let listed = json!({"resources": [resource("deployments", ALL), resource("birds", ALL)]});
    *answers.lock().unwrap() = vec![
        (SERVICES, json!({"items": [service("apps", "v9", 10, true)]})),
        ("/apis/apps/v9", listed),
    ];
    watches.follow_other_servers().await;
    assert_eq!(others(&kinds), ["apps/v9/birds"]);
}

#[tokio::test]
async fn a_kind_that_was_not_found_is_asked_for_again() {
    let (mut watches, _, answers) = start().await;
    *answers.lock().unwrap() = vec![
        (SERVICES, json!({"items": [service("e.com", "v1", 10, true)]})),
        ("/apis/e.com/v1", json!({"resources": [resource("strays", ALL)]})),
    ];
    while STRAYS.load(Ordering::Relaxed) < 2 {
        watches.follow_other_servers().await;
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_reference_is_to_the_server_of_its_version() {
    let (mut watches, kinds, answers) = start().await;
    let mut elsewhere = service("e.com", "v2alpha1", 5, true);
    elsewhere["spec"]["service"]["name"] = json!("another");
    let services = [
        service("e.com", "v1", 20, true),
        service("e.com", "v1beta1", 10, true),
        elsewhere,
        service("down.com", "v1", 10, false),
    ];
    let birds = json!({"resources": [resource("birds", ALL)]});
    *answers.lock().unwrap() = vec![
        (SERVICES, json!({"items": services})),
        ("/apis/e.com/v1", birds.clone()),
        ("/apis/e.com/v1beta1", birds.clone()),
        ("/apis/e.com/v2alpha1", birds),
    ];
    watches.follow_other_servers().await;
    let found = |version: &str| kinds.find(version, "birds");
    assert!(found("e.com/v1").is_some());
    assert_eq!(found("e.com/v1beta1"), found("e.com/v1"), "one server has both");
    assert_eq!(found("e.com/v2alpha1"), None, "another server has other objects");
    assert_eq!((found("e.com/v3"), found("down.com/v1")), (None, None));
}

#[tokio::test]
async fn a_group_of_definitions_and_another_server_mixes_no_objects() {
    let (mut watches, kinds, answers) = start().await;
    let defined = json!({"items": [{
        "spec": {"group": "e.com", "scope": "Namespaced", "names": {"plural": "birds", "kind": "birds"},
            "versions": [{"name": "v1", "served": true, "storage": true}]},
        "status": {"conditions": [{"type": "Established", "status": "True"}]},
    }]});
    *answers.lock().unwrap() = vec![
        (SERVICES, json!({"items": [service("e.com", "v2", 10, true)]})),
        ("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", defined),
        ("/apis/e.com/v2", json!({"resources": [resource("birds", ALL)]})),
    ];
    watches.follow_definitions(None).await;
    watches.follow_other_servers().await;
    assert!(kinds.find("e.com/v1", "birds").is_some());
    assert_eq!(
        kinds.find("e.com/v2", "birds"),
        None,
        "its objects are not those of the definition"
    );
}

#[tokio::test(start_paused = true)]
async fn owners_wait_for_available_servers_for_a_time() {
    let caches = InformerCaches::default();
    caches.await_other_servers();
    assert!(caches.are_incomplete(), "no APIServices were read");
    caches.note_unread([]);
    assert!(!caches.are_incomplete());
    let unread = || ["/apis/e.com/v1".to_owned()];
    caches.note_unread(unread());
    tokio::time::advance(Duration::from_secs(29)).await;
    caches.note_unread(unread());
    assert!(caches.are_incomplete());
    tokio::time::advance(Duration::from_secs(1)).await;
    assert!(!caches.are_incomplete(), "it may never answer");
    let known = Kinds::new(Names::new(Profile::Kubernetes)).iter().next().unwrap().0;
    let (watches, _, _) = start().await;
    let api = watches.client.metadata(watches.kinds.collection(known, None).unwrap());
    let reflector = Reflector::projected(api, ListParams::default(), Ownership::from_object);
    let unlisted = caches.insert(known, reflector.store());
    assert!(caches.are_incomplete());
    drop(unlisted);
    assert!(!caches.are_incomplete());
}

#[tokio::test]
async fn memory_of_other_servers_is_counted_and_bounded() {
    let held = HeldBytes::default();
    let owned = |count: usize| Ownership {
        uid: "u".into(),
        owners: vec![proto_api::meta::v1::OwnerReference::default(); count].into(),
        stage: crate::index::DeletionStage::Alive,
    };
    let (birds, nests) = (held.of_kind(), held.of_kind());
    let old = birds.hold(owned(1));
    birds.hold(owned(2));
    birds.release(Some(&old));
    let size = birds.all.bytes.load(Ordering::Relaxed);
    assert_eq!(size, len(&owned(2)));
    nests.hold(owned(3));
    drop(birds);
    assert_eq!(held.all.bytes.load(Ordering::Relaxed), len(&owned(3)));
    let small = held.of_kind();
    let of_both = held.all.bytes.swap(HELD_MAX, Ordering::Relaxed);
    small.hold(owned(1));
    let ended = nests.too_many().now_or_never().expect("the largest kind ends");
    assert!(ended > len(&owned(1)));
    held.all.bytes.store(of_both + len(&owned(1)), Ordering::Relaxed);
}

#[tokio::test]
async fn a_version_that_cannot_be_read_holds_up_no_other_of_its_group() {
    let (mut watches, kinds, answers) = start().await;
    let moved = |name: &str| {
        let mut v1 = service("e.com", "v1", 20, true);
        v1["spec"]["service"]["name"] = json!(name);
        json!({"items": [v1, service("e.com", "v1alpha1", 10, true)]})
    };
    let both = json!({"resources": [resource("birds", ALL), resource("nests", ALL)]});
    let set = |name: &str, list: &Value| {
        *answers.lock().unwrap() = vec![(SERVICES, moved(name)), ("/apis/e.com/v1", list.clone())];
    };
    set("s", &both);
    watches.follow_other_servers().await;
    assert_eq!(others(&kinds), ["e.com/v1/birds", "e.com/v1/nests"]);
    let before = kinds.find("e.com/v1", "birds");
    set("t", &json!({"resources": [resource("birds", ALL)]}));
    watches.follow_other_servers().await;
    assert_eq!(others(&kinds), ["e.com/v1/birds"], "v1 says so");
    assert_ne!(kinds.find("e.com/v1", "birds"), before, "those of another server");
}

#[test]
fn kinds_and_versions_of_other_servers_are_bounded() {
    let list = json!({"items": [service("e.com", "v1", 20, true)]});
    let version = versions(&list).remove(0);
    let named = |nth: usize| resource(&format!("birds{nth}"), ALL);
    let many: Vec<Value> = (0..KINDS_MAX + 7).map(named).collect();
    let mut found = OtherKinds::default();
    found.add(&version, Some(&json!({"resources": many})));
    assert_eq!((found.served.len(), found.left_out), (KINDS_MAX, 7));
    let mut found = OtherKinds::default();
    found.add(&version, Some(&json!({"resources": vec![named(0); 1_000]})));
    let KindSource::OtherServer { versions, .. } = &found.served[0].source else { panic!() };
    assert_eq!((found.served.len(), versions.len()), (1, 1));
}
