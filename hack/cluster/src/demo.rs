//! What `up` waits for and shows: the API, the nodes, and the demo answering over its Service.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use apiserver_bootstrap::waiting::{self, NotYet};
use proto_api::core::v1::{Node, Pod};
use proto_api::names::Names;
use proto_client::{Client, ListParams, config, request};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::apply::apply;
use crate::images;
use crate::progress::Progress;
use crate::spec::Spec;

const MANIFESTS: &str = include_str!("../../demo.yaml");
const NAMESPACE: &str = "demo";
/// As in the manifests.
const NODE_PORT: u16 = 30080;
/// How long each step of `up` may take before it gives up.
const PATIENCE: Duration = Duration::from_secs(120);
/// Between two looks.
const POLL: Duration = Duration::from_millis(20);
/// How long one request may take: a loaded machine is slow.
const ANSWER_WAIT: Duration = Duration::from_secs(10);
/// Most of an answer that is read.
const ANSWER_BYTES_MAX: u64 = 64 << 10;

/// A client of the cluster with the rights of its administrator.
pub fn client(spec: &Spec, names: &'static Names) -> Result<Client> {
    let config = config::file::load(&spec.client_config("admin"), None)?;
    let agent = concat!("cluster/", env!("CARGO_PKG_VERSION"));
    Ok(Client::new(&config, names, agent)?)
}

/// The same, once the API server says that it is ready.
pub async fn connect(spec: &Spec, names: &'static Names) -> Result<Client> {
    let client = client(spec, names)?;
    until("the API server is ready", async || {
        match client.call(request::get("/readyz".into())).await {
            Ok(answer) if answer.status == 200 => Ok(()),
            Ok(answer) => Err(NotYet(format!("status {}", answer.status))),
            Err(e) => Err(NotYet(format!("{:#}", anyhow::Error::from(e)))),
        }
    })
    .await?;
    Ok(client)
}

/// Waits until every node of the plan is registered and Ready.
pub async fn wait_nodes(spec: &Spec, client: &Client) -> Result<()> {
    let api = client.all::<Node>();
    until("the nodes are Ready", async || {
        let nodes = api.list(&ListParams::default()).await.map_err(|e| NotYet(e.to_string()))?;
        let waiting: Vec<String> = spec
            .node_list()
            .into_iter()
            .filter(|planned| !nodes.items.iter().any(|node| is_ready(node, &planned.name)))
            .map(|planned| planned.name)
            .collect();
        let waiting = waiting.join(", ");
        if waiting.is_empty() { Ok(()) } else { Err(NotYet(format!("not ready: {waiting}"))) }
    })
    .await
}

fn is_ready(node: &Node, name: &str) -> bool {
    let ready = |condition: &proto_api::core::v1::NodeCondition| {
        condition.type_ == "Ready" && condition.status == "True"
    };
    node.metadata.name == name && node.status.conditions.iter().any(ready)
}

/// Imports the demo's image, applies its manifests and waits until it answers.
pub async fn run(spec: &Spec, client: &Client, progress: &Progress) -> Result<()> {
    progress.step("demo image on every node", import_images(spec)).await?;
    progress.step("demo applied", apply(client, MANIFESTS)).await?;
    progress.step("demo pods ready", wait_pods(client)).await?;
    let answer = progress.step("demo answers on its node port", query_service(spec)).await?;
    println!("\n{}:{NODE_PORT} says: {}", first_address(spec)?.ip(), answer.trim());
    Ok(())
}

/// Puts the demo's image on every node.
pub async fn import_images(spec: &Spec) -> Result<()> {
    let image = images::busybox()?;
    for node in spec.node_list() {
        images::import(&spec.containerd_socket(&node.name), &image).await?;
    }
    Ok(())
}

async fn wait_pods(client: &Client) -> Result<()> {
    let api = client.within::<Pod>(NAMESPACE);
    until("the demo's pods are Ready", async || {
        let pods =
            api.list(&ListParams::labels("app=web")).await.map_err(|e| NotYet(e.to_string()))?;
        let ready = pods.items.iter().filter(|pod| is_pod_ready(pod)).count();
        if ready >= 2 {
            Ok(())
        } else {
            Err(NotYet(format!("{ready} of 2 ready: {}", states(&pods.items))))
        }
    })
    .await
}

/// Whether the pod's condition `Ready` is true.
pub fn is_pod_ready(pod: &Pod) -> bool {
    pod.status.conditions.iter().any(|c| c.type_ == "Ready" && c.status == "True")
}

fn states(pods: &[Pod]) -> String {
    let waiting = |pod: &Pod| {
        let state = pod.status.container_statuses.first().and_then(|c| c.state.waiting.clone());
        state.map(|waiting| format!(" {} {}", waiting.reason, waiting.message)).unwrap_or_default()
    };
    let one = |pod: &Pod| format!("{} {}{}", pod.metadata.name, pod.status.phase, waiting(pod));
    pods.iter().map(one).collect::<Vec<_>>().join(", ")
}

async fn query_service(spec: &Spec) -> Result<String> {
    let address = first_address(spec)?;
    until("the demo answers", async || {
        http_get(address, "/").await.map_err(|e| NotYet(format!("{e:#}")))
    })
    .await
}

fn first_address(spec: &Spec) -> Result<SocketAddr> {
    let node = spec.node_list().into_iter().next().context("the cluster has no nodes")?;
    Ok(SocketAddr::from((node.address, NODE_PORT)))
}

/// One plain request; the body of a 200 answer.
pub async fn http_get(address: SocketAddr, path: &str) -> Result<String> {
    let exchange = async {
        let mut stream = TcpStream::connect(address).await?;
        let request = format!("GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut answer = String::new();
        stream.take(ANSWER_BYTES_MAX).read_to_string(&mut answer).await?;
        std::io::Result::Ok(answer)
    };
    let answer = timeout(ANSWER_WAIT, exchange).await;
    let answer = answer.with_context(|| format!("no answer in {ANSWER_WAIT:?}"))??;
    match answer.split_once("\r\n\r\n") {
        Some((head, body)) if head.split(' ').nth(1) == Some("200") => Ok(body.to_owned()),
        _ => bail!("answered {:?}", answer.lines().next().unwrap_or_default()),
    }
}

/// What to type next.
pub fn how_to_reach(spec: &Spec, has_demo: bool) -> String {
    let address = spec.node_list().first().map(|node| node.address.to_string()).unwrap_or_default();
    let mut lines = Vec::new();
    if has_demo {
        lines.push(format!("  demo                  curl http://{address}:{NODE_PORT}/"));
    }
    let dir = match spec.dir == Path::new(crate::directory::DIR_DEFAULT) {
        true => String::new(),
        false => format!(" --dir {}", spec.dir.display()),
    };
    lines.push(format!("  programs              {}", spec.bin_dir.display()));
    let program = spec.bin_dir.join("cluster");
    lines.push(format!("  a node's shell        {} exec{dir} node-1 sh", program.display()));
    lines.push(format!("  stop                  hack/down{dir}"));
    lines.push(String::new());
    lines.push(format!("export KUBECONFIG={}", spec.client_config("admin").display()));
    if spec.naming == "kubernetes" {
        lines.push("kubectl get pods,services -A -o wide".to_owned());
        let (namespace, target) = match has_demo {
            true => (NAMESPACE, "service/web"),
            false => ("default", "service/kubernetes"),
        };
        lines.push(format!("kubectl -n {namespace} describe {target}"));
        // Without the demo the nodes have no image yet.
        lines.extend(has_demo.then(|| {
            let image = images::BUSYBOX_IMAGE;
            format!(
                "kubectl run hello --image={image} --restart=Never --attach --rm --command -- sh -c 'sleep 1; echo hello'"
            )
        }));
    } else {
        lines.push("# kubectl works with the Kubernetes names only: start a second cluster with `hack/up --dir ANOTHER` for it".to_owned());
    }
    lines.join("\n")
}

/// Looks until `look` gives `Ok`; the last `Err` says what was seen instead.
async fn until<T>(what: &str, look: impl AsyncFnMut() -> Result<T, NotYet>) -> Result<T> {
    Ok(waiting::until(what, PATIENCE, POLL, look).await?)
}
