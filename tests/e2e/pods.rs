//! The lifecycle of a pod.

use anyhow::{Context as _, Result, ensure};
use orch_tests::wait::until;
use proto_api::core::v1::Pod;
use proto_client::DeleteParams;

use crate::context::{Context, PATIENCE, shown};

/// A manifest of a pod with one busybox container.
pub fn pod(namespace: &str, name: &str, script: &str) -> String {
    format!(
        r#"apiVersion: v1
kind: Pod
metadata:
  name: {name}
  namespace: {namespace}
  labels:
    app: {name}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: main
    image: orch.local/demo:1
    command: ["/bin/sh", "-c", {script:?}]
"#
    )
}

/// A script that ends at once on SIGTERM.
pub const WAIT: &str = "trap 'exit 0' TERM; while true; do sleep 1000 & wait; done";

pub async fn a_static_pod_runs_and_its_mirror_shows_it(c: &Context) -> Result<()> {
    let manifest = c.spec.node_dir("node-1").join("manifests/static.yaml");
    let beside = c.spec.dir.join("static.yaml.new");
    std::fs::write(&beside, pod("default", "static", WAIT))?;
    std::fs::rename(&beside, &manifest)?;
    let mirror = c.pod_ready("default", "static-node-1").await?;
    ensure!(mirror.spec.node_name == "node-1");
    std::fs::remove_file(&manifest)?;
    let api = c.client.within::<Pod>("default");
    until("the mirror pod is gone", PATIENCE, async || match api.find("static-node-1").await {
        Ok(None) => Ok(()),
        Ok(Some(pod)) => Err(shown(&pod)),
        Err(e) => Err(e.to_string()),
    })
    .await
}

pub async fn init_containers_run_in_order_before_the_others(c: &Context) -> Result<()> {
    let ns = c.namespace("init").await?;
    let manifest = pod(&ns, "steps", &format!("cat /w/log; {WAIT}")).replace(
        "  containers:",
        r#"  initContainers:
  - {name: one, image: "orch.local/demo:1", command: [/bin/sh, -c, "echo one >> /w/log"], volumeMounts: [{name: w, mountPath: /w}]}
  - {name: two, image: "orch.local/demo:1", command: [/bin/sh, -c, "echo two >> /w/log"], volumeMounts: [{name: w, mountPath: /w}]}
  volumes:
  - {name: w, emptyDir: {}}
  containers:"#,
    ) + "    volumeMounts: [{name: w, mountPath: /w}]\n";
    c.apply(&manifest).await?;
    let pod = c.pod_ready(&ns, "steps").await?;
    let log = c.read_in_container(&pod, &["/bin/cat", "/w/log"]).await?;
    ensure!(log == "one\ntwo\n", "the log says {log:?}");
    c.discard(&ns).await
}

pub async fn a_crashing_container_is_restarted_and_counted(c: &Context) -> Result<()> {
    let ns = c.namespace("crash").await?;
    c.apply(&pod(&ns, "crash", "exit 3")).await?;
    let again = |pod: &Pod| {
        let status = pod.status.container_statuses.first().ok_or("no status")?;
        let last = status.last_state.terminated.as_ref().ok_or_else(|| shown(pod))?;
        match (status.restart_count >= 2, last.exit_code) {
            (true, 3) => Ok(()),
            _ => Err(shown(pod)),
        }
    };
    c.pod_until(&ns, "crash", again).await?;
    let backing_off = |pod: &Pod| {
        let status = pod.status.container_statuses.first().ok_or("no status")?;
        match status.state.waiting.as_ref() {
            Some(waiting) if waiting.reason == "CrashLoopBackOff" => Ok(()),
            _ => Err(shown(pod)),
        }
    };
    c.pod_until(&ns, "crash", backing_off).await?;
    c.discard(&ns).await
}

pub async fn a_deleted_pod_leaves_nothing(c: &Context) -> Result<()> {
    let ns = c.namespace("gone").await?;
    c.apply(&pod(&ns, "gone", WAIT)).await?;
    let pod = c.pod_ready(&ns, "gone").await?;
    let uid = pod.metadata.uid;
    let api = c.client.within::<Pod>(&ns);
    api.delete("gone", &DeleteParams::default()).await?;
    until("the pod is gone", PATIENCE, async || match api.find("gone").await {
        Ok(None) => Ok(()),
        Ok(Some(pod)) => Err(shown(&pod)),
        Err(e) => Err(e.to_string()),
    })
    .await?;
    // The object goes last: everything of the pod is gone by now.
    let dir = c.spec.node_dir("node-1").join("orchlet/pods").join(&uid);
    ensure!(!dir.exists(), "{} is left", dir.display());
    let mounts = c.on_node(&["cat", "/proc/self/mounts"]).await?;
    ensure!(!mounts.contains(&uid), "mounts of the pod are left");
    let groups = c.on_node(&["find", "/sys/fs/cgroup", "-name", &format!("*{uid}*")]).await?;
    ensure!(groups.is_empty(), "cgroups are left: {groups}");
    let socket = c.spec.containerd_socket("node-1");
    let socket = socket.to_str().context("a socket path in UTF-8")?;
    let containers = c.on_node(&["ctr", "-a", socket, "-n", "k8s.io", "containers", "ls"]).await?;
    let filter = format!("labels.\"io.kubernetes.pod.uid\"=={uid}");
    let left = c
        .on_node(&["ctr", "-a", socket, "-n", "k8s.io", "containers", "ls", "-q", &filter])
        .await?;
    ensure!(left.trim().is_empty(), "containers are left: {left} of {containers}");
    c.discard(&ns).await
}
