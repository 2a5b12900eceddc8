//! Removes what is left on disk of pods and containers that nothing knows any more: logs of removed instances, and log directories
//! whose pod is gone. What a pod's own task removes is not here; this repairs what a crash between two steps left.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use agent_runtime::runtime::PodOnNode;
use proto_daemon::exit::chain;
use proto_daemon::statusz::TaskStatus;
use tokio::task::spawn_blocking;

use crate::log_files::{Entry, LogDirectory};
use crate::log_links;
use crate::pods::pod_context::Parts;

/// Between two looks.
const PERIOD: Duration = Duration::from_secs(300);
/// Before the first: the sources have said by then which pods there are.
const FIRST: Duration = Duration::from_secs(60);
/// Most directories that are looked at.
const DIRECTORIES_MAX: usize = 20_000;

/// Looks for as long as the agent runs.
pub async fn run(parts: Arc<Parts>, page: TaskStatus) {
    tokio::time::sleep(FIRST).await;
    loop {
        page.started("period");
        match sweep(&parts).await {
            Ok(removed) => page.done(format!("{removed} directories and links removed")),
            Err(line) => page.failed(line),
        }
        tokio::time::sleep(PERIOD).await;
    }
}

/// Removes log directories of pods that neither the agent nor the runtime knows, and links to logs that are gone; how many.
pub(crate) async fn sweep(parts: &Arc<Parts>) -> Result<usize, String> {
    let found = parts.runtime.list().await.map_err(|e| chain(&e))?;
    let parts = parts.clone();
    let swept = spawn_blocking(move || {
        let logs = PathBuf::from(&parts.facts.pod_logs_dir);
        let orphans = orphans(&logs, &parts, &found);
        let gone = |directory: &PathBuf| match std::fs::remove_dir_all(directory) {
            Ok(()) => {
                tracing::info!(directory = %directory.display(), "logs of a gone pod removed");
                true
            }
            Err(error) => {
                tracing::warn!(directory = %directory.display(), %error, "orphaned logs");
                false
            }
        };
        let removed = orphans.iter().filter(|directory| gone(directory)).count();
        removed + log_links::mend(&logs, &found)
    });
    swept.await.map_err(|error| error.to_string())
}

fn orphans(logs: &Path, parts: &Parts, found: &[PodOnNode]) -> Vec<PathBuf> {
    // Read before the pods are asked for: a pod that comes meanwhile is known by then.
    let directories = directories(logs);
    let known = parts.known_uids();
    let is_orphan = |uid: &String| {
        !known.contains(uid)
            && found.iter().all(|pod| pod.uid != *uid)
            && !parts.pod_dir(uid).exists()
    };
    directories.into_iter().filter(|(uid, _)| is_orphan(uid)).map(|(_, path)| path).collect()
}

/// Directories `<namespace>_<name>_<uid>` by uid.
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

/// Removes what an instance wrote, its log and the rotated ones, once it is gone itself.
pub fn remove_instance_logs(directory: &Path, attempt: u32) {
    let (log, rotated) = (format!("{attempt}.log"), format!("{attempt}.log."));
    let Ok(directory) = LogDirectory::open(directory) else { return };
    for Entry { name, .. } in directory.entries().unwrap_or_default() {
        if *name == log || name.starts_with(&rotated) {
            // One that cannot be removed goes with the pod's whole directory.
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
    fn directories_of_pods_are_told_from_others() {
        let dir = tempfile::tempdir().expect("tempdir");
        for name in ["ns_pod_uid-1", "stray", "a_b", "_x_y"] {
            std::fs::create_dir(dir.path().join(name)).expect("mkdir");
        }
        std::fs::write(dir.path().join("ns_pod_file"), "x").expect("write");
        assert_eq!(directories(dir.path()).into_keys().collect::<Vec<_>>(), ["uid-1"]);
    }
}
