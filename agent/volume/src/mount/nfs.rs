//! Mount points of NFS volumes, found without access to the mounted file system, whose server may not answer.

use std::os::fd::OwnedFd;
use std::path::PathBuf;

use rustix::fs::Dir;

use crate::sources::VolumePlugin;
use crate::{VolumesOnDisk, beneath, host_path};

/// The directory of a pod's NFS volume, mounted or not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NfsMountPoint {
    /// Name of the persistent volume, or of the pod's volume if there is none.
    pub volume: String,
    /// Path on the host, without links.
    pub path: PathBuf,
}

impl VolumesOnDisk {
    /// The mount points of a pod's NFS volumes.
    ///
    /// # Errors
    /// The directory above them cannot be read.
    pub fn nfs_mount_points(&self, uid: &str) -> rustix::io::Result<Vec<NfsMountPoint>> {
        let Some(pod) = self.open_pod(uid)? else { return Ok(Vec::new()) };
        let below = self.relative_path(VolumePlugin::Nfs, "");
        let Some(parent) = beneath::open_existing(&pod, below.trim_end_matches('/'))? else {
            return Ok(Vec::new());
        };
        let path = host_path::opened_path(&parent)?;
        let each = |volume: String| NfsMountPoint { path: path.join(&volume), volume };
        Ok(names(&parent)?.into_iter().map(each).collect())
    }
}

/// Names in a directory. [`beneath::list_entries`] calls stat(2) on mount points if the file system does not report entry types.
fn names(directory: &OwnedFd) -> rustix::io::Result<Vec<String>> {
    let mut found = Vec::new();
    for entry in Dir::read_from(directory)? {
        match entry?.file_name().to_str() {
            Ok("." | "..") | Err(_) => {}
            Ok(name) => found.push(name.to_owned()),
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use proto_api::names::{Names, Profile};

    use super::*;

    #[test]
    fn mount_points_are_found_by_their_directory() {
        let root = tempfile::tempdir().unwrap();
        let volumes = VolumesOnDisk::new(root.path(), Names::new(Profile::Kubernetes));
        assert_eq!(volumes.nfs_mount_points("u"), Ok(Vec::new()));
        let directory = root.path().canonicalize().unwrap().join("pods/u/volumes");
        std::fs::create_dir_all(directory.join("kubernetes.io~empty-dir/e")).unwrap();
        assert_eq!(volumes.nfs_mount_points("u"), Ok(Vec::new()));
        let path = directory.join("kubernetes.io~nfs/v");
        std::fs::create_dir_all(&path).unwrap();
        let point = NfsMountPoint { volume: "v".into(), path };
        assert_eq!(volumes.nfs_mount_points("u"), Ok(vec![point]));
        volumes.nfs_mount_points("../u").unwrap_err();
    }
}
