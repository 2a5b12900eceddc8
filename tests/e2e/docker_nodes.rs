//! A cluster of Docker nodes (`hack/dind`), on a Docker daemon of the case's own.

mod daemon;
mod debian_root;

use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use docker_cluster::DockerCluster;
use orch_tests::wait::until;
use serde_json::{Value, json};

use crate::context::{Context, bin_dir};
use daemon::Daemon;

/// Nodes start again, are found to be lost, and pods move.
const LONG: Duration = Duration::from_secs(180);
/// Address of the pods' Service.
const SERVICE: &str = "10.96.7.7 80";
/// How often a Service of three pods is asked, so that one that should not answer would have.
const QUESTIONS: usize = 30;
/// The pod that asks the Service all the time, on the first node.
const CLIENT: &str = "client";
/// A pod on each node that says its name, pods that leave a lost node, a Service of them all, and who asks it.
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
        args: [sh, -c, "mkdir -p /www; cat /etc/hostname > /www/index.html; exec busybox httpd -f -p 8080 -h /www"]
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
        args: [sh, -c, "mkdir -p /www; cat /etc/hostname > /www/index.html; exec busybox httpd -f -p 8080 -h /www"]
        readinessProbe: {httpGet: {path: /, port: 8080}, periodSeconds: 1}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {clusterIP: 10.96.7.7, selector: {app: web}, ports: [{port: 80, targetPort: 8080}]}
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
    let docker = DockerCluster::create("e2e").nodes(3).through(&words).start()?;
    let (archive, manifest) = (daemon.file("demo.tar"), daemon.file("pods.yaml"));
    std::fs::write(&archive, cluster::images::busybox()?.bytes())?;
    std::fs::write(&manifest, PODS)?;
    docker.load_archive(&archive)?;
    let cluster = Cluster { nodes: docker.nodes()?, docker };
    ensure!(cluster.nodes.len() == 3, "{:?}", cluster.nodes);
    let config = std::fs::read_to_string(cluster.docker.kubeconfig())?;
    ensure!(config.contains("https://127.0.0.1:"), "it leads elsewhere than to the published port");
    cluster.orchctl(daemon, &["apply", "-f", &manifest.display().to_string()])?;
    cluster.pods_reach_each_other(daemon, "at first").await?;

    cluster.docker.restart(&cluster.nodes[1])?;
    cluster.pods_reach_each_other(daemon, "after a restart of a node").await?;
    daemon.restart().await?;
    cluster.pods_reach_each_other(daemon, "after a restart of Docker").await?;
    cluster.upgrade(daemon).await?;
    cluster.lose_a_node(daemon).await?;
    // Another machine in the place of the lost one.
    cluster.docker.remove_node(&cluster.nodes[2])?;
    let added = cluster.docker.add_node()?;
    ensure!(added == cluster.nodes[2], "{added}");
    cluster.docker.load_archive(&archive)?;
    cluster.pods_reach_each_other(daemon, "after a node was replaced").await?;
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
            let said = self.ask(daemon, &from.pod, SERVICE)?;
            ensure!(places.iter().any(|place| place.pod == said), "the Service said {said:?}");
        }
        Ok(())
    }

    /// The page of a server, asked by a pod.
    fn ask(&self, daemon: &Daemon, pod: &str, server: &str) -> Result<String> {
        let script = format!("{} | tail -n 1", request(server));
        Ok(self.orchctl(daemon, &["exec", pod, "--", "sh", "-c", &script])?.trim().to_owned())
    }

    /// Starts a pod that asks the Service all the time and writes down how it went.
    fn start_client(&self, daemon: &Daemon) -> Result<()> {
        let script = format!(
            "while true; do case $({} | tail -n 1) in web-*|mobile-*) echo ok;; *) echo bad;; esac >> /tmp/answers; done",
            request(SERVICE)
        );
        let container = json!({
            "name": CLIENT,
            "image": cluster::images::BUSYBOX_IMAGE,
            "imagePullPolicy": "Never",
            "args": ["sh", "-c", script],
        });
        let client = json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": CLIENT},
            "spec": {"nodeName": self.nodes[0], "containers": [container]},
        });
        let file = daemon.file("client.json");
        std::fs::write(&file, client.to_string())?;
        self.orchctl(daemon, &["apply", "-f", &file.display().to_string()])?;
        Ok(())
    }

    /// All programs are exchanged while a pod asks the Service: each connection is answered, and no container starts again.
    async fn upgrade(&self, daemon: &Daemon) -> Result<()> {
        self.start_client(daemon)?;
        let answers = |what: &str| -> Result<usize> {
            let script = format!("busybox grep -c {what} /tmp/answers; true");
            let said = self.orchctl(daemon, &["exec", CLIENT, "--", "sh", "-c", &script])?;
            said.trim().parse().with_context(|| format!("{what}: {said:?}"))
        };
        let more = async |than: usize| {
            until("the Service is asked", LONG, async || match answers("ok") {
                Ok(count) if count > than => Ok(count),
                Ok(count) => Err(format!("{count} answers")),
                Err(error) => Err(format!("{error:#}")),
            })
            .await
        };
        let before = more(QUESTIONS).await?;
        let restarts = self.restarts(daemon)?;
        self.docker.upgrade()?;
        more(before + QUESTIONS).await?;
        let bad = answers("bad")?;
        ensure!(bad == 0, "{bad} connections failed while the programs were exchanged");
        let now = self.restarts(daemon)?;
        ensure!(now == restarts, "containers have started again: {restarts:?}, {now:?}");
        let executable = ["sh", "-c", "readlink /proc/$(pgrep -x orchlet)/exe"];
        for node in &self.nodes {
            let file = self.docker.run_on(node, &executable)?;
            ensure!(file.starts_with("/usr/local/lib/orch-"), "{node} runs {file}");
        }
        self.orchctl(daemon, &["delete", "pod", CLIENT, "--grace-period=1"])?;
        Ok(())
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

    /// A node that is cut off is found out: its pods leave it, and once it counts as lost the Service never leads to it. Then it is stopped, too.
    async fn lose_a_node(&self, daemon: &Daemon) -> Result<()> {
        let lost = self.nodes[2].as_str();
        let run = |arguments: &[&str]| -> Result<()> {
            let output = self.docker.docker(arguments).output()?;
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            ensure!(output.status.success(), "docker {arguments:?}: {said}");
            Ok(())
        };
        run(&["network", "disconnect", "orch-dind-e2e", lost])?;
        until("pods have left the lost node", LONG, async || {
            let places = self.ready_pods(daemon).map_err(|error| format!("{error:#}"))?;
            let mobile = places.iter().filter(|place| place.pod.starts_with("mobile-")).count();
            match places.iter().all(|place| place.node != lost) && mobile == 3 {
                true => Ok(()),
                false => Err(format!("{mobile} pods are Ready")),
            }
        })
        .await?;
        let places = self.ready_pods(daemon)?;
        let from = places.first().context("no pod is left")?;
        for question in 0..QUESTIONS {
            let said = self.ask(daemon, &from.pod, SERVICE)?;
            let is_known = places.iter().any(|place| place.pod == said);
            ensure!(is_known, "question {question}: the Service said {said:?}");
        }
        run(&["stop", lost])
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
