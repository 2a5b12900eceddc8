//! The cgroups that orchlet makes for pods, and their end.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::error::BootstrapError;

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

    #[test]
    fn groups_go_from_the_leaves_up_and_can_be_gone() {
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
