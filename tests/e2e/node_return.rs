//! Nodes that are silent for a while and return, and statuses that other clients overwrite, as users of a Service see them.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use cluster::demo::{http_get, is_pod_ready};
use cluster::directory::ClusterDirectory;
use cluster::spec::Spec;
use cluster::{supervisor, up};
use nix::sys::signal::Signal;
use orch_tests::wait::until;
use proto_api::core::v1::{Endpoints, Node, Pod, Service};
use proto_api::discovery::v1::EndpointSlice;
use proto_client::{DeleteParams, ListParams, Patch, WriteParams};
use serde_json::json;

use crate::context::{Context, PATIENCE, shown};
use crate::pods::pod;

/// Longer than a lease goes without being renewed, ten seconds.
const GRACE: Duration = Duration::from_secs(15);
const NODE: &str = "node-2";
const AGENT: &str = "orchlet-node-2";
/// Drops what the second node sends to the API server.
const CUT: &str = "e2e_cut";

pub async fn pods_of_a_node_that_returns_serve_again(_: &Context) -> Result<()> {
    let flags = up::Flags {
        place: ClusterDirectory { dir: "/var/tmp/orch-e2e-return".into() },
        nodes: Some(2),
        naming: Some("kubernetes".to_owned()),
        no_demo: false,
        manager_flags: vec![format!("--node-monitor-grace-period={}s", GRACE.as_secs())],
        ..up::Flags::default()
    };
    let c = Context::start_as(flags).await?;
    let tried = try_all(&c).await;
    c.finish(tried.is_err()).await?;
    tried
}

async fn try_all(c: &Context) -> Result<()> {
    let ns = c.namespace("return").await?;
    let served = Served::start(c, &ns).await?;
    written_over(c, &served).await?;
    let agent = || supervisor::find(&c.spec, AGENT).context("no agent");

    let paused = agent()?;
    paused.signal(Signal::SIGSTOP)?;
    let unserved = served.is_lost(c).await;
    paused.signal(Signal::SIGCONT)?;
    unserved?;
    served.is_back(c, "after its agent was paused").await?;

    let stopped = agent()?;
    stopped.signal(Signal::SIGSTOP)?;
    let unserved = served.is_lost(c).await;
    stopped.signal(Signal::SIGKILL)?;
    unserved?;
    served.is_back(c, "after its agent was stopped and another began").await?;

    cut(c).await?;
    let unserved = served.is_lost(c).await;
    c.on_node(&["nft", "delete", "table", "inet", CUT]).await?;
    unserved?;
    served.is_back(c, "after its network was cut").await?;

    let stopped = agent()?;
    stopped.signal(Signal::SIGSTOP)?;
    let unserved = node_deleted(c, &served).await;
    stopped.signal(Signal::SIGKILL)?;
    unserved?;
    served.is_back(c, "after its Node was deleted and another agent registered it").await?;
    c.discard(&ns).await
}

/// Without its Node a pod is in no EndpointSlice, as ready as it looks; pod garbage collection comes later, if the Node stays away.
async fn node_deleted(c: &Context, served: &Served) -> Result<()> {
    c.client.all::<Node>().delete(NODE, &DeleteParams::default()).await?;
    let slices = c.client.within::<EndpointSlice>(&served.ns);
    let pods = c.client.within::<Pod>(&served.ns);
    until("no slice has the pod", PATIENCE, async || {
        let slices = slices.list(&ListParams::default()).await.map_err(|e| e.to_string())?.items;
        let left: Vec<_> = slices.iter().flat_map(|slice| &slice.endpoints).collect();
        if !left.is_empty() {
            return Err(format!("{left:?}"));
        }
        // Looked at last: a pod that garbage collection has removed is in no slice anyway.
        let pod = pods.get("echo").await.map_err(|e| e.to_string())?;
        let kept = pod.metadata.uid == served.pod.metadata.uid
            && pod.metadata.deletion_timestamp.is_none();
        if kept && is_pod_ready(&pod) { Ok(()) } else { Err(shown(&pod)) }
    })
    .await
}

/// The API server runs in the first node's network, to which the second node loses its connection.
async fn cut(c: &Context) -> Result<()> {
    let nodes = c.spec.node_list();
    let node = nodes.iter().find(|node| node.name == NODE).context("no second node")?;
    let table = format!(
        "table inet {CUT} {{ chain in {{ type filter hook input priority -10; ip saddr {} tcp dport {} drop; }}; }}",
        node.address,
        Spec::API_PORT,
    );
    c.on_node(&["nft", &table]).await.map(drop)
}

/// A Service with one pod, which is on the second node.
struct Served {
    ns: String,
    pod: Pod,
    address: SocketAddr,
}

impl Served {
    async fn start(c: &Context, ns: &str) -> Result<Self> {
        let script =
            "mkdir /www; echo here > /www/index.html; exec busybox httpd -f -p 8080 -h /www";
        let on = format!("spec:\n  nodeSelector: {{{}: {NODE}}}\n", c.names.label("hostname"));
        let service = format!(
            "apiVersion: v1\nkind: Service\nmetadata: {{name: echo, namespace: {ns}}}\nspec:\n  type: NodePort\n  selector: {{app: echo}}\n  ports: [{{port: 80, targetPort: 8080}}]\n"
        );
        let pod = pod(ns, "echo", script).replacen("spec:\n", &on, 1);
        c.apply(&format!("{service}---\n{pod}")).await?;
        let pod = c.pod_ready(ns, "echo").await?;
        let service = c.client.within::<Service>(ns).get("echo").await?;
        let port = service.spec.ports.first().context("a port")?.node_port;
        let node = c.spec.node_list().into_iter().next().context("a node")?;
        let address = SocketAddr::from((node.address, u16::try_from(port)?));
        let served = Self { ns: ns.to_owned(), pod, address };
        served.is_back(c, "at first").await?;
        Ok(served)
    }

    /// Ready addresses in Endpoints and in EndpointSlices.
    async fn endpoints(&self, c: &Context) -> Result<(usize, usize)> {
        let endpoints = c.client.within::<Endpoints>(&self.ns).find("echo").await?;
        let subsets = endpoints.map(|endpoints| endpoints.subsets).unwrap_or_default();
        let slices =
            c.client.within::<EndpointSlice>(&self.ns).list(&ListParams::default()).await?;
        let of_slices = slices.items.iter().flat_map(|slice| &slice.endpoints);
        let ready = of_slices.filter(|endpoint| endpoint.conditions.ready == Some(true));
        Ok((subsets.iter().map(|subset| subset.addresses.len()).sum(), ready.count()))
    }

    /// Waits until the pod is shown as not ready and its Service has no endpoint.
    async fn is_lost(&self, c: &Context) -> Result<()> {
        until("the node controller notices", PATIENCE, async || {
            let found = self.endpoints(c).await.map_err(|e| format!("{e:#}"))?;
            if found == (0, 0) { Ok(()) } else { Err(format!("{found:?}")) }
        })
        .await
    }

    /// Waits until the pod, which is the same, serves.
    async fn is_back(&self, c: &Context, when: &str) -> Result<()> {
        until(&format!("the Service has its endpoint {when}"), PATIENCE, async || {
            let found = self.endpoints(c).await.map_err(|e| format!("{e:#}"))?;
            if found == (1, 1) { Ok(()) } else { Err(format!("{found:?}")) }
        })
        .await?;
        until(&format!("the Service answers {when}"), PATIENCE, async || {
            match http_get(self.address, "/").await {
                Ok(answer) if answer == "here\n" => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })
        .await?;
        until(&format!("the node is ready {when}"), PATIENCE, async || {
            let node = c.client.all::<Node>().get(NODE).await.map_err(|e| e.to_string())?;
            let ready = node.status.conditions.iter().find(|c| c.type_ == "Ready").cloned();
            if ready.as_ref().is_some_and(|c| c.status == "True") {
                Ok(())
            } else {
                Err(format!("{ready:?}"))
            }
        })
        .await?;
        let pod = c.pod_ready(&self.ns, "echo").await?;
        let container = |pod: &Pod| pod.status.container_statuses.first().cloned();
        let (before, now) = (container(&self.pod), container(&pod));
        let id = |of: &Option<_>| {
            of.as_ref().map(|c: &proto_api::core::v1::ContainerStatus| c.container_id.clone())
        };
        ensure!(id(&before) == id(&now), "{when}: {before:?} {now:?}");
        Ok(())
    }
}

/// A user writes over what the agent shows, and over a condition that is not the agent's.
async fn written_over(c: &Context, served: &Served) -> Result<()> {
    let pods = c.client.within::<Pod>(&served.ns);
    let condition = |kind: &str| json!({"type": kind, "status": "False", "reason": "ByHand"});
    let conditions = [condition("Ready"), condition("example.com/other")];
    let patch = json!({"status": {"conditions": conditions, "podIP": "192.0.2.1"}});
    let patch = Patch::Strategic(patch);
    let written = pods.patch_status("echo", &patch, &WriteParams::default()).await?;
    let of =
        |pod: &Pod, kind: &str| pod.status.conditions.iter().find(|c| c.type_ == kind).cloned();
    let status = |pod: &Pod, kind: &str| of(pod, kind).map(|c| c.status);
    ensure!(status(&written, "Ready").as_deref() == Some("False"), "{:?}", written.status);
    let began = std::time::Instant::now();
    let right = |pod: &Pod| match of(pod, "Ready") {
        Some(ready) if ready.status == "True" && ready.reason.is_empty() => Ok(()),
        other => Err(format!("{other:?}")),
    };
    let now = c.pod_until(&served.ns, "echo", right).await?;
    println!("    set right within {:?}", began.elapsed());
    ensure!(status(&now, "example.com/other").as_deref() == Some("False"), "{:?}", now.status);
    ensure!(now.status.pod_ip == served.pod.status.pod_ip, "{:?}", now.status);
    served.is_back(c, "after its status was written over").await
}
