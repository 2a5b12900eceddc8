//! Cycles of a scheduler with reservations, at a server whose caches do not change.

use std::sync::Mutex;

use apiserver_scheduling::examples::{names, pod, profile};
use proto_api::Resource;
use proto_client::events::recorder;
use proto_client::testing::{StubRequest, StubServer, json_response};
use proto_client::{ListParams, Reflector};
use proto_daemon::drain::Drain;
use proto_daemon::metrics::Metrics;
use proto_daemon::statusz::StatusBoard;
use serde_json::{Value, json};

use super::super::*;
use crate::backoff_queue::RETRY;

/// The collections that are not empty or not of the core group: path, API version and kind.
const CACHED: [(&str, &str, &str); 14] = [
    ("/api/v1/pods", "v1", "PodList"),
    ("/api/v1/nodes", "v1", "NodeList"),
    ("/api/v1/namespaces", "v1", "NamespaceList"),
    ("/apis/policy/v1/poddisruptionbudgets", "policy/v1", "PodDisruptionBudgetList"),
    ("/api/v1/services", "v1", "ServiceList"),
    ("/api/v1/replicationcontrollers", "v1", "ReplicationControllerList"),
    ("/apis/apps/v1/replicasets", "apps/v1", "ReplicaSetList"),
    ("/apis/apps/v1/statefulsets", "apps/v1", "StatefulSetList"),
    ("/api/v1/persistentvolumeclaims", "v1", "PersistentVolumeClaimList"),
    ("/api/v1/persistentvolumes", "v1", "PersistentVolumeList"),
    ("/apis/storage.k8s.io/v1/storageclasses", "storage.k8s.io/v1", "StorageClassList"),
    ("/apis/storage.k8s.io/v1/csidrivers", "storage.k8s.io/v1", "CSIDriverList"),
    ("/apis/storage.k8s.io/v1/csistoragecapacities", "storage.k8s.io/v1", "CSIStorageCapacityList"),
    ("/apis/storage.k8s.io/v1/csinodes", "storage.k8s.io/v1", "CSINodeList"),
];

/// A pending pod with the uid of the example of this name, which requests 3 CPUs of the 4 of the node.
fn pending(name: &str, created: &str) -> Value {
    let container = json!({"name": "c", "resources": {"requests": {"cpu": "3"}}});
    json!({
        "metadata": {"name": name, "namespace": "ns", "uid": format!("uid-{name}"),
            "resourceVersion": "1", "creationTimestamp": created},
        "spec": {"schedulerName": "default-scheduler", "containers": [container]},
    })
}

/// A server with the node `n0` and these pods. Notes the bindings.
async fn start(pods: Vec<Value>, bindings: Arc<Mutex<Vec<String>>>) -> Client {
    let allocatable = json!({"cpu": "4", "memory": "8Gi", "pods": "110"});
    let node = json!({"metadata": {"name": "n0", "uid": "n0", "resourceVersion": "1"},
        "status": {"allocatable": allocatable}});
    let answer = move |request: &StubRequest| {
        let found = CACHED.iter().find(|(path, ..)| *path == request.path);
        if let Some((path, version, kind)) = found.filter(|_| request.method == "GET") {
            let items = match *path {
                "/api/v1/pods" => pods.clone(),
                "/api/v1/nodes" => vec![node.clone()],
                _ => Vec::new(),
            };
            let list = json!({"kind": kind, "apiVersion": version,
                "metadata": {"resourceVersion": "9"}, "items": items});
            let is_watch = request.query.contains("watch=true");
            return (!is_watch).then(|| json_response(200, &list));
        }
        if request.path.ends_with("/binding") {
            let path: Vec<&str> = request.path.split('/').collect();
            bindings.lock().unwrap().push(path[path.len() - 2].to_owned());
        }
        Some(json_response(
            201,
            &json!({"kind": "Status", "apiVersion": "v1", "status": "Success"}),
        ))
    };
    StubServer::start(answer).await.client()
}

async fn fill<T, U>(client: &Client, drain: &Drain, project: fn(T) -> U) -> Store<U>
where
    T: Resource,
    U: Send + Sync + 'static,
{
    let reflector = Reflector::projected(client.all::<T>(), ListParams::default(), project);
    let store = reflector.store();
    tokio::spawn(reflector.run(drain.watch(), |_| ()));
    store.synced().await;
    store
}

async fn scheduler(client: Client) -> Scheduler {
    let drain = Drain::default();
    let (selectors, _) = SelectorInformers::start(&client, None, &drain.watch());
    let (storage, _) =
        StorageInformers::start(&client, &CycleTrigger::default(), &drain.watch(), None);
    let caches = ClusterCaches {
        pods: fill(&client, &drain, |pod| PodInfo::from_pod(names(), &pod)).await,
        nodes: fill(&client, &drain, |node| NodeInfo::from_node(names(), &node)).await,
        namespaces: fill(&client, &drain, |namespace: proto_api::core::v1::Namespace| {
            namespace.metadata.labels
        })
        .await,
        budgets: fill(&client, &drain, |budget| DisruptionBudget::from_budget(&budget)).await,
        selectors,
    };
    caches.synced().await;
    storage.synced().await;
    let (events, _writer) = recorder(client.clone(), "default-scheduler", "");
    let in_use = ProfileInUse { profile: Arc::new(profile()), events };
    let extenders = Extenders::new(client.clone(), Vec::new(), "test").expect("none");
    let metrics = Metrics::new("test", proto_daemon::build_info!()).expect("metrics");
    let counters = SchedulerMetrics::new(&metrics).expect("metrics");
    let reports = SchedulerReports { counters, status: StatusBoard::default().task("schedule") };
    Scheduler::new(client, vec![in_use], extenders, RETRY, caches, storage, reports)
}

/// The pods that are bound in a cycle, and in how many seconds the next one is due. Pods are pending, or reserved besides, each for a node.
fn cycle(shown: &[&str], reserved: &[(&str, &str)], failed: &[&str]) -> (Vec<String>, Option<u64>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(async {
        let bindings = Arc::new(Mutex::new(Vec::new()));
        let created = |nth: usize| format!("2020-01-01T00:00:{nth:02}Z");
        let shown = shown.iter().enumerate().map(|(nth, name)| pending(name, &created(nth)));
        let mut scheduler = scheduler(start(shown.collect(), bindings.clone()).await).await;
        for (name, node) in reserved {
            let pod = Arc::new(PodInfo { node: (*node).into(), ..pod(name, 3000, 0) });
            scheduler.reserved.reserve(pod, BTreeMap::new(), Instant::now());
        }
        for name in failed {
            let pod = pod(name, 3000, 0);
            let now = Instant::now();
            scheduler.backoff.note_failure(&pod.key, &pod.uid, Failure::Unschedulable, now);
        }
        let next = scheduler.run_cycle().await;
        let next = next.map(|at| at.saturating_duration_since(Instant::now()).as_secs());
        let bound = bindings.lock().unwrap().clone();
        (bound, next)
    })
}

#[test]
fn a_pod_does_not_take_the_node_that_is_reserved_for_another() {
    // The node of the older one does not exist any more.
    let (bound, _) = cycle(&["a", "b"], &[("a", "gone"), ("b", "n0")], &[]);
    assert_eq!(bound, ["b"]);
    let (bound, _) = cycle(&["a", "b"], &[("a", "gone")], &[]);
    assert_eq!(bound, ["a"]);
}

#[test]
fn the_end_of_a_reservation_helps_other_pods() {
    // Without a change the next cycle is that of the pod which has failed before: in 300 s less what this has taken.
    let (bound, next) = cycle(&["a"], &[], &["a"]);
    assert!(bound.is_empty() && next.is_some_and(|secs| (290..300).contains(&secs)), "{next:?}");
    // The pod of the reservation was deleted: what waits is looked at again at once.
    let (bound, next) = cycle(&["a"], &[("x", "n0")], &["a"]);
    assert_eq!((bound.len(), next), (0, Some(0)));
    // It fits nowhere any more: the others are looked at again at once.
    let (bound, next) = cycle(&["a", "b", "c"], &[("a", "gone"), ("b", "n0")], &["c"]);
    assert_eq!((bound, next), (vec!["b".to_owned()], Some(0)));
}
