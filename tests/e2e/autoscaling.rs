//! An autoscaler adds pods when those that there are use more than they request; what they use is what `kubectl top` shows.

use std::process::Stdio;
use std::time::Duration;

use anyhow::{Result, ensure};
use orch_tests::wait::until;
use proto_api::Collection;
use proto_api::apps::v1::Deployment;
use proto_api::autoscaling::v2::HorizontalPodAutoscaler;
use proto_client::ListParams;
use proto_client::dynamic::Dynamic;
use tokio::process::Command;

use crate::context::{Context, output};

const NAMESPACE: &str = "autoscaling";
/// Two readings of a node, the first looks of the controller, and a slow machine.
const PATIENCE: Duration = Duration::from_secs(240);

const BURN: &str = r#"apiVersion: apps/v1
kind: Deployment
metadata: {name: burn, namespace: autoscaling}
spec:
  replicas: 1
  selector: {matchLabels: {app: burn}}
  template:
    metadata: {labels: {app: burn}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - name: main
        image: orch.local/demo:1
        command: ["/bin/sh", "-c", "trap 'exit 0' TERM; while true; do i=0; while [ $i -lt 2000 ]; do i=$((i+1)); done; sleep 0.05; done"]
        resources: {requests: {cpu: 10m}}
---
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: burn, namespace: autoscaling}
spec:
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: burn}
  minReplicas: 1
  maxReplicas: 3
  metrics:
  - type: Resource
    resource: {name: cpu, target: {type: Utilization, averageUtilization: 50}}
"#;

pub async fn a_target_that_is_busy_gets_more_pods(c: &Context) -> Result<()> {
    c.namespace(NAMESPACE).await?;
    c.apply(BURN).await?;
    let (deployments, autoscalers) = (
        c.client.within::<Deployment>(NAMESPACE),
        c.client.within::<HorizontalPodAutoscaler>(NAMESPACE),
    );
    until("the autoscaler has scaled its target to the maximum", PATIENCE, async || {
        let deployment = deployments.get("burn").await.map_err(|error| error.to_string())?;
        let hpa = autoscalers.get("burn").await.map_err(|error| error.to_string())?;
        match deployment.status.ready_replicas {
            3 => Ok(()),
            ready => Err(format!("{ready} ready; {:?}", hpa.status)),
        }
    })
    .await?;
    let hpa = autoscalers.get("burn").await?;
    ensure!(hpa.status.last_scale_time.is_some(), "{:?}", hpa.status);
    // Not while a scrape is late.
    until("the autoscaler is active", PATIENCE, async || {
        let hpa = autoscalers.get("burn").await.map_err(|error| error.to_string())?;
        let active = hpa.status.conditions.iter().find(|it| it.type_ == "ScalingActive");
        match active.is_some_and(|it| it.status == "True") {
            true => Ok(()),
            false => Err(format!("{:?}", hpa.status.conditions)),
        }
    })
    .await?;
    pods_have_metrics(c).await?;
    if c.spec.naming == "kubernetes" && std::path::Path::new(KUBECTL).exists() {
        top(c).await?;
    }
    c.discard(NAMESPACE).await
}

async fn pods_have_metrics(c: &Context) -> Result<()> {
    let collection = Collection {
        group: c.names.group("metrics"),
        version: "v1beta1".to_owned(),
        plural: "pods".to_owned(),
        namespace: Some(NAMESPACE.to_owned()),
    };
    let metrics = Dynamic::new(c.client.clone(), collection);
    until("all pods have metrics", PATIENCE, async || {
        let list = metrics.list(&ListParams::labels("app=burn")).await;
        let list = list.map_err(|error| error.to_string())?;
        match list["items"].as_array().map(Vec::len) {
            Some(3) => Ok(()),
            _ => Err(list.to_string()),
        }
    })
    .await
}

const KUBECTL: &str = "/usr/bin/kubectl";

/// Each command is repeated: the pods are new, and a scrape may be late.
async fn top(c: &Context) -> Result<()> {
    let shows = async |args: &[&str], is_right: fn(&str) -> bool| {
        until(&format!("{args:?} shows it"), PATIENCE, async || {
            let text = run_kubectl(c, args).await.map_err(|error| format!("{error:#}"))?;
            if is_right(&text) { Ok(()) } else { Err(text) }
        })
        .await
    };
    shows(&["top", "nodes"], |text| {
        // Name, CPU and its percentage, memory and its percentage.
        let node = text.lines().find(|line| line.starts_with("node-1 "));
        node.is_some_and(|it| it.split_whitespace().count() == 5 && !it.contains("unknown"))
    })
    .await?;
    shows(&["top", "pods", "-n", NAMESPACE, "--containers"], |text| {
        text.lines().filter(|line| line.contains(" main ")).count() == 3
    })
    .await?;
    shows(&["get", "hpa", "-n", NAMESPACE], |text| {
        text.contains("/50%") && !text.contains("<unknown>")
    })
    .await
}

async fn run_kubectl(c: &Context, args: &[&str]) -> Result<String> {
    let mut command = Command::new(KUBECTL);
    command.arg("--kubeconfig").arg(c.spec.client_config("admin")).args(args);
    // Its discovery cache must not outlive this cluster.
    command.env("HOME", &c.spec.dir).stdin(Stdio::null());
    output(command).await
}
