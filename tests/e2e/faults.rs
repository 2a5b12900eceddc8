//! Killed programs come back, without an effect on users.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use cluster::demo::http_get;
use cluster::supervisor;
use nix::sys::signal::Signal;
use orch_tests::runtime_calls;
use orch_tests::wait::until;
use proto_api::core::v1::{ConfigMap, Pod};
use proto_client::{DeleteParams, ListParams, WriteParams};

use crate::context::{Context, PATIENCE};
use crate::first_hour::nothing_is_ending;
use crate::inventory::Inventory;
use crate::pods::{WAIT, pod};

/// Container id and restart count of every container in a namespace.
pub async fn containers(c: &Context, namespace: &str) -> Result<BTreeMap<String, i32>> {
    let pods = c.client.within::<Pod>(namespace).list(&ListParams::default()).await?;
    let statuses = pods.items.into_iter().flat_map(|pod| pod.status.container_statuses);
    Ok(statuses.map(|status| (status.container_id, status.restart_count)).collect())
}

/// Every task of the runtime with its process id and state.
async fn runtime_inventory(c: &Context) -> Result<String> {
    let socket = c.spec.containerd_socket("node-1");
    let socket = socket.to_str().context("a socket path in UTF-8")?;
    c.on_node(&["ctr", "-a", socket, "-n", "k8s.io", "tasks", "ls"]).await
}

/// How often the runtime was asked for each call that changes something, by its own count.
pub async fn mutations(c: &Context) -> Result<BTreeMap<&'static str, u64>> {
    runtime_calls::mutations(&c.on_node(&["curl", "-sf", runtime_calls::PAGE]).await?)
}

/// How often each call of the runtime has worked, by its own count.
pub async fn calls(c: &Context) -> Result<BTreeMap<String, u64>> {
    runtime_calls::worked(&c.on_node(&["curl", "-sf", runtime_calls::PAGE]).await?)
}

pub async fn a_killed_agent_restarts_no_container(c: &Context) -> Result<()> {
    let ns = c.namespace("survivors").await?;
    let manifests: Vec<String> = (0..10).map(|n| pod(&ns, &format!("p{n}"), WAIT)).collect();
    c.apply(&manifests.join("---\n")).await?;
    for n in 0..10 {
        c.pod_ready(&ns, &format!("p{n}")).await?;
    }
    let pods = c.client.within::<Pod>(&ns);
    let statuses = async || -> Result<BTreeMap<String, String>> {
        let list = pods.list(&ListParams::default()).await?;
        let of = |pod: Pod| {
            let status = format!("{} {:?}", pod.metadata.resource_version, pod.status);
            (pod.metadata.name, status)
        };
        Ok(list.items.into_iter().map(of).collect())
    };
    // The last word on a pod may come after that it is ready.
    let shown = until("all has been said of the pods", PATIENCE, async || {
        let first = statuses().await.map_err(|e| format!("{e:#}"))?;
        tokio::time::sleep(Duration::from_secs(3)).await;
        let second = statuses().await.map_err(|e| format!("{e:#}"))?;
        if first == second { Ok(first) } else { Err(format!("{first:?}, then {second:?}")) }
    })
    .await?;
    // What ends pods of earlier cases is counted too.
    nothing_is_ending(c).await?;
    let before = (containers(c, &ns).await?, runtime_inventory(c).await?);
    let mut asked = mutations(c).await?;
    c.kill("orchlet-node-1").await?;
    // It works again when it starts another pod, and asks for nothing but that.
    c.apply(&pod(&ns, "after", WAIT)).await?;
    c.pod_ready(&ns, "after").await?;
    for call in ["RunPodSandbox", "CreateContainer", "StartContainer"] {
        *asked.entry(call).or_default() += 1;
    }
    ensure!(mutations(c).await? == asked, "more than one new pod: {asked:?} was expected");
    let after = containers(c, &ns).await?;
    for (id, restarts) in &before.0 {
        ensure!(after.get(id) == Some(restarts), "{id} was replaced");
    }
    let tasks = runtime_inventory(c).await?;
    let survivor = |task: &&str| {
        before.0.keys().any(|id| id.split_once("://").is_some_and(|(_, id)| task.contains(id)))
    };
    for task in before.1.lines().filter(survivor) {
        ensure!(tasks.contains(task), "task {task:?} is not what it was");
    }
    let now = statuses().await?;
    for (name, status) in &shown {
        let again = now.get(name).context("a pod is gone")?;
        ensure!(again == status, "a status was written again: {status}, then {again}");
    }
    c.discard(&ns).await
}

/// Pods of all QoS classes are deleted while the agent is stopped; it is then killed, and the next agent has only its journal.
pub async fn what_is_dropped_behind_the_agents_back_leaves_nothing(c: &Context) -> Result<()> {
    let ns = c.namespace("dropped").await?;
    let before = Inventory::take(c).await?;
    let asks = "    resources: {requests: {cpu: 10m, memory: 16Mi}}\n";
    let bound = "    resources: {limits: {cpu: 100m, memory: 64Mi}}\n";
    let api = c.client.within::<Pod>(&ns);
    let mut uids = Vec::new();
    for (name, resources) in [("besteffort", ""), ("burstable", asks), ("guaranteed", bound)] {
        c.apply(&(pod(&ns, name, WAIT) + resources)).await?;
        uids.push((name, c.pod_ready(&ns, name).await?.metadata.uid));
    }
    let agent = supervisor::find(&c.spec, "orchlet-node-1").context("no agent")?;
    agent.signal(Signal::SIGSTOP)?;
    for (name, uid) in &uids {
        api.delete(name, &DeleteParams::now(uid)).await?;
    }
    c.kill("orchlet-node-1").await?;
    before.nothing_left(c).await?;
    c.discard(&ns).await
}

pub async fn a_killed_proxy_keeps_forwarding(c: &Context) -> Result<()> {
    let node = c.spec.node_list().into_iter().next().context("a node")?;
    let address = (node.address, 30080).into();
    let asking = async {
        for n in 0..200 {
            let answer = http_get(address, "/").await.with_context(|| format!("request {n}"))?;
            ensure!(answer == "hello from the demo\n");
        }
        Ok(())
    };
    let (answers, killed) = tokio::join!(asking, c.kill("orch-proxy-node-1"));
    killed?;
    answers
}

pub async fn a_killed_api_server_loses_no_write(c: &Context) -> Result<()> {
    let ns = c.namespace("writes").await?;
    let api = c.client.within::<ConfigMap>(&ns);
    let mut acknowledged = Vec::new();
    let before = containers(c, "demo").await?;
    let writing = async {
        for n in 0..300 {
            let mut map = ConfigMap::default();
            map.metadata.name = format!("w{n}");
            map.data.insert("n".into(), n.to_string());
            if api.create(&map, &WriteParams::default()).await.is_ok() {
                acknowledged.push(map.metadata.name);
            }
        }
    };
    let (killed, ()) = tokio::join!(c.kill("orch-apiserver"), writing);
    killed?;
    let list = until("the API is back", PATIENCE, async || {
        api.list(&ListParams::default()).await.map_err(|e| e.to_string())
    })
    .await?;
    for name in &acknowledged {
        ensure!(list.items.iter().any(|map| map.metadata.name == *name), "{name} is lost");
    }
    // Pods ran on meanwhile, and the agent and the proxy work with the new server.
    ensure!(containers(c, "demo").await? == before, "the demo's containers changed");
    c.apply(&pod(&ns, "after", WAIT)).await?;
    c.pod_ready(&ns, "after").await?;
    c.discard(&ns).await
}
