//! The agent's own directories: above volumes, records and files of pods. Users of pods get what is meant for them mounted; nobody else on
//! the node may go through here to secrets and other pods' data.

use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;

/// Mode of such a directory, as the ecosystem's agent makes it.
pub const MODE: u32 = 0o750;

/// Makes a directory and those above it that are missing. One that is there stays as it is.
///
/// # Errors
/// What the kernel says.
pub fn make(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(MODE).create(path)
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
            assert_eq!(mode & 0o007, 0, "{}", path.display());
        }
    }
}
