//! A full disk and exhausted file descriptors: running pods are not affected, failures are reported, and work continues once there is room.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use cluster::directory::ClusterDirectory;
use cluster::{supervisor, up};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use orch_tests::wait::until;
use proto_api::core::v1::{ConfigMap, Event, Pod};
use proto_client::{ListParams, Patch, WriteParams};
use serde_json::json;
use tokio::process::Command;
use tokio::time::sleep;

use crate::context::{Context, PATIENCE, output};
use crate::csi::deleted;
use crate::faults::containers;
use crate::hangs::{another_comes_and_goes, node_says, ready_condition};
use crate::pods::{WAIT, pod};

/// Size of a program's disk.
const DISK: &str = "size=24m,mode=700";

pub async fn exhausted_file_descriptors_are_reported_and_recovered(c: &Context) -> Result<()> {
    let ns = c.namespace("descriptors").await?;
    c.apply(&pod(&ns, "runs", WAIT)).await?;
    c.pod_ready(&ns, "runs").await?;
    let before = (containers(c, &ns).await?, containers(c, "demo").await?);
    let agent = supervisor::find(&c.spec, "orchlet-node-1").context("no agent")?;
    let pid = agent.identity.pid;
    let open = std::fs::read_dir(format!("/proc/{pid}/fd"))?.count();
    limit(pid, &open.to_string()).await?;
    let volume = "    volumeMounts: [{name: v, mountPath: /v}]\n  volumes:\n  - {name: v, emptyDir: {medium: Memory}}\n";
    let tried = async {
        c.apply(&(pod(&ns, "starved", WAIT) + volume)).await?;
        told(c, &ns, "starved", "Too many open files").await?;
        let ready = ready_condition(c).await?;
        ensure!(ready.status == "True" || !ready.message.is_empty(), "not ready, and no reason");
        Ok(())
    }
    .await;
    limit(pid, "1048576").await.or(limit(pid, "20000").await)?;
    tried?;
    c.pod_ready(&ns, "starved").await?;
    another_comes_and_goes(c, &ns, "after").await?;
    node_says(c, "True", "").await?;
    let now = supervisor::find(&c.spec, "orchlet-node-1").context("no agent")?;
    ensure!(now.identity == agent.identity, "the agent did not live through it");
    let after = containers(c, &ns).await?;
    ensure!(before.0.iter().all(|(id, n)| after.get(id) == Some(n)), "a container was replaced");
    ensure!(containers(c, "demo").await? == before.1, "a container was replaced");
    c.discard(&ns).await
}

/// How many descriptors a process may have, from now on.
async fn limit(pid: i32, count: &str) -> Result<()> {
    let mut command = Command::new("prlimit");
    command.arg(format!("--pid={pid}")).arg(format!("--nofile={count}:"));
    output(command).await.map(drop)
}

/// Waits until an event of a pod has these words.
async fn told(c: &Context, ns: &str, name: &str, words: &str) -> Result<()> {
    let events = c.client.within::<Event>(ns);
    until(&format!("an event of {name} says {words:?}"), PATIENCE, async || {
        let all = events.list(&ListParams::default()).await.map_err(|e| e.to_string())?;
        let own = all.items.iter().filter(|event| event.involved_object.name == name);
        let texts: Vec<&str> = own.map(|event| event.message.as_str()).collect();
        if texts.iter().any(|text| text.contains(words)) { Ok(()) } else { Err(texts.join("\n")) }
    })
    .await
}

/// Does something with a disk of 24 MiB.
async fn on_small_disk(tried: impl AsyncFnOnce(&Path) -> Result<()>) -> Result<()> {
    let root = PathBuf::from("/var/tmp/orch-e2e-small");
    std::fs::create_dir_all(&root)?;
    mount(Some("tmpfs"), &root, Some("tmpfs"), MsFlags::empty(), Some(DISK)).context("tmpfs")?;
    let tried = tried(&root).await;
    umount2(&root, MntFlags::MNT_DETACH).context("the small disk")?;
    std::fs::remove_dir(&root)?;
    tried
}

pub async fn a_full_disk_is_lived_through(_: &Context) -> Result<()> {
    on_small_disk(the_agents).await
}

async fn the_agents(root: &Path) -> Result<()> {
    let dir = PathBuf::from("/var/tmp/orch-e2e-disk");
    let flags = vec![format!("--root-dir={}", root.display())];
    let c = Context::start_in(dir, "kubernetes", flags).await?;
    let tried = fill_and_free(&c, root).await;
    c.finish(tried.is_err()).await?;
    tried
}

/// Fills a disk to the last byte, and again what other writes free, until nothing is freed for a while and there is no room for another file.
async fn fill(root: &Path) -> Result<()> {
    let mut file = OpenOptions::new().create(true).append(true).open(root.join("filler"))?;
    let mut calm = 0;
    let more = root.join("more");
    let end = Instant::now() + PATIENCE;
    loop {
        ensure!(Instant::now() < end, "the disk does not stay full");
        let mut taken = 0;
        for size in [1 << 16, 1 << 12, 1] {
            while let Ok(written @ 1..) = file.write(&vec![0; size]) {
                taken += written;
            }
        }
        calm = if taken == 0 { calm + 1 } else { 0 };
        // Tried at once: between two rounds other writes may have freed something.
        if calm >= 10 {
            if std::fs::write(&more, "x").is_err() {
                return Ok(());
            }
            std::fs::remove_file(&more)?;
            calm = 0;
        }
        sleep(Duration::from_millis(100)).await;
    }
}

async fn fill_and_free(c: &Context, root: &Path) -> Result<()> {
    let ns = c.namespace("full").await?;
    c.apply(&format!(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: settings, namespace: {ns}}}\ndata: {{key: old}}\n"
    ))
    .await?;
    let volume = "    volumeMounts: [{name: v, mountPath: /v}]\n  volumes:\n  - {name: v, configMap: {name: settings}}\n";
    c.apply(&(pod(&ns, "reads", WAIT) + volume)).await?;
    c.apply(&pod(&ns, "goes", WAIT)).await?;
    let reads = c.pod_ready(&ns, "reads").await?;
    c.pod_ready(&ns, "goes").await?;
    let before = containers(c, &ns).await?;
    let agent = supervisor::find(&c.spec, "orchlet-node-1").context("no agent")?;
    fill(root).await?;

    // What is shown is the old or the new, and never nothing.
    let maps = c.client.within::<ConfigMap>(&ns);
    let text = "x".repeat(200_000);
    let patch = Patch::Merge(json!({"data": {"key": text}}));
    maps.patch("settings", &patch, &WriteParams::default()).await?;
    c.apply(&(pod(&ns, "new", WAIT) + volume)).await?;
    told(c, &ns, "new", "No space left on device").await?;
    let seen = c.read_in_container(&reads, &["/bin/cat", "/v/key"]).await?;
    ensure!(seen == "old" || seen == text, "the file holds {} bytes", seen.len());
    // A pod can be ended, which is how room comes back.
    deleted(c, &ns, "goes").await.context("ending a pod on a full disk")?;
    ensure!(cluster::demo::is_pod_ready(&c.client.within::<Pod>(&ns).get("reads").await?));
    let ready = ready_condition(c).await?;
    ensure!(ready.status == "True" || !ready.message.is_empty(), "not ready, and no reason");
    let now = supervisor::find(&c.spec, "orchlet-node-1").context("no agent")?;
    ensure!(now.identity == agent.identity, "the agent did not live through it");

    // Killed meanwhile, it starts on the full disk and finds what it had.
    fill(root).await?;
    c.kill("orchlet-node-1").await?;
    until("the agent has heard its sources", PATIENCE, async || {
        let page = c.on_node(&["curl", "-sf", "http://127.0.0.1:10248/readyz"]).await;
        page.map_err(|e| format!("{e:#}"))
    })
    .await
    .context("a start on a full disk")?;
    let after = containers(c, &ns).await?;
    let kept = after.iter().filter(|(id, _)| before.contains_key(*id)).count();
    ensure!(kept == 1, "{after:?} after {before:?}");

    std::fs::remove_file(root.join("filler"))?;
    c.pod_ready(&ns, "new").await?;
    until("the new value is in the file", PATIENCE, async || {
        let seen = c.in_container(&reads, &["/bin/cat", "/v/key"]).await;
        match seen.map_err(|e| format!("{e:#}"))? {
            seen if seen == text => Ok(()),
            seen => Err(format!("{} bytes", seen.len())),
        }
    })
    .await?;
    another_comes_and_goes(c, &ns, "after").await?;
    if !containers(c, &ns).await?.keys().any(|id| before.contains_key(id)) {
        bail!("a container was replaced");
    }
    c.discard(&ns).await
}

pub async fn a_full_disk_of_the_store_refuses_writes_until_there_is_room(
    _: &Context,
) -> Result<()> {
    on_small_disk(the_stores).await
}

async fn the_stores(root: &Path) -> Result<()> {
    let place = ClusterDirectory { dir: PathBuf::from("/var/tmp/orch-e2e-disk") };
    let flags = up::Flags { place, nodes: Some(1), ..up::Flags::default() };
    let link = |dir: &Path| {
        std::fs::create_dir_all(dir)?;
        Ok(std::os::unix::fs::symlink(root, dir.join("apiserver"))?)
    };
    let c = Context::start_prepared(flags, link).await?;
    let tried = fill_the_store(&c, root).await;
    c.finish(tried.is_err()).await?;
    tried
}

/// Writes large config maps until one is refused, at most `most`; how many were not refused, and why that one was.
async fn written(c: &Context, ns: &str, prefix: &str, most: usize) -> (usize, String) {
    let maps = c.client.within::<ConfigMap>(ns);
    for n in 0..most {
        let mut map = ConfigMap::default();
        map.metadata.name = format!("{prefix}{n}");
        map.data.insert("text".into(), "x".repeat(100_000));
        if let Err(refused) = maps.create(&map, &WriteParams::default()).await {
            return (n, format!("{:#}", anyhow::Error::from(refused)));
        }
    }
    (most, String::new())
}

/// Checks how many config maps there are of each prefix.
async fn kept(c: &Context, ns: &str, of: &[(&str, usize)]) -> Result<()> {
    let list = c.client.within::<ConfigMap>(ns).list(&ListParams::default()).await?;
    for (prefix, expected) in of {
        let found = list.items.iter().filter(|m| m.metadata.name.starts_with(prefix)).count();
        ensure!(found == *expected, "{found} of {expected} {prefix}");
    }
    Ok(())
}

async fn fill_the_store(c: &Context, root: &Path) -> Result<()> {
    let ns = c.namespace("full").await?;
    c.apply(&pod(&ns, "stays", WAIT)).await?;
    c.pod_ready(&ns, "stays").await?;
    let before = containers(c, &ns).await?;
    let process = || supervisor::find(&c.spec, "orch-apiserver").context("no API server");
    let server = process()?.identity;
    fill(root).await?;
    let (first, why) = written(c, &ns, "first", 1000).await;
    ensure!(why.contains("No space left on device"), "{why}");
    kept(c, &ns, &[("first", first)]).await.context("on a full disk")?;
    ensure!(process()?.identity == server, "the API server did not live through it");

    // Killed meanwhile, it starts on the full disk and has all that was taken, and nothing that was not.
    c.kill("orch-apiserver").await?;
    until("the API server answers", PATIENCE, async || {
        kept(c, &ns, &[("first", first)]).await.map_err(|e| format!("{e:#}"))
    })
    .await?;
    let (none, why) = written(c, &ns, "second", 1).await;
    ensure!(none == 0 && why.contains("No space left on device"), "{none} {why}");
    let server = process()?.identity;

    std::fs::remove_file(root.join("filler"))?;
    let (third, why) = written(c, &ns, "third", 5).await;
    ensure!(third == 5, "{why}");
    kept(c, &ns, &[("first", first), ("second", 0), ("third", 5)]).await.context("after it")?;
    another_comes_and_goes(c, &ns, "after").await?;
    ensure!(process()?.identity == server, "the API server had to be started again");
    ensure!(containers(c, &ns).await? == before, "a container was replaced");
    c.discard(&ns).await
}
