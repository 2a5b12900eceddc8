//! A cluster for one measurement.

use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow};
use cluster::directory::ClusterDirectory;
use cluster::progress::Progress;
use cluster::spec::Spec;
use cluster::{down, up};

/// The directory of these clusters: there is one of them at a time.
const DIR: &str = "/var/tmp/orch-bench";

/// Brings up one node with the programs of `bin_dir`, its agent with `agent_flags`, measures there and removes it, also after a failure. The work is told how
/// long it took until the node was ready.
pub async fn with(
    bin_dir: &Path,
    agent_flags: &[&str],
    work: impl AsyncFnOnce(&Spec, Duration) -> Result<()>,
) -> Result<()> {
    let dir = PathBuf::from(DIR);
    let _alone = alone(&dir.with_extension("lock"))?;
    down::down(&dir, &Progress::new()).await?;
    let flags = up::Flags {
        place: ClusterDirectory { dir: dir.clone() },
        nodes: Some(1),
        naming: Some("orch".to_owned()),
        no_demo: true,
        bin_dir: Some(bin_dir.to_owned()),
        agent_flags: agent_flags.iter().map(|&flag| flag.to_owned()).collect(),
        manager_flags: Vec::new(),
        scheduler_flags: Vec::new(),
        ..up::Flags::default()
    };
    let measured = async {
        let began = Instant::now();
        let spec = up::up(&flags, &Progress::new()).await?;
        work(&spec, began.elapsed()).await
    };
    // Cancel safe: what was begun is removed below.
    let measured = tokio::select! {
        signal = proto_daemon::drain::stop_signal() => Err(anyhow!("ended by {}", signal?)),
        measured = measured => measured,
    };
    let removed = down::down(&dir, &Progress::new()).await;
    measured.and(removed)
}

/// A lock on such clusters, for as long as the file is open: a second bench waits.
fn alone(lock: &Path) -> Result<File> {
    let file = File::create(lock).with_context(|| format!("making {}", lock.display()))?;
    if let Err(TryLockError::WouldBlock) = file.try_lock() {
        eprintln!("another measurement runs; waiting for {}", lock.display());
    }
    file.lock().with_context(|| format!("locking {}", lock.display()))?;
    Ok(file)
}
