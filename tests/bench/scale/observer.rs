//! What a watch of nodes, pods and endpoints shows, counted until it is as awaited.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use proto_api::Resource;
use proto_api::core::v1::{Node, Pod};
use proto_api::discovery::v1::EndpointSlice;
use proto_client::{Client, ListParams, Reflector, Store};
use proto_daemon::drain::Drain;
use tokio::task::JoinSet;

use super::PATIENCE;
use super::workload::{NAMESPACES, namespace};

/// Between two looks; times are that exact.
const LOOK: Duration = Duration::from_millis(100);
/// How often progress is told.
const TELL: Duration = Duration::from_secs(10);

/// The watches.
pub struct Observer {
    nodes: Store<bool>,
    pods: Store<PodSummary>,
    endpoints: Store<usize>,
    _drain: Drain,
    _watches: JoinSet<()>,
}

/// What counts of a pod.
struct PodSummary {
    node: String,
    is_running: bool,
    is_leaving: bool,
}

impl Observer {
    /// Begins them, over a connection of their own.
    pub async fn start(client: &Client) -> Result<Self> {
        let (client, drain, mut watches) = (client.separate()?, Drain::default(), JoinSet::new());
        let nodes = follow(&client, &drain, &mut watches, |node: Node| {
            node.status.conditions.iter().any(|c| c.type_ == "Ready" && c.status == "True")
        });
        let pods = follow(&client, &drain, &mut watches, |pod: Pod| PodSummary {
            is_running: cluster::demo::is_pod_ready(&pod),
            is_leaving: pod.metadata.deletion_timestamp.is_some(),
            node: pod.spec.node_name,
        });
        let own: Vec<String> = (0..NAMESPACES).map(namespace).collect();
        let endpoints = follow(&client, &drain, &mut watches, move |slice: EndpointSlice| {
            let counts = own.contains(&slice.metadata.namespace);
            let ready = slice.endpoints.iter().filter(|e| e.conditions.ready != Some(false));
            if counts { ready.count() } else { 0 }
        });
        Ok(Self { nodes, pods, endpoints, _drain: drain, _watches: watches })
    }

    /// Waits until exactly so many nodes are Ready.
    pub async fn ready_nodes(&self, count: usize) -> Result<()> {
        let ready = || self.nodes.objects().iter().filter(|ready| ***ready).count();
        until("nodes are Ready", count, ready).await
    }

    /// Waits until so many pods run.
    pub async fn running_pods(&self, count: usize) -> Result<()> {
        self.running_pods_elsewhere(count, " ").await
    }

    /// Waits until so many pods run on nodes whose names do not begin so.
    pub async fn running_pods_elsewhere(&self, count: usize, lost: &str) -> Result<()> {
        let counts =
            |pod: &PodSummary| pod.is_running && !pod.is_leaving && !pod.node.starts_with(lost);
        let running = || self.pods.objects().iter().filter(|pod| counts(pod)).count();
        until("pods run", count, running).await
    }

    /// Waits until there are so many pods, and all of them run.
    pub async fn only_running_pods(&self, count: usize) -> Result<()> {
        self.running_pods(count).await?;
        until("pods are there", count, || self.pods.len()).await
    }

    /// Waits until the Services have so many endpoints.
    pub async fn endpoints(&self, count: usize) -> Result<()> {
        let ready = || self.endpoints.objects().iter().map(|ready| **ready).sum();
        until("endpoints are ready", count, ready).await
    }
}

fn follow<T, U>(
    client: &Client,
    drain: &Drain,
    watches: &mut JoinSet<()>,
    project: impl Fn(T) -> U + Send + Sync + 'static,
) -> Store<U>
where
    T: Resource + Send + 'static,
    U: Send + Sync + 'static,
{
    let reflector = Reflector::projected(client.all::<T>(), ListParams::default(), project);
    let store = reflector.store();
    watches.spawn(reflector.run(drain.watch(), |_| {}));
    store
}

async fn until(what: &str, wanted: usize, count: impl Fn() -> usize) -> Result<()> {
    let (began, mut told) = (Instant::now(), Instant::now());
    while began.elapsed() < PATIENCE {
        let now = count();
        if now == wanted {
            return Ok(());
        }
        if told.elapsed() > TELL {
            eprintln!("  {now} of {wanted} {what}");
            told = Instant::now();
        }
        tokio::time::sleep(LOOK).await;
    }
    bail!("not {wanted} {what} within {PATIENCE:?}, but {}", count())
}
