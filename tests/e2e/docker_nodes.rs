//! A cluster of Docker nodes (`hack/dind`), on a Docker daemon of the case's own.

mod beside;
mod daemon;
mod debian_root;
mod loss;
mod traffic;

use std::process::Command;
use std::time::{Duration, Instant};

use agent_runtime::image::{ImageFile, ImageTar};
use anyhow::{Context as _, Result, bail, ensure};
use docker_cluster::DockerCluster;
use orch_tests::wait::until;
use serde_json::Value;

use crate::context::{Context, bin_dir};
use daemon::Daemon;
use traffic::{NODE_PORT, PUBLISHED_PORT, Traffic, now};

/// Nodes start again, are found to be lost, and pods move.
const LONG: Duration = Duration::from_secs(180);
/// Address of the pods' Service.
const SERVICE_ADDRESS: &str = "10.96.7.7";
/// A pod on each node that says its name and repeats what is sent to it, pods that leave a lost node, and a Service of them all.
const PODS: &str = r#"
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: web}
spec:
  selector: {matchLabels: {app: web, leaves: "no"}}
  template:
    metadata: {labels: {app: web, leaves: "no"}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - name: web
        image: orch.local/demo:1
        imagePullPolicy: Never
        resources: {requests: {cpu: 50m}}
        args: [sh, -c, "mkdir -p /www; cat /etc/hostname > /www/index.html; nc -ll -p 9000 -e cat & exec busybox httpd -f -p 8080 -h /www"]
        readinessProbe: {httpGet: {path: /, port: 8080}, periodSeconds: 1}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: mobile}
spec:
  replicas: 3
  selector: {matchLabels: {app: web, leaves: "yes"}}
  template:
    metadata: {labels: {app: web, leaves: "yes"}}
    spec:
      terminationGracePeriodSeconds: 1
      tolerations:
      - {key: node.kubernetes.io/unreachable, operator: Exists, effect: NoExecute, tolerationSeconds: 1}
      topologySpreadConstraints:
      - {maxSkew: 1, topologyKey: kubernetes.io/hostname, whenUnsatisfiable: ScheduleAnyway, labelSelector: {matchLabels: {leaves: "yes"}}}
      containers:
      - name: web
        image: orch.local/demo:1
        imagePullPolicy: Never
        resources: {requests: {cpu: 50m}}
        args: [sh, -c, "mkdir -p /www; cat /etc/hostname > /www/index.html; nc -ll -p 9000 -e cat & exec busybox httpd -f -p 8080 -h /www"]
        readinessProbe: {httpGet: {path: /, port: 8080}, periodSeconds: 1}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec:
  type: NodePort
  clusterIP: 10.96.7.7
  selector: {app: web}
  ports:
  - {name: page, port: 80, targetPort: 8080, nodePort: 30080}
  - {name: echo, port: 9000}
"#;

pub async fn docker_nodes_survive_restarts_loss_and_upgrade(_: &Context) -> Result<()> {
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
    daemon.script(&["image"])?;
    let begun = Instant::now();
    let plan = DockerCluster::create("e2e").nodes(3).publish(PUBLISHED_PORT, NODE_PORT);
    let docker = plan.through(&words).start()?;
    println!("    three nodes were Ready {:.1} s after create", begun.elapsed().as_secs_f64());
    let cluster = Cluster { nodes: docker.nodes()?, docker };
    ensure!(cluster.nodes.len() == 3, "{:?}", cluster.nodes);
    let config = std::fs::read_to_string(cluster.docker.kubeconfig())?;
    ensure!(config.contains("https://127.0.0.1:"), "it leads elsewhere than to the published port");
    // The image of nodes has that of these pods.
    let manifest = daemon.file("pods.yaml");
    std::fs::write(&manifest, PODS)?;
    cluster.orchctl(daemon, &["apply", "-f", &manifest.display().to_string()])?;
    cluster.pods_reach_each_other(daemon, "at first").await?;
    cluster.has_another_beside(daemon).await?;

    cluster.docker.restart(&cluster.nodes[1])?;
    cluster.pods_reach_each_other(daemon, "after a restart of a node").await?;
    daemon.restart().await?;
    cluster.pods_reach_each_other(daemon, "after a restart of Docker").await?;
    cluster.upgrade(daemon).await?;
    cluster.lose_a_node(daemon).await?;
    cluster.load_an_archive(daemon)?;
    cluster.renew(daemon).await?;

    let logs = daemon.file("logs");
    cluster.docker.logs(&logs)?;
    for file in ["node.log", "orch/orchlet.log", "containerd.log"] {
        let path = logs.join(&cluster.nodes[2]).join(file);
        ensure!(path.exists(), "{} is missing", path.display());
    }
    cluster.reset_a_node()?;
    cluster.docker.delete()?;
    cluster.docker.delete().context("a second time")?;
    ensure!(!cluster.docker.kubeconfig().exists(), "the client configuration is left");
    Ok(())
}

struct Cluster {
    docker: DockerCluster,
    nodes: Vec<String>,
}

/// A pod that is Ready.
struct Place {
    pod: String,
    node: String,
    address: String,
}

impl Cluster {
    /// The command-line client outside the cluster, which is told no more than a user.
    fn orchctl(&self, daemon: &Daemon, arguments: &[&str]) -> Result<String> {
        let mut command: Command = daemon.program("orchctl");
        command.arg(format!("--kubeconfig={}", self.docker.kubeconfig().display()));
        let output = command.arg("--request-timeout=20s").args(arguments).output()?;
        if !output.status.success() {
            bail!("{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    fn objects(&self, daemon: &Daemon, arguments: &[&str]) -> Result<Vec<Value>> {
        let text = self.orchctl(daemon, &[&["get", "-o", "json"], arguments].concat())?;
        let list: Value = serde_json::from_str(&text)?;
        Ok(list["items"].as_array().cloned().unwrap_or_default())
    }

    fn ready_pods(&self, daemon: &Daemon) -> Result<Vec<Place>> {
        let pods = self.objects(daemon, &["pods", "-l", "app=web"])?;
        Ok(pods.iter().filter(|pod| is_ready(pod)).filter_map(place).collect())
    }

    async fn pods_reach_each_other(&self, daemon: &Daemon, when: &str) -> Result<()> {
        until(&format!("pods reach each other {when}"), LONG, async || {
            self.reach(daemon).map_err(|error| format!("{error:#}"))
        })
        .await
    }

    /// There is a pod on each node, every pod answers every pod, and so does the Service.
    fn reach(&self, daemon: &Daemon) -> Result<()> {
        let places = self.ready_pods(daemon)?;
        for node in &self.nodes {
            ensure!(places.iter().any(|place| place.node == *node), "no pod on {node} is Ready");
        }
        for from in &places {
            for to in &places {
                let said = self.ask(daemon, &from.pod, &format!("{} 8080", to.address))?;
                ensure!(said == to.pod, "{} asked {} and got {said:?}", from.pod, to.pod);
            }
            let said = self.ask(daemon, &from.pod, &format!("{SERVICE_ADDRESS} 80"))?;
            ensure!(places.iter().any(|place| place.pod == said), "the Service said {said:?}");
        }
        Ok(())
    }

    /// The page of a server, asked by a pod.
    fn ask(&self, daemon: &Daemon, pod: &str, server: &str) -> Result<String> {
        let script = format!("{} | tail -n 1", request(server));
        Ok(self.orchctl(daemon, &["exec", pod, "--", "sh", "-c", &script])?.trim().to_owned())
    }

    /// All programs are exchanged while connections are opened from each node and from outside: each is answered, those that are open stay so, and no container
    /// starts again.
    async fn upgrade(&self, daemon: &Daemon) -> Result<()> {
        let traffic = Traffic::start(self, daemon, &self.nodes).await?;
        let (from, restarts, echoes) = (now()?, self.restarts(daemon)?, traffic.echoes()?);
        self.docker.upgrade()?;
        traffic.more().await?;
        traffic.is_undisturbed(from, "while all programs were exchanged")?;
        traffic.open_ones_go_on(&echoes).await?;
        let after = self.restarts(daemon)?;
        ensure!(after == restarts, "containers have started again: {restarts:?}, {after:?}");
        let executables =
            "for one in orchlet orch-proxy; do readlink /proc/$(pgrep -x $one)/exe; done";
        for node in &self.nodes {
            let files = self.docker.run_on(node, &["sh", "-c", executables])?;
            let is_new = |file: &str| file.starts_with("/usr/local/lib/orch-");
            ensure!(files.lines().count() == 2 && files.lines().all(is_new), "{node}: {files}");
        }
        traffic.end().await
    }

    /// How often each container of the pods was started again.
    fn restarts(&self, daemon: &Daemon) -> Result<Vec<(String, i64)>> {
        let pods = self.objects(daemon, &["pods", "-l", "app=web"])?;
        let count = |pod: &Value| {
            let count = pod["status"]["containerStatuses"][0]["restartCount"].as_i64();
            (pod["metadata"]["name"].as_str().unwrap_or_default().to_owned(), count.unwrap_or(-1))
        };
        let mut counts: Vec<(String, i64)> = pods.iter().map(count).collect();
        counts.sort();
        Ok(counts)
    }

    /// An archive of images goes to every node, also to one that was added later.
    fn load_an_archive(&self, daemon: &Daemon) -> Result<()> {
        let archive = daemon.file("archive.tar");
        let file = ImageFile::Directory { path: "tmp", mode: 0o755 };
        let name = "e2e.local/archive:1";
        std::fs::write(&archive, ImageTar::single_layer(name, &[file], &["/x"]).bytes())?;
        self.docker.load_archive(&archive)?;
        for node in &self.nodes {
            let line = ["ctr", "-n", "k8s.io", "images", "ls", "-q"];
            let images = self.docker.run_on(node, &line)?;
            ensure!(images.lines().any(|image| image == name), "{node}: {images}");
        }
        Ok(())
    }

    fn run_docker(&self, arguments: &[&str]) -> Result<()> {
        let output = self.docker.docker(arguments).output()?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(output.status.success(), "docker {arguments:?}: {said}");
        Ok(())
    }
}

/// A shell's words that ask a server for its page.
fn request(server: &str) -> String {
    format!("printf 'GET / HTTP/1.0\\r\\n\\r\\n' | nc -w 3 {server}")
}

fn is_ready(object: &Value) -> bool {
    let conditions = object["status"]["conditions"].as_array();
    conditions.into_iter().flatten().any(|c| c["type"] == "Ready" && c["status"] == "True")
}

fn place(pod: &Value) -> Option<Place> {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    Some(Place {
        pod: text(&pod["metadata"]["name"])?,
        node: text(&pod["spec"]["nodeName"])?,
        address: text(&pod["status"]["podIP"])?,
    })
}
