//! A second cluster of the same Docker: its own names on the wire, ports and images, and an end of its own.

use anyhow::{Context as _, Result, ensure};
use docker_cluster::DockerCluster;
use orch_tests::wait::until;

use super::daemon::Daemon;
use super::{Cluster, LONG};

/// The name of an image that is Docker's before it is the nodes'.
const IMAGE: &str = "e2e.local/copy:1";
/// A port of this machine, which leads to the node port of the second cluster.
const PORT: u16 = 8081;
/// A page behind a node port, from an image that came from Docker.
const PAGE: &str = r#"
apiVersion: v1
kind: Pod
metadata: {name: page, labels: {app: page}}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: page
    image: e2e.local/copy:1
    imagePullPolicy: IfNotPresent
    command: [/bin/busybox, sh, -c, "busybox mkdir /www; echo beside > /www/index.html; exec busybox httpd -f -p 8080 -h /www"]
---
apiVersion: v1
kind: Service
metadata: {name: page}
spec: {type: NodePort, selector: {app: page}, ports: [{port: 80, targetPort: 8080, nodePort: 30080}]}
"#;

impl Cluster {
    /// Makes another cluster beside this one, uses it and removes it.
    pub(super) async fn has_another_beside(&self, daemon: &Daemon) -> Result<()> {
        let words = daemon.words();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let plan = || DockerCluster::create("beside").through(&words).naming("orch");
        let docker = plan().publish(PORT, 30080).start()?;
        let other = Cluster { nodes: docker.nodes()?, docker };
        ensure!(other.nodes == ["beside-control-plane"], "{:?}", other.nodes);
        let manifest = daemon.file("page.yaml");
        std::fs::write(&manifest, PAGE)?;
        other.orchctl(daemon, &["apply", "-f", &manifest.display().to_string()])?;
        other.misses_its_image(daemon).await?;
        let import = format!("tar -C / -c bin/busybox | docker import - {IMAGE}");
        daemon.shell(&import)?;
        other.docker.load(IMAGE)?;
        until("the published port leads to the page", LONG, async || {
            let ask = format!("curl --silent --max-time 3 http://127.0.0.1:{PORT}/");
            match daemon.shell(&ask) {
                Ok(said) if said.trim() == "beside" => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })
        .await?;
        // On the node, without a file that is named.
        let said = other.docker.run_on(&other.nodes[0], &["orchctl", "get", "pod", "page"])?;
        ensure!(said.contains("Running"), "{said}");
        self.is_apart(daemon)?;

        let names = daemon.script(&["list"])?;
        ensure!(names.lines().eq(["beside", "e2e"]), "{names}");
        let again = daemon.script(&["create", "--name", "beside"]);
        let refused = again.err().context("a second cluster of the same name was made")?;
        ensure!(format!("{refused:#}").contains("the cluster beside exists"), "{refused:#}");
        let config = daemon.script(&["kubeconfig", "--name", "beside"])?;
        let written = std::fs::read_to_string(other.docker.kubeconfig())?;
        ensure!(config == written, "another client configuration than create wrote");
        other.docker.delete()?;
        ensure!(daemon.script(&["list"])?.trim() == "e2e", "more than one cluster was removed");
        self.pods_reach_each_other(daemon, "after another cluster was removed").await
    }

    /// No registry has the image, and the pod says so; the pod starts once the image is loaded.
    async fn misses_its_image(&self, daemon: &Daemon) -> Result<()> {
        until("the pod misses its image", LONG, async || {
            let line = ["get", "pod", "page", "--no-headers"];
            let said = self.orchctl(daemon, &line).map_err(|error| format!("{error:#}"))?;
            let is_missed = said.contains("ErrImagePull") || said.contains("ImagePullBackOff");
            if is_missed { Ok(()) } else { Err(said) }
        })
        .await
    }

    /// Nothing of the other cluster is in this one.
    fn is_apart(&self, daemon: &Daemon) -> Result<()> {
        let pods = self.objects(daemon, &["pods", "--all-namespaces"])?;
        let nodes = self.objects(daemon, &["nodes"])?;
        ensure!(nodes.len() == 3, "{} nodes", nodes.len());
        ensure!(pods.iter().all(|pod| pod["metadata"]["name"] != "page"), "its pod is here");
        let images =
            self.docker.run_on(&self.nodes[0], &["ctr", "-n", "k8s.io", "images", "ls", "-q"])?;
        ensure!(!images.contains(IMAGE), "its image is here: {images}");
        Ok(())
    }
}
