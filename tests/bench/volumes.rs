//! From a write of the API to files in pods: one volume, compared with a floor of a separate watch and a rename for the same writes; and many volumes of one
//! Secret.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use cluster::apply::apply;
use cluster::images::BUSYBOX_IMAGE;
use cluster::spec::Spec;
use cluster::up;
use proto_api::core::v1::{ConfigMap, Pod, Secret};
use proto_client::watch::{Observed, watch};
use proto_client::{Client, ListParams, Patch, WriteParams};
use serde_json::{Value, json};
use tokio::task::spawn_blocking;

use crate::figures::{Figure, Group, Unit};
use crate::own_cluster;

const NAMESPACE: &str = "bench-volumes";
const ROUNDS: usize = 200;
/// Volumes of one secret: so many pods, so many mounts in each.
const PODS: usize = 10;
const MOUNTS: usize = 100;
/// Updates of all of them.
const PASSES: usize = 7;
const PATIENCE: Duration = Duration::from_secs(120);

/// On a cluster of its own, which it removes.
pub async fn measure(bin_dir: &Path) -> Result<()> {
    own_cluster::with(bin_dir, &[], async |spec, _| follow(spec).await).await
}

async fn follow(spec: &Spec) -> Result<()> {
    cluster::demo::import_images(spec).await?;
    let client = cluster::demo::client(spec, up::names(spec))?;
    apply(&client, &format!("apiVersion: v1\nkind: Namespace\nmetadata: {{name: {NAMESPACE}}}\n"))
        .await?;
    one_volume(spec, &client).await?;
    many_volumes(spec, &client).await
}

/// A config map's volume and the floor, measured by the same writes.
async fn one_volume(spec: &Spec, client: &Client) -> Result<()> {
    let maps = client.within::<ConfigMap>(NAMESPACE);
    let mut map = ConfigMap::default();
    map.metadata.name = "settings".into();
    map.data.insert("key".into(), "start".into());
    maps.create(&map, &WriteParams::default()).await?;
    let volumes = json!([{"name": "v0", "configMap": {"name": "settings"}}]);
    let made = ready(client, pod("reader", &volumes)).await?;
    let root = in_container(spec, &made)?;
    let file = root.join("m0/key");
    let floor = Floor::start(spec, client)?;
    let (mut ours, mut least) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        let value = format!("round {round}");
        let patch = Patch::Merge(json!({"data": {"key": value}}));
        let files = [file.clone(), floor.file.clone()];
        let began = Instant::now();
        let seen = spawn_blocking(move || both_have(&files, &value, began));
        maps.patch("settings", &patch, &WriteParams::default()).await?;
        let [here, there] = seen.await??;
        ours.push(here);
        least.push(there);
    }
    let figure = |samples| {
        let what = "config map written -> file in the container";
        Figure::of_times(Group::Volumes, what, Unit::Millis, samples)
    };
    figure(least).side("a watch and a rename").tell()?;
    Ok(figure(ours).tell()?)
}

/// When each of two files has had the value, since `began`. Looks every 100 us or so, which a timer of this program's runtime does not.
fn both_have(files: &[PathBuf; 2], value: &str, began: Instant) -> Result<[Duration; 2]> {
    let mut seen = [None; 2];
    loop {
        for (file, seen) in files.iter().zip(&mut seen) {
            if seen.is_none() && std::fs::read_to_string(file).is_ok_and(|text| text == value) {
                *seen = Some(began.elapsed());
            }
        }
        if let [Some(first), Some(second)] = seen {
            return Ok([first, second]);
        }
        ensure!(began.elapsed() < PATIENCE, "{value} has not come");
        std::thread::sleep(Duration::from_micros(50));
    }
}

/// The minimum of work: receive the object's event, replace a file by another.
struct Floor {
    file: PathBuf,
    task: tokio::task::JoinHandle<()>,
}

impl Floor {
    fn start(spec: &Spec, client: &Client) -> Result<Floor> {
        let file = spec.node_dir("node-1").join("orchlet/floor");
        let maps = client.separate()?.within::<ConfigMap>(NAMESPACE);
        let (place, beside) = (file.clone(), file.with_extension("new"));
        let task = tokio::spawn(async move {
            watch(&maps, &ListParams::name("settings"), |observed| {
                let (Observed::Listed(map) | Observed::Applied(map)) = observed else { return };
                let text = map.data.get("key").cloned().unwrap_or_default();
                // What is not written is not seen, and ends the measurement.
                let _ =
                    std::fs::write(&beside, text).and_then(|()| std::fs::rename(&beside, &place));
            })
            .await;
        });
        Ok(Floor { file, task })
    }
}

impl Drop for Floor {
    fn drop(&mut self) {
        self.task.abort();
        let _ = std::fs::remove_file(&self.file);
    }
}

/// A thousand mounts of one secret follow it.
async fn many_volumes(spec: &Spec, client: &Client) -> Result<()> {
    let secrets = client.within::<Secret>(NAMESPACE);
    let mut secret = Secret::default();
    secret.metadata.name = "shared".into();
    secret.data.insert("key".into(), b"start".to_vec());
    secrets.create(&secret, &WriteParams::default()).await?;
    let volumes: Vec<Value> = (0..MOUNTS)
        .map(|n| json!({"name": format!("v{n}"), "secret": {"secretName": "shared"}}))
        .collect();
    let mut roots = Vec::new();
    for number in 0..PODS {
        let made = ready(client, pod(&format!("many{number}"), &json!(volumes))).await?;
        roots.push(in_container(spec, &made)?);
    }
    let files: Vec<PathBuf> =
        roots.iter().flat_map(|root| (0..MOUNTS).map(|n| root.join(format!("m{n}/key")))).collect();
    let mut samples = Vec::new();
    for pass in 0..PASSES {
        let value = format!("pass {pass}");
        let began = Instant::now();
        let patch = Patch::Merge(json!({"stringData": {"key": value}}));
        secrets.patch("shared", &patch, &WriteParams::default()).await?;
        let mut left: Vec<&PathBuf> = files.iter().collect();
        while !left.is_empty() {
            ensure!(began.elapsed() < PATIENCE, "{} of {} are old", left.len(), files.len());
            left.retain(|file| !std::fs::read_to_string(file).is_ok_and(|text| text == value));
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        samples.push(began.elapsed());
    }
    let what = format!("secret written -> all of its {} files in containers", files.len());
    Ok(Figure::of_times(Group::Volumes, what, Unit::Millis, samples).tell()?)
}

fn pod(name: &str, volumes: &Value) -> Value {
    let names = volumes.as_array().into_iter().flatten().enumerate();
    let mounts: Vec<Value> = names
        .map(|(at, volume)| json!({"name": volume["name"], "mountPath": format!("/m{at}")}))
        .collect();
    json!({
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {
            "hostNetwork": true, "automountServiceAccountToken": false, "enableServiceLinks": false,
            "containers": [{
                "name": "main", "image": BUSYBOX_IMAGE, "imagePullPolicy": "IfNotPresent",
                "command": ["/bin/sleep", "100000"], "volumeMounts": mounts,
            }],
            "volumes": volumes,
        }
    })
}

/// Creates a pod, again for as long as its namespace is young, and waits until it is ready.
async fn ready(client: &Client, pod: Value) -> Result<Pod> {
    let pod: Pod = serde_json::from_value(pod)?;
    let api = client.within::<Pod>(NAMESPACE);
    let deadline = Instant::now() + PATIENCE;
    loop {
        match api.find(&pod.metadata.name).await? {
            Some(made) if cluster::demo::is_pod_ready(&made) => return Ok(made),
            Some(_) => {}
            // the account may still be missing
            None => drop(api.create(&pod, &WriteParams::default()).await),
        }
        ensure!(Instant::now() < deadline, "{} is not ready", pod.metadata.name);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// The root of a pod's container, as its process sees it.
fn in_container(spec: &Spec, pod: &Pod) -> Result<PathBuf> {
    let node = spec.node_cgroup("node-1");
    for pid in cluster::processes::pids_in_cgroup(&[&node, &pod.metadata.uid])? {
        let root = PathBuf::from(format!("/proc/{pid}/root"));
        if root.join("m0/key").exists() {
            return Ok(root);
        }
    }
    bail!("{} has no process with the volume", pod.metadata.name)
}
