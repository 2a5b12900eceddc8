//! The node's HTTPS endpoint, as users reach it: through the API server.

use anyhow::{Context as _, Result, ensure};
use orch_tests::wait::until;
use proto_client::request;
use serde_json::Value;

use crate::context::{Context, PATIENCE};
use crate::pods::{WAIT, pod};

/// A page of the first node.
async fn page(c: &Context, path: &str) -> Result<String> {
    let path = format!("/api/v1/nodes/node-1/proxy/{path}");
    let answer = c.client.call(request::get(path.clone())).await.with_context(|| path.clone())?;
    Ok(String::from_utf8_lossy(&answer.body).into_owned())
}

pub async fn the_node_tells_what_is_used_and_why(c: &Context) -> Result<()> {
    let ns = c.namespace("endpoint").await?;
    c.apply(&pod(&ns, "used", WAIT)).await?;
    c.pod_ready(&ns, "used").await?;
    let agent = c.names.component("let");

    let summary: Value = serde_json::from_str(&page(c, "stats/summary").await?)?;
    let pods = summary["pods"].as_array().context("pods")?;
    let used = pods.iter().find(|pod| pod["podRef"]["name"] == "used").context("the pod")?;
    ensure!(used["memory"]["usageBytes"].as_u64() > Some(0), "memory: {used}");
    ensure!(used["containers"][0]["rootfs"]["capacityBytes"].as_u64() > Some(0), "disk: {used}");
    ensure!(used["network"]["interfaces"][0]["name"] == "eth0", "network: {used}");
    ensure!(summary["node"]["rlimit"]["maxpid"].as_u64() > Some(0), "node: {}", summary["node"]);

    let containers = page(c, "metrics/cadvisor").await?;
    let is_of_pod =
        |line: &&str| line.contains("pod=\"used\"") && line.contains("container=\"main\"");
    let cpu = |line: &&str| line.starts_with("container_cpu_usage_seconds_total{");
    ensure!(
        containers.lines().filter(cpu).any(|line| is_of_pod(&line)),
        "no CPU time of the container"
    );

    let metrics = page(c, "metrics").await?;
    let counted = |name: &str| {
        let of_it = |line: &&str| line.starts_with(name) && !line.ends_with(" 0");
        ensure!(metrics.lines().any(|line| of_it(&line)), "nothing counted by {name}");
        Ok(())
    };
    for name in [
        "running_pods",
        "runtime_operations_total",
        "pod_start_duration_seconds_count",
        "pod_worker_start_duration_seconds_sum",
        "cgroup_manager_duration_seconds_count{operation_type=\"create\"}",
        "run_podsandbox_duration_seconds_count",
        "containers_per_pod_count_count",
        "pleg_last_seen_seconds",
    ] {
        counted(&format!("{agent}_{name}"))?;
    }
    // Its token is in a volume.
    counted(
        "storage_operation_duration_seconds_count{migrated=\"false\",operation_name=\"volume_mount\",status=\"success\"",
    )?;
    for state in ["actual", "desired"] {
        let plugin = format!("{}/projected", c.names.label_domain());
        counted(&format!(
            "volume_manager_total_volumes{{plugin_name=\"{plugin}\",state=\"{state}_state_of_world\"}}"
        ))?;
    }

    let why: Value = serde_json::from_str(&page(c, &format!("debug/pods/{ns}/used")).await?)?;
    ensure!(why["pod"]["notReadyBecause"] == Value::Array(Vec::new()), "{why}");
    ensure!(why["timelines"][0].to_string().contains("CreateSandbox"), "{why}");
    let config: Value = serde_json::from_str(&page(c, "configz").await?)?;
    ensure!(config[format!("{agent}config")]["maxPods"] == 110, "{config}");
    c.discard(&ns).await
}

pub async fn a_log_is_rotated_and_stays_readable(c: &Context) -> Result<()> {
    let ns = c.namespace("rotation").await?;
    let script =
        format!("yes a line that fills the log | head -n 500000; echo the last line; {WAIT}");
    c.apply(&pod(&ns, "chatty", &script)).await?;
    c.pod_ready(&ns, "chatty").await?;
    until("the log is rotated", PATIENCE, async || {
        let list = c.on_node(&["sh", "-c", &format!("ls /var/log/pods/{ns}_chatty_*/main")]).await;
        let list = list.map_err(|e| e.to_string())?;
        if list.contains("0.log.") { Ok(()) } else { Err(list) }
    })
    .await?;
    // The container may still be writing.
    let tail = format!("containerLogs/{ns}/chatty/main?tailLines=1");
    until("the last line is shown", PATIENCE, async || {
        let last = page(c, &tail).await.map_err(|error| error.to_string())?;
        let end: String = last.chars().take(200).collect();
        if last == "the last line\n" { Ok(()) } else { Err(end) }
    })
    .await?;
    // Collectors of logs find it by name.
    let linked = format!("readlink -e /var/log/containers/chatty_{ns}_main-*.log");
    let log = c.on_node(&["sh", "-c", &linked]).await?;
    ensure!(log.trim_end().ends_with("/main/0.log"), "{log:?}");
    c.discard(&ns).await
}
