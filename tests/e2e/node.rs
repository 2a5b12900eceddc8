//! Decisions of the node about its pods, and what their users see: limits, invalid images, preemption for critical pods.

use anyhow::{Context as _, Result, ensure};
use proto_api::core::v1::{Node, Pod};
use proto_client::{DeleteParams, Patch, WriteParams};
use serde_json::json;

use crate::context::{Context, shown};
use crate::csi::event;
use crate::pods::{WAIT, pod};

pub fn failed_for(pod: &Pod, reason: &str) -> Result<(), String> {
    let over = pod.status.phase == "Failed" && pod.status.reason == reason;
    if over { Ok(()) } else { Err(format!("{} {}", pod.status.reason, shown(pod))) }
}

pub async fn a_pod_over_its_storage_limits_is_evicted(c: &Context) -> Result<()> {
    let ns = c.namespace("limits").await?;
    let volume = "    volumeMounts: [{name: v, mountPath: /v}]\n  \
                  volumes: [{name: v, emptyDir: {sizeLimit: 1Mi}}]\n";
    let layer = "    resources: {limits: {ephemeral-storage: 1Mi}}\n";
    let fill = |path: &str| format!("dd if=/dev/zero of={path} bs=1M count=4; {WAIT}");
    let volume = pod(&ns, "volume", &fill("/v/x")) + volume;
    let layer = pod(&ns, "layer", &fill("/x")) + layer;
    let within = pod(&ns, "within", WAIT)
        + "    volumeMounts: [{name: v, mountPath: /v}]\n  \
           volumes: [{name: v, emptyDir: {sizeLimit: 1Mi}}]\n";
    c.apply(&[volume, layer, within].join("---\n")).await?;
    for (name, message) in [
        ("volume", "Usage of EmptyDir volume \"v\" exceeds the limit \"1Mi\". "),
        ("layer", "Pod ephemeral local storage usage exceeds the total limit of containers 1Mi. "),
    ] {
        let pod = c.pod_until(&ns, name, |pod| failed_for(pod, "Evicted")).await?;
        ensure!(pod.status.message == message, "{}", pod.status.message);
    }
    let within = c.pod_ready(&ns, "within").await?;
    ensure!(within.status.container_statuses.iter().all(|status| status.restart_count == 0));
    c.discard(&ns).await
}

pub async fn an_invalid_image_name_is_reported(c: &Context) -> Result<()> {
    let ns = c.namespace("image-names").await?;
    let wrong = pod(&ns, "wrong", WAIT).replace("orch.local/demo:1", "Wrong/Image:1");
    let never = pod(&ns, "never", WAIT)
        .replace("orch.local/demo:1\n", "none.test/x:1\n    imagePullPolicy: Never\n");
    c.apply(&[wrong, never].join("---\n")).await?;
    for (name, reason) in [("wrong", "InvalidImageName"), ("never", "ErrImageNeverPull")] {
        let waits = |pod: &Pod| {
            let status = pod.status.container_statuses.first();
            let waiting = status.and_then(|status| status.state.waiting.as_ref());
            match waiting {
                Some(waiting) if waiting.reason == reason => Ok(()),
                _ => Err(shown(pod)),
            }
        };
        c.pod_until(&ns, name, waits).await?;
    }
    c.discard(&ns).await
}

pub async fn events_report_what_happens_to_a_node(c: &Context) -> Result<()> {
    let started = format!("Starting {}.", c.names.component("let"));
    event(c, "default", "Starting", &started).await?;
    event(c, "default", "NodeAllocatableEnforced", "across pods").await?;
    for (unschedulable, reason) in [(true, "NodeNotSchedulable"), (false, "NodeSchedulable")] {
        let patch = Patch::Merge(json!({"spec": {"unschedulable": unschedulable}}));
        c.client.all::<Node>().patch("node-1", &patch, &WriteParams::default()).await?;
        event(c, "default", reason, reason).await?;
    }
    let manifest = c.spec.node_dir("node-1").join("manifests/faulty.yaml");
    std::fs::write(&manifest, pod("default", "../faulty", WAIT))?;
    let told = event(c, "default", "FailedValidation", "metadata.name: \"../faulty-node-1\"").await;
    std::fs::remove_file(&manifest)?;
    told
}

pub async fn a_critical_pod_gets_room(c: &Context) -> Result<()> {
    let ns = c.namespace("room").await?;
    let node = c.client.all::<Node>().get("node-1").await?;
    let cpu = node.status.allocatable.get("cpu").context("no cpu")?.as_milli();
    let asks = |milli: i64| format!("    resources: {{requests: {{cpu: {milli}m}}}}\n");
    // Placed by hand: making room is the node's business here, not the scheduler's.
    let placed = |manifest: String, more: &str| {
        manifest.replace("spec:\n", &format!("spec:\n  nodeName: node-1\n{more}"))
    };
    let large = placed(pod(&ns, "large", WAIT), "") + &asks(cpu * 6 / 10);
    let small = placed(pod(&ns, "small", WAIT), "") + &asks(cpu / 20);
    c.apply(&[large, small].join("---\n")).await?;
    c.pod_ready(&ns, "large").await?;
    c.pod_ready(&ns, "small").await?;
    let system = c.names.system_namespace();
    let class = "  priorityClassName: system-node-critical\n";
    c.apply(&(placed(pod(system, "room", WAIT), class) + &asks(cpu / 2))).await?;
    c.pod_ready(system, "room").await?;
    c.pod_until(&ns, "large", |pod| failed_for(pod, "Preempting")).await?;
    c.pod_ready(&ns, "small").await?;
    c.client.within::<Pod>(system).delete("room", &DeleteParams::default()).await?;
    c.discard(&ns).await
}
