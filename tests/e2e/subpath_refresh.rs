//! A file of a ConfigMap that a container mounts by `subPath`, in a pod that opted in to updates: it is current while the container runs, after a restart of
//! the agent, and in the container's next instance.

use anyhow::{Context as _, Result, ensure};
use orch_tests::wait::until;
use proto_api::core::v1::{ConfigMap, Pod};
use proto_client::{Patch, WriteParams};
use serde_json::json;

use crate::context::{Context, PATIENCE, shown};
use crate::faults::containers;
use crate::pods::{WAIT, pod};

pub async fn a_part_of_a_config_map_follows_where_its_pod_asks(c: &Context) -> Result<()> {
    let ns = c.namespace("follows").await?;
    c.apply(&format!(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: settings, namespace: {ns}}}\ndata: {{key: first}}\n"
    ))
    .await?;
    let volume = "    volumeMounts: [{name: v, mountPath: /etc/key, subPath: key}]\n  \
                  volumes: [{name: v, configMap: {name: settings}}]\n";
    // Ends on a signal, so that there is another instance.
    let script = "until [ -e /end ]; do sleep 0.1; done";
    let asks = "metadata:\n  annotations: {orch.io/sub-paths-follow: \"true\"}\n";
    let follows = pod(&ns, "follows", script).replacen("metadata:\n", asks, 1) + volume;
    let stays = pod(&ns, "stays", WAIT) + volume;
    c.apply(&[follows, stays].join("---\n")).await?;
    let follows = c.pod_ready(&ns, "follows").await?;
    let stays = c.pod_ready(&ns, "stays").await?;
    let before = containers(c, &ns).await?;
    for text in ["second", "third", "fourth"] {
        change(c, &ns, text).await?;
        reads(c, &follows, text).await?;
    }
    c.kill("orchlet-node-1").await?;
    for text in ["fifth", "sixth"] {
        change(c, &ns, text).await?;
        reads(c, &follows, text).await.context("after the agent's restart")?;
    }
    ensure!(containers(c, &ns).await? == before, "a container was restarted");
    // Kubernetes' own way, for who asked for nothing.
    let old = c.read_in_container(&stays, &["/bin/cat", "/etc/key"]).await?;
    ensure!(old == "first", "{old}");

    c.in_container(&follows, &["/bin/sh", "-c", "echo > /end"]).await?;
    let again = |pod: &Pod| {
        let status = pod.status.container_statuses.first();
        let restarted = status.is_some_and(|c| c.restart_count == 1 && c.state.running.is_some());
        if restarted { Ok(()) } else { Err(shown(pod)) }
    };
    let follows = c.pod_until(&ns, "follows", again).await?;
    reads(c, &follows, "sixth").await?;
    for text in ["seventh", "eighth"] {
        change(c, &ns, text).await?;
        reads(c, &follows, text).await.context("in the next instance")?;
    }
    crate::csi::deleted(c, &ns, "follows").await?;
    let table = c.on_node(&["cat", "/proc/self/mounts"]).await?;
    ensure!(!table.contains(&follows.metadata.uid), "mounts are left:\n{table}");
    c.discard(&ns).await
}

async fn change(c: &Context, ns: &str, text: &str) -> Result<()> {
    let patch = Patch::Merge(json!({"data": {"key": text}}));
    let maps = c.client.within::<ConfigMap>(ns);
    maps.patch("settings", &patch, &WriteParams::default()).await.map(drop).map_err(Into::into)
}

async fn reads(c: &Context, pod: &Pod, text: &str) -> Result<()> {
    until(&format!("the container reads {text:?}"), PATIENCE, async || {
        let seen = c.in_container(pod, &["/bin/cat", "/etc/key"]).await;
        match seen.map_err(|e| format!("{e:#}"))? {
            seen if seen == text => Ok(()),
            seen => Err(seen),
        }
    })
    .await
}
