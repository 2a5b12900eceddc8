//! A pod's life on a node: the whole system, and the same runtime calls made directly.

use std::path::PathBuf;
use std::sync::mpsc;
use std::time::{Duration, Instant, SystemTime};

use agent_pod::spec::{ContainerConfig, NamespaceScope, Namespaces, SandboxConfig};
use agent_runtime::Runtime;
use agent_runtime::cri::CriRuntime;
use anyhow::{Context as _, Result};
use cluster::apply::apply;
use cluster::images::BUSYBOX_IMAGE;
use cluster::spec::Spec;
use cluster::supervisor::{self, Programs};
use cluster::up;
use proto_api::core::v1::{ConfigMap, Pod};
use proto_client::watch::{Observed, watch};
use proto_client::{Api, Client, DeleteParams, ListParams, Patch, WriteParams};
use serde_json::json;

use crate::report::Report;

const ROUNDS: usize = 15;
/// Other agents take more than a minute for a config map.
const PATIENCE: Duration = Duration::from_secs(200);
const NAMESPACE: &str = "bench";
/// Ends at once when told to, and leaves a stamp when it starts.
const SCRIPT: &str = "touch /stamp/at; trap 'exit 0' TERM; while true; do sleep 1000 & wait; done";

/// A cluster whose pods are timed: ours, or another one on this machine.
pub struct Target {
    /// Its administrator.
    pub client: Client,
    /// Where its only node keeps the pods' directories.
    pub pods_dir: PathBuf,
    /// An image with a shell, present on the node.
    pub image: String,
    /// Samples of what takes milliseconds.
    pub rounds: usize,
    /// Samples of a config map's way into a file.
    pub rotations: usize,
}

impl Target {
    /// A running cluster of ours with the busybox image.
    pub fn ours(spec: &Spec) -> Result<Target> {
        Ok(Target {
            client: cluster::demo::client(spec, up::names(spec))?,
            pods_dir: spec.node_dir("node-1").join("orchlet/pods"),
            image: BUSYBOX_IMAGE.to_owned(),
            rounds: ROUNDS,
            rotations: ROUNDS * 4,
        })
    }

    /// All rows about pods.
    pub async fn measure(&self, report: &mut Report) -> Result<()> {
        let manifest =
            format!("apiVersion: v1\nkind: Namespace\nmetadata: {{name: {NAMESPACE}}}\n");
        apply(&self.client, &manifest).await?;
        for (label, host) in [("host network", true), ("pod network", false)] {
            let (starts, ends) = self.pods(host).await?;
            report.times(&format!("{label}: pod created -> Ready on a watch"), starts);
            report.times(&format!("{label}: pod deleted -> gone on a watch"), ends);
        }
        report.times("container killed -> its successor runs", self.restarts().await?);
        report.times("config map written -> file switched", self.rotations().await?);
        Ok(())
    }

    /// Creates a pod, again for as long as the namespace's account is still missing.
    async fn create(&self, pod: &Pod) -> Result<(Pod, Instant)> {
        let api = self.client.within::<Pod>(NAMESPACE);
        let deadline = Instant::now() + PATIENCE;
        loop {
            let began = Instant::now();
            match api.create(pod, &WriteParams::default()).await {
                Ok(made) => return Ok((made, began)),
                Err(e) if Instant::now() > deadline => return Err(e.into()),
                Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
            }
        }
    }

    async fn pods(&self, host: bool) -> Result<(Vec<Duration>, Vec<Duration>)> {
        let (mut starts, mut ends) = (Vec::new(), Vec::new());
        let (sender, events) = mpsc::channel();
        let api = self.client.within::<Pod>(NAMESPACE);
        let watcher = tokio::spawn(observe(self.client.separate()?.within(NAMESPACE), sender));
        for round in 0..self.rounds {
            let name = format!("p{round}");
            let (_, began) = self.create(&self.pod(&name, host)).await?;
            let ready =
                seen(&events, &name, |pod| pod.is_some_and(cluster::demo::is_pod_ready)).await?;
            starts.push(ready - began);
            tokio::time::sleep(Duration::from_millis(200)).await;
            let began = Instant::now();
            api.delete(&name, &DeleteParams::default()).await?;
            ends.push(seen(&events, &name, |pod| pod.is_none()).await? - began);
        }
        watcher.abort();
        Ok((starts, ends))
    }

    /// A container that has run for a while is killed; its successor's first act is a file.
    async fn restarts(&self) -> Result<Vec<Duration>> {
        let mut samples = Vec::new();
        let (sender, events) = mpsc::channel();
        let watcher = tokio::spawn(observe(self.client.separate()?.within(NAMESPACE), sender));
        let api = self.client.within::<Pod>(NAMESPACE);
        for round in 0..self.rounds {
            let name = format!("crash{round}");
            let (made, _) = self.create(&self.pod(&name, true)).await?;
            seen(&events, &name, |pod| pod.is_some_and(cluster::demo::is_pod_ready)).await?;
            let stamp = self.volume(&made.metadata.uid, "empty-dir", "stamp").join("at");
            let first = modified(&stamp)?;
            let pid = pid_of(&made.metadata.uid)?;
            let killed = SystemTime::now();
            nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL)?;
            let again = poll(|| modified(&stamp).ok().filter(|at| *at != first)).await?;
            samples.push(again.duration_since(killed).unwrap_or_default());
            api.delete(&name, &DeleteParams::default()).await?;
            seen(&events, &name, |pod| pod.is_none()).await?;
        }
        watcher.abort();
        Ok(samples)
    }

    async fn rotations(&self) -> Result<Vec<Duration>> {
        let mut samples = Vec::new();
        let maps = self.client.within::<ConfigMap>(NAMESPACE);
        let mut map = ConfigMap::default();
        map.metadata.name = "settings".into();
        map.data.insert("key".into(), "start".into());
        maps.create(&map, &WriteParams::default()).await?;
        let mut pod = self.pod("reader", true);
        let volume = json!({"name": "settings", "configMap": {"name": "settings"}});
        pod.spec.volumes.push(serde_json::from_value(volume)?);
        let (sender, events) = mpsc::channel();
        let watcher = tokio::spawn(observe(self.client.separate()?.within(NAMESPACE), sender));
        let (made, _) = self.create(&pod).await?;
        seen(&events, "reader", |pod| pod.is_some_and(cluster::demo::is_pod_ready)).await?;
        watcher.abort();
        let file = self.volume(&made.metadata.uid, "configmap", "settings").join("key");
        for round in 0..self.rotations {
            let value = format!("round {round}");
            let began = Instant::now();
            let patch = Patch::Merge(json!({"data": {"key": value}}));
            maps.patch("settings", &patch, &WriteParams::default()).await?;
            poll(|| (std::fs::read_to_string(&file).ok()? == value).then_some(())).await?;
            samples.push(began.elapsed());
        }
        Ok(samples)
    }

    /// Directory of a volume, found by plugin and name whatever the profile's domain is.
    fn volume(&self, uid: &str, plugin: &str, name: &str) -> PathBuf {
        let pods = self.pods_dir.join(uid).join("volumes");
        let named = |entry: &std::fs::DirEntry| {
            entry.file_name().to_string_lossy().ends_with(&format!("~{plugin}"))
        };
        let entries = std::fs::read_dir(&pods).into_iter().flatten().flatten();
        let plugin_dir = entries.into_iter().find(named).map(|entry| entry.path());
        plugin_dir.unwrap_or(pods).join(name)
    }

    fn pod(&self, name: &str, host: bool) -> Pod {
        let value = json!({
            "metadata": {"name": name, "namespace": NAMESPACE},
            "spec": {
                "hostNetwork": host,
                "automountServiceAccountToken": false,
                "enableServiceLinks": false,
                "containers": [{
                    "name": "main", "image": self.image,
                    "imagePullPolicy": "IfNotPresent",
                    "command": ["/bin/sh", "-c", SCRIPT],
                    "volumeMounts": [{"name": "stamp", "mountPath": "/stamp"}],
                }],
                "volumes": [{"name": "stamp", "emptyDir": {}}],
            }
        });
        serde_json::from_value(value).unwrap_or_default()
    }
}

/// Does `work` while the first node has no agent, which would remove pods that nobody has told it of.
pub async fn without_agent<T>(spec: &Spec, work: impl Future<Output = Result<T>>) -> Result<T> {
    supervisor::end_supervisor(spec, Programs::Leave).await?;
    if let Some(agent) = supervisor::find(spec, "orchlet-node-1") {
        agent.signal(nix::sys::signal::Signal::SIGKILL)?;
        agent.ended().await?;
    }
    let done = work.await;
    supervisor::start_supervisor(spec)?;
    done
}

/// The calls that the agent makes to the runtime, and nothing else.
pub async fn floor(spec: &Spec, report: &mut Report) -> Result<()> {
    let socket = spec.containerd_socket("node-1");
    let runtime = CriRuntime::new(&format!("unix://{}", socket.display()))?;
    let cgroup = format!("{}/floor", spec.node_cgroup("node-1"));
    for (label, host) in [("host network", true), ("pod network", false)] {
        let (mut starts, mut ends) = (Vec::new(), Vec::new());
        for round in 0..ROUNDS {
            let sandbox = sandbox(round, host, &cgroup);
            let container = ContainerConfig {
                name: "main".into(),
                image: BUSYBOX_IMAGE.into(),
                command: vec!["/bin/sh".into(), "-c".into(), SCRIPT.replace("/stamp/at", "/at")],
                ..ContainerConfig::default()
            };
            let began = Instant::now();
            let made = runtime.run_sandbox(&sandbox).await?;
            let id = runtime.create_container(&made.id, &container, &sandbox).await?;
            runtime.start_container(&id).await?;
            starts.push(began.elapsed());
            // The shell needs a moment to set its trap; the agent's pods had it too.
            tokio::time::sleep(Duration::from_millis(200)).await;
            let began = Instant::now();
            runtime.stop_container(&id, Duration::from_secs(5)).await?;
            runtime.stop_sandbox(&made.id).await?;
            runtime.remove_sandbox(&made.id).await?;
            ends.push(began.elapsed());
        }
        report.times(&format!("{label}: runtime calls alone, start"), starts);
        report.times(&format!("{label}: runtime calls alone, stop and remove"), ends);
    }
    Ok(())
}

/// A sandbox of the direct calls.
pub fn sandbox(round: usize, host: bool, cgroup: &str) -> SandboxConfig {
    let network = if host { NamespaceScope::Node } else { NamespaceScope::Pod };
    SandboxConfig {
        name: format!("floor{round}"),
        uid: format!("00000000-0000-4000-8000-{round:012}"),
        namespace: NAMESPACE.into(),
        log_directory: "/var/log/pods/floor".into(),
        cgroup_parent: cgroup.into(),
        namespaces: Namespaces { network, ..Namespaces::default() },
        ..SandboxConfig::default()
    }
}

/// What the watch shows: the pod, or nothing when it is gone, and when it was seen.
pub type Seen = (String, Option<Pod>, Instant);

/// Tells what a watch shows, until nobody listens any more.
pub async fn observe(api: Api<Pod>, sender: mpsc::Sender<Seen>) {
    watch(&api, &ListParams::default(), |observed| {
        let seen = match observed {
            Observed::Listed(pod) | Observed::Applied(pod) => {
                (pod.metadata.name.clone(), Some(pod), Instant::now())
            }
            Observed::Deleted(pod) => (pod.metadata.name, None, Instant::now()),
            Observed::ListBegan | Observed::ListEnded => return,
        };
        // Nobody listens any more when the measurement is over.
        let _over = sender.send(seen);
    })
    .await;
}

async fn seen(
    events: &mpsc::Receiver<Seen>,
    name: &str,
    fits: impl Fn(Option<&Pod>) -> bool,
) -> Result<Instant> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        while let Ok((of, pod, at)) = events.try_recv() {
            if of == name && fits(pod.as_ref()) {
                return Ok(at);
            }
        }
        anyhow::ensure!(Instant::now() < deadline, "{name} is not as awaited in {PATIENCE:?}");
        tokio::time::sleep(Duration::from_micros(200)).await;
    }
}

async fn poll<T>(mut look: impl FnMut() -> Option<T>) -> Result<T> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look() {
            return Ok(found);
        }
        anyhow::ensure!(Instant::now() < deadline, "nothing in {PATIENCE:?}");
        tokio::time::sleep(Duration::from_micros(200)).await;
    }
}

fn modified(path: &PathBuf) -> Result<SystemTime> {
    let metadata = std::fs::metadata(path).with_context(|| format!("{}", path.display()))?;
    Ok(metadata.modified()?)
}

/// The shell of the pod, by its cgroup: the process whose command line holds the script.
fn pid_of(uid: &str) -> Result<nix::unistd::Pid> {
    for pid in cluster::processes::pids_in_cgroup(&[uid])? {
        let command = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        if command.contains("/stamp/at") {
            return Ok(nix::unistd::Pid::from_raw(pid));
        }
    }
    anyhow::bail!("no process of pod {uid}")
}
