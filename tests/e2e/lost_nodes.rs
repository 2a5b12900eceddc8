//! Lost nodes with volumes that only one node may have: when another node gets them, and when not.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use cluster::directory::ClusterDirectory;
use cluster::{supervisor, up};
use nix::sys::signal::Signal;
use orch_tests::wait::until;
use proto_api::core::v1::{Node, Pod};
use proto_api::storage::v1::VolumeAttachment;
use proto_client::{DeleteParams, ListParams, Patch, WriteParams};
use serde_json::json;

use crate::claims::user;
use crate::context::{Context, PATIENCE};
use crate::csi::{Driver, describe, event, made};

const DRIVER: &str = "lost.csi.test";
/// Time that a silent node has for an unmount, instead of six minutes: a busy machine sees meanwhile that the volume stays.
const UNMOUNT: Duration = Duration::from_secs(20);

pub async fn volumes_leave_nodes_that_are_lost(_: &Context) -> Result<()> {
    let flags = up::Flags {
        place: ClusterDirectory { dir: "/var/tmp/orch-e2e-lost".into() },
        nodes: Some(2),
        naming: Some("kubernetes".to_owned()),
        no_demo: false,
        manager_flags: vec![
            format!("--attach-detach-unmount-timeout={}s", UNMOUNT.as_secs()),
            "--feature-gates=NodeOutOfServiceVolumeDetach=true".to_owned(),
        ],
        ..up::Flags::default()
    };
    let c = Context::start_as(flags).await?;
    let tried = async {
        describe(&c, DRIVER, json!({})).await?;
        let here = Driver::start(&c, DRIVER).await?;
        let there = here.start_beside(&c, "node-2").await?;
        off_by_word(&c, &here, &there).await?;
        off_by_silence(&c, &here, &there).await
    }
    .await;
    c.finish(tried.is_err()).await?;
    tried
}

/// A pod that has a claim on one of the nodes.
fn on(c: &Context, ns: &str, node: &str, name: &str) -> String {
    let label = c.names.label("hostname");
    let spec = format!("spec:\n  nodeSelector: {{{label}: {node}}}\n");
    user(ns, name, "data").replacen("spec:\n", &spec, 1)
}

/// The stopped agent of the second node: for all others the node is cut off until it is resumed.
struct Silent<'a>(&'a Context);

impl<'a> Silent<'a> {
    async fn fall(c: &'a Context) -> Result<Self> {
        let agent = supervisor::find(&c.spec, "orchlet-node-2").context("no agent")?;
        agent.signal(Signal::SIGSTOP)?;
        let silent = Self(c);
        // what is found out by waiting for its lease otherwise
        let nodes = c.client.all::<Node>();
        let mut node = nodes.get("node-2").await?;
        for condition in node.status.conditions.iter_mut().filter(|c| c.type_ == "Ready") {
            condition.status = "Unknown".to_owned();
            condition.reason = "NodeStatusUnknown".to_owned();
        }
        let patch = json!({"status": {"conditions": node.status.conditions}});
        nodes.patch_status("node-2", &Patch::Merge(patch), &WriteParams::default()).await?;
        Ok(silent)
    }
}

impl Drop for Silent<'_> {
    fn drop(&mut self) {
        if let Some(agent) = supervisor::find(&self.0.spec, "orchlet-node-2") {
            let _ = agent.signal(Signal::SIGCONT);
        }
    }
}

/// A pod on the second node that has written something.
async fn settled(c: &Context, ns: &str) -> Result<String> {
    let volume = made(c, ns, "data", DRIVER).await?;
    c.apply(&on(c, ns, "node-2", "one")).await?;
    c.pod_ready(ns, "one").await?;
    let nodes = c.client.all::<Node>();
    until("the node says that it has the volume", PATIENCE, async || {
        let node = nodes.get("node-2").await.map_err(|e| e.to_string())?;
        let used = node.status.volumes_in_use;
        if used.iter().any(|name| name.ends_with(&volume)) {
            Ok(())
        } else {
            Err(format!("{used:?}"))
        }
    })
    .await?;
    Ok(volume)
}

async fn gone(c: &Context, ns: &str, name: &str) -> Result<()> {
    let pods = c.client.within::<Pod>(ns);
    until(&format!("pod {name} is gone"), PATIENCE, async || match pods.find(name).await {
        Ok(None) => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await
}

/// Waits until the second node has recovered and released all volumes.
async fn recovered(c: &Context, there: &Driver, unstaged: usize) -> Result<()> {
    let nodes = c.client.all::<Node>();
    until("the node lets go of the volume", PATIENCE, async || {
        let node = nodes.get("node-2").await.map_err(|e| e.to_string())?;
        let used = node.status.volumes_in_use;
        let count = there.count("NodeUnstageVolume");
        let ready = node.status.conditions.iter().any(|c| c.type_ == "Ready" && c.status == "True");
        if used.is_empty() && count >= unstaged && ready {
            Ok(())
        } else {
            Err(format!("{used:?}, unstaged {count} times, ready {ready}"))
        }
    })
    .await
}

/// A user says that the node is off: its pods go and its volumes with them, at once.
async fn off_by_word(c: &Context, here: &Driver, there: &Driver) -> Result<()> {
    let ns = c.namespace("off-by-word").await?;
    settled(c, &ns).await?;
    let silent = Silent::fall(c).await?;
    let nodes = c.client.all::<Node>();
    let key = c.names.sub_label("node", "out-of-service");
    let mut node = nodes.get("node-2").await?;
    let before = node.spec.taints.clone();
    node.spec.taints.push(proto_api::core::v1::Taint {
        key: key.clone(),
        value: "nodeshutdown".to_owned(),
        effect: "NoExecute".to_owned(),
        ..Default::default()
    });
    let taints = |taints| Patch::Merge(json!({"spec": {"taints": taints}}));
    nodes.patch("node-2", &taints(json!(node.spec.taints)), &WriteParams::default()).await?;
    c.apply(&on(c, &ns, "node-1", "two")).await?;
    gone(c, &ns, "one").await?;
    c.pod_ready(&ns, "two").await?;
    ensure!(here.count("NodeStageVolume") == 1 && there.count("NodeUnstageVolume") == 0);
    drop(silent);
    nodes.patch("node-2", &taints(json!(before)), &WriteParams::default()).await?;
    recovered(c, there, 1).await?;
    c.discard(&ns).await
}

/// Nobody says anything: the volume stays with the node for as long as it may still have it mounted, and is then taken from it.
async fn off_by_silence(c: &Context, here: &Driver, there: &Driver) -> Result<()> {
    let ns = c.namespace("off-by-silence").await?;
    let volume = settled(c, &ns).await?;
    let silent = Silent::fall(c).await?;
    c.apply(&on(c, &ns, "node-1", "two")).await?;
    let at_once = DeleteParams { grace_secs: Some(0), ..DeleteParams::default() };
    c.client.within::<Pod>(&ns).delete("one", &at_once).await?;
    gone(c, &ns, "one").await?;
    let held = format!("Multi-Attach error for volume \"{volume}\"");
    event(c, &ns, "FailedAttachVolume", &held).await?;
    let attachments = c.client.all::<VolumeAttachment>();
    let all = attachments.list(&ListParams::default()).await?;
    let first =
        all.items.iter().find(|of| of.spec.source.persistent_volume_name.as_ref() == Some(&volume));
    ensure!(first.is_some_and(|of| of.spec.node_name == "node-2"), "{:?}", all.items);
    c.pod_ready(&ns, "two").await?;
    ensure!(here.count("NodeStageVolume") == 2 && there.count("NodeUnstageVolume") == 1);
    drop(silent);
    recovered(c, there, 2).await?;
    c.discard(&ns).await
}
