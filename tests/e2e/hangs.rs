//! A dependency of one pod hangs: that pod waits, the others do not.

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use orch_tests::wait::until;
use proto_api::coordination::v1::Lease;
use proto_api::core::v1::{Node, NodeCondition, Pod};
use proto_client::DeleteParams;

use crate::context::{Context, PATIENCE, shown};
use crate::cri_interceptor::Between;
use crate::csi::deleted;
use crate::faults::containers;
use crate::pods::{WAIT, pod};

/// The `Ready` condition of the first node.
pub async fn ready_condition(c: &Context) -> Result<NodeCondition> {
    let node = c.client.all::<Node>().get("node-1").await?;
    let ready = node.status.conditions.into_iter().find(|condition| condition.type_ == "Ready");
    ready.context("the node has no Ready condition")
}

/// Waits until the node says that it is ready, or that it is not and why.
pub async fn node_says(c: &Context, status: &str, words: &str) -> Result<()> {
    until(&format!("Ready is {status} {words}"), PATIENCE * 2, async || {
        let ready = ready_condition(c).await.map_err(|e| format!("{e:#}"))?;
        match ready.status == status && ready.message.contains(words) {
            true => Ok(()),
            false => Err(format!("{} {}", ready.status, ready.message)),
        }
    })
    .await
}

/// When the node's lease was renewed last.
async fn renewed(c: &Context) -> Result<String> {
    let lease = c.client.within::<Lease>(c.names.node_lease_namespace()).get("node-1").await?;
    Ok(lease.spec.renew_time.map(|time| time.to_string()).unwrap_or_default())
}

/// Another pod comes, is ready and goes: what is wrong with one harms no other.
pub async fn another_comes_and_goes(c: &Context, ns: &str, name: &str) -> Result<()> {
    c.apply(&pod(ns, name, WAIT)).await?;
    c.pod_ready(ns, name).await.with_context(|| format!("{name} beside it"))?;
    deleted(c, ns, name).await.with_context(|| format!("{name} beside it"))
}

async fn gone(c: &Context, ns: &str, name: &str) -> Result<()> {
    let pods = c.client.within::<Pod>(ns);
    until(&format!("pod {name} is gone"), PATIENCE, async || match pods.find(name).await {
        Ok(None) => Ok(()),
        Ok(Some(pod)) => Err(shown(&pod)),
        Err(e) => Err(e.to_string()),
    })
    .await
}

pub async fn a_call_of_the_runtime_that_hangs_harms_one_pod(c: &Context) -> Result<()> {
    let ns = c.namespace("hung").await?;
    c.apply(&pod(&ns, "stops", WAIT)).await?;
    let stops = c.pod_ready(&ns, "stops").await?;
    let before = containers(c, "demo").await?;
    let between = Between::start(c).await?;
    let tried = try_calls(c, &ns, &between, &stops).await;
    between.end().await?;
    tried?;
    ensure!(containers(c, "demo").await? == before, "other containers changed");
    node_says(c, "True", "").await?;
    c.discard(&ns).await
}

async fn try_calls(c: &Context, ns: &str, between: &Between<'_>, stops: &Pod) -> Result<()> {
    let pods = c.client.within::<Pod>(ns);
    for call in ["RunPodSandbox", "CreateContainer"] {
        let name = format!("stuck-in-{}", call.to_lowercase());
        between.hold(call, &name);
        c.apply(&pod(ns, &name, WAIT)).await?;
        between.held().await?;
        let lease = renewed(c).await?;
        another_comes_and_goes(c, ns, "beside").await?;
        ensure!(ready_condition(c).await?.status == "True", "one pod makes the node unready");
        let found = pods.get(&name).await?;
        ensure!(!cluster::demo::is_pod_ready(&found) && found.status.phase == "Pending");
        if call == "RunPodSandbox" {
            // The heartbeat goes on.
            until("the lease is renewed", PATIENCE, async || match renewed(c).await {
                Ok(time) if time != lease => Ok(()),
                other => Err(format!("{other:?}")),
            })
            .await?;
        }
        between.release();
        c.pod_ready(ns, &name).await?;
        pods.delete(&name, &DeleteParams::default()).await?;
    }
    let id = stops.status.container_statuses.first().map(|s| s.container_id.clone());
    let id = id.context("no container")?;
    between.hold("StopContainer", id.rsplit('/').next().unwrap_or_default());
    pods.delete("stops", &DeleteParams::default()).await?;
    between.held().await?;
    another_comes_and_goes(c, ns, "beside").await?;
    ensure!(pods.find("stops").await?.is_some(), "a pod went before its container");
    between.release();
    gone(c, ns, "stops").await
}

/// The shim of a pod: the parent of its first process.
fn shim_of(c: &Context, pod: &Pod) -> Result<Pid> {
    let node = c.spec.node_cgroup("node-1");
    for pid in cluster::processes::pids_in_cgroup(&[&node, &pod.metadata.uid])? {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let parent = stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().nth(1));
        let Some(parent) = parent.and_then(|text| text.parse::<i32>().ok()) else { continue };
        let comm = std::fs::read_to_string(format!("/proc/{parent}/comm")).unwrap_or_default();
        if comm.starts_with("containerd-shim") {
            return Ok(Pid::from_raw(parent));
        }
    }
    anyhow::bail!("no shim of {}", pod.metadata.name)
}

pub async fn a_shim_that_hangs_harms_one_pod(c: &Context) -> Result<()> {
    let ns = c.namespace("shim").await?;
    let probe = "    livenessProbe: {exec: {command: [/bin/true]}, periodSeconds: 1, timeoutSeconds: 1, failureThreshold: 600}\n";
    c.apply(&(pod(&ns, "frozen", WAIT) + probe)).await?;
    let frozen = c.pod_ready(&ns, "frozen").await?;
    let shim = shim_of(c, &frozen)?;
    kill(shim, Signal::SIGSTOP)?;
    let tried = async {
        // Its probes hang meanwhile.
        for name in ["beside-one", "beside-two"] {
            another_comes_and_goes(c, &ns, name).await?;
        }
        c.client.within::<Pod>(&ns).delete("frozen", &DeleteParams::default()).await?;
        another_comes_and_goes(c, &ns, "beside-three").await?;
        ensure!(ready_condition(c).await?.status == "True", "one pod makes the node unready");
        Ok(())
    }
    .await;
    kill(shim, Signal::SIGCONT)?;
    tried?;
    gone(c, &ns, "frozen").await?;
    c.discard(&ns).await
}

pub async fn a_runtime_that_hangs_is_reported(_: &Context) -> Result<()> {
    // A node that looks at itself often, so that a machine need not wait.
    let flags = vec!["--node-status-update-frequency=1s".to_owned()];
    let c = Context::start_in("/var/tmp/orch-e2e-frozen".into(), "kubernetes", flags).await?;
    let tried = freeze_and_thaw(&c).await;
    c.finish(tried.is_err()).await?;
    tried
}

async fn freeze_and_thaw(c: &Context) -> Result<()> {
    let ns = c.namespace("frozen").await?;
    c.apply(&pod(&ns, "runs", WAIT)).await?;
    let runs = c.pod_ready(&ns, "runs").await?;
    let before = (containers(c, &ns).await?, containers(c, "demo").await?);
    let containerd =
        cluster::supervisor::find(&c.spec, "containerd-node-1").context("containerd")?;
    containerd.signal(Signal::SIGSTOP)?;
    let tried = async {
        c.apply(&pod(&ns, "late", WAIT)).await?;
        node_says(c, "False", "container runtime is down").await
    }
    .await;
    containerd.signal(Signal::SIGCONT)?;
    tried?;
    node_says(c, "True", "").await?;
    c.pod_ready(&ns, "late").await?;
    let now = c.pod_ready(&ns, "runs").await?;
    ensure!(now.metadata.uid == runs.metadata.uid);
    let after = containers(c, &ns).await?;
    ensure!(before.0.iter().all(|(id, n)| after.get(id) == Some(n)), "a container was replaced");
    ensure!(containers(c, "demo").await? == before.1, "a container was replaced");
    c.discard(&ns).await
}
