//! Removes orphaned logs: those of removed containers, and log directories of deleted pods. A pod's
//! own task removes its files; this repairs what a crash between two steps left.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use agent_logs::log_files::{Entry, LogDirectory};
use agent_logs::log_links;
use agent_runtime::runtime::{PodOnNode, RuntimeError};
use proto_daemon::exit::chain;
use proto_daemon::panics::spawn_blocking;
use proto_daemon::statusz::TaskStatus;
use tokio::task::JoinError;

use crate::pod_context::PodContext;

/// Interval between passes.
const PERIOD: Duration = Duration::from_secs(300);
/// Delay of the first pass: the pod sources have synced by then.
const FIRST: Duration = Duration::from_secs(60);
/// Most directories examined in a pass.
const DIRECTORIES_MAX: usize = 20_000;

/// Why a pass removed nothing.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SweepError {
    /// The runtime does not list its pods.
    #[error(transparent)]
    Runtime(#[from] RuntimeError),
    /// The pass panicked.
    #[error(transparent)]
    Thread(#[from] JoinError),
}

/// Runs passes for as long as the agent runs.
pub async fn run(shared: Arc<PodContext>, page: TaskStatus) {
    tokio::time::sleep(FIRST).await;
    loop {
        page.started("period");
        match sweep(&shared).await {
            Ok(removed) => page.done(format!("{removed} directories and links removed")),
            Err(error) => page.failed(chain(&error)),
        }
        tokio::time::sleep(PERIOD).await;
    }
}

/// Removes log directories of pods unknown to the agent and the runtime, and dangling links to
/// logs. Returns how many were removed.
pub(crate) async fn sweep(shared: &Arc<PodContext>) -> Result<usize, SweepError> {
    let found = shared.runtime.list().await?;
    let shared = shared.clone();
    let swept = spawn_blocking(move || {
        let logs = PathBuf::from(&shared.settings.facts.pod_logs_dir);
        let orphans = orphans(&logs, &shared, &found);
        let gone = |directory: &PathBuf| match std::fs::remove_dir_all(directory) {
            Ok(()) => {
                tracing::info!(directory = %directory.display(), "removed the log directory of a deleted pod");
                true
            }
            Err(error) => {
                tracing::warn!(directory = %directory.display(), %error, "cannot remove the log directory of a deleted pod; retried at the next pass");
                false
            }
        };
        let removed = orphans.iter().filter(|directory| gone(directory)).count();
        removed.saturating_add(log_links::repair_links(&logs, &found))
    });
    Ok(swept.await?)
}

fn orphans(logs: &Path, shared: &PodContext, found: &[PodOnNode]) -> Vec<PathBuf> {
    // Read before the pods are listed: a pod created meanwhile is known by then.
    let directories = directories(logs);
    let known = shared.pods.known_uids();
    let is_orphan = |uid: &String| {
        !known.contains(uid)
            && found.iter().all(|pod| pod.uid != *uid)
            && !shared.pod_dir(uid).exists()
    };
    directories.into_iter().filter(|(uid, _)| is_orphan(uid)).map(|(_, path)| path).collect()
}

fn directories(logs: &Path) -> BTreeMap<String, PathBuf> {
    let entries = std::fs::read_dir(logs).into_iter().flatten().flatten();
    let one = |entry: std::fs::DirEntry| {
        let name = entry.file_name().into_string().ok()?;
        let mut parts = name.rsplitn(3, '_');
        let (uid, pod, namespace) = (parts.next()?, parts.next()?, parts.next()?);
        let whole = !uid.is_empty() && !pod.is_empty() && !namespace.is_empty();
        let directory = entry.file_type().ok()?.is_dir();
        (whole && directory).then(|| (uid.to_owned(), entry.path()))
    };
    entries.take(DIRECTORIES_MAX).filter_map(one).collect()
}

/// Removes the log of a removed container, with its rotated files.
pub fn remove_instance_logs(directory: &Path, attempt: u32) {
    let (log, rotated) = (format!("{attempt}.log"), format!("{attempt}.log."));
    let Ok(directory) = LogDirectory::open(directory) else { return };
    for Entry { name, .. } in directory.entries().unwrap_or_default() {
        if *name == log || name.starts_with(&rotated) {
            // If this fails, it is removed with the pod's directory.
            let _ = directory.remove(&name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_instances_own_logs_go() {
        let dir = tempfile::tempdir().expect("tempdir");
        for name in ["1.log", "1.log.20260101-000000", "1.log.2.gz", "11.log", "2.log"] {
            std::fs::write(dir.path().join(name), "x").expect("write");
        }
        remove_instance_logs(dir.path(), 1);
        let mut left: Vec<String> = std::fs::read_dir(dir.path())
            .expect("read")
            .flatten()
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .collect();
        left.sort();
        assert_eq!(left, ["11.log", "2.log"]);
    }

    #[test]
    fn directories_of_pods_are_recognized_by_name() {
        let dir = tempfile::tempdir().expect("tempdir");
        for name in ["ns_pod_uid-1", "stray", "a_b", "_x_y"] {
            std::fs::create_dir(dir.path().join(name)).expect("mkdir");
        }
        std::fs::write(dir.path().join("ns_pod_file"), "x").expect("write");
        assert_eq!(directories(dir.path()).into_keys().collect::<Vec<_>>(), ["uid-1"]);
    }
}
