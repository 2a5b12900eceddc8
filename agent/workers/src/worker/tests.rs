//! A pod's task on the runtime in memory, which keeps the real one's rules.

use agent_node::adaptive_limit::CallKind;
use agent_pod::desired::Disruption;
use agent_runtime::PodReader as _;
use agent_runtime::fake::FakeRuntime;
use proto_api::Time;
use proto_api::core::v1::PodStatus;
use proto_daemon::statusz::StatusBoard;
use tokio::task::JoinHandle;

mod numbers;

use agent_interfaces::testing::{Api, FakeHost};
use agent_journal::Journal;

use super::*;
use crate::test_support::{TestContextParts, pod_context};

/// A node that lives on when the agent does not.
struct World {
    dir: tempfile::TempDir,
    runtime: Arc<FakeRuntime>,
    happened: tokio::sync::mpsc::UnboundedReceiver<RuntimeEvent>,
    api: Arc<Api>,
    host: Arc<FakeHost>,
    /// How many calls that hang take their turns before the pod comes.
    hanging: usize,
}

/// The agent, as far as one pod goes.
struct Agent {
    shared: Arc<PodContext>,
    update: watch::Sender<PodUpdate>,
    news: Arc<Inbox<RuntimeEvent>>,
    journal: Journal,
    task: JoinHandle<Result<(), Panicked>>,
}

impl World {
    fn new() -> Self {
        let (runtime, happened) = FakeRuntime::new();
        runtime.add_image("image:1");
        Self {
            dir: crate::test_support::directory(),
            runtime: Arc::new(runtime),
            happened,
            api: Arc::default(),
            host: Arc::default(),
            hanging: 0,
        }
    }

    async fn start(&self, pod: Pod) -> Agent {
        self.start_from(PodSource::Api, pod).await
    }

    /// Starts the agent as a new process would: from the journal and from what the runtime has.
    async fn start_from(&self, source: PodSource, pod: Pod) -> Agent {
        let path = self.dir.path().join("journal.redb");
        // The process before lets go of the journal when it ends.
        let (journal, mut records) = Journal::open(&path, "boot").expect("journal");
        let uid = pod.metadata.uid.clone();
        let start = InitialState {
            on_node: self.runtime.pod(&uid).await.expect("pod"),
            memory: records.remove(&uid).map(|record| record.memory),
        };
        let outside = TestContextParts {
            dir: self.dir.path(),
            runtime: self.runtime.clone(),
            reports: self.api.clone(),
            host: self.host.clone(),
            journal: journal.clone(),
        };
        let shared = pod_context(outside);
        for _ in 0..self.hanging {
            let limiter = shared.runtime_limiter.clone();
            let hang = std::future::pending::<Result<(), ()>>();
            tokio::spawn(async move { limiter.run(CallKind::Start, hang).await });
        }
        tokio::task::yield_now().await;
        let update = PodUpdate { pod: Arc::new(pod), source, presence: SourcePresence::Present };
        let (update, updates) = watch::channel(update);
        let news = Arc::new(Inbox::default());
        let page = StatusBoard::default().task("pod");
        let shared = Arc::new(shared);
        let worker = Worker::new(shared.clone(), updates, news.clone(), page, start);
        Agent { shared, update, news, journal, task: tokio::spawn(Box::new(worker).run()) }
    }

    /// Brings the runtime's news to the task.
    async fn deliver(&mut self, agent: &Agent) {
        while let Ok(happened) = self.happened.try_recv() {
            agent.news.add(happened, 16, || RuntimeEvent::Missed);
        }
    }

    /// Waits until the shown status is as wanted.
    async fn shown(&self, what: &str, wanted: impl Fn(&PodStatus) -> bool) -> PodStatus {
        let mut statuses = self.api.statuses.subscribe();
        let until = statuses.wait_for(|all| all.last().is_some_and(&wanted));
        match tokio::time::timeout(Duration::from_secs(120), until).await {
            Ok(all) => all.expect("api").last().cloned().expect("status"),
            Err(_) => panic!("{what} is not shown, but {:?}", self.api.statuses.borrow().last()),
        }
    }

    fn calls(&self) -> Vec<String> {
        self.runtime.changes().into_iter().map(|c| format!("{} {}", c.call, c.object)).collect()
    }
}

impl Agent {
    /// Ends like a killed process, the journal's pending records apart.
    async fn kill(self) {
        self.task.abort();
        let _ = self.task.await;
        self.journal.close();
    }
}

fn pod() -> Pod {
    let mut pod = Pod::default();
    pod.metadata.name = "p".into();
    pod.metadata.namespace = "ns".into();
    pod.metadata.uid = "u".into();
    pod.spec.dns_policy = "Default".into();
    pod.spec.containers = vec![proto_api::core::v1::Container {
        name: "c".into(),
        image: "image:1".into(),
        ..Default::default()
    }];
    pod
}

fn is_ready(status: &PodStatus) -> bool {
    status.conditions.iter().any(|c| c.type_ == "Ready" && c.status == "True")
}

fn restarts(status: &PodStatus) -> i32 {
    status.container_statuses.first().map_or(-1, |c| c.restart_count)
}

#[tokio::test]
async fn a_pod_comes_up_survives_the_agent_and_leaves_nothing() {
    let mut world = World::new();
    let agent = world.start(pod()).await;
    let first = world.shown("a ready pod", is_ready).await;
    assert_eq!(first.phase, "Running");
    let events = world.api.reasons();
    assert_eq!(events, ["Pulled", "Created", "Started"]);
    agent.kill().await;

    // A new process with the same journal, runtime and API object does nothing and writes nothing.
    let (calls, written) = (world.calls(), world.api.statuses.borrow().len());
    let same = Pod { status: first, ..pod() };
    let agent = world.start(same.clone()).await;
    world.deliver(&agent).await;
    tokio::task::yield_now().await;

    // It hears of a crash and restarts the container at once.
    let id = world.runtime.pod("u").await.expect("pod").containers[0].id.clone();
    world.runtime.end(&id, 3);
    world.deliver(&agent).await;
    let crashed = world.shown("a restart", |s| is_ready(s) && restarts(s) == 1).await;
    let last = crashed.container_statuses[0].last_state.terminated.clone().expect("ended");
    assert_eq!(last.exit_code, 3);
    let between: Vec<PodStatus> = world.api.statuses.borrow()[written..].to_vec();
    assert!(between.iter().all(|s| s.start_time == same.status.start_time));
    assert!(!between.iter().any(|s| restarts(s) == 0 && is_ready(s)), "written without a change");
    let since = &world.calls()[calls.len()..];
    assert!(since.iter().all(|call| call.contains('c')), "{since:?}");

    // Deleted: last status first, then the object, with everything of the pod gone.
    let mut deleted = same;
    deleted.metadata.deletion_timestamp = Some(Time::from_unix(1));
    deleted.metadata.deletion_grace_period_seconds = Some(0);
    agent.update.send_modify(|update| update.pod = Arc::new(deleted));
    let over = world.shown("the end", |s| s.phase == "Failed").await;
    assert_eq!(restarts(&over), 1);
    let mut changes = world.api.statuses.subscribe();
    let gone = |_: &Vec<PodStatus>| !world.api.deleted.lock().expect("lock").is_empty();
    tokio::time::timeout(Duration::from_secs(120), changes.wait_for(gone))
        .await
        .expect("reported")
        .expect("api");
    let on_node = world.runtime.pod("u").await.expect("pod");
    assert!(on_node.sandboxes.is_empty() && on_node.containers.is_empty());
    assert!(world.host.is_bare());
    agent.update.send_modify(|update| update.presence = SourcePresence::Dropped);
    agent.task.await.expect("ends by itself").expect("without a panic");
}

/// A pod as its object shows it after somebody's write.
fn shown_as(version: &str, status: &PodStatus) -> Pod {
    let mut pod = Pod { status: status.clone(), ..pod() };
    pod.metadata.resource_version = version.into();
    pod
}

#[tokio::test(start_paused = true)]
async fn statuses_written_by_the_node_controller_are_corrected_at_once_and_stale_ones_are_ignored()
{
    let world = World::new();
    *world.api.version.lock().expect("lock") = "5".into();
    let agent = world.start(shown_as("1", &PodStatus::default())).await;
    let ours = world.shown("a ready pod", is_ready).await;
    let written = || world.api.statuses.borrow().len();
    let before = written();
    let show = |version: &str, status: &PodStatus| {
        let pod = Arc::new(shown_as(version, status));
        agent.update.send_modify(|update| update.pod = pod);
    };
    let pause = || tokio::time::sleep(Duration::from_secs(1));
    // The watch is behind, and then shows what the agent wrote.
    show("3", &PodStatus { phase: "Pending".into(), ..PodStatus::default() });
    pause().await;
    show("5", &ours);
    pause().await;
    assert_eq!(written(), before);
    let mut unready = ours.clone();
    for condition in unready.conditions.iter_mut().filter(|c| c.type_ == "Ready") {
        (condition.status, condition.last_transition_time) = ("False".into(), Time::from_unix(9));
    }
    *world.api.version.lock().expect("lock") = "7".into();
    show("6", &unready);
    pause().await;
    assert_eq!(written(), before + 1);
    let now = world.shown("a ready pod", is_ready).await;
    let since = |status: &PodStatus| {
        let ready = status.conditions.iter().find(|c| c.type_ == "Ready").expect("a condition");
        ready.last_transition_time.unix()
    };
    assert!(since(&now) >= since(&ours) && since(&now) > Some(9), "it has turned now");
    agent.kill().await;
}

#[tokio::test]
async fn a_pod_that_another_shows_as_over_is_stopped_and_stays_over() {
    let world = World::new();
    let mut wants = pod();
    wants.spec.termination_grace_period_seconds = Some(0);
    let agent = world.start(wants.clone()).await;
    let ours = world.shown("a ready pod", is_ready).await;
    let mut over = Pod { status: ours, ..wants };
    (over.status.phase, over.status.reason) = ("Failed".into(), "NodeLost".into());
    over.metadata.resource_version = "9".into();
    agent.update.send_modify(|update| update.pod = Arc::new(over));
    let stopped =
        |status: &PodStatus| status.container_statuses.iter().all(|c| c.state.terminated.is_some());
    let shown = world.shown("an end", stopped).await;
    assert_eq!((shown.phase.as_str(), shown.reason.as_str()), ("Failed", "NodeLost"));
    assert!(!world.api.statuses.borrow().iter().rev().any(|s| s.phase == "Succeeded"));
    agent.kill().await;
}

#[tokio::test]
async fn a_static_pod_that_the_node_ended_or_refused_runs_again_with_the_next_agent() {
    let world = World::new();
    let mut wants = pod();
    wants.spec.termination_grace_period_seconds = Some(0);
    let with_mirror = |status: &PodStatus| Pod { status: status.clone(), ..wants.clone() };
    let agent = world.start_from(PodSource::Static, wants.clone()).await;
    world.shown("a ready pod", is_ready).await;
    let reason = "Terminated".to_owned();
    let shutdown = Disruption { reason, message: "m".into(), grace: None };
    agent.shared.pods.end_pod("u", shutdown);
    let ended = world.shown("an end", |s| s.phase == "Failed" && s.reason == "Terminated").await;
    agent.kill().await;
    // The machine boots again, or only the agent is started again.
    let agent = world.start_from(PodSource::Static, with_mirror(&ended)).await;
    let again = world.shown("a second start", |s| is_ready(s) && restarts(s) == 1).await;
    assert_eq!((again.phase.as_str(), again.reason.as_str()), ("Running", ""));
    agent.kill().await;

    // Another is refused while the node shuts down, by two processes; the mirror does not waver.
    let other = |status: &PodStatus| {
        let mut pod = with_mirror(status);
        pod.metadata.uid = "other".into();
        pod
    };
    let refused = |s: &PodStatus| s.phase == "Failed" && s.reason == "NodeShutdown";
    let agent = world.start_from(PodSource::Static, other(&PodStatus::default())).await;
    agent.shared.node_pressure.send_modify(|pressure| pressure.shutting_down = true);
    let shown = world.shown("a refusal", refused).await;
    agent.kill().await;
    let written = world.api.statuses.borrow().len();
    let agent = world.start_from(PodSource::Static, other(&shown)).await;
    agent.shared.node_pressure.send_modify(|pressure| pressure.shutting_down = true);
    let refusals = || world.api.reasons().iter().filter(|r| *r == "NodeShutdown").count();
    while refusals() < 2 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    agent.kill().await;
    assert_eq!(world.api.statuses.borrow().len(), written);
    let agent = world.start_from(PodSource::Static, other(&shown)).await;
    world.shown("a ready pod", is_ready).await;
    agent.kill().await;
}

/// Calls keep their turns for five seconds, twelve at a time on two processors.
#[tokio::test(start_paused = true)]
async fn the_first_status_of_a_pod_is_delayed_or_skipped_while_many_pods_start() {
    for (hanging, phase, waited) in [(0, "Pending", 0), (14, "Running", 5), (60, "Pending", 10)] {
        let world = World { hanging, ..World::new() };
        let began = clock::boot();
        let agent = world.start(pod()).await;
        let first = world.shown("anything", |_| true).await;
        let took = (clock::boot() - began).as_secs();
        let seen = world.api.statuses.borrow().first().map(|status| status.phase.clone());
        assert_eq!((seen.as_deref(), took), (Some(phase), waited), "{hanging}: {first:?}");
        world.shown("a ready pod", is_ready).await;
        agent.kill().await;
    }
}

#[tokio::test]
async fn a_missing_config_map_is_reported_and_no_container_is_created() {
    let world = World::new();
    let mut wants = pod();
    wants.spec.containers[0].env_from = vec![proto_api::core::v1::EnvFromSource {
        config_map_ref: Some(proto_api::core::v1::ConfigMapEnvSource {
            local_object_reference: proto_api::core::v1::LocalObjectReference { name: "m".into() },
            optional: None,
        }),
        ..Default::default()
    }];
    let agent = world.start(wants).await;
    let reason = |s: &PodStatus| {
        let waiting = s.container_statuses.first()?.state.waiting.clone()?;
        Some((waiting.reason, waiting.message))
    };
    let expect = ("CreateContainerConfigError".to_owned(), "configmap \"m\" not found".to_owned());
    world.shown("the error", |s| reason(s).as_ref() == Some(&expect)).await;
    assert!(!world.calls().iter().any(|call| call.starts_with("CreateContainer")));
    agent.kill().await;
}

/// Each was a watch of its own: 1,100 were more than a connection to the API server has.
#[tokio::test]
async fn a_pod_that_names_too_many_objects_is_reported_and_gets_no_container() {
    let world = World::new();
    let mut wants = pod();
    let secret = |n: usize| proto_api::core::v1::EnvFromSource {
        secret_ref: Some(proto_api::core::v1::SecretEnvSource {
            local_object_reference: proto_api::core::v1::LocalObjectReference {
                name: format!("a{n:04}"),
            },
            optional: Some(true),
        }),
        ..Default::default()
    };
    wants.spec.containers[0].env_from = (0..1100).map(secret).collect();
    let agent = world.start(wants).await;
    let is_told = |s: &PodStatus| {
        let waiting = s.container_statuses.first().and_then(|c| c.state.waiting.clone());
        waiting.is_some_and(|waiting| {
            waiting.reason == "CreateContainerConfigError"
                && waiting.message.starts_with("the pod names 1100 ConfigMaps, Secrets,")
        })
    };
    world.shown("the error", is_told).await;
    assert!(!world.calls().iter().any(|call| call.starts_with("CreateContainer")));
    agent.kill().await;
}

#[tokio::test]
async fn a_failed_sandbox_creation_is_retried() {
    let world = World::new();
    let kind = agent_runtime::runtime::RefusalKind::Other;
    world.runtime.fail_next("RunPodSandbox", kind, "no");
    let agent = world.start(pod()).await;
    world.shown("a ready pod", is_ready).await;
    assert!(world.api.reasons().contains(&"FailedCreatePodSandBox".to_owned()));
    agent.kill().await;
}
