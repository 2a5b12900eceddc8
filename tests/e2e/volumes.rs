//! Volumes that follow their sources.

use anyhow::{Context as _, Result, ensure};
use orch_tests::wait::until;
use proto_api::core::v1::{ConfigMap, Event};
use proto_client::{ListParams, Patch, WriteParams};
use serde_json::json;

use crate::context::{Context, PATIENCE, shown};
use crate::pods::{WAIT, pod};

fn with_volume(namespace: &str, name: &str, volume: &str) -> String {
    let base = pod(namespace, name, WAIT);
    format!("{base}    volumeMounts: [{{name: v, mountPath: /v}}]\n  volumes:\n  - {volume}\n")
}

pub async fn a_config_map_change_reaches_the_file(c: &Context) -> Result<()> {
    let ns = c.namespace("rotation").await?;
    c.apply(&format!(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: settings, namespace: {ns}}}\ndata: {{a: '1', b: '1'}}\n"
    ))
    .await?;
    c.apply(&with_volume(&ns, "reader", "{name: v, configMap: {name: settings}}")).await?;
    let pod = c.pod_ready(&ns, "reader").await?;
    ensure!(c.in_container(&pod, &["/bin/cat", "/v/a", "/v/b"]).await? == "11");
    let api = c.client.within::<ConfigMap>(&ns);
    let patch = Patch::Merge(json!({"data": {"a": "2", "b": null, "c": "new"}}));
    api.patch("settings", &patch, &WriteParams::default()).await?;
    until("the files follow", PATIENCE, async || {
        let seen = c.in_container(&pod, &["/bin/sh", "-c", "cat /v/a /v/c; ls /v"]).await;
        match seen {
            Ok(text) if text == "2newa\nc\n" => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await?;
    c.discard(&ns).await
}

pub async fn a_missing_config_map_is_waited_for(c: &Context) -> Result<()> {
    let ns = c.namespace("missing").await?;
    c.apply(&with_volume(&ns, "waiter", "{name: v, configMap: {name: later}}")).await?;
    let events = c.client.within::<Event>(&ns);
    until("an event says what is missing", PATIENCE, async || {
        let all = events.list(&ListParams::default()).await.map_err(|e| e.to_string())?;
        let told =
            all.items.iter().find(|e| e.reason == "FailedMount" && e.message.contains("later"));
        told.map(|_| ()).ok_or_else(|| format!("{} events", all.items.len()))
    })
    .await?;
    let waiting = |pod: &proto_api::core::v1::Pod| {
        let state = pod.status.container_statuses.first().and_then(|s| s.state.waiting.as_ref());
        match state {
            Some(waiting) if waiting.reason == "ContainerCreating" => Ok(()),
            _ => Err(shown(pod)),
        }
    };
    c.pod_until(&ns, "waiter", waiting).await?;
    c.apply(&format!(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: later, namespace: {ns}}}\ndata: {{k: here}}\n"
    ))
    .await?;
    let pod = c.pod_ready(&ns, "waiter").await?;
    ensure!(c.in_container(&pod, &["/bin/cat", "/v/k"]).await? == "here");
    c.discard(&ns).await
}

pub async fn secrets_tokens_and_downward_fields_are_projected(c: &Context) -> Result<()> {
    let ns = c.namespace("projected").await?;
    c.apply(&format!(
        "apiVersion: v1\nkind: Secret\nmetadata: {{name: key, namespace: {ns}}}\nstringData: {{password: geheim}}\n"
    ))
    .await?;
    let volume = r#"name: v
    projected:
      defaultMode: 0440
      sources:
      - secret: {name: key, items: [{key: password, path: deep/pw}]}
      - downwardAPI: {items: [{path: labels, fieldRef: {fieldPath: metadata.labels}}]}
      - serviceAccountToken: {path: token, audience: vault, expirationSeconds: 600}"#;
    c.apply(&with_volume(&ns, "reader", volume)).await?;
    let pod = c.pod_ready(&ns, "reader").await?;
    ensure!(c.in_container(&pod, &["/bin/cat", "/v/deep/pw"]).await? == "geheim");
    let labels = c.in_container(&pod, &["/bin/cat", "/v/labels"]).await?;
    ensure!(labels.trim_end() == "app=\"reader\"", "labels are {labels:?}");
    let token = c.in_container(&pod, &["/bin/cat", "/v/token"]).await?;
    ensure!(token.split('.').count() == 3, "not a token: {token:?}");
    let dir = c.names.service_account_dir();
    let own = c.in_container(&pod, &["/bin/cat", &format!("{dir}/namespace")]).await?;
    ensure!(own == ns, "the account's namespace is {own:?}");
    let mode = c.in_container(&pod, &["/bin/stat", "-L", "-c", "%a", "/v/deep/pw"]).await?;
    ensure!(mode.trim() == "440", "mode {mode:?}");
    let mounts = c.on_node(&["cat", "/proc/self/mounts"]).await?;
    let uid = &pod.metadata.uid;
    let fields = |line: &str| line.split(' ').map(str::to_owned).collect::<Vec<_>>();
    let volume =
        mounts.lines().map(fields).find(|mount| mount[1].contains(uid) && mount[1].ends_with("/v"));
    let volume = volume.context("no mount of the volume")?;
    ensure!(volume[2] == "tmpfs", "secrets lie on {}", volume[2]);
    c.discard(&ns).await
}
