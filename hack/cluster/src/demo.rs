//! What `up` waits for and shows: the API, the nodes, the demo answering over its Service, and its rolling update meanwhile.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use apiserver_bootstrap::poll_until::{self, NotYet};
use apiserver_bootstrap::program_log;
use proto_api::apps::v1::{Deployment, DeploymentStatus};
use proto_api::core::v1::{Node, Pod};
use proto_api::names::Names;
use proto_client::{Client, ListParams, Patch, WriteParams, config, request};
use serde_json::json;
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
const DEPLOYMENT: &str = "web";
const REPLICAS: i32 = 2;
/// An annotation of the pods' template. A new value of it is a new template.
const RELEASE: &str = "release";
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
///
/// # Errors
/// A node is not Ready in time; the error ends with what its orchlet logged last.
pub async fn wait_nodes(spec: &Spec, client: &Client) -> Result<()> {
    let api = client.all::<Node>();
    let mut waiting: Vec<String> = Vec::new();
    let ready = until("the nodes are Ready", async || {
        let nodes = api.list(&ListParams::default()).await.map_err(|e| NotYet(e.to_string()))?;
        let planned = spec.node_list().into_iter().map(|planned| planned.name);
        waiting = planned
            .filter(|planned| !nodes.items.iter().any(|node| is_ready(node, planned)))
            .collect();
        let all = waiting.join(", ");
        if waiting.is_empty() { Ok(()) } else { Err(NotYet(format!("not ready: {all}"))) }
    })
    .await;
    ready.map_err(|error| anyhow!("{error:#}\n{}", last_logged(spec, &waiting)))
}

/// What the orchlet of each of these nodes logged last.
fn last_logged(spec: &Spec, nodes: &[String]) -> String {
    let line = |node: &String| {
        let log = spec.log(&format!("orchlet-{node}"));
        let last = program_log::last_lines(&log, 1).pop().unwrap_or_else(|| "nothing".to_owned());
        format!("last line of {}: {last}", log.display())
    };
    nodes.iter().map(line).collect::<Vec<_>>().join("\n")
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
    let rolled = progress.step("demo rolled out again", roll_out(spec, client, progress)).await?;
    println!("\n{}:{NODE_PORT} says: {}", first_address(spec)?.ip(), answer.trim());
    println!("{rolled}");
    Ok(())
}

/// Gives the demo's pods a new template, and asks it all the time until they are replaced. Gives what came of it.
async fn roll_out(spec: &Spec, client: &Client, progress: &Progress) -> Result<String> {
    let (address, api) = (first_address(spec)?, client.within::<Deployment>(NAMESPACE));
    let before = pods(client).await?;
    let generation = api.get(DEPLOYMENT).await?.metadata.generation;
    let release = json!({ RELEASE: format!("{}", generation.saturating_add(1)) });
    let template = json!({ "metadata": { "annotations": release } });
    let patch = Patch::Merge(json!({ "spec": { "template": template } }));
    let changed = api.patch(DEPLOYMENT, &patch, &WriteParams::default()).await?;
    let (mut answers, mut failures, mut shown) = (0_u32, 0_u32, String::new());
    until("the demo is rolled out", async || {
        match http_get(address, "/").await {
            Ok(_) => answers = answers.saturating_add(1),
            Err(_) => failures = failures.saturating_add(1),
        }
        let found = api.get(DEPLOYMENT).await.map_err(|e| NotYet(e.to_string()))?;
        let status = found.status;
        if status.observed_generation < changed.metadata.generation {
            return Err(NotYet("its change is not observed".to_owned()));
        }
        let state = format_rollout(&status);
        if state != shown {
            progress.show(&state);
            shown.clone_from(&state);
        }
        if is_rolled_out(&status) { Ok(()) } else { Err(NotYet(state)) }
    })
    .await?;
    wait_ended(client).await?;
    let after = pods(client).await?;
    let replaced = before.difference(&after).count();
    Ok(format!(
        "its rolling update replaced {replaced} pods; {answers} requests were answered meanwhile, {failures} were not"
    ))
}

/// Waits until the replaced pods are gone, so that what is listed afterwards stays.
async fn wait_ended(client: &Client) -> Result<()> {
    let api = client.within::<Pod>(NAMESPACE);
    until("the replaced pods are gone", async || {
        let pods = api.list(&ListParams::labels("app=web")).await;
        let pods = pods.map_err(|e| NotYet(e.to_string()))?.items;
        let ending = pods.iter().filter(|pod| pod.metadata.deletion_timestamp.is_some()).count();
        if ending == 0 { Ok(()) } else { Err(NotYet(format!("{ending} are ending"))) }
    })
    .await
}

/// The uids of the demo's pods that are not on their way out.
async fn pods(client: &Client) -> Result<BTreeSet<String>> {
    let pods = client.within::<Pod>(NAMESPACE).list(&ListParams::labels("app=web")).await?;
    let staying = pods.items.into_iter().filter(|pod| pod.metadata.deletion_timestamp.is_none());
    Ok(staying.map(|pod| pod.metadata.uid).collect())
}

/// Whether all pods are those of the newest template.
fn is_rolled_out(status: &DeploymentStatus) -> bool {
    let counts = [status.replicas, status.updated_replicas, status.available_replicas];
    counts == [REPLICAS; 3]
}

fn format_rollout(status: &DeploymentStatus) -> String {
    let (updated, old) = (status.updated_replicas, status.replicas - status.updated_replicas);
    let available = status.available_replicas;
    format!(
        "rolling update: {updated} of {REPLICAS} pods are new, {old} old, {available} available"
    )
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
        if i32::try_from(ready).is_ok_and(|ready| ready >= REPLICAS) {
            Ok(())
        } else {
            Err(NotYet(format!("{ready} of {REPLICAS} ready: {}", states(&pods.items))))
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
    Ok(poll_until::until(what, PATIENCE, POLL, look).await?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rollout_is_over_when_all_pods_are_new_and_available() {
        let status = |replicas, updated_replicas, available_replicas| DeploymentStatus {
            replicas,
            updated_replicas,
            available_replicas,
            ..DeploymentStatus::default()
        };
        assert!(is_rolled_out(&status(2, 2, 2)));
        for (replicas, updated, available) in [(2, 0, 2), (3, 1, 2), (3, 2, 3), (2, 2, 1)] {
            assert!(!is_rolled_out(&status(replicas, updated, available)));
        }
        let text = "rolling update: 1 of 2 pods are new, 2 old, 2 available";
        assert_eq!(format_rollout(&status(3, 1, 2)), text);
    }

    #[test]
    fn the_manifests_have_what_is_waited_for() {
        let all = proto_api::yaml::parse_all(MANIFESTS).expect("YAML");
        let of =
            |kind: &str| all.iter().find(|object| object["kind"] == kind).expect("it is there");
        let (deployment, service) = (of("Deployment"), of("Service"));
        assert_eq!(deployment["spec"]["replicas"], REPLICAS);
        assert_eq!(deployment["metadata"]["name"], DEPLOYMENT);
        assert_eq!(service["spec"]["ports"][0]["nodePort"], NODE_PORT);
        assert!(all.iter().skip(1).all(|object| object["metadata"]["namespace"] == NAMESPACE));
    }
}
