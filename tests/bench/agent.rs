//! The node agent under load: bursts of pods against the best direct use of the runtime, a restart with many pods, probes, memory.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use agent_pod::spec::ContainerConfig;
use agent_runtime::Runtime;
use agent_runtime::cri::CriRuntime;
use anyhow::{Context as _, Result, ensure};
use cluster::apply::apply;
use cluster::images::BUSYBOX_IMAGE;
use cluster::programs::programs;
use cluster::spec::Spec;
use cluster::supervisor::{self, Programs};
use cluster::up;
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use nix::sys::signal::Signal;
use proto_api::core::v1::Pod;
use proto_client::{Client, DeleteParams, ListParams, WriteParams};
use serde_json::{Value, json};

use crate::node::{observe, sandbox, without_agent};
use crate::report::Report;
use crate::{footprint, own_cluster, probes};

/// Pods of the bursts, and how often each is made; the best counts, on both sides.
const BURSTS: [(usize, usize); 2] = [(40, 2), (110, 1)];
/// Calls in flight of the direct use. The best of them is what ours is compared with.
const WIDTHS: [usize; 4] = [2, 4, 8, 16];
/// Requests of this program in flight when it makes or removes pods.
const CLIENTS: usize = 8;
/// Pods of the largest node.
const MANY: usize = 300;
/// How long an agent with pods is left alone before its memory is read.
const SETTLE: Duration = Duration::from_secs(5);
/// Restarts of the agent.
const RESTARTS: usize = 5;
const PATIENCE: Duration = Duration::from_secs(300);
const NAMESPACE: &str = "burst";
const AGENT: &str = "orchlet-node-1";
/// Ends at once when told to.
const SCRIPT: &str = "trap 'exit 0' TERM; while true; do sleep 1000 & wait; done";

/// All rows, on a cluster of their own.
pub async fn measure(bin_dir: &Path, report: &mut Report) -> Result<()> {
    let flags = ["--max-pods=320", "--healthz-bind-address=0.0.0.0"];
    own_cluster::with(bin_dir, &flags, async |spec| measure_on(spec, report).await).await
}

async fn measure_on(spec: &Spec, report: &mut Report) -> Result<()> {
    cluster::demo::import_images(spec).await?;
    let node = Node::new(spec)?;
    let manifest = format!("apiVersion: v1\nkind: Namespace\nmetadata: {{name: {NAMESPACE}}}\n");
    apply(&node.client, &manifest).await?;
    node.memory("no pods", report).await?;
    let floors = without_agent(spec, node.floors(report)).await?;
    node.ready().await?;
    for floor in &floors {
        node.compare(floor, report).await?;
    }
    node.fill(0..110, true).await?;
    node.memory("110 pods", report).await?;
    node.restarts(report).await?;
    node.memory("110 pods, restarted", report).await?;
    node.fill(110..MANY, true).await?;
    node.memory("300 pods", report).await?;
    node.empty().await?;
    probes::measure(spec, &node.client, report).await
}

/// A burst, and how long the best direct use of the runtime took for it.
struct Floor {
    network: &'static str,
    host: bool,
    pods: usize,
    rounds: usize,
    took: Duration,
}

/// The node that is measured.
struct Node<'a> {
    spec: &'a Spec,
    client: Client,
    runtime: CriRuntime,
}

impl<'a> Node<'a> {
    fn new(spec: &'a Spec) -> Result<Node<'a>> {
        let socket = spec.containerd_socket("node-1");
        Ok(Node {
            spec,
            client: cluster::demo::client(spec, up::names(spec))?,
            runtime: CriRuntime::new(&format!("unix://{}", socket.display()))?,
        })
    }

    /// Bursts by the runtime's calls alone.
    async fn floors(&self, report: &mut Report) -> Result<Vec<Floor>> {
        let mut floors = Vec::new();
        for (network, host) in [("host network", true), ("pod network", false)] {
            for (pods, rounds) in BURSTS {
                let mut floor = Floor { network, host, pods, rounds, took: Duration::MAX };
                floor.took = self.floor(&floor, report).await?;
                floors.push(floor);
            }
        }
        Ok(floors)
    }

    /// A burst by the runtime's calls alone in several widths; how long the best took.
    async fn floor(&self, floor: &Floor, report: &mut Report) -> Result<Duration> {
        let Floor { network, host, pods, rounds, .. } = *floor;
        let mut best = (0, Duration::MAX);
        let mut all = Vec::new();
        for width in WIDTHS {
            let mut took = Duration::MAX;
            for _ in 0..rounds {
                took = took.min(self.direct(pods, width, host).await?);
            }
            all.push(format!("{width}: {:.1}", rate(pods, took)));
            if took < best.1 {
                best = (width, took);
            }
        }
        let row = format!(
            "{:.1} pods/s with {} in flight   ({})",
            rate(pods, best.1),
            best.0,
            all.join(", ")
        );
        report.text(&format!("{network}: burst of {pods}, runtime calls alone"), row);
        Ok(best.1)
    }

    /// The same burst by the whole system.
    async fn compare(&self, floor: &Floor, report: &mut Report) -> Result<()> {
        let Floor { network, host, pods, rounds, .. } = *floor;
        let mut took = Duration::MAX;
        for _ in 0..rounds {
            took = took.min(self.fill(0..pods, host).await?);
            self.empty().await?;
        }
        let share = floor.took.as_secs_f64() / took.as_secs_f64() * 100.0;
        let row = format!("{:.1} pods/s   {share:.0} % of the best above", rate(pods, took));
        report.text(&format!("{network}: burst of {pods}, created -> all Ready"), row);
        Ok(())
    }

    /// So many pods by the calls that an agent has to make, `width` pods at a time; how long that took.
    async fn direct(&self, pods: usize, width: usize, host: bool) -> Result<Duration> {
        let cgroup = format!("{}/floor", self.spec.node_cgroup("node-1"));
        let container = ContainerConfig {
            name: "main".into(),
            image: BUSYBOX_IMAGE.into(),
            command: vec!["/bin/sh".into(), "-c".into(), SCRIPT.into()],
            ..ContainerConfig::default()
        };
        let (cgroup, container) = (&cgroup, &container);
        let began = Instant::now();
        let made: Vec<(String, String)> = stream::iter(0..pods)
            .map(|number| async move {
                let config = sandbox(number, host, cgroup);
                let made = self.runtime.run_sandbox(&config).await?;
                let id = self.runtime.create_container(&made.id, container, &config).await?;
                self.runtime.start_container(&id).await?;
                Ok::<_, anyhow::Error>((made.id, id))
            })
            .buffer_unordered(width)
            .try_collect()
            .await?;
        let took = began.elapsed();
        stream::iter(made)
            .map(|(sandbox, id)| async move {
                self.runtime.stop_container(&id, Duration::ZERO).await?;
                self.runtime.stop_sandbox(&sandbox).await?;
                self.runtime.remove_sandbox(&sandbox).await?;
                Ok::<_, anyhow::Error>(())
            })
            .buffer_unordered(CLIENTS)
            .try_collect::<Vec<()>>()
            .await?;
        Ok(took)
    }

    /// Makes pods all at once; how long it took until a watch showed all of them Ready.
    async fn fill(&self, numbers: std::ops::Range<usize>, host: bool) -> Result<Duration> {
        let (sender, events) = mpsc::channel();
        let watcher = tokio::spawn(observe(self.client.separate()?.within(NAMESPACE), sender));
        let api = self.client.within::<Pod>(NAMESPACE);
        let params = WriteParams::default();
        let mut waiting: BTreeSet<String> = numbers.clone().map(|n| format!("b{n}")).collect();
        let pods: Vec<Pod> = waiting.iter().map(|name| pod(name, host)).collect::<Result<_>>()?;
        let (api, params) = (&api, &params);
        let began = Instant::now();
        stream::iter(pods.iter())
            .map(|pod| async move { api.create(pod, params).await.map(drop) })
            .buffer_unordered(CLIENTS)
            .try_collect::<Vec<()>>()
            .await?;
        let mut last = began;
        while !waiting.is_empty() {
            while let Ok((name, pod, at)) = events.try_recv() {
                if pod.as_ref().is_some_and(cluster::demo::is_pod_ready) && waiting.remove(&name) {
                    last = last.max(at);
                }
            }
            ensure!(began.elapsed() < PATIENCE, "not Ready in {PATIENCE:?}: {waiting:?}");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        watcher.abort();
        Ok(last - began)
    }

    /// Removes all pods, and waits until they are gone.
    async fn empty(&self) -> Result<()> {
        let api = self.client.within::<Pod>(NAMESPACE);
        let api = &api;
        let list = api.list(&ListParams::default()).await?;
        stream::iter(list.items)
            .map(|pod| async move {
                api.delete(&pod.metadata.name, &DeleteParams::default()).await.map(drop)
            })
            .buffer_unordered(CLIENTS)
            .try_collect::<Vec<()>>()
            .await?;
        let began = Instant::now();
        while !api.list(&ListParams::default()).await?.items.is_empty() {
            ensure!(began.elapsed() < PATIENCE, "pods are left");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Ok(())
    }

    /// Waits until the agent has heard everything.
    async fn ready(&self) -> Result<()> {
        let began = Instant::now();
        while !self.page("/readyz").await.is_ok_and(|text| !text.is_empty()) {
            ensure!(began.elapsed() < PATIENCE, "the agent is not ready");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        Ok(())
    }

    fn agent(&self) -> Result<i32> {
        let handle = supervisor::find(self.spec, AGENT).context("the agent does not run")?;
        Ok(handle.identity.pid)
    }

    async fn memory(&self, what: &str, report: &mut Report) -> Result<()> {
        tokio::time::sleep(SETTLE).await;
        let agent = [(format!("orchlet, {what}"), self.agent()?)];
        footprint::each(&agent, report).await
    }

    /// Kills the agent and times its successor from its start until it is ready and every pod's task knows what it has.
    async fn restarts(&self, report: &mut Report) -> Result<()> {
        let program = programs(self.spec).into_iter().find(|program| program.name == AGENT);
        let program = program.context("no agent in this cluster")?;
        supervisor::end_supervisor(self.spec, Programs::Leave).await?;
        let before = self.changes().await?;
        let (mut ready, mut known) = (Vec::new(), Vec::new());
        let mut child: Option<std::process::Child> = None;
        for _ in 0..RESTARTS {
            let old = supervisor::find(self.spec, AGENT).context("the agent does not run")?;
            old.signal(Signal::SIGKILL)?;
            old.ended().await?;
            if let Some(mut old) = child.take() {
                old.wait()?;
            }
            let began = Instant::now();
            child = Some(supervisor::start(self.spec, &program).await?.1);
            self.ready().await?;
            ready.push(began.elapsed());
            while self.tasks_that_know().await? < 110 {
                ensure!(began.elapsed() < PATIENCE, "not all pods are known");
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            known.push(began.elapsed());
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        supervisor::start_supervisor(self.spec)?;
        report.times("agent killed with 110 pods: start -> ready", ready);
        report.times("agent killed with 110 pods: start -> all pods known", known);
        let made = self.changes().await?.saturating_sub(before);
        report.text("the same: calls that change the runtime, all restarts", format!("{made}"));
        Ok(())
    }

    /// Pods whose task has planned since the agent's start.
    async fn tasks_that_know(&self) -> Result<usize> {
        let page: Value = serde_json::from_str(&self.page("/statusz?format=json").await?)?;
        let tasks = page.get("tasks").unwrap_or(&page).as_object().context("no tasks")?;
        let own = tasks.iter().filter(|(name, _)| name.starts_with(&format!("pod {NAMESPACE}/")));
        Ok(own.filter(|(_, task)| task["outcome"]["done"] == "Running").count())
    }

    async fn page(&self, path: &str) -> Result<String> {
        let node = self.spec.node_list().into_iter().next().context("no node")?;
        cluster::demo::http_get(SocketAddr::from((node.address, 10248)), path).await
    }

    /// How often the runtime was asked for a change, by its own count.
    async fn changes(&self) -> Result<u64> {
        let mut command = tokio::process::Command::new(self.spec.bin_dir.join("cluster"));
        command.arg("exec").arg("--dir").arg(&self.spec.dir).arg("node-1");
        let output = command.args(["curl", "-sf", "http://127.0.0.1:1338/v1/metrics"]).output();
        let text = String::from_utf8(output.await?.stdout)?;
        let started = text.lines().filter(|line| {
            line.starts_with("grpc_server_started_total{")
                && CHANGES.iter().any(|call| line.contains(&format!("grpc_method=\"{call}\"")))
        });
        let counts = started.filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok());
        Ok(counts.sum::<f64>() as u64)
    }
}

/// Calls with which an agent changes something in the runtime.
const CHANGES: [&str; 10] = [
    "RunPodSandbox",
    "StopPodSandbox",
    "RemovePodSandbox",
    "CreateContainer",
    "StartContainer",
    "StopContainer",
    "RemoveContainer",
    "UpdateContainerResources",
    "PullImage",
    "RemoveImage",
];

fn rate(pods: usize, took: Duration) -> f64 {
    pods as f64 / took.as_secs_f64()
}

fn pod(name: &str, host: bool) -> Result<Pod> {
    let value = json!({
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {
            "hostNetwork": host,
            "automountServiceAccountToken": false,
            "enableServiceLinks": false,
            "containers": [{
                "name": "main", "image": BUSYBOX_IMAGE, "imagePullPolicy": "IfNotPresent",
                "command": ["/bin/sh", "-c", SCRIPT],
            }],
        }
    });
    Ok(serde_json::from_value(value)?)
}
