//! The agent's private directories above volumes, records and files of pods. Containers get their files mounted; no other user of
//! the node may pass through here to secrets and data of pods.

use std::io;
use std::path::Path;

use proto_daemon::private_files;

/// Mode of a private directory.
pub const MODE: u32 = private_files::DIRECTORY_MODE;

/// Creates a directory and its missing parents, and closes an existing one to others. Not for paths at which a volume may be
/// mounted.
///
/// # Errors
/// Errors of the kernel; `PermissionDenied` if another user owns the directory.
pub fn make(path: &Path) -> io::Result<()> {
    private_files::create_private_dir(path)
}

/// Creates a directory on which a driver mounts a volume, and its missing parents. An existing one is not changed.
///
/// # Errors
/// Errors of the kernel.
pub fn make_place(path: &Path) -> io::Result<()> {
    private_files::create_missing_dir(path)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn others_may_enter_no_part_of_the_way() {
        let root = tempfile::tempdir().unwrap();
        let deepest = root.path().join("pods/u/containers");
        make(&deepest).unwrap();
        make(&deepest).unwrap();
        for path in [&deepest, deepest.parent().unwrap(), &root.path().join("pods")] {
            let mode = path.metadata().unwrap().permissions().mode();
            assert_eq!(mode & 0o077, 0, "{}", path.display());
        }
        // A directory left open by an older version is closed; one that a driver uses is not touched.
        let open = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(&deepest, open).unwrap();
        make_place(&deepest).unwrap();
        assert_eq!(deepest.metadata().unwrap().permissions().mode() & 0o777, 0o755);
        make(&deepest).unwrap();
        assert_eq!(deepest.metadata().unwrap().permissions().mode() & 0o777, 0o700);
    }
}
