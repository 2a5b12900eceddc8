//! A cluster of Docker nodes (`hack/dind`), on a Docker daemon of the case's own.

mod daemon;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use docker_cluster::DockerCluster;
use orch_tests::wait::until;
use serde_json::Value;

use crate::context::{Context, bin_dir};
use daemon::Daemon;

/// Nodes start again, and pods on them.
const LONG: Duration = Duration::from_secs(120);
/// Address of the pods' Service.
const SERVICE: &str = "10.96.7.7 80";
/// A pod on each node that says its name, and a Service of theirs.
const PODS: &str = r#"
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: web}
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - name: web
        image: orch.local/demo:1
        imagePullPolicy: Never
        args: [sh, -c, "mkdir -p /www; cat /etc/hostname > /www/index.html; exec busybox httpd -f -p 8080 -h /www"]
        readinessProbe: {httpGet: {path: /, port: 8080}, periodSeconds: 1}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {clusterIP: 10.96.7.7, selector: {app: web}, ports: [{port: 80, targetPort: 8080}]}
"#;

pub async fn docker_nodes_are_a_cluster_that_survives_restarts(_: &Context) -> Result<()> {
    let mut daemon = Daemon::start(&bin_dir()?).await?;
    let tried = match live(&mut daemon).await {
        Ok(()) => daemon.nothing_is_left(),
        Err(error) => Err(error),
    };
    daemon.end().await?;
    tried
}

async fn live(daemon: &mut Daemon) -> Result<()> {
    let words = daemon.words();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let docker = DockerCluster::create("e2e").nodes(2).through(&words).start()?;
    let (archive, manifest) = (daemon.file("demo.tar"), daemon.file("pods.yaml"));
    std::fs::write(&archive, cluster::images::busybox()?.bytes())?;
    std::fs::write(&manifest, PODS)?;
    docker.load_archive(&archive)?;
    let cluster = Cluster { nodes: docker.nodes()?, docker, orchctl: daemon.bin.join("orchctl") };
    ensure!(cluster.nodes.len() == 2, "{:?}", cluster.nodes);
    cluster.orchctl(&["apply", "-f", &manifest.display().to_string()])?;
    cluster.pods_reach_each_other("at first").await?;

    cluster.docker.restart(&cluster.nodes[1])?;
    cluster.pods_reach_each_other("after a restart of a node").await?;
    daemon.restart().await?;
    cluster.pods_reach_each_other("after a restart of Docker").await?;

    // A machine that is gone, and another in its place.
    cluster.docker.remove_node(&cluster.nodes[1])?;
    let added = cluster.docker.add_node()?;
    ensure!(added == cluster.nodes[1], "{added}");
    cluster.docker.load_archive(&archive)?;
    cluster.pods_reach_each_other("after a node was replaced").await?;

    let logs = daemon.file("logs");
    cluster.docker.logs(&logs)?;
    for file in ["node.log", "orch/orchlet.log", "containerd.log"] {
        let path = logs.join(&cluster.nodes[1]).join(file);
        ensure!(path.exists(), "{} is missing", path.display());
    }
    cluster.docker.delete()?;
    cluster.docker.delete().context("a second time")?;
    ensure!(!cluster.docker.kubeconfig().exists(), "the client configuration is left");
    Ok(())
}

struct Cluster {
    docker: DockerCluster,
    nodes: Vec<String>,
    orchctl: PathBuf,
}

impl Cluster {
    /// The command-line client outside the cluster, which is told no more than a user.
    fn orchctl(&self, arguments: &[&str]) -> Result<String> {
        let mut command = self.docker.command(&self.orchctl);
        command.arg(format!("--kubeconfig={}", self.docker.kubeconfig().display()));
        let output = command.arg("--request-timeout=10s").args(arguments).output()?;
        if !output.status.success() {
            bail!("{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    async fn pods_reach_each_other(&self, when: &str) -> Result<()> {
        until(&format!("pods reach each other {when}"), LONG, async || {
            self.reach().map_err(|error| format!("{error:#}"))
        })
        .await
    }

    /// Every pod answers every pod, and so does the Service.
    fn reach(&self) -> Result<()> {
        let text = self.orchctl(&["get", "pods", "-l", "app=web", "-o", "json"])?;
        let list: Value = serde_json::from_str(&text)?;
        let pods: Vec<(&str, &str, &str)> =
            list["items"].as_array().into_iter().flatten().filter_map(place).collect();
        for node in &self.nodes {
            ensure!(pods.iter().any(|(_, on, _)| on == node), "no pod on {node}: {pods:?}");
        }
        for (from, _, _) in &pods {
            for (name, _, address) in &pods {
                let said = self.ask(from, &format!("{address} 8080"))?;
                ensure!(said == *name, "{from} asked {name} and got {said:?}");
            }
            let said = self.ask(from, SERVICE)?;
            ensure!(pods.iter().any(|(name, _, _)| *name == said), "the Service said {said:?}");
        }
        Ok(())
    }

    /// The page of a server, asked by a pod.
    fn ask(&self, pod: &str, server: &str) -> Result<String> {
        let script = format!("printf 'GET / HTTP/1.0\\r\\n\\r\\n' | nc -w 3 {server} | tail -n 1");
        Ok(self.orchctl(&["exec", pod, "--", "sh", "-c", &script])?.trim().to_owned())
    }
}

/// Name, node and address of a pod that is Ready.
fn place(pod: &Value) -> Option<(&str, &str, &str)> {
    let conditions = pod["status"]["conditions"].as_array()?;
    let is_ready = conditions.iter().any(|c| c["type"] == "Ready" && c["status"] == "True");
    let address = pod["status"]["podIP"].as_str().filter(|_| is_ready)?;
    Some((pod["metadata"]["name"].as_str()?, pod["spec"]["nodeName"].as_str()?, address))
}
