//! A cluster that is there for one measurement.

use std::path::{Path, PathBuf};

use anyhow::Result;
use cluster::commands::Place;
use cluster::progress::Progress;
use cluster::spec::Spec;
use cluster::{down, up};

/// The directory of these clusters: there is one of them at a time.
const DIR: &str = "/var/tmp/orch-bench";

/// Brings up one node with the programs of `bin_dir`, its agent with `agent_flags`, takes `rows` there and removes it, whatever came of them.
pub async fn with(
    bin_dir: &Path,
    agent_flags: &[&str],
    rows: impl AsyncFnOnce(&Spec) -> Result<()>,
) -> Result<()> {
    let dir = PathBuf::from(DIR);
    down::down(&dir, &Progress::new()).await?;
    let flags = up::Flags {
        place: Place { dir: dir.clone() },
        nodes: Some(1),
        naming: Some("orch".to_owned()),
        no_demo: true,
        bin_dir: Some(bin_dir.to_owned()),
        agent_flags: agent_flags.iter().map(|&flag| flag.to_owned()).collect(),
    };
    let spec = up::up(&flags, &Progress::new()).await?;
    let measured = rows(&spec).await;
    down::down(&dir, &Progress::new()).await?;
    measured
}
