//! The node agent under load: bursts of pods compared with the best direct use of the runtime, a restart with many pods, probes, memory.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use anyhow::{Result, ensure};
use cluster::apply::apply;
use cluster::spec::Spec;
use cluster::up;
use orch_tests::runtime_calls;
use proto_api::core::v1::Pod;
use proto_client::{Client, ListParams};

use crate::agent_process::{self, Agent, is_at_work};
use crate::bursts::{self, Bursts};
use crate::figures::{Figure, Group, Unit};
use crate::workload::{Network, PATIENCE};
use crate::{footprint, own_cluster, probes};

/// How the agent is started.
const FLAGS: [&str; 2] = ["--max-pods=320", "--healthz-bind-address=0.0.0.0"];
/// Pods of a full node, and of the largest one.
const FULL: usize = 110;
const MANY: usize = 300;
/// Requests of this program in flight when it fills the node.
const CLIENTS: usize = 8;
/// How long an agent is left alone before its memory is read: what only its start and a burst needed is gone by then.
const SETTLE: Duration = Duration::from_secs(40);
/// Restarts of the agent.
const RESTARTS: usize = 7;
/// Between two looks at what its tasks know. A look costs it a millisecond.
const LOOK: Duration = Duration::from_millis(5);

/// Bursts, on a cluster of their own.
pub async fn measure_bursts(bin_dir: &Path, wanted: &bursts::Wanted) -> Result<()> {
    own_cluster::with(bin_dir, &FLAGS, async |spec, _| {
        let client = prepared(spec).await?;
        let mut agent = Agent::take_over(spec).await?;
        Bursts::new(spec, &client)?.measure(wanted, &mut agent).await
    })
    .await
}

/// The administrator of a cluster with an image and a namespace.
async fn prepared(spec: &Spec) -> Result<Client> {
    cluster::demo::import_images(spec).await?;
    let client = cluster::demo::client(spec, up::names(spec))?;
    let namespace = bursts::namespace();
    let manifest = format!("apiVersion: v1\nkind: Namespace\nmetadata: {{name: {namespace}}}\n");
    apply(&client, &manifest).await?;
    Ok(client)
}

/// Memory, restarts and probes, on a cluster of their own.
pub async fn measure_load(bin_dir: &Path) -> Result<()> {
    own_cluster::with(bin_dir, &FLAGS, async |spec, _| load(spec).await).await
}

async fn load(spec: &Spec) -> Result<()> {
    let client = prepared(spec).await?;
    memory(spec, 0).await?;
    let bursts = Bursts::new(spec, &client)?;
    let mut agent = Agent::take_over(spec).await?;
    bursts.fill(0..FULL, Network::Host, CLIENTS).await?;
    memory(spec, FULL).await?;
    restarts(spec, &client, &mut agent).await?;
    bursts.fill(FULL..MANY, Network::Host, CLIENTS).await?;
    memory(spec, MANY).await?;
    bursts.empty(CLIENTS).await?;
    agent.hand_back()?;
    probes::measure(spec, &client).await
}

async fn memory(spec: &Spec, pods: usize) -> Result<()> {
    tokio::time::sleep(SETTLE).await;
    footprint::of_agent(agent_process::pid(spec)?, pods).await
}

/// Kills the agent of a full node, and measures the next one from its start until it is ready and every pod's task has its state.
async fn restarts(spec: &Spec, client: &Client, agent: &mut Agent<'_>) -> Result<()> {
    let before = (changes(spec).await?, versions(client).await?);
    let (mut ready, mut known) = (Vec::new(), Vec::new());
    for _ in 0..RESTARTS {
        agent.kill().await?;
        let began = agent.start().await?;
        agent.ready().await?;
        ready.push(began.elapsed());
        while tasks_that_know(agent).await? < FULL {
            ensure!(began.elapsed() < PATIENCE, "not all pods are known");
            tokio::time::sleep(LOOK).await;
        }
        known.push(began.elapsed());
        // What it would do wrong it would do now.
        tokio::time::sleep(Duration::from_secs(3)).await;
    }
    let killed = "agent killed with 110 pods";
    for (what, samples) in [("start -> ready", ready), ("start -> all pods known", known)] {
        Figure::of_times(Group::Load, format!("{killed}: {what}"), Unit::Millis, samples).tell()?;
    }
    let asked = changes(spec).await?.saturating_sub(before.0);
    let after = versions(client).await?;
    let kept = after.iter().filter(|(pod, version)| before.1.get(*pod) == Some(version)).count();
    let written = before.1.len() - kept;
    for (what, changes) in [("runtime's", asked as f64), ("API's", written as f64)] {
        let what = format!("{killed}: changes of the {what} pods by {RESTARTS} agents");
        Figure::new(Group::Load, what, Unit::Count, changes).budget(0.0).tell()?;
    }
    Ok(())
}

/// Pods whose task has planned since the agent's start and found them running.
async fn tasks_that_know(agent: &Agent<'_>) -> Result<usize> {
    let tasks = agent.tasks(&format!("pod {}/", bursts::namespace())).await?;
    Ok(tasks.iter().filter(|task| is_at_work(task)).count())
}

/// How often the runtime was asked for a change, by its own count.
async fn changes(spec: &Spec) -> Result<u64> {
    let mut command = tokio::process::Command::new(spec.bin_dir.join("cluster"));
    command.arg("exec").arg("--dir").arg(&spec.dir).arg("node-1");
    let output = command.args(["curl", "-sf", runtime_calls::PAGE]).output().await?;
    Ok(runtime_calls::mutations(&String::from_utf8(output.stdout)?)?.values().sum())
}

/// The versions of the pods' objects: a status that is written is a new one.
async fn versions(client: &Client) -> Result<BTreeMap<String, String>> {
    let list = client.within::<Pod>(bursts::namespace()).list(&ListParams::default()).await?;
    let pods = list.items.into_iter();
    Ok(pods.map(|pod| (pod.metadata.name, pod.metadata.resource_version)).collect())
}
