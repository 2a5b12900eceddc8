//! Which pods have tasks: static pods that are edited, pods that nobody wants, what events did not tell.

mod quarantine;

use std::time::Duration;

use agent_interfaces::PodCgroups as _;
use agent_interfaces::testing::{Api, FakeHost};
use agent_journal::Journal;
use agent_pod::spec::{ContainerConfig, SandboxConfig};
use agent_runtime::fake::FakeRuntime;
use agent_runtime::{ContainerRuntime as _, PodReader as _, SandboxRuntime as _};
use proto_daemon::ready::Readiness;

use super::*;
use crate::test_support::{TestContextParts, directory, pod_context};

/// Long enough for a machine that does other things.
const PATIENCE: Duration = Duration::from_secs(120);

struct Node {
    _dir: tempfile::TempDir,
    runtime: Arc<FakeRuntime>,
    api: Arc<Api>,
    host: Arc<FakeHost>,
    readiness: Readiness,
    say: mpsc::Sender<PodSourceEvent>,
    happen: mpsc::Sender<RuntimeEvent>,
    task: tokio::task::JoinHandle<()>,
}

impl Node {
    async fn start(runtime: FakeRuntime, sources: Vec<PodSource>) -> Self {
        Self::start_in(Arc::default(), runtime, sources).await
    }

    /// Starts where there is something already.
    async fn start_in(host: Arc<FakeHost>, runtime: FakeRuntime, sources: Vec<PodSource>) -> Self {
        Self::start_with(host, Arc::new(runtime), sources, |_| {}).await
    }

    /// Starts with other parts than usual.
    async fn start_with(
        host: Arc<FakeHost>,
        runtime: Arc<FakeRuntime>,
        sources: Vec<PodSource>,
        change: impl FnOnce(&mut PodContext),
    ) -> Self {
        let dir = directory();
        let (journal, records) =
            Journal::open(&dir.path().join("journal.redb"), "boot").expect("journal");
        runtime.add_image("image:1");
        let api = Arc::<Api>::default();
        let outside = TestContextParts {
            dir: dir.path(),
            runtime: runtime.clone(),
            reports: api.clone(),
            host: host.clone(),
            journal,
        };
        let mut shared = pod_context(outside);
        change(&mut shared);
        let shared = Arc::new(shared);
        let listed = runtime.list().await.expect("list");
        let found = FoundAtStart::new(listed, records, shared.leftover_uids());
        let readiness = Readiness::default();
        let unready = readiness.guard("sources");
        let pods = Pods::new(shared, StatusBoard::default(), found, sources, unready);
        let (say, said) = mpsc::channel(16);
        let (happen, happened) = mpsc::channel(16);
        let task = tokio::spawn(pods.run(said, happened));
        Self { _dir: dir, runtime, api, host, readiness, say, happen, task }
    }

    async fn say(&self, said: PodSourceEvent) {
        self.say.send(said).await.expect("pods");
    }

    /// Waits until the runtime has as many running containers of these pods as wanted.
    async fn runs(&self, what: &str, wanted: &[(&str, usize)]) {
        let mut last = Vec::new();
        for _ in 0..PATIENCE.as_millis() / 10 {
            let pods = self.runtime.list().await.expect("list");
            let count = |uid: &str| {
                let of = pods.iter().filter(|pod| pod.uid == uid).flat_map(|pod| &pod.containers);
                of.filter(|container| container.is_live()).count()
            };
            last = wanted.iter().map(|(uid, _)| (*uid, count(uid))).collect();
            if last == wanted {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("{what}: {last:?} and not {wanted:?}");
    }
}

fn pod(uid: &str, name: &str) -> Arc<Pod> {
    let mut pod = Pod::default();
    pod.metadata.name = name.into();
    pod.metadata.namespace = "ns".into();
    pod.metadata.uid = uid.into();
    pod.spec.dns_policy = "Default".into();
    pod.spec.containers =
        vec![Container { name: "c".into(), image: "image:1".into(), ..Container::default() }];
    Arc::new(pod)
}

fn sandbox_of(uid: &str) -> SandboxConfig {
    let (name, namespace) = ("p".into(), "ns".into());
    SandboxConfig { name, namespace, uid: uid.into(), ..SandboxConfig::default() }
}

#[tokio::test]
async fn an_edited_static_pod_begins_when_the_old_one_has_ended() {
    let (runtime, _happened) = FakeRuntime::new();
    let node = Node::start(runtime, vec![PodSource::Static]).await;
    assert!(!node.readiness.is_ready());
    node.say(PodSourceEvent::Wants(PodSource::Static, pod("old", "web-node"))).await;
    node.say(PodSourceEvent::Synced(PodSource::Static)).await;
    node.runs("the first", &[("old", 1)]).await;
    assert!(node.readiness.is_ready());
    // Both orders of saying it; nothing of the new one is made before the old one is gone.
    node.say(PodSourceEvent::Wants(PodSource::Static, pod("new", "web-node"))).await;
    node.say(PodSourceEvent::Dropped("old".into())).await;
    node.runs("the second", &[("old", 0), ("new", 1)]).await;
    let calls = node.runtime.changes();
    let position = |call: &str, nth: usize| {
        calls.iter().enumerate().filter(|(_, c)| c.call == call).nth(nth).map(|(at, _)| at)
    };
    assert!(position("RemovePodSandbox", 0) < position("RunPodSandbox", 1), "{calls:?}");

    // Dropped and wanted again with the same content before its end: another life, not the rest of the old one.
    node.say(PodSourceEvent::Dropped("new".into())).await;
    node.say(PodSourceEvent::Wants(PodSource::Static, pod("new", "web-node"))).await;
    for _ in 0..PATIENCE.as_millis() / 10 {
        if node.runtime.changes().iter().filter(|c| c.call == "RunPodSandbox").count() == 3 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    node.runs("the third", &[("new", 1)]).await;
}

#[tokio::test]
async fn pods_that_an_event_gap_hid_are_taken_down_once_all_sources_have_spoken() {
    let (runtime, _happened) = FakeRuntime::new();
    let node = Node::start(runtime, vec![PodSource::Api, PodSource::Static]).await;
    // Somebody's remains appear in the runtime behind the agent's back.
    node.runtime.run_sandbox(&sandbox_of("ghost")).await.expect("sandbox");
    node.happen.send(RuntimeEvent::Missed).await.expect("pods");
    node.say(PodSourceEvent::Wants(PodSource::Api, pod("wanted", "q"))).await;
    node.say(PodSourceEvent::Synced(PodSource::Api)).await;
    node.runs("the wanted one", &[("wanted", 1)]).await;
    let has = async |uid: &str| !node.runtime.pod(uid).await.expect("pod").sandboxes.is_empty();
    assert!(has("ghost").await, "removed before all sources have spoken");
    node.say(PodSourceEvent::Synced(PodSource::Static)).await;
    node.happen.send(RuntimeEvent::Missed).await.expect("pods");
    for _ in 0..PATIENCE.as_millis() / 10 {
        if !has("ghost").await {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(!has("ghost").await && has("wanted").await);
    assert!(!node.host.is_bare());
}

/// An edited manifest of which the agent before had begun the new pod already, and could not write down that the old one is gone.
fn both_found(dir: &tempfile::TempDir) -> Pods {
    let (runtime, _happened) = FakeRuntime::new();
    let shared = crate::test_support::plain_context(Arc::new(runtime), dir.path());
    let found = |uid: &str| PodOnNode {
        uid: uid.into(),
        namespace: "ns".into(),
        name: "web-node".into(),
        ..PodOnNode::default()
    };
    let record =
        Record { namespace: "ns".into(), name: "web-node".into(), memory: Default::default() };
    let found = FoundAtStart {
        pods: vec![found("new")],
        records: BTreeMap::from([("old".to_owned(), record)]),
    };
    let unready = Readiness::default().guard("sources");
    let mut pods =
        Pods::new(shared, StatusBoard::default(), found, vec![PodSource::Static], unready);
    pods.apply_source_event(PodSourceEvent::Wants(PodSource::Static, pod("new", "web-node")));
    pods.apply_source_event(PodSourceEvent::Synced(PodSource::Static));
    pods
}

fn presence(pods: &Pods) -> Vec<(&str, SourcePresence)> {
    pods.tasks.iter().map(|(uid, task)| (uid.as_str(), task.update.borrow().presence)).collect()
}

#[tokio::test]
async fn a_pod_that_runs_already_is_not_taken_down_while_it_waits_for_what_is_left_of_another() {
    let dir = tempfile::tempdir().expect("tempdir");
    let mut pods = both_found(&dir);
    assert_eq!(presence(&pods), [("old", SourcePresence::Dropped)]);
    pods.apply_relist(vec![]);
    assert_eq!(presence(&pods), [("old", SourcePresence::Dropped)]);
    pods.tasks.remove("old");
    pods.start_waiting();
    assert_eq!(presence(&pods), [("new", SourcePresence::Present)]);

    let dir = tempfile::tempdir().expect("tempdir");
    let mut pods = both_found(&dir);
    pods.apply_source_event(PodSourceEvent::Dropped("new".into()));
    assert_eq!(
        presence(&pods),
        [("new", SourcePresence::Dropped), ("old", SourcePresence::Dropped)]
    );
}

/// A uid as the API server gives.
const API_UID: &str = "8d9e2a1c-0b7f-4c55-9a51-3f2e6d7c8b90";
/// One of a static pod.
const STATIC_UID: &str = "0b7f4c559a513f2e6d7c8b908d9e2a1c";

#[tokio::test]
async fn a_pod_of_the_api_does_not_keep_a_static_pod_of_its_name_from_starting() {
    let dir = tempfile::tempdir().expect("tempdir");
    let (runtime, _happened) = FakeRuntime::new();
    let shared = crate::test_support::plain_context(Arc::new(runtime), dir.path());
    // An agent before this one ran it.
    let (namespace, name) = ("ns".into(), "web-node".into());
    let found = PodOnNode { uid: API_UID.into(), namespace, name, ..PodOnNode::default() };
    let found = FoundAtStart { pods: vec![found], ..FoundAtStart::default() };
    let unready = Readiness::default().guard("sources");
    let sources = vec![PodSource::Api, PodSource::Static];
    let mut pods = Pods::new(shared, StatusBoard::default(), found, sources, unready);
    let statically = || PodSourceEvent::Wants(PodSource::Static, pod(STATIC_UID, "web-node"));
    pods.apply_source_event(statically());
    pods.apply_source_event(PodSourceEvent::Synced(PodSource::Static));
    assert_eq!(presence(&pods), [(STATIC_UID, SourcePresence::Present)], "the API has its say");
    pods.apply_source_event(PodSourceEvent::Wants(PodSource::Api, pod(API_UID, "web-node")));
    pods.apply_source_event(PodSourceEvent::Synced(PodSource::Api));
    let both = [(STATIC_UID, SourcePresence::Present), (API_UID, SourcePresence::Present)];
    assert_eq!(presence(&pods), both);

    // The manifest is edited; the pod of the API is there for good.
    pods.apply_source_event(PodSourceEvent::Dropped(STATIC_UID.into()));
    pods.apply_source_event(PodSourceEvent::Wants(PodSource::Static, pod("new", "web-node")));
    assert!(pods.waiting.contains("new"), "for the static pod before it");
    pods.tasks.remove(STATIC_UID);
    pods.start_waiting();
    let both = [(API_UID, SourcePresence::Present), ("new", SourcePresence::Present)];
    assert_eq!(presence(&pods), both);
    // Nor does a pod of the API that ends.
    pods.apply_source_event(PodSourceEvent::Dropped("new".into()));
    pods.apply_source_event(PodSourceEvent::Dropped(API_UID.into()));
    pods.tasks.remove("new");
    pods.apply_source_event(statically());
    assert!(!pods.waiting.contains(STATIC_UID));
}

#[tokio::test]
async fn container_events_before_the_first_sync_reach_the_pod_worker() {
    let (runtime, mut happened) = FakeRuntime::new();
    runtime.add_image("image:1");
    let sandbox = runtime.run_sandbox(&sandbox_of("kept")).await.expect("sandbox");
    let (name, image) = ("c".into(), "image:1".into());
    let config = ContainerConfig { name, image, ..ContainerConfig::default() };
    let made = runtime.create_container(&sandbox.id, &config, &sandbox_of("kept")).await;
    let id = made.expect("container");
    runtime.start_container(&id).await.expect("start");
    let node = Node::start(runtime, vec![PodSource::Api]).await;
    // Found, not asked for yet, and it crashes.
    while happened.try_recv().is_ok() {}
    node.runtime.end(&id, 1);
    node.happen.send(happened.recv().await.expect("news")).await.expect("pods");
    // News and orders have queues of their own.
    while node.happen.capacity() < node.happen.max_capacity() {
        tokio::task::yield_now().await;
    }
    node.say(PodSourceEvent::Wants(PodSource::Api, pod("kept", "p"))).await;
    node.runs("the next instance", &[("kept", 1)]).await;
}

#[tokio::test]
async fn an_orphaned_pod_cgroup_is_removed_after_all_sources_are_synced() {
    let host = Arc::new(FakeHost::default());
    host.make_cgroup(&pod("gone", "p")).expect("cgroup");
    let (runtime, _happened) = FakeRuntime::new();
    let node = Node::start_in(host, runtime, vec![PodSource::Api]).await;
    assert!(!node.host.is_bare());
    node.say(PodSourceEvent::Synced(PodSource::Api)).await;
    for _ in 0..PATIENCE.as_millis() / 10 {
        if node.host.is_bare() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(node.host.is_bare());
}

#[tokio::test]
async fn new_pods_are_admitted_after_the_pods_of_the_journal_are_known() {
    let dir = tempfile::tempdir().expect("tempdir");
    let (runtime, _happened) = FakeRuntime::new();
    let shared = crate::test_support::plain_context(Arc::new(runtime), dir.path());
    let memory = PodRecord {
        admission: Some(agent_pod::record::Admission::Admitted),
        accepted_at: 1,
        ..PodRecord::default()
    };
    let record = Record { namespace: "ns".into(), name: "old".into(), memory };
    let found = FoundAtStart {
        records: BTreeMap::from([("old".to_owned(), record)]),
        ..FoundAtStart::default()
    };
    let unready = Readiness::default().guard("sources");
    let sources = vec![PodSource::Api];
    let mut pods = Pods::new(shared.clone(), StatusBoard::default(), found, sources, unready);
    pods.apply_source_event(PodSourceEvent::Wants(PodSource::Api, pod("new", "a")));
    pods.apply_source_event(PodSourceEvent::Wants(PodSource::Api, pod("dropped", "b")));
    pods.apply_source_event(PodSourceEvent::Wants(PodSource::Api, pod("old", "old")));
    pods.apply_source_event(PodSourceEvent::Dropped("dropped".into()));
    assert_eq!(presence(&pods), [("old", SourcePresence::Present)]);
    assert_eq!(shared.pods.node_and_load("new").1.pods, 1, "before its task has done anything");
    pods.apply_source_event(PodSourceEvent::Synced(PodSource::Api));
    assert_eq!(
        presence(&pods),
        [("new", SourcePresence::Present), ("old", SourcePresence::Present)]
    );
}

#[tokio::test]
async fn processors_are_not_given_away_before_all_sources_have_spoken() {
    let dir = tempfile::tempdir().expect("tempdir");
    let (runtime, _happened) = FakeRuntime::new();
    let (journal, records) =
        Journal::open(&dir.path().join("journal.redb"), "boot").expect("journal");
    let allocator = crate::tests::simulation::shares::allocator(journal.clone());
    let mut pinned = Pod::clone(&pod("pinned", "p"));
    for (name, amount) in [("cpu", "1"), ("memory", "1Gi")] {
        let resources = &mut pinned.spec.containers[0].resources;
        resources.limits.insert(name.into(), amount.parse().expect("quantity"));
    }
    allocator.admit(&pinned).await.expect("room");
    let outside = TestContextParts {
        dir: dir.path(),
        runtime: Arc::new(runtime),
        reports: Arc::new(Api::default()),
        host: Arc::default(),
        journal,
    };
    let mut shared = pod_context(outside);
    shared.environment.allocator = Some(allocator.clone());
    let found = FoundAtStart { pods: Vec::new(), records };
    let unready = Readiness::default().guard("sources");
    let sources = vec![PodSource::Api];
    let mut pods = Pods::new(Arc::new(shared), StatusBoard::default(), found, sources, unready);
    let has = || allocator.granted(&pinned, "c").cpus;
    pods.apply_relist(Vec::new());
    assert_eq!(has(), "1", "nobody has said that the pod is gone");
    pods.apply_source_event(PodSourceEvent::Synced(PodSource::Api));
    pods.apply_relist(Vec::new());
    assert_eq!(has(), "0-7", "nobody wants it: everybody may use them");
}
