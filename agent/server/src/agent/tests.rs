//! The view over a runtime in memory.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use agent_pod::spec::{ContainerConfig, SandboxConfig};
use agent_runtime::fake::FakeRuntime;
use agent_runtime::runtime::Streams;
use agent_runtime::{ContainerRuntime as _, ImageRuntime as _, SandboxRuntime as _};
use proto_api::core::v1::{
    ContainerState, ContainerStateTerminated, ContainerStateWaiting, EphemeralContainer,
};
use proto_api::meta::v1::ObjectMeta;

use super::super::measure::MeasuredPaths;
use super::*;

fn web() -> Pod {
    let metadata = ObjectMeta {
        name: "web".into(),
        namespace: "a".into(),
        uid: "u-1".into(),
        ..ObjectMeta::default()
    };
    let mut pod = Pod { metadata, ..Pod::default() };
    pod.spec.containers = vec![Container { name: "c".into(), ..Container::default() }];
    pod
}

fn container(name: &str, uid: Option<&str>) -> ContainerName {
    let pod = PodName { namespace: "a".into(), name: "web".into(), uid: uid.map(str::to_owned) };
    ContainerName { pod, container: name.into() }
}

struct Bench {
    runtime: Arc<FakeRuntime>,
    view: AgentView,
    sandbox: String,
    config: SandboxConfig,
    logs: tempfile::TempDir,
}

impl Bench {
    async fn new() -> Self {
        let runtime = Arc::new(FakeRuntime::new().0);
        runtime.add_image("image");
        let config = SandboxConfig {
            name: "web".into(),
            namespace: "a".into(),
            uid: "u-1".into(),
            ..SandboxConfig::default()
        };
        let sandbox = runtime.run_sandbox(&config).await.expect("sandbox").id;
        let logs = tempfile::tempdir().expect("tempdir");
        let view = AgentView {
            volumes: None,
            runtime: runtime.clone(),
            pods: Box::new(|| vec![web()]),
            pod_logs_dir: logs.path().to_owned(),
            checkpoints_dir: logs.path().join("checkpoints"),
            configuration: Value::Null,
            measure: Arc::new(Measure::new(MeasuredPaths {
                node: "n1".into(),
                agent: "agent".into(),
                root_dir: logs.path().to_owned(),
                pod_logs_dir: logs.path().to_owned(),
                cgroups: None,
                cgroup_root: "/".into(),
                driver: agent_node::cgroup::CgroupManager::Cgroupfs,
                disk_period: Duration::ZERO,
            })),
            machine: Value::Null,
            timeline: Box::new(|_, _| Vec::new()),
        };
        Self { runtime, view, sandbox, config, logs }
    }

    async fn start(&self, name: &str, attempt: u32) -> String {
        let id = self.create(name, attempt).await;
        self.runtime.start_container(&id).await.expect("started");
        id
    }

    async fn create(&self, name: &str, attempt: u32) -> String {
        let image = self.runtime.image("image").await.expect("asked").expect("there").id;
        let labels = BTreeMap::from([
            ("io.kubernetes.container.name".to_owned(), name.to_owned()),
            ("io.kubernetes.pod.uid".to_owned(), "u-1".to_owned()),
        ]);
        let container = ContainerConfig {
            name: name.into(),
            attempt,
            image,
            labels,
            ..ContainerConfig::default()
        };
        let created = self.runtime.create_container(&self.sandbox, &container, &self.config);
        created.await.expect("created")
    }
}

#[tokio::test]
async fn logs_are_those_of_the_requested_run() {
    let bench = Bench::new().await;
    let log = async |name, run| bench.view.log_file(&container(name, None), run).await;
    let nothing = "container \"c\" in pod \"web\" is not available";
    assert_eq!(log("c", LogRun::Last).await, Err(ViewError::NotNow(nothing.into())));
    let unknown = "container \"x\" not found in pod \"web\"";
    assert_eq!(log("x", LogRun::Last).await, Err(ViewError::NotFound(unknown.into())));

    let first = bench.start("c", 0).await;
    let file = log("c", LogRun::Last).await.expect("runs");
    assert_eq!(file.path, bench.logs.path().join("a_web_u-1/c/0.log"));
    assert!(bench.view.is_running(&file).await);
    assert!(matches!(log("c", LogRun::Previous).await, Err(ViewError::NotNow(_))));

    bench.runtime.end(&first, 1);
    assert!(!bench.view.is_running(&file).await);
    assert_eq!(log("c", LogRun::Last).await.as_ref(), Ok(&file), "the last run's log stays");
    let second = bench.start("c", 1).await;
    assert_eq!(log("c", LogRun::Previous).await, Ok(file));
    assert_eq!(log("c", LogRun::Last).await.expect("runs").instance, second);
}

/// The pod whose container `c` has this state and last state.
fn web_in(state: ContainerState, last_state: ContainerState) -> Pod {
    let mut pod = web();
    let status =
        ContainerStatus { name: "c".into(), state, last_state, ..ContainerStatus::default() };
    pod.status.container_statuses = vec![status];
    pod
}

fn waits(reason: &str) -> ContainerState {
    let waiting = ContainerStateWaiting { reason: reason.into(), ..Default::default() };
    ContainerState { waiting: Some(waiting), ..ContainerState::default() }
}

fn ended(id: &str) -> ContainerState {
    let terminated = ContainerStateTerminated { container_id: id.into(), ..Default::default() };
    ContainerState { terminated: Some(terminated), ..ContainerState::default() }
}

#[tokio::test]
async fn a_container_without_a_log_says_why_as_the_kubelet_does() {
    let mut bench = Bench::new().await;
    for (state, why) in [
        (waits("ErrImagePull"), "is waiting to start: image can't be pulled"),
        (waits("ImagePullBackOff"), "is waiting to start: trying and failing to pull image"),
        (waits("ContainerCreating"), "is waiting to start: ContainerCreating"),
        (waits("PodInitializing"), "is waiting to start: PodInitializing"),
        (waits("CreateContainerConfigError"), "is waiting to start: CreateContainerConfigError"),
        (ContainerState::default(), "is waiting to start - no logs yet"),
        (ended(""), "is terminated"),
    ] {
        bench.view.pods = Box::new(move || vec![web_in(state.clone(), ContainerState::default())]);
        let log = bench.view.log_file(&container("c", None), LogRun::Last).await;
        let why = format!("container \"c\" in pod \"web\" {why}");
        assert_eq!(log, Err(ViewError::NotNow(why)));
    }
}

#[tokio::test]
async fn a_container_that_waits_for_its_restart_has_the_log_of_its_last_run() {
    let mut bench = Bench::new().await;
    let mut last = String::new();
    for attempt in 0..2 {
        last = bench.start("c", attempt).await;
        bench.runtime.end(&last, 1);
    }
    let id = format!("containerd://{last}");
    bench.view.pods = Box::new(move || vec![web_in(waits("CrashLoopBackOff"), ended(&id))]);
    let shown = async |view: &AgentView, run| {
        view.log_file(&container("c", None), run).await.map(|log| log.instance)
    };
    for run in [LogRun::Last, LogRun::Previous] {
        assert_eq!(shown(&bench.view, run).await, Ok(last.clone()));
    }
    // The next one is made, and has not started.
    bench.create("c", 2).await;
    for run in [LogRun::Last, LogRun::Previous] {
        assert_eq!(shown(&bench.view, run).await, Ok(last.clone()));
    }
}

/// The pod with an ephemeral container `d`, each container with or without a terminal.
fn web_with_terminals(c: bool, d: bool) -> Pod {
    let mut pod = web();
    pod.spec.containers[0].tty = c;
    let mut debugger = EphemeralContainer::default();
    debugger.ephemeral_container_common.name = "d".into();
    debugger.ephemeral_container_common.tty = d;
    pod.spec.ephemeral_containers = vec![debugger];
    pod
}

#[tokio::test]
async fn an_attachment_has_a_terminal_if_the_container_has_one() {
    let mut bench = Bench::new().await;
    bench.start("c", 0).await;
    bench.start("d", 0).await;
    bench.start("unlisted", 0).await;
    let plain = "the runtime in memory has no streaming server";
    let refused = "tty and stderr cannot both be true";
    // Terminals of the containers `c` and `d`, what is attached to, whether the request asks for a
    // terminal, what the runtime answers to standard error beside it.
    let cases = [
        ((false, false), "c", false, plain),
        ((false, false), "c", true, plain),
        ((true, false), "c", false, refused),
        ((true, false), "c", true, refused),
        ((true, false), "d", true, plain),
        ((false, true), "d", false, refused),
    ];
    for ((c, d), name, tty, expect) in cases {
        bench.view.pods = Box::new(move || vec![web_with_terminals(c, d)]);
        let streams = Streams { stdin: true, stdout: true, stderr: true, tty };
        let attach = Session::Attach { container: container(name, None), streams };
        match bench.view.session(&attach).await {
            Err(ViewError::Failed(message)) => {
                assert!(message.ends_with(expect), "{c} {d} {name} {tty}: {message}")
            }
            other => panic!("{c} {d} {name} {tty}: {other:?}"),
        }
    }
    // It runs, but the spec does not have it.
    let attach = Session::Attach {
        container: container("unlisted", None),
        streams: Streams { stdout: true, ..Streams::default() },
    };
    let unknown = "container \"unlisted\" not found in pod \"web\"";
    assert_eq!(bench.view.session(&attach).await, Err(ViewError::NotFound(unknown.into())));
}

#[tokio::test]
async fn an_attachment_looks_its_pod_up_once() {
    let mut bench = Bench::new().await;
    bench.start("c", 0).await;
    let asked = Arc::new(AtomicUsize::new(0));
    let count = asked.clone();
    bench.view.pods = Box::new(move || {
        // The second answer is of a moment in which the pod is gone.
        if count.fetch_add(1, Ordering::SeqCst) == 0 { vec![web()] } else { Vec::new() }
    });
    let streams = Streams { stdout: true, ..Streams::default() };
    let attach = Session::Attach { container: container("c", None), streams };
    assert!(matches!(bench.view.session(&attach).await, Err(ViewError::Failed(_))));
    assert_eq!(asked.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn sessions_need_something_that_runs() {
    let bench = Bench::new().await;
    let exec = |uid| Session::Exec {
        container: container("c", uid),
        command: vec!["ls".into()],
        streams: Streams { stdout: true, ..Streams::default() },
    };
    let none = bench.view.session(&exec(None)).await;
    assert_eq!(none, Err(ViewError::NotFound("container not found (\"c\")".into())));
    bench.start("c", 0).await;
    // The runtime in memory has no streaming server: that it says so shows that it was asked.
    let was_asked = |answer| matches!(answer, Err(ViewError::Failed(_)));
    assert!(was_asked(bench.view.session(&exec(Some("u-1"))).await));
    let other = bench.view.session(&exec(Some("u-2"))).await;
    assert_eq!(other, Err(ViewError::NotFound("pod web_a does not exist".into())));
    let forward = Session::PortForward { pod: container("c", None).pod, ports: vec![80] };
    assert!(was_asked(bench.view.session(&forward).await));
    bench.runtime.end_sandbox(&bench.sandbox);
    let gone = bench.view.session(&forward).await;
    assert_eq!(gone, Err(ViewError::NotFound("pod not found (\"web\")".into())));
}

#[tokio::test]
async fn a_log_outlives_its_container() {
    let bench = Bench::new().await;
    let directory = bench.logs.path().join("a_web_u-1/c");
    std::fs::create_dir_all(&directory).expect("made");
    for attempt in [0, 1] {
        std::fs::write(directory.join(format!("{attempt}.log")), "").expect("written");
    }
    let log = async |run| bench.view.log_file(&container("c", None), run).await.expect("a log");
    let (last, previous) = (log(LogRun::Last).await, log(LogRun::Previous).await);
    assert!(!bench.view.is_running(&previous).await);
    assert_eq!((last.path, previous.path), (directory.join("1.log"), directory.join("0.log")));
    let runs = bench.start("c", 2).await;
    // Neither is a log that the runtime wrote.
    std::fs::write(directory.join("7.log"), "").expect("written");
    std::os::unix::fs::symlink("/etc/passwd", directory.join("2.log")).expect("linked");
    assert_eq!(log(LogRun::Last).await.instance, runs);
    assert_eq!(log(LogRun::Previous).await.path, directory.join("1.log"));
}

#[tokio::test]
async fn stats_are_reported_without_cgroups() {
    let bench = Bench::new().await;
    bench.start("c", 0).await;
    let stats = bench.view.stats().await.expect("measured");
    assert_eq!(stats.name, "n1");
}
