//! Pods whose handling panics or ends the agent.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use agent_interfaces::objects::{NoObjects, ObjectCache, Subscription};
use agent_interfaces::{
    AttachedVolumes, BindError, MountedVolumes, PodObjects, PodVolumes, UnmountError, VolumeError,
    VolumeUsage, WantedPart,
};
use agent_journal::active_pods::ActivePods;
use agent_journal::last_run::LastEnd;
use agent_pod::env::{EnvObjects as _, ServiceEnv};
use proto_api::Time;
use proto_api::core::v1::{EnvVar, PodStatus};
use tokio::sync::Notify;

use super::*;
use futures_util::future::BoxFuture;

/// Where the handling of a pod with an environment panics.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Where {
    /// When its task is made.
    Begin,
    /// While it is planned.
    Turn,
    /// In an operation that the plan asked for.
    Operation,
}

struct Poison {
    at: Where,
    on: Arc<AtomicBool>,
    host: Arc<FakeHost>,
}

impl Poison {
    fn act(&self, at: Where, has_env: bool) {
        assert!(!(self.at == at && has_env && self.on.load(Ordering::SeqCst)), "on purpose");
    }
}

fn has_env(pod: &Pod) -> bool {
    pod.spec.containers.iter().any(|c| !c.env.is_empty())
}

impl ObjectCache for Poison {
    fn subscribe(&self, pod: &Pod, poke: Arc<Notify>) -> Box<dyn Subscription> {
        self.act(Where::Begin, has_env(pod));
        let inner = NoObjects.subscribe(pod, poke);
        Box::new(Looked {
            inner,
            has_env: has_env(pod),
            poison: Self { at: self.at, on: self.on.clone(), host: self.host.clone() },
        })
    }
}

struct Looked {
    inner: Box<dyn Subscription>,
    has_env: bool,
    poison: Poison,
}

impl Subscription for Looked {
    fn objects(&self) -> PodObjects {
        self.inner.objects()
    }

    fn services(&self, pod: &Pod) -> Vec<ServiceEnv> {
        self.inner.services(pod)
    }

    fn is_complete(&self) -> bool {
        self.poison.act(Where::Turn, self.has_env);
        self.inner.is_complete()
    }
}

impl AttachedVolumes for Poison {}

impl VolumeUsage for Poison {}

impl PodVolumes for Poison {
    fn set_up<'a>(
        &'a self,
        pod: &'a Arc<Pod>,
        sources: &'a PodObjects,
    ) -> BoxFuture<'a, Result<MountedVolumes, VolumeError>> {
        Box::pin(async move {
            self.act(Where::Operation, has_env(pod));
            assert!(sources.config_map("none").is_none());
            self.host.set_up(pod, sources).await
        })
    }

    fn bind_parts<'a>(
        &'a self,
        pod: &'a Pod,
        container: &'a str,
        parts: Vec<WantedPart>,
    ) -> BoxFuture<'a, Result<BTreeMap<usize, String>, BindError>> {
        self.host.bind_parts(pod, container, parts)
    }

    fn exist(&self, pod: &Pod) -> bool {
        self.host.exist(pod)
    }

    fn tear_down<'a>(&'a self, pod: &'a Pod) -> BoxFuture<'a, Result<(), UnmountError>> {
        self.host.tear_down(pod)
    }
}

fn with_env(uid: &str) -> Arc<Pod> {
    let mut pod = (*pod(uid, uid)).clone();
    pod.spec.containers[0].env =
        vec![EnvVar { name: "A".into(), value: "b".into(), ..EnvVar::default() }];
    Arc::new(pod)
}

impl Node {
    async fn poisoned(at: Where, on: &Arc<AtomicBool>) -> Self {
        let (runtime, _happened) = FakeRuntime::new();
        let host = Arc::<FakeHost>::default();
        let poison = Poison { at, on: on.clone(), host: host.clone() };
        let also = Poison { at, on: on.clone(), host: host.clone() };
        Self::start_with(host, Arc::new(runtime), vec![PodSource::Api], |shared| {
            shared.object_cache = Arc::new(poison);
            shared.volumes = Arc::new(also);
        })
        .await
    }

    /// Starts over what an agent before has left in the file at `path` and in the runtime.
    async fn after(path: &Path, runtime: &Arc<FakeRuntime>, host: &Arc<FakeHost>) -> Self {
        let active_pods = ActivePods::open(path, LastEnd::Crashed).expect("open");
        Self::start_with(host.clone(), runtime.clone(), vec![PodSource::Api], |shared| {
            shared.active_pods = active_pods;
        })
        .await
    }

    fn conditions(&self) -> Vec<String> {
        let of = |status: &PodStatus| {
            let own = status.conditions.iter().find(|c| c.type_ == "Quarantined")?;
            Some(format!("{} {}", own.status, own.reason))
        };
        let mut all: Vec<String> = self.api.statuses.borrow().iter().filter_map(of).collect();
        all.dedup();
        all
    }

    /// Lets time pass until it is so; a thread of its own writes the journal meanwhile.
    async fn until(&self, what: &str, is_so: impl Fn(&Self) -> bool) {
        for _ in 0..15_000 {
            if is_so(self) {
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("{what}: {:?}, {:?}", self.conditions(), self.api.reasons());
    }
}

fn pass_on(node: &Node) -> bool {
    node.runtime.is_live("well")
}

#[tokio::test(start_paused = true)]
async fn a_panic_in_the_handling_of_one_pod_is_that_pods_alone() {
    for at in [Where::Begin, Where::Turn, Where::Operation] {
        let on = Arc::new(AtomicBool::new(true));
        let node = Node::poisoned(at, &on).await;
        node.say(PodSourceEvent::Wants(PodSource::Api, with_env("bad"))).await;
        node.say(PodSourceEvent::Wants(PodSource::Api, pod("well", "well"))).await;
        node.say(PodSourceEvent::Synced(PodSource::Api)).await;
        node.until("the other runs", pass_on).await;
        // Once is tried again, twice is not.
        node.until("quarantine", |node| !node.conditions().is_empty()).await;
        assert_eq!(node.conditions(), ["True AgentCrashed"], "{at:?}");
        let event = |event: &PodEvent| {
            event.reason == "AgentCrashed"
                && event.message.ends_with("not handled until it is changed or deleted")
        };
        assert!(node.api.events.lock().expect("lock").iter().any(event));
        let (sandboxes, told) = (node.runtime.changes().len(), node.api.reasons().len());
        tokio::time::sleep(Duration::from_secs(3000)).await;
        assert_eq!(node.runtime.changes().len(), sandboxes, "{at:?}: tried again");
        assert_eq!(node.api.reasons().len(), told, "{at:?}: told again");

        // What is told of it again changes nothing, what is changed in it does.
        on.store(false, Ordering::SeqCst);
        node.say(PodSourceEvent::Wants(PodSource::Api, with_env("bad"))).await;
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert!(!node.runtime.is_live("bad"));
        let mut changed = (*with_env("bad")).clone();
        changed.metadata.labels.insert("fixed".into(), "yes".into());
        node.say(PodSourceEvent::Wants(PodSource::Api, Arc::new(changed))).await;
        node.until("the changed pod runs", |node| node.runtime.is_live("bad")).await;
        assert_eq!(node.conditions(), ["True AgentCrashed", "False AgentCrashed"], "{at:?}");
        assert!(!node.task.is_finished() && pass_on(&node));
    }
}

#[tokio::test(start_paused = true)]
async fn containers_of_a_quarantined_pod_keep_running_until_its_deletion() {
    let on = Arc::new(AtomicBool::new(false));
    let node = Node::poisoned(Where::Turn, &on).await;
    node.say(PodSourceEvent::Wants(PodSource::Api, with_env("bad"))).await;
    node.say(PodSourceEvent::Synced(PodSource::Api)).await;
    node.until("it runs", |node| node.runtime.is_live("bad")).await;
    let made = node.runtime.live();
    on.store(true, Ordering::SeqCst);
    node.happen.send(RuntimeEvent::Missed).await.expect("pods");
    node.until("quarantine", |node| !node.conditions().is_empty()).await;
    assert_eq!(node.runtime.live(), made, "left as it is");
    let mut deleted = (*with_env("bad")).clone();
    deleted.metadata.deletion_timestamp = Some(Time::from_unix(1));
    deleted.metadata.deletion_grace_period_seconds = Some(1);
    node.say(PodSourceEvent::Wants(PodSource::Api, Arc::new(deleted))).await;
    let gone = |node: &Node| !node.api.deleted.lock().expect("lock").is_empty();
    node.until("deleted", gone).await;
    assert!(node.runtime.is_bare() && node.host.is_bare());
    node.say(PodSourceEvent::Dropped("bad".into())).await;
    // Another of its name is another pod.
    on.store(false, Ordering::SeqCst);
    node.say(PodSourceEvent::Wants(PodSource::Api, with_env("next"))).await;
    node.until("the next runs", |node| node.runtime.is_live("next")).await;
}

/// Ends the agent as a kill does that meets it while it computes for these pods.
async fn kill(node: Node, path: &Path, uids: &[&str]) {
    node.task.abort();
    let _ended = node.task.await;
    let mut text = std::fs::read(path).expect("read");
    for line in text.chunks_mut(160) {
        let of_it = |uid: &&&str| String::from_utf8_lossy(line).contains(&format!(" {uid} "));
        if uids.iter().any(|uid| of_it(&uid)) {
            line[0] = b'1';
        }
    }
    std::fs::write(path, text).expect("write");
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_ends_the_agent_twice_is_not_handled_by_the_third() {
    let dir = tempfile::tempdir().expect("tempdir");
    let path = dir.path().join("in-hand");
    let (runtime, _happened) = FakeRuntime::new();
    let (runtime, host) = (Arc::new(runtime), Arc::<FakeHost>::default());
    let pods = |node: &Node| {
        let say = node.say.clone();
        async move {
            for uid in ["bad", "well"] {
                say.send(PodSourceEvent::Wants(PodSource::Api, pod(uid, uid))).await.expect("pods");
            }
            say.send(PodSourceEvent::Synced(PodSource::Api)).await.expect("pods");
        }
    };
    for _ in 0..2 {
        let node = Node::after(&path, &runtime, &host).await;
        pods(&node).await;
        node.until("both run", |node| pass_on(node) && node.runtime.is_live("bad")).await;
        kill(node, &path, &["bad"]).await;
    }
    let before = runtime.changes().len();
    let node = Node::after(&path, &runtime, &host).await;
    pods(&node).await;
    node.until("quarantine", |node| !node.conditions().is_empty()).await;
    assert_eq!(runtime.live().len(), 2, "what runs runs on");
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!(runtime.changes().len(), before, "and nothing is done to it");
    // Its source drops it: taken down by its name alone.
    node.say(PodSourceEvent::Dropped("bad".into())).await;
    node.until("gone", |node| !node.runtime.is_live("bad")).await;
    assert!(runtime.is_live("well"));
}

#[tokio::test(start_paused = true)]
async fn of_two_suspects_one_is_tried_after_the_other() {
    let dir = tempfile::tempdir().expect("tempdir");
    let path = dir.path().join("in-hand");
    let (runtime, _happened) = FakeRuntime::new();
    let (runtime, host) = (Arc::new(runtime), Arc::<FakeHost>::default());
    let start = async || {
        let node = Node::after(&path, &runtime, &host).await;
        for uid in ["a", "b", "well"] {
            node.say(PodSourceEvent::Wants(PodSource::Api, pod(uid, uid))).await;
        }
        node.say(PodSourceEvent::Synced(PodSource::Api)).await;
        node
    };
    for _ in 0..2 {
        let node = start().await;
        node.until("it begins", pass_on).await;
        node.until("they begin", |node| node.api.statuses.borrow().len() > 2).await;
        kill(node, &path, &["a", "b"]).await;
    }
    // What runs is no matter; the third finds nothing of the two.
    for (_, container) in runtime.live() {
        runtime.end(&container.id, 1);
    }
    let node = start().await;
    let runs = |uid: &'static str| move |node: &Node| node.runtime.is_live(uid);
    node.until("the first is tried", runs("a")).await;
    assert!(!runtime.is_live("b"), "both at a time");
    node.until("the other runs", pass_on).await;
    node.until("then the second", runs("b")).await;
    assert_eq!(node.conditions(), [] as [&str; 0]);
    tokio::time::sleep(Duration::from_secs(20)).await;
    // Both have passed: one more end with both in hand accuses them once, not for the third time.
    kill(node, &path, &["a", "b"]).await;
    let node = start().await;
    node.until("at once", |node| runs("a")(node) && runs("b")(node)).await;
    assert_eq!(node.conditions(), [] as [&str; 0]);
}
