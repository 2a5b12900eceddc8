//! Garbage collection of dependents when their owner is deleted, and draining of a node.

use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use cluster::directory::ClusterDirectory;
use cluster::up;
use orch_tests::runner::Skip;
use orch_tests::wait::until;
use proto_api::apps::v1::{Deployment, ReplicaSet};
use proto_api::core::v1::{ConfigMap, Pod};
use proto_api::meta::v1::OwnerReference;
use proto_api::policy::v1::PodDisruptionBudget;
use proto_client::{ListParams, WriteParams};
use tokio::process::Command;

use crate::context::{Context, PATIENCE, output};
use crate::pods::WAIT;

/// A command that takes longer hangs: one with a limit of its own says before that what it waits for.
const HANGS: Duration = PATIENCE.saturating_mul(2);

/// A deployment whose pods do nothing, and end when they are asked to.
fn deployment(namespace: &str, name: &str, replicas: u8) -> String {
    format!(
        "apiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: {name}, namespace: {namespace}}}\nspec:\n  \
         replicas: {replicas}\n  selector: {{matchLabels: {{app: {name}}}}}\n  template:\n    \
         metadata: {{labels: {{app: {name}}}}}\n    spec:\n      terminationGracePeriodSeconds: 1\n      \
         containers:\n      - name: main\n        image: orch.local/demo:1\n        command: [/bin/sh, -c, {WAIT:?}]\n"
    )
}

struct Kubectl<'a>(&'a Context);

impl Kubectl<'_> {
    async fn run(&self, args: &[&str]) -> Result<String> {
        let mut command = Command::new("kubectl");
        command.arg("--kubeconfig").arg(self.0.spec.client_config("admin")).args(args);
        command.env("HOME", &self.0.spec.dir).stdin(Stdio::null());
        let run = tokio::time::timeout(HANGS, output(command));
        run.await.with_context(|| format!("kubectl {args:?} hangs"))?
    }
}

async fn pods(c: &Context, namespace: &str, app: &str) -> Result<Vec<Pod>> {
    let params = ListParams::labels(format!("app={app}"));
    Ok(c.client.within::<Pod>(namespace).list(&params).await?.items)
}

async fn running(c: &Context, namespace: &str, app: &str, count: usize) -> Result<Vec<Pod>> {
    until("the deployment's pods run", PATIENCE, async || {
        let found = pods(c, namespace, app).await.map_err(|error| error.to_string())?;
        let ready = found.iter().filter(|pod| {
            let going = pod.metadata.deletion_timestamp.is_some();
            let ready =
                |c: &proto_api::core::v1::PodCondition| c.type_ == "Ready" && c.status == "True";
            !going && pod.status.conditions.iter().any(ready)
        });
        let ready: Vec<Pod> = ready.cloned().collect();
        if ready.len() == count { Ok(ready) } else { Err(format!("{} are ready", ready.len())) }
    })
    .await
}

fn has_kubectl() -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir: PathBuf| dir.join("kubectl").exists())
}

pub async fn dependents_and_evictions_end_as_requested(_: &Context) -> Result<()> {
    if !has_kubectl() {
        return Err(Skip("no kubectl on this machine".into()).into());
    }
    let flags = up::Flags {
        place: ClusterDirectory { dir: "/var/tmp/orch-e2e-deletion".into() },
        nodes: Some(2),
        naming: Some("kubernetes".to_owned()),
        no_demo: false,
        ..up::Flags::default()
    };
    let c = Context::start_as(flags).await?;
    let tried = async {
        cascades(&c).await?;
        drain(&c).await.context("drain")
    }
    .await;
    c.finish(tried.is_err()).await?;
    tried
}

async fn cascades(c: &Context) -> Result<()> {
    let ns = c.namespace("cascade").await?;
    let kubectl = Kubectl(c);
    orphan(c, &kubectl, &ns).await.context("--cascade=orphan")?;
    foreground(c, &kubectl, &ns).await.context("--cascade=foreground")?;
    background(c, &kubectl, &ns).await.context("--cascade=background")?;
    any_kind(c, &kubectl, &ns).await.context("kinds without a controller")?;
    c.discard(&ns).await
}

async fn orphan(c: &Context, kubectl: &Kubectl<'_>, ns: &str) -> Result<()> {
    c.apply(&deployment(ns, "kept", 2)).await?;
    let before = running(c, ns, "kept", 2).await?;
    kubectl.run(&["-n", ns, "delete", "deployment", "kept", "--cascade=orphan"]).await?;
    ensure!(c.client.within::<Deployment>(ns).find("kept").await?.is_none(), "it is still there");
    let sets = c.client.within::<ReplicaSet>(ns).list(&ListParams::default()).await?.items;
    ensure!(sets.len() == 1 && sets[0].metadata.owner_references.is_empty(), "{sets:?}");
    kubectl.run(&["-n", ns, "delete", "rs", &sets[0].metadata.name, "--cascade=orphan"]).await?;
    // Long enough for a collector that is wrong.
    tokio::time::sleep(Duration::from_secs(3)).await;
    let after = pods(c, ns, "kept").await?;
    let uids = |pods: &[Pod]| {
        let mut uids: Vec<String> = pods.iter().map(|pod| pod.metadata.uid.clone()).collect();
        uids.sort();
        uids
    };
    ensure!(uids(&before) == uids(&after), "other pods: {:?} {:?}", uids(&before), uids(&after));
    let free = after.iter().all(|pod| {
        pod.metadata.owner_references.is_empty() && pod.metadata.deletion_timestamp.is_none()
    });
    ensure!(free, "{after:?}");
    kubectl.run(&["-n", ns, "delete", "pod", "-l", "app=kept", "--now"]).await?;
    Ok(())
}

async fn foreground(c: &Context, kubectl: &Kubectl<'_>, ns: &str) -> Result<()> {
    c.apply(&deployment(ns, "waits", 2)).await?;
    running(c, ns, "waits", 2).await?;
    kubectl.run(&["-n", ns, "delete", "deployment", "waits", "--cascade=foreground"]).await?;
    // The answer came after the last of them had gone.
    let left = pods(c, ns, "waits").await?;
    ensure!(left.is_empty(), "{} pods are left", left.len());
    let sets = c.client.within::<ReplicaSet>(ns).list(&ListParams::labels("app=waits")).await?;
    ensure!(sets.items.is_empty(), "{} sets are left", sets.items.len());
    Ok(())
}

async fn background(c: &Context, kubectl: &Kubectl<'_>, ns: &str) -> Result<()> {
    c.apply(&deployment(ns, "goes", 1)).await?;
    running(c, ns, "goes", 1).await?;
    kubectl.run(&["-n", ns, "delete", "deployment", "goes", "--cascade=background"]).await?;
    until("the pods follow", PATIENCE, async || {
        let left = pods(c, ns, "goes").await.map_err(|error| error.to_string())?;
        if left.is_empty() { Ok(()) } else { Err(format!("{} are left", left.len())) }
    })
    .await
}

/// Objects of any kind have dependents of any kind.
async fn any_kind(c: &Context, kubectl: &Kubectl<'_>, ns: &str) -> Result<()> {
    for (kind, version, plural, body) in [
        ("StatefulSet", "apps/v1", "statefulset", "serviceName: s, "),
        ("DaemonSet", "apps/v1", "daemonset", ""),
    ] {
        let manifest = format!(
            "apiVersion: {version}\nkind: {kind}\nmetadata: {{name: owner, namespace: {ns}}}\nspec: {{{body}selector: \
             {{matchLabels: {{app: x}}}}, template: {{metadata: {{labels: {{app: x}}}}, spec: {{containers: [{{name: c, \
             image: i}}]}}}}}}\n"
        );
        c.apply(&manifest).await?;
        let path = "-o=jsonpath={.metadata.uid}";
        let uid = kubectl.run(&["-n", ns, "get", plural, "owner", path]).await?;
        let mut map = ConfigMap::default();
        map.metadata.name = "owned".into();
        map.metadata.namespace = ns.to_owned();
        map.metadata.owner_references = vec![OwnerReference {
            api_version: version.to_owned(),
            kind: kind.to_owned(),
            name: "owner".into(),
            uid: uid.trim().to_owned(),
            controller: Some(true),
            block_owner_deletion: Some(true),
        }];
        c.client.within::<ConfigMap>(ns).create(&map, &WriteParams::default()).await?;
        kubectl.run(&["-n", ns, "delete", plural, "owner", "--cascade=foreground"]).await?;
        let left = c.client.within::<ConfigMap>(ns).find("owned").await?;
        ensure!(left.is_none(), "{kind} went before what blocks it");
    }
    Ok(())
}

async fn drain(c: &Context) -> Result<()> {
    let ns = c.namespace("drain").await?;
    let kubectl = Kubectl(c);
    // The other node takes none until all are on one.
    kubectl.run(&["cordon", "node-2"]).await?;
    c.apply(&deployment(&ns, "busy", 3)).await?;
    running(c, &ns, "busy", 3).await?;
    kubectl
        .run(&["-n", &ns, "create", "pdb", "busy", "--selector=app=busy", "--min-available=2"])
        .await?;
    let budgets = c.client.within::<PodDisruptionBudget>(&ns);
    until("the budget is counted", PATIENCE, async || {
        let status = budgets.get("busy").await.map_err(|error| error.to_string())?.status;
        if status.disruptions_allowed == 1 { Ok(()) } else { Err(format!("{status:?}")) }
    })
    .await?;
    kubectl.run(&["uncordon", "node-2"]).await?;
    let fewest = async {
        let mut fewest = 3;
        loop {
            let ready = pods(c, &ns, "busy").await?.iter().filter(|pod| is_ready(pod)).count();
            fewest = fewest.min(ready);
            if fewest < 2 {
                return Ok::<usize, anyhow::Error>(fewest);
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let limit = format!("--timeout={}s", PATIENCE.as_secs());
    let drain = [
        "drain",
        "node-1",
        "--ignore-daemonsets",
        "--force",
        "--delete-emptydir-data",
        "--pod-selector=app=busy",
        &limit,
    ];
    let drained = kubectl.run(&drain);
    tokio::select! {
        drained = drained => drop(drained?),
        fewest = fewest => anyhow::bail!("only {} were ready", fewest?),
    }
    let moved = running(c, &ns, "busy", 3).await?;
    ensure!(moved.iter().all(|pod| pod.spec.node_name == "node-2"), "some are left: {moved:?}");
    c.discard(&ns).await
}

fn is_ready(pod: &Pod) -> bool {
    pod.status.conditions.iter().any(|c| c.type_ == "Ready" && c.status == "True")
}
