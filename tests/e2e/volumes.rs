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
    ensure!(c.read_in_container(&pod, &["/bin/cat", "/v/a", "/v/b"]).await? == "11");
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
    ensure!(c.read_in_container(&pod, &["/bin/cat", "/v/k"]).await? == "here");
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
    ensure!(c.read_in_container(&pod, &["/bin/cat", "/v/deep/pw"]).await? == "geheim");
    let labels = c.read_in_container(&pod, &["/bin/cat", "/v/labels"]).await?;
    ensure!(labels.trim_end() == "app=\"reader\"", "labels are {labels:?}");
    let token = c.read_in_container(&pod, &["/bin/cat", "/v/token"]).await?;
    ensure!(token.split('.').count() == 3, "not a token: {token:?}");
    let dir = c.names.service_account_dir();
    let own = c.read_in_container(&pod, &["/bin/cat", &format!("{dir}/namespace")]).await?;
    ensure!(own == ns, "the account's namespace is {own:?}");
    let mode = c.read_in_container(&pod, &["/bin/stat", "-L", "-c", "%a", "/v/deep/pw"]).await?;
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

pub async fn parts_of_volumes_are_given_and_never_lead_out(c: &Context) -> Result<()> {
    let ns = c.namespace("parts").await?;
    c.apply(&format!(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: settings, namespace: {ns}}}\ndata: {{a: '1'}}\n"
    ))
    .await?;
    let base = pod(&ns, "parts", WAIT);
    let manifest = format!(
        r#"{base}    env:
    - {{name: POD, valueFrom: {{fieldRef: {{fieldPath: metadata.name}}}}}}
    volumeMounts:
    - {{name: conf, mountPath: /etc/a.conf, subPath: a}}
    - {{name: conf, mountPath: /conf}}
    - {{name: data, mountPath: /mine, subPathExpr: logs/$(POD)}}
    - {{name: data, mountPath: /data}}
    - {{name: data, mountPath: /frozen, subPath: logs, readOnly: true}}
  volumes:
  - {{name: conf, configMap: {{name: settings}}}}
  - {{name: data, emptyDir: {{}}}}
"#
    );
    c.apply(&manifest).await?;
    let pod_is = c.pod_ready(&ns, "parts").await?;
    let run = async |script: &str| c.in_container(&pod_is, &["/bin/sh", "-c", script]).await;
    run("echo x > /mine/x").await?;
    let copies = ["/bin/cat", "/data/logs/parts/x", "/frozen/parts/x"];
    ensure!(c.read_in_container(&pod_is, &copies).await? == "x\nx\n");
    for read_only in ["/frozen/y", "/conf/y", "/etc/a.conf"] {
        ensure!(run(&format!("echo y > {read_only}")).await.is_err(), "{read_only} was written");
    }
    // a part keeps what it was when the container was made; the whole follows
    let api = c.client.within::<ConfigMap>(&ns);
    let patch = Patch::Merge(json!({"data": {"a": "2"}}));
    api.patch("settings", &patch, &WriteParams::default()).await?;
    until("the whole follows", PATIENCE, async || match run("cat /conf/a").await {
        Ok(text) if text == "2" => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await?;
    let part = c.read_in_container(&pod_is, &["/bin/cat", "/etc/a.conf"]).await?;
    ensure!(part == "1", "a part changed under its container: {part:?}");

    // a way out, made by a container of the pod itself
    let base = pod(&ns, "escape", WAIT);
    let manifest = base.replace(
        "  containers:",
        r#"  initContainers:
  - {name: attacker, image: "orch.local/demo:1", command: ["/bin/sh", "-c", "ln -s / /d/out"], volumeMounts: [{name: d, mountPath: /d}]}
  volumes:
  - {name: d, emptyDir: {}}
  containers:"#,
    ) + "    volumeMounts: [{name: d, mountPath: /host, subPath: out}]\n";
    c.apply(&manifest).await?;
    let refused = |pod: &proto_api::core::v1::Pod| {
        let state = pod.status.container_statuses.first().and_then(|s| s.state.waiting.as_ref());
        match state {
            Some(waiting) if waiting.reason == "CreateContainerConfigError" => {
                waiting.message.contains("subPath").then_some(()).ok_or_else(|| shown(pod))
            }
            _ => Err(shown(pod)),
        }
    };
    c.pod_until(&ns, "escape", refused).await?;

    let uid = pod_is.metadata.uid;
    c.client.within::<proto_api::core::v1::Pod>(&ns).delete("parts", &Default::default()).await?;
    until("nothing is left", PATIENCE, async || {
        let dir = c.spec.node_dir("node-1").join("orchlet/pods").join(&uid);
        if dir.exists() { Err(format!("{}", dir.display())) } else { Ok(()) }
    })
    .await?;
    c.discard(&ns).await
}

pub async fn paths_and_devices_of_the_node_are_what_they_should_be(c: &Context) -> Result<()> {
    let ns = c.namespace("node-paths").await?;
    let dir = c.spec.dir.join("node-paths");
    std::fs::create_dir_all(dir.join("here"))?;
    std::fs::write(dir.join("here/file"), "of the node\n")?;
    let path = dir.display();
    let volume = format!("{{name: v, hostPath: {{path: {path}/here, type: Directory}}}}");
    c.apply(&with_volume(&ns, "directory", &volume)).await?;
    let pod = c.pod_ready(&ns, "directory").await?;
    ensure!(c.read_in_container(&pod, &["/bin/cat", "/v/file"]).await? == "of the node\n");
    let volume = format!("{{name: v, hostPath: {{path: {path}/made, type: DirectoryOrCreate}}}}");
    let travels = with_volume(&ns, "made", &volume)
        .replace("mountPath: /v", "mountPath: /v, mountPropagation: HostToContainer");
    c.apply(&travels).await?;
    let made = c.pod_ready(&ns, "made").await?;
    // a mount that the node makes later travels into the pod
    let inner = dir.join("made/inner");
    std::fs::create_dir_all(&inner)?;
    let inner = inner.to_str().context("a path in UTF-8")?;
    c.on_node(&["mount", "-t", "tmpfs", "travelling", inner]).await?;
    let mounts = c.read_in_container(&made, &["/bin/cat", "/proc/mounts"]).await?;
    c.on_node(&["umount", inner]).await?;
    ensure!(mounts.contains("travelling /v/inner"), "nothing travelled:\n{mounts}");
    let volume = format!("{{name: v, hostPath: {{path: {path}/here, type: File}}}}");
    c.apply(&with_volume(&ns, "file", &volume)).await?;
    let events = c.client.within::<Event>(&ns);
    let told = async |text: &str| {
        until(&format!("an event says {text}"), PATIENCE, async || {
            let all = events.list(&ListParams::default()).await.map_err(|e| e.to_string())?;
            let found =
                all.items.iter().any(|e| e.reason == "FailedMount" && e.message.contains(text));
            found.then_some(()).ok_or_else(|| format!("{} events", all.items.len()))
        })
        .await
    };
    told("hostPath type check failed").await?;
    c.apply(&with_volume(&ns, "git", "{name: v, gitRepo: {repository: x}}")).await?;
    told("gitRepo volumes are not supported").await?;

    // a directory of the node as a persistent volume, given to the pod's group
    c.apply(&format!(
        "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {{name: local, namespace: {ns}}}\n\
         spec: {{accessModes: [ReadWriteOnce], storageClassName: '', volumeName: {ns}-local, resources: {{requests: {{storage: 1Gi}}}}}}\n"
    ))
    .await?;
    let claims = c.client.within::<proto_api::core::v1::PersistentVolumeClaim>(&ns);
    let uid = claims.get("local").await?.metadata.uid;
    c.apply(&format!(
        "apiVersion: v1\nkind: PersistentVolume\nmetadata: {{name: {ns}-local}}\n\
         spec: {{accessModes: [ReadWriteOnce], capacity: {{storage: 1Gi}}, claimRef: {{apiVersion: v1, kind: PersistentVolumeClaim, namespace: {ns}, name: local, uid: {uid}}}, \
         local: {{path: {path}/here}}, nodeAffinity: {{required: {{nodeSelectorTerms: [{{matchExpressions: [{{key: {}, operator: In, values: [node-1]}}]}}]}}}}}}\n",
        c.names.label("hostname")
    ))
    .await?;
    let status = json!({"status": {"phase": "Bound", "capacity": {"storage": "1Gi"}}});
    claims.patch_status("local", &Patch::Merge(status), &WriteParams::default()).await?;
    let volume = "{name: v, persistentVolumeClaim: {claimName: local}}";
    let manifest = with_volume(&ns, "local", volume)
        + "  securityContext: {fsGroup: 4321}\n  nodeName: node-1\n";
    c.apply(&manifest).await?;
    let pod = c.pod_ready(&ns, "local").await?;
    let owner = c.read_in_container(&pod, &["/bin/stat", "-c", "%g", "/v/file"]).await?;
    ensure!(owner.trim() == "4321", "the file is {owner:?}'s");
    c.client.within::<proto_api::core::v1::Pod>(&ns).delete("local", &Default::default()).await?;
    until("nothing is left", PATIENCE, async || {
        let place = c.spec.node_dir("node-1").join("orchlet/pods").join(&pod.metadata.uid);
        if place.exists() { Err(format!("{}", place.display())) } else { Ok(()) }
    })
    .await?;
    ensure!(std::fs::read_to_string(dir.join("here/file"))? == "of the node\n", "data was removed");
    c.discard(&ns).await
}
