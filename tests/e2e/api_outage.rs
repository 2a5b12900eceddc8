//! Outages of the API server and of the runtime: work that does not need them continues, the rest is done when they return.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use cluster::supervisor;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use orch_tests::wait::until;
use proto_api::core::v1::Pod;

use crate::context::{Context, PATIENCE, shown};
use crate::faults::containers;
use crate::hangs::{another_comes_and_goes, node_says};
use crate::pods::{WAIT, pod};

/// A pod whose container writes a line into a file of the node when it starts.
fn accounted(ns: &str, name: &str, dir: &Path) -> String {
    let script = format!("echo start >> /w/starts; {WAIT}");
    let mount = format!(
        "    volumeMounts: [{{name: w, mountPath: /w}}]\n  volumes:\n  - {{name: w, hostPath: {{path: {}, type: DirectoryOrCreate}}}}\n",
        dir.display()
    );
    pod(ns, name, &script) + &mount
}

async fn starts(dir: &Path, count: usize) -> Result<()> {
    let file = dir.join("starts");
    until(&format!("{} has {count} lines", file.display()), PATIENCE, async || {
        match std::fs::read_to_string(&file).unwrap_or_default().lines().count() {
            found if found == count => Ok(()),
            found => Err(found),
        }
    })
    .await
}

/// Kills the container of a pod: its shell, not what the shell waits for.
fn kill_main(c: &Context, pod: &Pod) -> Result<()> {
    let node = c.spec.node_cgroup("node-1");
    for pid in cluster::processes::pids_in_cgroup(&[&node, &pod.metadata.uid])? {
        let command = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        if command.contains("/w/starts") {
            return Ok(kill(Pid::from_raw(pid), Signal::SIGKILL)?);
        }
    }
    anyhow::bail!("no process of {}", pod.metadata.name)
}

/// How long the API server is away at least; `ORCH_AWAY_SECS` says otherwise.
fn away() -> Result<Duration> {
    let secs = std::env::var("ORCH_AWAY_SECS").unwrap_or_else(|_| "5".to_owned());
    Ok(Duration::from_secs(secs.parse().context("ORCH_AWAY_SECS")?))
}

pub async fn pods_live_without_the_api_server(c: &Context) -> Result<()> {
    let ns = c.namespace("alone").await?;
    let (one, two) = (c.spec.dir.join("alone/crashes"), c.spec.dir.join("alone/static"));
    c.apply(&accounted(&ns, "crashes", &one)).await?;
    c.apply(&pod(&ns, "beside", WAIT)).await?;
    let crashes = c.pod_ready(&ns, "crashes").await?;
    let beside = c.pod_ready(&ns, "beside").await?;
    let manifest = c.spec.node_dir("node-1").join("manifests/alone.yaml");
    let server = supervisor::find(&c.spec, "orch-apiserver").context("no API server")?;
    // It hangs: connections stay open without a response.
    server.signal(Signal::SIGSTOP)?;
    let tried = async {
        kill_main(c, &crashes)?;
        starts(&one, 2).await?;
        let new = c.spec.dir.join("alone.yaml.new");
        std::fs::write(&new, accounted("default", "alone", &two))?;
        std::fs::rename(&new, &manifest)?;
        starts(&two, 1).await?;
        tokio::time::sleep(away()?).await;
        // The restarted agent finds its pods, and runs those it has a manifest of.
        c.kill("orchlet-node-1").await?;
        until("the agent has its manifest", PATIENCE, async || {
            let argv = ["curl", "-sf", "http://127.0.0.1:10248/statusz?format=json"];
            let page = c.on_node(&argv).await.map_err(|e| format!("{e:#}"))?;
            if page.contains("pod default/alone") { Ok(()) } else { Err(page) }
        })
        .await?;
        std::fs::remove_file(&manifest)?;
        until("the static pod has ended", PATIENCE, async || {
            let node = c.spec.node_cgroup("node-1");
            let pids = cluster::processes::all_pids().map_err(|e| e.to_string())?;
            let own = |pid: &i32| {
                let read = |what| std::fs::read_to_string(format!("/proc/{pid}/{what}"));
                let command = read("cmdline").unwrap_or_default();
                command.contains("/w/starts")
                    && read("cgroup").is_ok_and(|groups| groups.contains(&node))
            };
            match pids.iter().filter(|pid| own(pid)).count() {
                1 => Ok(()),
                count => Err(format!("{count} containers of the case run")),
            }
        })
        .await
    }
    .await;
    server.signal(Signal::SIGCONT)?;
    tried?;
    let counted = |pod: &Pod| {
        let status = pod.status.container_statuses.first().ok_or_else(|| shown(pod))?;
        if status.restart_count == 1 && status.ready { Ok(()) } else { Err(shown(pod)) }
    };
    c.pod_until(&ns, "crashes", counted).await?;
    starts(&one, 2).await?;
    starts(&two, 1).await?;
    let now = c.pod_ready(&ns, "beside").await?;
    ensure!(now.status.container_statuses == beside.status.container_statuses, "{}", shown(&now));
    another_comes_and_goes(c, &ns, "after").await?;
    node_says(c, "True", "").await?;
    let mirror = c.client.within::<Pod>("default");
    until("no mirror of what is gone", PATIENCE, async || {
        match mirror.find("alone-node-1").await {
            Ok(None) => Ok(()),
            other => Err(format!("{:?}", other.map(|pod| pod.map(|pod| shown(&pod))))),
        }
    })
    .await?;
    c.discard(&ns).await
}

pub async fn a_runtime_that_is_killed_is_found_again(c: &Context) -> Result<()> {
    let ns = c.namespace("runtime").await?;
    let one = c.spec.dir.join("runtime/crashes");
    c.apply(&accounted(&ns, "crashes", &one)).await?;
    c.apply(&pod(&ns, "beside", WAIT)).await?;
    let crashes = c.pod_ready(&ns, "crashes").await?;
    c.pod_ready(&ns, "beside").await?;
    let (demo, own) = (containers(c, "demo").await?, containers(c, &ns).await?);
    for round in 0..3 {
        let name = format!("late-{round}");
        let containerd = supervisor::find(&c.spec, "containerd-node-1").context("containerd")?;
        // In the middle of making a pod.
        c.apply(&pod(&ns, &name, WAIT)).await?;
        tokio::time::sleep(Duration::from_millis(40 * round)).await;
        containerd.signal(Signal::SIGKILL)?;
        containerd.ended().await?;
        if round == 0 {
            kill_main(c, &crashes)?;
        }
        c.pod_ready(&ns, &name).await?;
    }
    starts(&one, 2).await?;
    let counted = |pod: &Pod| {
        let status = pod.status.container_statuses.first().ok_or_else(|| shown(pod))?;
        if status.restart_count == 1 && status.ready { Ok(()) } else { Err(shown(pod)) }
    };
    c.pod_until(&ns, "crashes", counted).await?;
    node_says(c, "True", "").await?;
    ensure!(containers(c, "demo").await? == demo, "a container was replaced");
    let beside = c.pod_ready(&ns, "beside").await?;
    let status = beside.status.container_statuses.first().context("no status")?;
    ensure!(own.get(&status.container_id) == Some(&0), "a container was replaced");
    another_comes_and_goes(c, &ns, "after").await?;
    c.discard(&ns).await
}
