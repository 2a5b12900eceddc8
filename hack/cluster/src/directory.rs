//! The directory of a cluster's files, as named on the command line.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use clap::Args;

/// The file of a cluster's directory that says that it is one: the first that is written, and the last that is removed.
pub const MARK: &str = "cluster.json";

/// The directory unless another one is named.
pub const DIR_DEFAULT: &str = "/var/tmp/orch";

/// The directory of a cluster's files.
#[derive(Clone, Debug, Default, Args)]
pub struct ClusterDirectory {
    /// Directory of the cluster; another directory is another cluster.
    #[arg(long, env = "ORCH_CLUSTER_DIR", default_value = DIR_DEFAULT)]
    pub dir: PathBuf,
}

/// Checks that a new cluster can have `dir`: everything below it is removed with the cluster.
///
/// # Errors
/// It has files already, is a file, or lies in the directory of another cluster.
pub fn check_unused(dir: &Path) -> Result<()> {
    if let Some(other) = dir.ancestors().skip(1).find(|parent| parent.join(MARK).exists()) {
        bail!("--dir {}: lies in {}, which is another cluster's", dir.display(), other.display());
    }
    if !is_empty(dir)? {
        bail!(
            "--dir {}: has files, and everything in a cluster's directory is removed with the cluster: name a new or an empty one",
            dir.display()
        );
    }
    Ok(())
}

/// Checks that `dir` can be removed: it is the directory of a cluster, empty or not there.
///
/// # Errors
/// It has files, but is not the directory of a cluster.
pub fn check_removable(dir: &Path) -> Result<()> {
    if !dir.join(MARK).exists() && !is_empty(dir)? {
        bail!(
            "--dir {}: has files but no {MARK}: it is not the directory of a cluster, and nothing in it was removed",
            dir.display()
        );
    }
    Ok(())
}

/// Removes the directory of a cluster with everything below it. Nothing to remove is no error.
///
/// # Errors
/// As [`check_removable`]. Or something cannot be removed: the next call goes on.
pub fn remove(dir: &Path) -> Result<()> {
    check_removable(dir)?;
    let mark = dir.join(MARK);
    if !mark.exists() {
        return Ok(());
    }
    for entry in fs::read_dir(dir).with_context(|| format!("cannot read {}", dir.display()))? {
        let entry = entry.with_context(|| format!("cannot read {}", dir.display()))?;
        let path = entry.path();
        if path == mark {
            continue;
        }
        // The type of the entry itself: a link is removed, not what it leads to.
        let is_dir = entry.file_type().is_ok_and(|kind| kind.is_dir());
        let removed = if is_dir { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
        removed.with_context(|| format!("cannot remove {}", path.display()))?;
    }
    fs::remove_file(&mark).with_context(|| format!("cannot remove {}", mark.display()))?;
    fs::remove_dir(dir).with_context(|| format!("cannot remove {}", dir.display()))
}

/// Whether a directory has no entries; one that does not exist has none.
fn is_empty(dir: &Path) -> Result<bool> {
    match fs::read_dir(dir) {
        Ok(mut entries) => Ok(entries.next().is_none()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(true),
        Err(error) => Err(error).with_context(|| format!("cannot use --dir {}", dir.display())),
    }
}

impl ClusterDirectory {
    /// The directory as an absolute path, so that the same directory is the same cluster.
    pub fn absolute(&self) -> Result<PathBuf> {
        std::path::absolute(&self.dir)
            .with_context(|| format!("cannot use --dir {}", self.dir.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(dir: &Path) -> Vec<String> {
        let entries = fs::read_dir(dir).unwrap();
        let mut names: Vec<String> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_directory_that_is_no_cluster_s_is_neither_taken_nor_removed() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("passwd"), "root").unwrap();
        fs::create_dir(dir.path().join("below")).unwrap();
        let taken = check_unused(dir.path()).unwrap_err().to_string();
        assert!(taken.contains("has files"), "{taken}");
        let removed = remove(dir.path()).unwrap_err().to_string();
        assert!(removed.contains("not the directory of a cluster"), "{removed}");
        assert_eq!(names(dir.path()), ["below", "passwd"]);
        // An empty one can be taken, and stays.
        check_unused(&dir.path().join("below")).unwrap();
        remove(&dir.path().join("below")).unwrap();
        check_unused(&dir.path().join("new")).unwrap();
        remove(&dir.path().join("new")).unwrap();
        assert_eq!(names(dir.path()), ["below", "passwd"]);
        check_unused(&dir.path().join("passwd")).unwrap_err();
    }

    #[test]
    fn a_cluster_lies_in_no_other() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(MARK), "{}").unwrap();
        let inner = dir.path().join("a/b");
        let refused = check_unused(&inner).unwrap_err().to_string();
        assert!(refused.contains("another cluster's"), "{refused}");
    }

    #[test]
    fn targets_of_links_are_not_removed() {
        let other = tempfile::tempdir().unwrap();
        fs::write(other.path().join("kept"), "").unwrap();
        let parent = tempfile::tempdir().unwrap();
        let dir = parent.path().join("cluster");
        fs::create_dir_all(dir.join("pki")).unwrap();
        fs::write(dir.join(MARK), "{}").unwrap();
        std::os::unix::fs::symlink(other.path(), dir.join("link")).unwrap();
        remove(&dir).unwrap();
        assert!(!dir.exists());
        assert_eq!(names(other.path()), ["kept"]);
    }
}
