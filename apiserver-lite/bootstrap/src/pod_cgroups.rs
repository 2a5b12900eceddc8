//! The cgroups that orchlet makes for pods, and their end.

use std::collections::BTreeSet;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::signal::Signal;

use crate::error::BootstrapError;
use crate::processes::{ProcessHandle, ProcessIdentity};

/// How often what is busy for a moment is tried.
const ROUNDS_MAX: usize = 100;
/// Between two tries.
const PAUSE: Duration = Duration::from_millis(50);

/// Removes the empty cgroups of pods below a root, in every hierarchy.
///
/// # Errors
/// One has processes.
pub async fn remove(root: &Path) -> Result<(), BootstrapError> {
    for hierarchy in hierarchies() {
        for name in ["kubepods", "kubepods.slice"] {
            let group = hierarchy.join(root).join(name);
            let mut removed = remove_group(&group);
            for _ in 0..ROUNDS_MAX {
                if removed.is_ok() {
                    break;
                }
                // A group stays busy for a moment after its last process was reaped.
                tokio::time::sleep(PAUSE).await;
                removed = remove_group(&group);
            }
            let what = format!("removing {}", group.display());
            removed.map_err(BootstrapError::system(what))?;
        }
    }
    Ok(())
}

/// Kills all processes in the cgroups of pods below a root, for when the container runtime does not respond. Returns their number.
///
/// # Errors
/// They do not end.
pub async fn kill(root: &Path) -> Result<usize, BootstrapError> {
    let groups = |hierarchy: PathBuf| {
        let root = hierarchy.join(root);
        ["kubepods", "kubepods.slice"].map(|name| root.join(name))
    };
    let groups: Vec<PathBuf> = hierarchies().into_iter().flat_map(groups).collect();
    kill_in(&groups).await
}

async fn kill_in(groups: &[PathBuf]) -> Result<usize, BootstrapError> {
    let mut killed = BTreeSet::new();
    for _ in 0..ROUNDS_MAX {
        let pids = || groups.iter().flat_map(|group| pids_below(group)).collect::<BTreeSet<i32>>();
        let held = pids().into_iter().filter_map(|pid| ProcessIdentity::from_pid(pid).ok()?.open());
        let held: Vec<ProcessHandle> = held.collect();
        // A number that is a pod's still, once its process is held, is not that of another process. One that has ended waits for its parent.
        let still = pids();
        let is_pod = |process: &&ProcessHandle| still.contains(&process.identity.pid);
        let alive: Vec<&ProcessHandle> = held.iter().filter(is_pod).collect();
        if alive.is_empty() {
            return Ok(killed.len());
        }
        for process in &alive {
            killed.insert(process.identity.pid);
            let what = format!("killing process {}", process.identity.pid);
            process.signal(Signal::SIGKILL).map_err(BootstrapError::system(what))?;
        }
        tokio::time::sleep(PAUSE).await;
    }
    Err(BootstrapError::Program("processes of pods do not end after SIGKILL".to_owned()))
}

/// The processes of a cgroup and of those in it.
fn pids_below(group: &Path) -> Vec<i32> {
    let text = fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
    let mut pids: Vec<i32> = text.lines().filter_map(|line| line.parse().ok()).collect();
    for entry in fs::read_dir(group).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            pids.extend(pids_below(&entry.path()));
        }
    }
    pids
}

/// The cgroup hierarchies: one of version 2, or several of version 1.
fn hierarchies() -> Vec<PathBuf> {
    let root = PathBuf::from("/sys/fs/cgroup");
    let mut all: Vec<PathBuf> = match fs::read_dir(&root) {
        Ok(entries) => entries.flatten().map(|entry| entry.path()).collect(),
        Err(_) => Vec::new(),
    };
    all.retain(|path| path.join("cgroup.procs").exists() && !path.is_symlink());
    all.push(root);
    all
}

fn remove_group(group: &Path) -> std::io::Result<()> {
    for entry in fs::read_dir(group).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_group(&entry.path())?;
        }
    }
    match fs::remove_dir(group) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn processes_of_pods_are_killed_wherever_in_the_group_they_are() {
        let root = tempfile::tempdir().unwrap();
        let group = root.path().join("kubepods");
        fs::create_dir_all(group.join("burstable/pod1/c")).unwrap();
        assert_eq!(kill_in(std::slice::from_ref(&group)).await.unwrap(), 0);
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let line = format!("{}\n", child.id());
        fs::write(group.join("burstable/pod1/c/cgroup.procs"), line).unwrap();
        assert_eq!(kill_in(&[group]).await.unwrap(), 1);
        assert_eq!(child.wait().unwrap().code(), None, "a signal has ended it");
    }

    #[test]
    fn cgroups_are_removed_from_the_leaves_up_and_may_be_missing() {
        let root = tempfile::tempdir().unwrap();
        let group = root.path().join("kubepods");
        fs::create_dir_all(group.join("burstable/pod1/c")).unwrap();
        remove_group(&group).unwrap();
        assert!(!group.exists());
        remove_group(&group).unwrap();
        fs::create_dir_all(group.join("pod")).unwrap();
        fs::write(group.join("pod/busy"), "").unwrap();
        assert!(remove_group(&group).is_err());
    }
}
