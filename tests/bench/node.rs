//! The lifecycle of a pod on a node: the whole system, and the same runtime calls made directly.

use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context as _, Result};
use cluster::apply::apply;
use cluster::images::BUSYBOX_IMAGE;
use cluster::spec::Spec;
use cluster::up;
use proto_api::core::v1::{ConfigMap, Pod};
use proto_client::{Client, DeleteParams, Patch, WriteParams};
use serde_json::json;

use crate::figures::{Figure, Group, KUBERNETES, OURS, RUNTIME, Unit};
use crate::runtime_floor::{self, RuntimeFloor};
use crate::workload::{Network, PATIENCE, SCRIPT, Shown, container, pod};

const ROUNDS: usize = 15;
const NAMESPACE: &str = "bench";
/// Between a pod's start and its end.
const BREATH: Duration = Duration::from_millis(200);
/// Where a pod of a cluster leaves its stamp.
const STAMP: &str = "/stamp/at";

/// A cluster whose pods are timed: ours, or another one on this machine.
pub struct Target {
    /// Whose it is.
    pub side: &'static str,
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
            side: OURS,
            client: cluster::demo::client(spec, up::names(spec))?,
            pods_dir: spec.node_dir("node-1").join("orchlet/pods"),
            image: BUSYBOX_IMAGE.to_owned(),
            rounds: ROUNDS,
            rotations: ROUNDS * 4,
        })
    }

    /// All about pods.
    pub async fn measure(&self) -> Result<()> {
        let manifest =
            format!("apiVersion: v1\nkind: Namespace\nmetadata: {{name: {NAMESPACE}}}\n");
        apply(&self.client, &manifest).await?;
        for network in Network::BOTH {
            let (starts, ends) = self.pods(network).await?;
            for (what, samples) in [(created(network), starts), (deleted(network), ends)] {
                let figure = Figure::of_times(Group::Node, what, Unit::Millis, samples);
                figure.side(self.side).beside(RUNTIME).beside(KUBERNETES).tell()?;
            }
        }
        self.tell("container killed -> its successor runs", self.restarts().await?)?;
        self.tell("config map written -> file switched", self.rotations().await?)
    }

    fn tell(&self, what: &str, samples: Vec<Duration>) -> Result<()> {
        let figure = Figure::of_times(Group::Node, what, Unit::Millis, samples);
        figure.side(self.side).beside(KUBERNETES).tell()?;
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

    async fn pods(&self, network: Network) -> Result<(Vec<Duration>, Vec<Duration>)> {
        let (mut starts, mut ends) = (Vec::new(), Vec::new());
        let mut shown = Shown::follow(&self.client, NAMESPACE)?;
        let api = self.client.within::<Pod>(NAMESPACE);
        for round in 0..self.rounds {
            let name = format!("p{round}");
            let (_, began) = self.create(&self.pod(&name, network)?).await?;
            starts.push(shown.until_ready(std::slice::from_ref(&name)).await? - began);
            tokio::time::sleep(BREATH).await;
            let began = Instant::now();
            api.delete(&name, &DeleteParams::default()).await?;
            ends.push(shown.until(&name, |pod| pod.is_none()).await? - began);
        }
        Ok((starts, ends))
    }

    /// A container that has run for a while is killed; its successor's first act is a file.
    async fn restarts(&self) -> Result<Vec<Duration>> {
        let mut samples = Vec::new();
        let mut shown = Shown::follow(&self.client, NAMESPACE)?;
        let api = self.client.within::<Pod>(NAMESPACE);
        for round in 0..self.rounds {
            let name = format!("crash{round}");
            let (made, _) = self.create(&self.pod(&name, Network::Host)?).await?;
            shown.until_ready(std::slice::from_ref(&name)).await?;
            let stamp = self.volume(&made.metadata.uid, "empty-dir", "stamp").join("at");
            let first = modified(&stamp)?;
            let pid = pid_of(&made.metadata.uid)?;
            let killed = SystemTime::now();
            nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL)?;
            let again = poll(|| modified(&stamp).ok().filter(|at| *at != first)).await?;
            samples.push(again.duration_since(killed).unwrap_or_default());
            api.delete(&name, &DeleteParams::default()).await?;
            shown.until(&name, |pod| pod.is_none()).await?;
        }
        Ok(samples)
    }

    async fn rotations(&self) -> Result<Vec<Duration>> {
        let mut samples = Vec::new();
        let maps = self.client.within::<ConfigMap>(NAMESPACE);
        let mut map = ConfigMap::default();
        map.metadata.name = "settings".into();
        map.data.insert("key".into(), "start".into());
        maps.create(&map, &WriteParams::default()).await?;
        let mut pod = self.pod("reader", Network::Host)?;
        let volume = json!({"name": "settings", "configMap": {"name": "settings"}});
        pod.spec.volumes.push(serde_json::from_value(volume)?);
        // A kubelet sets up only what a container mounts.
        let mount = json!({"name": "settings", "mountPath": "/settings"});
        let container = pod.spec.containers.first_mut().context("no container")?;
        container.volume_mounts.push(serde_json::from_value(mount)?);
        let mut shown = Shown::follow(&self.client, NAMESPACE)?;
        let (made, _) = self.create(&pod).await?;
        shown.until_ready(&["reader".to_owned()]).await?;
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

    fn pod(&self, name: &str, network: Network) -> Result<Pod> {
        let mut container = container("main", &self.image, &script(STAMP));
        container["volumeMounts"] = json!([{"name": "stamp", "mountPath": "/stamp"}]);
        let volume = json!({"name": "stamp", "emptyDir": {}});
        pod(NAMESPACE, name, network, vec![container], vec![volume])
    }
}

/// A pod's start, as a watch shows it.
fn created(network: Network) -> String {
    format!("{network}: pod created -> Ready")
}

/// A pod's end, as a watch shows it.
fn deleted(network: Network) -> String {
    format!("{network}: pod deleted -> gone")
}

/// The calls that the agent makes to the runtime, and nothing else.
pub async fn floor(spec: &Spec) -> Result<()> {
    let floor = RuntimeFloor::new(spec)?;
    for network in Network::BOTH {
        let (mut starts, mut ends) = (Vec::new(), Vec::new());
        for round in 0..ROUNDS {
            let wanted = runtime_floor::pod(round, network, &script("/at"))?;
            let began = Instant::now();
            let made = floor.start(&wanted).await?;
            starts.push(began.elapsed());
            // The shell needs a moment to set its trap; the agent's pods had it too.
            tokio::time::sleep(BREATH).await;
            let began = Instant::now();
            floor.end(&made, Duration::from_secs(5)).await?;
            ends.push(began.elapsed());
        }
        for (what, samples) in [(created(network), starts), (deleted(network), ends)] {
            let figure = Figure::of_times(Group::Node, what, Unit::Millis, samples);
            figure.side(RUNTIME).tell()?;
        }
    }
    Ok(())
}

/// Ends at once on SIGTERM, and writes a timestamp when it starts.
fn script(stamp: &str) -> String {
    format!("touch {stamp}; {SCRIPT}")
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
        if command.contains(STAMP) {
            return Ok(nix::unistd::Pid::from_raw(pid));
        }
    }
    anyhow::bail!("no process of pod {uid}")
}
