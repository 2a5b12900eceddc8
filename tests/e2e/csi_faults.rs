//! Faults of a CSI driver while a pod has its volume, and a node that has lost its mounts.

use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use cluster::supervisor;
use orch_tests::wait::until;
use proto_api::core::v1::{ConfigMap, Pod};
use proto_api::storage::v1::CSIDriver;
use proto_client::{Patch, WriteParams};
use serde_json::json;

use crate::context::{Context, PATIENCE, shown};
use crate::csi::{
    Driver, claiming, deleted, describe, event, made, node_shows, nothing_attached, nothing_staged,
};
use crate::pods::{WAIT, pod};

async fn driver(c: &Context, name: &str, republish: bool) -> Result<Driver> {
    let mut object = CSIDriver::default();
    object.metadata.name = name.to_owned();
    object.spec = serde_json::from_value(json!({
        "attachRequired": false, "requiresRepublish": republish,
        "volumeLifecycleModes": ["Persistent", "Ephemeral"],
    }))?;
    c.client.all::<CSIDriver>().create(&object, &WriteParams::default()).await?;
    Driver::start(c, name).await
}

/// A pod with a volume that it describes itself, and one made of a config map.
fn two_volumes(ns: &str, name: &str, driver: &str) -> String {
    let base = pod(ns, name, WAIT);
    format!(
        "{base}    volumeMounts: [{{name: v, mountPath: /v}}, {{name: m, mountPath: /m}}]\n  nodeName: node-1\n  volumes:\n  \
         - {{name: v, csi: {{driver: {driver}}}}}\n  - {{name: m, configMap: {{name: settings}}}}\n"
    )
}

async fn settings(c: &Context, ns: &str, value: &str) -> Result<()> {
    let maps = c.client.within::<ConfigMap>(ns);
    if maps.find("settings").await?.is_none() {
        let mut map = ConfigMap::default();
        map.metadata.name = "settings".into();
        map.data.insert("key".into(), value.into());
        maps.create(&map, &WriteParams::default()).await?;
        return Ok(());
    }
    let patch = Patch::Merge(json!({"data": {"key": value}}));
    maps.patch("settings", &patch, &WriteParams::default()).await?;
    Ok(())
}

/// Waits until the file in the pod shows a value.
async fn shows(c: &Context, pod: &Pod, value: &str) -> Result<()> {
    until(&format!("the file shows {value}"), PATIENCE, async || {
        match c.in_container(pod, &["/bin/cat", "/m/key"]).await {
            Ok(text) if text == value => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await
}

async fn called(driver: &Driver, call: &str, wanted: usize) -> Result<()> {
    until(&format!("{wanted} of {call}"), PATIENCE, async || match driver.count(call) {
        count if count >= wanted => Ok(()),
        count => Err(format!("{count}")),
    })
    .await
}

pub async fn a_driver_that_fails_later_harms_nothing_else(c: &Context) -> Result<()> {
    let ns = c.namespace("drv-later").await?;
    let name = "later.csi.test";
    let driver = driver(c, name, true).await?;
    settings(c, &ns, "1").await?;
    c.apply(&two_volumes(&ns, "p", name)).await?;
    let p = c.pod_ready(&ns, "p").await?;
    shows(c, &p, "1").await?;

    // republishing fails: it is reported and retried, and the rest of the pod is not affected
    driver.fault("NodePublishVolume fail no more")?;
    settings(c, &ns, "2").await?;
    shows(c, &p, "2").await?;
    let text =
        "MountVolume.SetUp failed for volume \"v\" : rpc error: code = Internal desc = no more";
    event(c, &ns, "FailedMount", text).await?;
    c.pod_ready(&ns, "p").await?;
    let before = driver.count("NodePublishVolume");
    driver.fault("")?;
    called(&driver, "NodePublishVolume", before + 1).await?;

    // it hangs: the same
    driver.fault("NodePublishVolume hang")?;
    let before = driver.count("NodePublishVolume");
    settings(c, &ns, "3").await?;
    called(&driver, "NodePublishVolume", before + 1).await?;
    settings(c, &ns, "4").await?;
    shows(c, &p, "4").await?;
    // an agent that is new and finds the driver hanging: the pod has what it had, and goes on
    c.kill("orchlet-node-1").await?;
    settings(c, &ns, "5").await?;
    shows(c, &p, "5").await?;
    settings(c, &ns, "6").await?;
    shows(c, &p, "6").await?;
    // and the pod goes without waiting for the call to end
    deleted(c, &ns, "p").await?;
    ensure!(driver.count("NodeUnpublishVolume") == 1, "not unpublished");
    // the same when it hangs before the pod has anything
    let before = driver.count("NodePublishVolume");
    c.apply(&two_volumes(&ns, "q", name)).await?;
    called(&driver, "NodePublishVolume", before + 1).await?;
    deleted(c, &ns, "q").await?;
    ensure!(driver.count("NodeUnpublishVolume") == 2, "not unpublished");
    driver.fault("")?;
    c.discard(&ns).await
}

/// A volume and a claim, bound to each other by hand.
async fn bound(c: &Context, ns: &str, name: &str, driver: &str) -> Result<String> {
    use proto_api::core::v1::PersistentVolumeClaim;
    let id = format!("{ns}-{name}");
    c.apply(&format!(
        "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {{name: {name}, namespace: {ns}}}\n\
         spec: {{accessModes: [ReadWriteOnce], storageClassName: '', volumeName: {id}, resources: {{requests: {{storage: 1Gi}}}}}}\n"
    ))
    .await?;
    let claims = c.client.within::<PersistentVolumeClaim>(ns);
    let uid = claims.get(name).await?.metadata.uid;
    c.apply(&format!(
        "apiVersion: v1\nkind: PersistentVolume\nmetadata: {{name: {id}}}\n\
         spec: {{accessModes: [ReadWriteOnce], capacity: {{storage: 1Gi}}, persistentVolumeReclaimPolicy: Retain, \
         claimRef: {{apiVersion: v1, kind: PersistentVolumeClaim, namespace: {ns}, name: {name}, uid: {uid}}}, \
         csi: {{driver: {driver}, volumeHandle: {id}, fsType: ext4}}}}\n"
    ))
    .await?;
    let status = json!({"status": {"phase": "Bound", "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}}});
    claims.patch_status(name, &Patch::Merge(status), &WriteParams::default()).await?;
    Ok(id)
}

/// The kernel's name of this boot, as the node sees it, until this is put aside.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

async fn another_boot(c: &Context, beside: &Path) -> Result<()> {
    std::fs::write(beside, "5e1f5e1f-0000-4000-8000-000000000001\n")?;
    let beside = beside.to_str().context("a path in UTF-8")?;
    c.on_node(&["mount", "--bind", beside, BOOT_ID]).await?;
    Ok(())
}

/// Everything of the agent that is mounted, the pods' processes included, as a machine loses it that is switched off.
async fn lose_everything(c: &Context, pod: &Pod) -> Result<()> {
    let status = pod.status.container_statuses.first().context("no container status")?;
    let (_, id) = status.container_id.split_once("://").context("no container id")?;
    let socket = c.spec.containerd_socket("node-1");
    let socket = socket.to_str().context("a socket path in UTF-8")?;
    let ctr = ["ctr", "-a", socket, "-n", "k8s.io"];
    let root = c.spec.node_dir("node-1").join("orchlet").display().to_string();
    let table = c.on_node(&["cat", "/proc/self/mounts"]).await?;
    let points = table.lines().filter_map(|line| line.split(' ').nth(1));
    // of this pod only: the others of the cluster know nothing of the test
    let own = |point: &&str| {
        point.contains(&root) && (point.contains(&pod.metadata.uid) || point.contains("/csi/"))
    };
    let points: Vec<&str> = points.filter(own).collect();
    ensure!(points.len() >= 2, "a stage and a publication are mounted: {points:?}");
    c.on_node(&[&ctr[..], &["task", "kill", "-s", "KILL", id]].concat()).await?;
    for point in points.iter().rev() {
        c.on_node(&["umount", "-l", point]).await?;
    }
    Ok(())
}

pub async fn a_node_that_lost_its_mounts_gets_them_back(c: &Context) -> Result<()> {
    let ns = c.namespace("drv-reboot").await?;
    let name = "reboot.csi.test";
    let driver = driver(c, name, false).await?;
    let id = bound(c, &ns, "data", name).await?;
    let base = pod(&ns, "p", WAIT);
    c.apply(&format!(
        "{base}    volumeMounts: [{{name: v, mountPath: /v}}]\n  nodeName: node-1\n  volumes:\n  - {{name: v, persistentVolumeClaim: {{claimName: data}}}}\n"
    ))
    .await?;
    let p = c.pod_ready(&ns, "p").await?;
    c.in_container(&p, &["/bin/sh", "-c", "echo kept > /v/file"]).await?;
    ensure!(driver.count("NodeStageVolume") == 1);

    let beside = c.spec.dir.join("boot-id");
    another_boot(c, &beside).await?;
    // it does nothing any more: a machine that is switched off runs no agent
    let agent = supervisor::find(&c.spec, "orchlet-node-1").context("no agent")?;
    agent.signal(nix::sys::signal::Signal::SIGSTOP)?;
    let lost = lose_everything(c, &p).await;
    let killed = c.kill("orchlet-node-1").await;
    let back = c
        .pod_until(&ns, "p", |pod| match pod.status.container_statuses.first() {
            Some(status) if status.restart_count > 0 && status.ready => Ok(()),
            _ => Err(shown(pod)),
        })
        .await;
    c.on_node(&["umount", BOOT_ID]).await?;
    lost?;
    killed?;
    let back = back?;
    // staged and published again, with what was on it, before the container began
    until("the file is there", PATIENCE, async || {
        match c.in_container(&back, &["/bin/cat", "/v/file"]).await {
            Ok(text) if text == "kept\n" => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await?;
    let counts = ["NodeStageVolume", "NodePublishVolume"].map(|call| driver.count(call));
    ensure!(counts == [2, 2], "staged and published {counts:?} times");
    event(c, &ns, "Started", "Started container main").await?;
    deleted(c, &ns, "p").await?;
    nothing_staged(c, name).await?;
    ensure!(driver.count("NodeUnstageVolume") == 1, "not unstaged");
    ensure!(std::fs::read_to_string(driver.volume(&id).join("file"))? == "kept\n");
    c.discard(&ns).await
}

pub async fn a_driver_that_cannot_unstage_holds_no_pod(c: &Context) -> Result<()> {
    let ns = c.namespace("drv-stuck").await?;
    let name = "stuck.csi.test";
    describe(c, name, json!({})).await?;
    let driver = Driver::start(c, name).await?;
    let volume = made(c, &ns, "data", name).await?;
    c.apply(&claiming(&ns, "p", "data")).await?;
    c.pod_ready(&ns, "p").await?;
    let unique = format!("{}^{volume}", c.names.label(&format!("csi/{name}")));
    node_shows(c, &unique, true).await?;

    // the pod is deleted, the node lists the volume as in use, and it is not detached
    driver.fault("NodeUnstageVolume fail busy")?;
    deleted(c, &ns, "p").await?;
    let text = format!(
        "UnmountDevice failed for volume \"{volume}\" : rpc error: code = Internal desc = busy"
    );
    event(c, "default", "FailedUnMount", &text).await?;
    let tried = driver.count("NodeUnstageVolume");
    called(&driver, "NodeUnstageVolume", tried + 2).await?;
    node_shows(c, &unique, true).await?;
    // a restarted agent, which has only the record, does the same
    c.kill("orchlet-node-1").await?;
    let tried = driver.count("NodeUnstageVolume");
    called(&driver, "NodeUnstageVolume", tried + 1).await?;
    node_shows(c, &unique, true).await?;
    ensure!(
        driver.count("ControllerUnpublishVolume") == 0,
        "taken from a node that has it mounted"
    );

    driver.fault("")?;
    nothing_attached(c, name).await?;
    node_shows(c, &unique, false).await?;
    nothing_staged(c, name).await?;
    c.discard(&ns).await
}
