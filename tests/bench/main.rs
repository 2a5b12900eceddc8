//! Measures the figures of the design budgets with their floor in the same run, and makes the page of all figures. `hack/bench` builds and runs it; it is not
//! a test.

mod agent;
mod agent_only;
mod agent_process;
mod api_kinds;
mod api_load;
mod api_server;
mod api_webhook;
mod bursts;
mod figures;
mod footprint;
mod kube_apiserver;
mod node;
mod own_cluster;
mod peer;
mod probes;
mod render;
mod runtime_floor;
mod scale;
mod volumes;
mod workload;

use std::path::Path;

use anyhow::{Context as _, Result};
use clap::Parser;

use crate::figures::{Figure, Group, Unit};

/// Measures this project's programs, or another cluster on this machine, or makes the page of what was measured.
#[derive(Parser)]
enum What {
    /// The API server alone.
    Api(api_server::Wanted),
    /// A cluster of one node: pods one at a time, and what it costs when idle.
    Node,
    /// The node agent under load: bursts of pods.
    Bursts(bursts::Wanted),
    /// The node agent under load: memory, a restart, probes.
    Load,
    /// From writes of the API to files in pods.
    Volumes,
    /// Clusters of hollow nodes.
    Scale(scale::Wanted),
    /// A cluster that runs already, for comparison.
    Peer(peer::Flags),
    /// The page of a run, with its charts.
    Render(render::Flags),
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let own = std::env::current_exe()?;
    let bin_dir = own.parent().context("no directory")?;
    match What::parse() {
        What::Api(wanted) => api_server::measure(bin_dir, &wanted).await,
        What::Node => node_figures(bin_dir).await,
        What::Bursts(wanted) => agent::measure_bursts(bin_dir, &wanted).await,
        What::Load => agent::measure_load(bin_dir).await,
        What::Volumes => volumes::measure(bin_dir).await,
        What::Scale(wanted) => scale::measure(bin_dir, &wanted).await,
        What::Peer(flags) => peer::measure(flags).await,
        What::Render(flags) => render::render(&flags),
    }
}

async fn node_figures(bin_dir: &Path) -> Result<()> {
    own_cluster::with(bin_dir, &[], async |spec, up| {
        let what = "cluster of one node: hack/up -> Ready";
        Figure::of_times(Group::Node, what, Unit::Millis, [up]).tell()?;
        cluster::demo::import_images(spec).await?;
        agent_process::without(spec, node::floor(spec)).await?;
        node::Target::ours(spec)?.measure().await?;
        footprint::measure(&footprint::ours(spec), figures::OURS).await
    })
    .await
}
