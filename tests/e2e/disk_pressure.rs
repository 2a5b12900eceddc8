//! Disk pressure on a node: unused data is removed first, then the pods that used the space are evicted, and no others.

use std::path::{Path, PathBuf};

use agent_runtime::image::{ImageFile, ImageTar};
use anyhow::{Context as _, Result, ensure};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::statvfs::statvfs;
use orch_tests::wait::until;
use proto_api::core::v1::{Node, Pod};
use proto_client::request;
use tokio::process::Command;

use crate::context::{Context, PATIENCE, output, shown};
use crate::csi::event;
use crate::faults::containers;
use crate::node::failed_for;
use crate::pods::{WAIT, pod};

const MIB: u64 = 1 << 20;
/// Size of the disk.
const DISK: u64 = 900 * MIB;
/// What must stay free of it.
const FREE: u64 = 256 * MIB;
/// How far below that it is brought.
const SHORT: u64 = 40 * MIB;
/// Content of the unused image. The runtime stores it twice: packed and unpacked.
const IDLE: usize = 48 << 20;
const IDLE_IMAGE: &str = "orch.local/idle:1";
/// Where the disk is mounted; a file beside it holds its content.
const PLACE: &str = "/var/tmp/orch-e2e-press";

pub async fn a_disk_that_runs_short_is_cleared_in_order(_: &Context) -> Result<()> {
    let disk = Disk::new().await?;
    let dir = disk.0.join("cluster");
    let flags = [
        "--eviction-hard=nodefs.available<256Mi",
        "--eviction-pressure-transition-period=20s",
        "--minimum-image-ttl-duration=0s",
    ];
    let c = Context::start_in(dir, "kubernetes", flags.map(str::to_owned).to_vec()).await?;
    let tried = run_short(&c, &disk).await;
    c.finish(tried.is_err()).await?;
    tried
}

/// A small disk.
struct Disk(PathBuf);

impl Disk {
    /// A file system in a file, or in memory on a machine without loop devices.
    async fn new() -> Result<Disk> {
        let disk = Disk(PathBuf::from(PLACE));
        disk.clear();
        std::fs::create_dir_all(&disk.0)?;
        let file = disk.file();
        std::fs::File::create(&file)?.set_len(DISK)?;
        let mut make = Command::new("mkfs.ext4");
        make.args(["-q", "-F", "-m", "0"]).arg(&file);
        let mut attach = Command::new("mount");
        attach.args(["-o", "loop"]).arg(&file).arg(&disk.0);
        if output(make).await.is_err() || output(attach).await.is_err() {
            println!("    no loop devices here: a disk in memory");
            let size = format!("size={DISK}");
            mount(Some("tmpfs"), &disk.0, Some("tmpfs"), MsFlags::empty(), Some(&*size))
                .context("tmpfs")?;
        }
        Ok(disk)
    }

    fn file(&self) -> PathBuf {
        self.0.with_extension("img")
    }

    fn free(&self) -> Result<u64> {
        let found = statvfs(&self.0)?;
        Ok(found.blocks_available() * found.fragment_size())
    }

    /// Also what a run that was cut off left behind.
    fn clear(&self) {
        let _ = umount2(&self.0, MntFlags::MNT_DETACH); // it may not be mounted
        let _ = std::fs::remove_dir(&self.0);
        let _ = std::fs::remove_file(self.file());
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        self.clear();
    }
}

async fn run_short(c: &Context, disk: &Disk) -> Result<()> {
    let ns = c.namespace("short").await?;
    let volume =
        "    volumeMounts: [{name: v, mountPath: /v}]\n  volumes: [{name: v, emptyDir: {}}]\n";
    for name in ["modest", "greedy"] {
        c.apply(&(pod(&ns, name, WAIT) + volume)).await?;
    }
    let modest = c.pod_ready(&ns, "modest").await?;
    let greedy = c.pod_ready(&ns, "greedy").await?;
    write(c, &modest, "/v/x", MIB).await?;
    let before = containers(c, &ns).await?;
    import_idle(c).await?;

    // Removing unused data is enough: no pod is evicted.
    write(c, &greedy, "/v/x", (disk.free()? + SHORT).saturating_sub(FREE)).await?;
    node_event(c, "EvictionThresholdMet", "Attempting to reclaim ephemeral-storage").await?;
    until("the unused image is gone", PATIENCE, async || {
        let all = images(c).await.map_err(|e| format!("{e:#}"))?;
        let left = disk.free().map_err(|e| format!("{e:#}"))?;
        match !all.contains(IDLE_IMAGE) && left > FREE {
            true => Ok(()),
            false => Err(format!("{left} are free beside\n{all}")),
        }
    })
    .await?;
    let left = disk.free()?;
    ensure!(containers(c, &ns).await? == before, "a container ended though an image could go");

    // Now only a pod can: the one that took the room. What it wrote to its layer counts as well.
    // It may be evicted before the program in it has ended.
    let _evicted = write(c, &greedy, "/x", left + SHORT - FREE).await;
    let gone = c.pod_until(&ns, "greedy", |pod| failed_for(pod, "Evicted")).await?;
    let low = "The node was low on resource: ephemeral-storage. Container main was using ";
    ensure!(gone.status.message.starts_with(low), "{}", gone.status.message);
    event(c, &ns, "Evicted", low).await?;
    node_event(c, "NodeHasDiskPressure", "").await?;
    pressure(c, "True").await?;
    // The pod asks for this node by name: it is not placed, it is refused.
    let late = pod(&ns, "late", WAIT).replace("spec:\n", "spec:\n  nodeName: node-1\n");
    c.apply(&late).await?;
    let late = c.pod_until(&ns, "late", |pod| failed_for(pod, "Evicted")).await?;
    ensure!(late.status.message.contains("[DiskPressure]"), "{}", late.status.message);

    // It is over by and by, and the room is back.
    pressure(c, "False").await?;
    ensure!(disk.free()? > FREE + left / 2, "{} of {left} are free", disk.free()?);
    let was = modest;
    let modest = c.client.within::<Pod>(&ns).get("modest").await?;
    ensure!(cluster::demo::is_pod_ready(&modest), "{}", shown(&modest));
    let runs = |pod: &Pod| pod.status.container_statuses.first().map(|c| c.container_id.clone());
    ensure!(runs(&modest) == runs(&was), "{}", shown(&modest));
    c.apply(&pod(&ns, "after", WAIT)).await?;
    c.pod_ready(&ns, "after").await?;
    counted(c).await?;
    c.discard(&ns).await
}

/// Writes so many bytes to a file in a container.
async fn write(c: &Context, pod: &Pod, path: &str, bytes: u64) -> Result<()> {
    let mib = bytes.div_ceil(MIB);
    let dd = format!("dd if=/dev/zero of={path} bs=1M count={mib} 2>/dev/null && sync");
    c.in_container(pod, &["/bin/sh", "-c", &dd]).await.map(drop)
}

/// Gives the node an image that no pod asks for.
async fn import_idle(c: &Context) -> Result<()> {
    let data = vec![b'x'; IDLE];
    let files = [ImageFile::Regular { path: "large", mode: 0o644, data }];
    let image = ImageTar::single_layer(IDLE_IMAGE, &files, &["/large"]);
    cluster::images::import(&c.spec.containerd_socket("node-1"), &image).await?;
    ensure!(images(c).await?.contains(IDLE_IMAGE), "the image is not there");
    Ok(())
}

async fn images(c: &Context) -> Result<String> {
    let socket = c.spec.containerd_socket("node-1");
    let socket = Path::new(&socket).to_str().context("a socket path in UTF-8")?;
    c.on_node(&["ctr", "-a", socket, "-n", "k8s.io", "images", "ls", "-q"]).await
}

/// Events about nodes are in the namespace of those that have none.
async fn node_event(c: &Context, reason: &str, text: &str) -> Result<()> {
    event(c, "default", reason, text).await
}

/// Waits for the node's condition, and for the taint that follows it.
async fn pressure(c: &Context, status: &str) -> Result<()> {
    let taint = c.names.sub_label("node", "disk-pressure");
    until(&format!("DiskPressure is {status}"), PATIENCE * 2, async || {
        let node = c.client.all::<Node>().get("node-1").await.map_err(|e| e.to_string())?;
        let now = node.status.conditions.iter().find(|each| each.type_ == "DiskPressure");
        let now = now.map(|condition| condition.status.clone()).unwrap_or_default();
        let tainted = node.spec.taints.iter().any(|t| t.key == taint && t.effect == "NoSchedule");
        match now == status && tainted == (status == "True") {
            true => Ok(()),
            false => Err(format!("{now}, taints {:?}", node.spec.taints)),
        }
    })
    .await
}

/// One pod was evicted, and it is counted by the signal.
async fn counted(c: &Context) -> Result<()> {
    let answer = c.client.call(request::get("/api/v1/nodes/node-1/proxy/metrics".into())).await?;
    let page = String::from_utf8_lossy(&answer.body).into_owned();
    let agent = c.names.component("let");
    for line in [
        format!("{agent}_evictions{{eviction_signal=\"nodefs.available\"}} 1"),
        format!(
            "{agent}_eviction_stats_age_seconds_count{{eviction_signal=\"nodefs.available\"}} 1"
        ),
    ] {
        ensure!(page.lines().any(|known| known == line), "{line} is not in the metrics");
    }
    Ok(())
}
