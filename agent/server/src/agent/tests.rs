//! The view over a runtime in memory.

use std::collections::BTreeMap;

use agent_pod::spec::{ContainerConfig, SandboxConfig};
use agent_runtime::fake::FakeRuntime;
use agent_runtime::runtime::Streams;
use proto_api::meta::v1::ObjectMeta;

use super::super::measure::Sites;
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
            measure: Arc::new(Measure::new(Sites {
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

    async fn start(&self, attempt: u32) -> String {
        let image = self.runtime.image("image").await.expect("asked").expect("there").id;
        let labels = BTreeMap::from([
            ("io.kubernetes.container.name".to_owned(), "c".to_owned()),
            ("io.kubernetes.pod.uid".to_owned(), "u-1".to_owned()),
        ]);
        let container = ContainerConfig {
            name: "c".into(),
            attempt,
            image,
            labels,
            ..ContainerConfig::default()
        };
        let id = self
            .runtime
            .create_container(&self.sandbox, &container, &self.config)
            .await
            .expect("created");
        self.runtime.start_container(&id).await.expect("started");
        id
    }
}

#[tokio::test]
async fn logs_are_those_of_the_asked_run() {
    let bench = Bench::new().await;
    let log = async |name, run| bench.view.log_file(&container(name, None), run).await;
    let waiting = "container \"c\" in pod \"web\" is waiting to start: ContainerCreating";
    assert_eq!(log("c", Run::Last).await, Err(ViewError::NotNow(waiting.into())));
    let unknown = "container \"x\" not found in pod \"web\"";
    assert_eq!(log("x", Run::Last).await, Err(ViewError::NotFound(unknown.into())));

    let first = bench.start(0).await;
    let file = log("c", Run::Last).await.expect("runs");
    assert_eq!(file.path, bench.logs.path().join("a_web_u-1/c/0.log"));
    assert!(bench.view.is_running(&file).await);
    assert!(matches!(log("c", Run::Previous).await, Err(ViewError::NotNow(_))));

    bench.runtime.end(&first, 1);
    assert!(!bench.view.is_running(&file).await);
    assert_eq!(log("c", Run::Last).await.as_ref(), Ok(&file), "the last run's log stays");
    let second = bench.start(1).await;
    assert_eq!(log("c", Run::Previous).await, Ok(file));
    assert_eq!(log("c", Run::Last).await.expect("runs").instance, second);
}

#[tokio::test]
async fn an_attachment_has_a_terminal_if_the_container_has_one() {
    let mut bench = Bench::new().await;
    bench.start(0).await;
    let streams = Streams { stdin: true, stdout: true, stderr: true, tty: false };
    let attach = Session::Attach { container: container("c", None), streams };
    let message = |answer| match answer {
        Err(ViewError::Failed(message)) => message,
        other => panic!("{other:?}"),
    };
    let plain = message(bench.view.session(&attach).await);
    assert!(plain.ends_with("the runtime in memory has no streaming server"), "{plain}");
    let mut pod = web();
    pod.spec.containers[0].tty = true;
    bench.view.pods = Box::new(move || vec![pod.clone()]);
    let refused = message(bench.view.session(&attach).await);
    assert!(refused.ends_with("tty and stderr cannot both be true"), "{refused}");
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
    bench.start(0).await;
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
    let (last, previous) = (log(Run::Last).await, log(Run::Previous).await);
    assert!(!bench.view.is_running(&previous).await);
    assert_eq!((last.path, previous.path), (directory.join("1.log"), directory.join("0.log")));
    let runs = bench.start(2).await;
    // Neither is a log that the runtime wrote.
    std::fs::write(directory.join("7.log"), "").expect("written");
    std::os::unix::fs::symlink("/etc/passwd", directory.join("2.log")).expect("linked");
    assert_eq!(log(Run::Last).await.instance, runs);
    assert_eq!(log(Run::Previous).await.path, directory.join("1.log"));
}

#[tokio::test]
async fn usage_is_told_also_without_cgroups() {
    let bench = Bench::new().await;
    bench.start(0).await;
    let stats = bench.view.stats().await.expect("measured");
    assert_eq!(stats.name, "n1");
}
