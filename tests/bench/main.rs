//! Prints the budgets' figures with their floor from the same run. `hack/bench` builds and runs it; nothing here is a test.

mod api_load;
mod api_server;
mod footprint;
mod node;
mod report;

use std::path::PathBuf;

use anyhow::{Context as _, Result};
use cluster::commands::Place;
use cluster::progress::Progress;
use cluster::{down, up};

use crate::report::Report;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let what = std::env::args().nth(1).unwrap_or_else(|| "all".to_owned());
    let own = std::env::current_exe()?;
    let bin_dir = own.parent().context("no directory")?.to_owned();
    let mut report = Report::default();
    if matches!(what.as_str(), "all" | "api") {
        api_server::measure(&bin_dir, &mut report).await?;
    }
    if matches!(what.as_str(), "all" | "node") {
        let dir = PathBuf::from("/var/tmp/orch-bench");
        down::down(&dir, &Progress::new()).await?;
        let flags = up::Flags {
            place: Place { dir: dir.clone() },
            nodes: Some(1),
            naming: Some("orch".to_owned()),
            no_demo: true,
            bin_dir: Some(bin_dir.clone()),
        };
        let spec = up::up(&flags, &Progress::new()).await?;
        let measured = measure_node(&spec, &mut report).await;
        down::down(&dir, &Progress::new()).await?;
        measured?;
    }
    print!("{report}");
    Ok(())
}

async fn measure_node(spec: &cluster::spec::Spec, report: &mut Report) -> Result<()> {
    cluster::demo::import_images(spec).await?;
    let bench = node::Bench::new(spec)?;
    bench.measure(report).await?;
    footprint::measure(spec, report).await
}
