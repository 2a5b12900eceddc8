//! Prints the budgets' figures with their floor from the same run. `hack/bench` builds and runs it; nothing here is a test.

mod agent;
mod api_load;
mod api_server;
mod footprint;
mod node;
mod peer;
mod probes;
mod report;
mod volumes;

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use clap::Parser;
use cluster::commands::Place;
use cluster::progress::Progress;
use cluster::{down, up};

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
            node(&bin_dir, &mut report).await?;
            agent::measure(&bin_dir, &mut report).await?;
            volumes::measure(&bin_dir, &mut report).await?;
        }
        What::Api => api_server::measure(&bin_dir, &mut report).await?,
        What::Node => node(&bin_dir, &mut report).await?,
        What::Agent => agent::measure(&bin_dir, &mut report).await?,
        What::Volumes => volumes::measure(&bin_dir, &mut report).await?,
        What::Peer(flags) => peer::measure(flags, &mut report).await?,
    }
    print!("{report}");
    Ok(())
}

/// On a cluster of its own, which it removes.
async fn node(bin_dir: &Path, report: &mut Report) -> Result<()> {
    let dir = PathBuf::from("/var/tmp/orch-bench");
    down::down(&dir, &Progress::new()).await?;
    let flags = up::Flags {
        place: Place { dir: dir.clone() },
        nodes: Some(1),
        naming: Some("orch".to_owned()),
        no_demo: true,
        bin_dir: Some(bin_dir.to_owned()),
        ..up::Flags::default()
    };
    let spec = up::up(&flags, &Progress::new()).await?;
    let measured = measure_node(&spec, report).await;
    down::down(&dir, &Progress::new()).await?;
    measured
}

async fn measure_node(spec: &cluster::spec::Spec, report: &mut Report) -> Result<()> {
    cluster::demo::import_images(spec).await?;
    node::without_agent(spec, node::floor(spec, report)).await?;
    node::Target::ours(spec)?.measure(report).await?;
    footprint::measure(&footprint::ours(spec), report).await
}
