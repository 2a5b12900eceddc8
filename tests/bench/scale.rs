//! A cluster of hollow nodes, as large as asked for: the time until all pods run, what the API's clients wait, what each program costs, and what happens
//! when a tenth of the nodes fails and comes back.

mod control_plane;
mod costs;
mod hollow_nodes;
mod latencies;
mod observer;
mod proxy_watches;
mod service_proxy;
mod workload;

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use tokio::process::Command;

use crate::figures::{Figure, Group, Unit};
use crate::render::{CONNECTIONS, STREAMS};
use control_plane::ControlPlane;
use costs::{Costs, Program};
use hollow_nodes::HollowNodes;
use latencies::Latencies;
use observer::Observer;
use proxy_watches::ProxyWatches;
use service_proxy::ServiceProxy;

/// What sizes of figures count.
pub const NODES: &str = "nodes";
/// Programs of hollow nodes: one of them is the part that fails.
const PROCESSES: usize = 10;
/// The longest that anything may take.
const PATIENCE: Duration = Duration::from_secs(3600);

/// Which clusters.
#[derive(clap::Args)]
pub struct Wanted {
    /// Numbers of nodes, each measured in a cluster of its own; a multiple of ten
    #[arg(long, value_delimiter = ',', default_value = "10,20", value_name = "N,...")]
    nodes: Vec<usize>,
    /// Pods for each node
    #[arg(long, default_value_t = 10, value_name = "N")]
    pods_per_node: usize,
    /// Pods of each Service, which a Deployment makes
    #[arg(long, default_value_t = 10, value_name = "N")]
    pods_per_service: usize,
    /// Seconds that the cluster is observed at rest
    #[arg(long, default_value_t = 20, value_name = "SECONDS")]
    rest: u64,
    /// Seconds that pods tolerate a lost node
    #[arg(long, default_value_t = 30, value_name = "SECONDS")]
    toleration: u32,
    /// Opens the watches of a proxy for each node too, beside the one real proxy
    #[arg(long)]
    proxies: bool,
    /// Ends once the cluster was observed at rest, without the failure of a tenth of it
    #[arg(long)]
    no_failure: bool,
}

/// Measures each size, with the network namespace of this process for itself.
pub async fn measure(bin_dir: &Path, wanted: &Wanted) -> Result<()> {
    let up = Command::new("ip").args(["link", "set", "lo", "up"]).status().await?;
    ensure!(up.success(), "ip link set lo up: {up}");
    for &nodes in &wanted.nodes {
        let even = nodes > 0 && nodes.is_multiple_of(PROCESSES);
        ensure!(even, "--nodes: {nodes} is no multiple of {PROCESSES}");
        let services = nodes * wanted.pods_per_node / wanted.pods_per_service.max(1);
        ensure!(services > 0, "--pods-per-service: more than there are pods");
    }
    for &nodes in &wanted.nodes {
        let dir = tempfile::Builder::new().prefix("orch-scale-").tempdir_in("/var/tmp")?;
        // Cancel safe: the programs end with their handles.
        tokio::select! {
            signal = proto_daemon::drain::stop_signal() => anyhow::bail!("ended by {}", signal?),
            measured = size(bin_dir, dir.path(), wanted, nodes) => measured?,
        }
    }
    Ok(())
}

/// A cluster of one size, from its start to its end.
async fn size(bin_dir: &Path, dir: &Path, wanted: &Wanted, nodes: usize) -> Result<()> {
    let figure = |what: &str, took: Duration| {
        Figure::of_times(Group::Scale, what, Unit::Millis, [took]).at(nodes, NODES).tell()
    };
    let plane = ControlPlane::start(bin_dir, dir).await?;
    let mut observer = Observer::start(&plane.client).await?;
    let latencies = Latencies::start(&plane)?;

    let began = Instant::now();
    let mut hollow = HollowNodes::start(bin_dir, dir, &plane, nodes)?;
    observer.ready_nodes(nodes).await?;
    figure("hollow nodes: programs started to all Ready", began.elapsed())?;
    let proxy = ServiceProxy::start(bin_dir, dir, &plane)?;
    let watches = wanted.proxies.then(|| ProxyWatches::start(&plane, nodes));
    let _watches = watches.transpose()?;
    let count = |what: &str, count: usize| {
        Figure::new(Group::Scale, what, Unit::Count, count as f64).at(nodes, NODES).tell()
    };
    let programs = |hollow: &HollowNodes| -> Vec<Program> {
        let of_plane = plane.programs().into_iter();
        of_plane.chain([proxy.program()]).chain([hollow.program()]).collect()
    };
    Costs::observe(&programs(&hollow), wanted.rest).await?.tell("nodes without pods", nodes)?;
    latencies.take();

    let pods = nodes * wanted.pods_per_node;
    let before = Costs::spent(&programs(&hollow))?;
    let began = Instant::now();
    let services = pods / wanted.pods_per_service;
    workload::create(&plane, services, pods, wanted.toleration).await?;
    figure("Services and Deployments: first to last created", began.elapsed())?;
    observer.running_pods(pods).await?;
    let took = began.elapsed();
    figure("pods: first Deployment created to all Running", took)?;
    let rate = pods as f64 / took.as_secs_f64();
    Figure::new(Group::Scale, "pods that began to run", Unit::PerSecond, rate)
        .at(nodes, NODES)
        .tell()?;
    observer.endpoints(pods).await?;
    figure("endpoints: first Deployment created to all ready", began.elapsed())?;
    costs::tell_spent(&before, &programs(&hollow), "while all pods start", nodes)?;
    latencies.tell("while pods start", nodes)?;

    count("pods", pods)?;
    count("Services", services)?;
    let settled = Costs::observe(&programs(&hollow), wanted.rest).await?;
    settled.tell("all pods running", nodes)?;
    latencies.tell("at rest", nodes)?;
    count(STREAMS, plane.open_streams().await?)?;
    count(CONNECTIONS, plane.open_sockets()?)?;
    if !wanted.no_failure {
        failure(&mut hollow, &mut observer, nodes, pods).await?;
        latencies.tell("while a tenth of the nodes fails and returns", nodes)?;
    }
    Ok(())
}

/// One of the processes of hollow nodes is killed, and starts again once its pods run elsewhere.
async fn failure(
    hollow: &mut HollowNodes,
    observer: &mut Observer,
    nodes: usize,
    pods: usize,
) -> Result<()> {
    let figure = |what: &str, took: Duration| {
        Figure::of_times(Group::Scale, what, Unit::Millis, [took]).at(nodes, NODES).tell()
    };
    let lost = hollow.kill_first().await?;
    let began = Instant::now();
    observer.ready_nodes(nodes - nodes / PROCESSES).await?;
    figure("a tenth killed: to not Ready", began.elapsed())?;
    observer.running_pods_elsewhere(pods, &lost).await?;
    figure("a tenth killed: to their pods Running elsewhere", began.elapsed())?;
    let began = Instant::now();
    hollow.start_first()?;
    observer.ready_nodes(nodes).await?;
    figure("a tenth started again: to Ready", began.elapsed())?;
    observer.only_running_pods(pods).await?;
    Ok(figure("a tenth started again: to the pods that they had gone", began.elapsed())?)
}
