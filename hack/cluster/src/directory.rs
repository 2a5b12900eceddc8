//! The directory of a cluster's files, as named on the command line.

use std::path::PathBuf;

use anyhow::{Context as _, Result};
use clap::Args;

/// The directory unless another one is named.
pub const DIR_DEFAULT: &str = "/var/tmp/orch";

/// The directory of a cluster's files.
#[derive(Clone, Debug, Default, Args)]
pub struct ClusterDirectory {
    /// Directory of the cluster; another directory is another cluster.
    #[arg(long, env = "ORCH_CLUSTER_DIR", default_value = DIR_DEFAULT)]
    pub dir: PathBuf,
}

impl ClusterDirectory {
    /// The directory as an absolute path, so that the same directory is the same cluster.
    pub fn absolute(&self) -> Result<PathBuf> {
        std::path::absolute(&self.dir).with_context(|| format!("--dir {}", self.dir.display()))
    }
}
