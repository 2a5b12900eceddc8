//! A projected volume under several loads at once: updates as fast as the API server accepts them, repeated kills of the agent, a full file system for a
//! while. A reader in the container never misses a file and never sees a mix of versions.
//!
//! `AGENT_VOLUME_UPDATES` and `AGENT_VOLUME_KILLS` make it longer.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use orch_tests::wait::until;
use proto_api::core::v1::{ConfigMap, Pod};
use proto_client::{Patch, WriteParams};
use serde_json::{Value, json};

use crate::context::{Context, PATIENCE};
use crate::pods::{WAIT, pod};

/// How long a generation that ended is certainly still there; see the agent's volume crate.
const LINGER: Duration = Duration::from_secs(1);
/// Lines of each file: large enough that a mix could show.
const LINES: usize = 100;

/// What the reader has seen.
#[derive(Debug, Default)]
struct Seen {
    reads: AtomicU64,
    wholes: AtomicU64,
    versions: AtomicU64,
    last: AtomicU64,
    stop: AtomicBool,
}

fn asked(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// The files of a version: two that are always there, and one whose name alternates.
fn version(number: u64) -> Value {
    let text = format!("{number}\n").repeat(LINES);
    let (here, gone) = if number.is_multiple_of(2) { ("even", "odd") } else { ("odd", "even") };
    json!({"data": {"always": text, "beside": text, here: text, gone: null}})
}

/// The one version that a text is of.
fn number_of(text: &str) -> Result<u64> {
    let mut lines = text.lines();
    let first = lines.next().context("an empty file")?;
    ensure!(lines.filter(|line| *line == first).count() == LINES - 1, "a mixed file: {text:?}");
    Ok(first.parse()?)
}

/// Reads without a pause until it is stopped; the first error ends it.
fn read_for_ever(volume: &Path, seen: &Seen) -> Result<()> {
    while !seen.stop.load(Relaxed) {
        let text = std::fs::read_to_string(volume.join("always")).context("a plain read")?;
        let number = number_of(&text)?;
        seen.reads.fetch_add(1, Relaxed);
        if seen.last.swap(number, Relaxed) != number {
            seen.versions.fetch_add(1, Relaxed);
        }
        let began = Instant::now();
        let generation = volume.join(std::fs::read_link(volume.join("..data"))?);
        let texts = ["always", "beside"].map(|name| std::fs::read_to_string(generation.join(name)));
        let there = ["even", "odd"].map(|name| generation.join(name).exists());
        if began.elapsed() >= LINGER {
            continue; // put aside for longer than a generation is kept: no reading
        }
        let [one, other] = texts;
        let (one, other) = (one.context("in a generation")?, other.context("in a generation")?);
        ensure!(one == other, "a mix of versions");
        let even = number_of(&one)?.is_multiple_of(2);
        ensure!(there == [even, !even], "files of another version");
        seen.wholes.fetch_add(1, Relaxed);
    }
    Ok(())
}

/// The volume as the container sees it, whatever becomes of the agent.
fn in_container(c: &Context, pod: &Pod) -> Result<PathBuf> {
    let node = c.spec.node_cgroup("node-1");
    for pid in cluster::processes::pids_in_cgroup(&[&node, &pod.metadata.uid])? {
        let volume = PathBuf::from(format!("/proc/{pid}/root/v"));
        if volume.join("always").exists() {
            return Ok(volume);
        }
    }
    bail!("no process of the pod has the volume")
}

/// Where the volume is mounted on the node.
async fn on_node(c: &Context, pod: &Pod) -> Result<String> {
    let mounts = c.on_node(&["cat", "/proc/self/mounts"]).await?;
    let mut points = mounts.lines().filter_map(|line| line.split(' ').nth(1));
    let own = |point: &&str| point.contains(&pod.metadata.uid) && point.ends_with("~projected/v");
    points.find(own).map(str::to_owned).context("no mount of the volume")
}

async fn write(c: &Context, ns: &str, number: u64) -> Result<()> {
    let maps = c.client.within::<ConfigMap>(ns);
    maps.patch("settings", &Patch::Merge(version(number)), &WriteParams::default()).await?;
    Ok(())
}

/// No room at all in the volume's file system, while versions go on being written; then there is room again.
async fn full_for_a_while(c: &Context, ns: &str, place: &str, next: &mut u64) -> Result<()> {
    let ballast = format!("of={place}/ballast");
    // It ends with an error when nothing more goes in, which is what is wanted.
    let filled = c.on_node(&["dd", "if=/dev/zero", &ballast, "bs=4096"]).await;
    ensure!(filled.is_err(), "the file system has no end");
    for _ in 0..10 {
        *next += 1;
        write(c, ns, *next).await?;
    }
    c.on_node(&["rm", &format!("{place}/ballast")]).await?;
    Ok(())
}

pub async fn a_reader_sees_whole_versions_whatever_happens(c: &Context) -> Result<()> {
    let updates = asked("AGENT_VOLUME_UPDATES", 150);
    let kills = asked("AGENT_VOLUME_KILLS", 3);
    let ns = c.namespace("kept").await?;
    let mut map = ConfigMap::default();
    map.metadata.name = "settings".into();
    let text = "1\n".repeat(LINES);
    map.data = ["always", "beside", "odd"].map(|name| (name.to_owned(), text.clone())).into();
    c.client.within::<ConfigMap>(&ns).create(&map, &WriteParams::default()).await?;
    let volume = "    volumeMounts: [{name: v, mountPath: /v}]\n  volumes:\n  - {name: v, projected: {sources: [{configMap: {name: settings}}]}}\n";
    c.apply(&(pod(&ns, "reader", WAIT) + volume)).await?;
    let pod_is = c.pod_ready(&ns, "reader").await?;
    let (volume, place) = (in_container(c, &pod_is)?, on_node(c, &pod_is).await?);
    let seen = Arc::new(Seen::default());
    let reader = {
        let seen = seen.clone();
        std::thread::spawn(move || read_for_ever(&volume, &seen))
    };

    let (mut next, mut killed, mut full) = (1, 0, 0);
    while next < updates && !reader.is_finished() {
        next += 1;
        write(c, &ns, next).await?;
        // at another point of the agent's work each time
        let due = killed < kills && next * kills >= (killed + 1) * updates - updates / 2;
        if due {
            tokio::time::sleep(Duration::from_micros(next * 7919 % 40_000)).await;
            c.kill("orchlet-node-1").await?;
            killed += 1;
        }
        if full * 4 < killed && killed % 2 == 1 {
            full_for_a_while(c, &ns, &place, &mut next).await?;
            full += 1;
        }
    }
    next += 1;
    write(c, &ns, next).await?;
    until("the last version is there", PATIENCE, async || match seen.last.load(Relaxed) {
        last if last == next || reader.is_finished() => Ok(()),
        last => Err(format!("version {last} of {next}")),
    })
    .await?;
    seen.stop.store(true, Relaxed);
    match reader.join() {
        Ok(outcome) => outcome?,
        Err(_) => bail!("the reader broke off"),
    }
    ensure!(seen.wholes.load(Relaxed) > 100, "too few whole generations were read: {seen:?}");
    ensure!(killed == kills && full > 0, "killed {killed} times, full {full} times");
    println!(
        "    {next} versions written, {} seen in {} reads and {} whole generations, {killed} kills, {full} times full",
        seen.versions.load(Relaxed),
        seen.reads.load(Relaxed),
        seen.wholes.load(Relaxed)
    );
    let after = c.client.within::<Pod>(&ns).get("reader").await?;
    let restarts = after.status.container_statuses.first().map(|status| status.restart_count);
    ensure!(restarts == Some(0), "the container was restarted");
    c.discard(&ns).await
}
