//! The agent's own directories: above volumes, records and files of pods. Users of pods get what is meant for them mounted; nobody else on
//! the node may go through here to secrets and other pods' data.

use std::io;
use std::path::Path;

use proto_daemon::private_files;

/// Mode of such a directory.
pub const MODE: u32 = private_files::DIRECTORY_MODE;

/// Makes a directory and those above it that are missing. One that is there is closed to others; never to be asked of a place where
/// somebody else's volume may be mounted.
///
/// # Errors
/// What the kernel says; `PermissionDenied` for a directory of a foreign owner.
pub fn make(path: &Path) -> io::Result<()> {
    private_files::create_private_dir(path)
}

/// Makes a directory for a driver to put a volume on, and those above it that are missing. One that is there stays as it is.
///
/// # Errors
/// What the kernel says.
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
        // What an older version left open is closed; what is a driver's by now is not touched.
        let open = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(&deepest, open).unwrap();
        make_place(&deepest).unwrap();
        assert_eq!(deepest.metadata().unwrap().permissions().mode() & 0o777, 0o755);
        make(&deepest).unwrap();
        assert_eq!(deepest.metadata().unwrap().permissions().mode() & 0o777, 0o700);
    }
}
