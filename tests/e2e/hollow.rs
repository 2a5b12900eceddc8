//! Hollow nodes beside a real one: pods come, have addresses and go as on any node, and nothing runs.

use std::collections::BTreeSet;
use std::process::Stdio;

use anyhow::{Context as _, Result, ensure};
use orch_tests::wait::until;
use proto_api::core::v1::{Node, Pod};
use proto_client::{Client, DeleteParams, ListParams};
use tokio::process::{Child, Command};

use crate::context::{Context, PATIENCE};

const NODES: usize = 3;
const PODS: usize = 15;
const PREFIX: &str = "hollow";

pub async fn hollow_nodes_take_pods_and_let_go_of_them(c: &Context) -> Result<()> {
    let root = tempfile::tempdir()?;
    let mut agent = start(c, root.path())?;
    let tried = try_all(c).await;
    agent.kill().await?;
    let nodes = c.client.all::<Node>();
    for number in 0..NODES {
        nodes.delete(&format!("{PREFIX}-{number}"), &DeleteParams::default()).await?;
    }
    tried
}

fn start(c: &Context, root: &std::path::Path) -> Result<Child> {
    let program = c.spec.bin_dir.join("orchlet");
    let mut command = Command::new(&program);
    command
        .args(["--runtime=memory", "--node-labels=e2e/hollow=yes", "--healthz-port=0"])
        .args(["--fail-swap-on=false", "--node-ip=127.0.0.1"])
        .arg(format!("--naming={}", c.spec.naming))
        .arg(format!("--hollow-nodes={NODES}"))
        .arg(format!("--hostname-override={PREFIX}"))
        .arg(format!("--root-dir={}", root.display()))
        .arg(format!("--kubeconfig={}", c.spec.client_config("admin").display()))
        .stdin(Stdio::null())
        .kill_on_drop(true);
    command.spawn().with_context(|| format!("starting {}", program.display()))
}

async fn try_all(c: &Context) -> Result<()> {
    let nodes = c.client.all::<Node>();
    for number in 0..NODES {
        let name = format!("{PREFIX}-{number}");
        until(&format!("node {name} is Ready"), PATIENCE, async || {
            let node = nodes.get(&name).await.map_err(|e| e.to_string())?;
            let version = &node.status.node_info.container_runtime_version;
            let ready = node.status.conditions.iter().find(|c| c.type_ == "Ready");
            match ready {
                Some(ready) if ready.status == "True" && version.starts_with("memory://") => Ok(()),
                other => Err(format!("{version}: {other:?}")),
            }
        })
        .await?;
    }
    let ns = c.namespace("hollow").await?;
    c.apply(&deployment(&ns, PODS)).await?;
    let pods = running(&c.client, &ns, PODS).await?;
    let ips: BTreeSet<&String> = pods.iter().map(|pod| &pod.status.pod_ip).collect();
    ensure!(ips.len() == PODS && !ips.contains(&String::new()), "addresses: {ips:?}");
    let strange = pods.iter().find(|pod| !pod.spec.node_name.starts_with(PREFIX));
    ensure!(strange.is_none(), "on another node: {strange:?}");
    c.apply(&deployment(&ns, 0)).await?;
    running(&c.client, &ns, 0).await?;
    c.discard(&ns).await
}

fn deployment(ns: &str, replicas: usize) -> String {
    format!(
        r#"apiVersion: apps/v1
kind: Deployment
metadata: {{name: app, namespace: {ns}}}
spec:
  replicas: {replicas}
  selector: {{matchLabels: {{app: hollow}}}}
  template:
    metadata: {{labels: {{app: hollow}}}}
    spec:
      nodeSelector: {{e2e/hollow: "yes"}}
      terminationGracePeriodSeconds: 1
      containers:
      - {{name: app, image: "registry.invalid/hollow:1"}}
"#
    )
}

/// The pods once there are so many, and all of them are Ready.
async fn running(client: &Client, ns: &str, count: usize) -> Result<Vec<Pod>> {
    let pods = client.within::<Pod>(ns);
    until(&format!("{count} pods run"), PATIENCE, async || {
        let pods = pods.list(&ListParams::default()).await.map_err(|e| e.to_string())?.items;
        let ready = pods.iter().filter(|pod| cluster::demo::is_pod_ready(pod)).count();
        if (pods.len(), ready) == (count, count) {
            Ok(pods)
        } else {
            Err(format!("{ready} of {}", pods.len()))
        }
    })
    .await
}
