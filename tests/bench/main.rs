//! Prints the figures of the design budgets with their floor from the same run. `hack/bench` builds and runs it; it is not a test.

mod agent;
mod agent_only;
mod agent_process;
mod api_load;
mod api_server;
mod bursts;
mod footprint;
mod node;
mod own_cluster;
mod peer;
mod probes;
mod report;
mod runtime_floor;
mod volumes;
mod workload;

use std::path::Path;

use anyhow::{Context as _, Result};
use clap::Parser;

use crate::report::Report;

/// Prints figures of this project's programs, or of another cluster on this machine, in one form.
#[derive(Parser)]
enum What {
    /// The API server and a node.
    All,
    /// The API server alone.
    Api,
    /// A cluster of one node.
    Node,
    /// The node agent under load: bursts, a restart, probes, memory.
    Agent,
    /// Of these the bursts alone.
    Bursts(bursts::Wanted),
    /// Of these all but the bursts.
    Load,
    /// From writes of the API to files in pods.
    Volumes,
    /// A cluster that runs already, for comparison.
    Peer(peer::Flags),
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let own = std::env::current_exe()?;
    let bin_dir = own.parent().context("no directory")?.to_owned();
    let mut report = Report::default();
    match What::parse() {
        What::All => {
            api_server::measure(&bin_dir, &mut report).await?;
            node_rows(&bin_dir, &mut report).await?;
            agent::measure_bursts(&bin_dir, &bursts::Wanted::default(), &mut report).await?;
            agent::measure_load(&bin_dir, &mut report).await?;
            volumes::measure(&bin_dir, &mut report).await?;
        }
        What::Api => api_server::measure(&bin_dir, &mut report).await?,
        What::Node => node_rows(&bin_dir, &mut report).await?,
        What::Agent => {
            agent::measure_bursts(&bin_dir, &bursts::Wanted::default(), &mut report).await?;
            agent::measure_load(&bin_dir, &mut report).await?;
        }
        What::Bursts(wanted) => agent::measure_bursts(&bin_dir, &wanted, &mut report).await?,
        What::Load => agent::measure_load(&bin_dir, &mut report).await?,
        What::Volumes => volumes::measure(&bin_dir, &mut report).await?,
        What::Peer(flags) => peer::measure(flags, &mut report).await?,
    }
    print!("{report}");
    Ok(())
}

async fn node_rows(bin_dir: &Path, report: &mut Report) -> Result<()> {
    own_cluster::with(bin_dir, &[], async |spec| measure_node(spec, report).await).await
}

async fn measure_node(spec: &cluster::spec::Spec, report: &mut Report) -> Result<()> {
    cluster::demo::import_images(spec).await?;
    agent_process::without(spec, node::floor(spec, report)).await?;
    node::Target::ours(spec)?.measure(report).await?;
    footprint::measure(&footprint::ours(spec), report).await
}
