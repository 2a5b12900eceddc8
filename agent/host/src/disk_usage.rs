//! What a directory takes of its disk. Walks by descriptor, so that whoever writes there cannot lead the walk elsewhere; stays on the
//! file system; counts a file with several names once; stops at a bound.

use std::collections::HashSet;
use std::ffi::CStr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Mode, OFlags, ResolveFlags, Stat, fstat, openat, openat2, statat,
};
use rustix::io::{Errno, Result};

/// Deepest directory that is looked into.
const DEPTH_MAX: usize = 200;
/// Most files that are counted: what has more uses more than any limit on space that this is asked for.
const FILES_MAX: u64 = 5_000_000;

/// What a directory takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskUsage {
    /// Bytes of the blocks that are taken.
    pub bytes: u64,
    /// Files and directories.
    pub inodes: u64,
}

impl std::ops::AddAssign for DiskUsage {
    fn add_assign(&mut self, other: Self) {
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.inodes = self.inodes.saturating_add(other.inodes);
    }
}

/// Adds up what is in `directory`, itself included; nothing when it does not exist. What goes while it is counted is not counted.
///
/// # Errors
/// The directory cannot be opened.
pub fn of(directory: &Path) -> Result<DiskUsage> {
    match openat(CWD, directory, FLAGS, Mode::empty()) {
        Err(Errno::NOENT) => Ok(DiskUsage::default()),
        opened => of_open(opened?),
    }
}

/// The same for a directory that is open.
///
/// # Errors
/// The kernel does not say what it is.
pub fn of_open(opened: OwnedFd) -> Result<DiskUsage> {
    let stat = fstat(&opened)?;
    let mut walk = Walk { device: stat.st_dev, seen: HashSet::new(), sum: DiskUsage::default() };
    walk.count(&stat);
    walk.directory(opened, 0);
    Ok(walk.sum)
}

const FLAGS: OFlags =
    OFlags::DIRECTORY.union(OFlags::NOFOLLOW).union(OFlags::RDONLY).union(OFlags::CLOEXEC);

struct Walk {
    device: u64,
    /// Inodes with several names that were counted.
    seen: HashSet<u64>,
    sum: DiskUsage,
}

impl Walk {
    fn directory(&mut self, directory: OwnedFd, depth: usize) {
        if depth > DEPTH_MAX {
            return;
        }
        // A directory that cannot be read counts with what was seen of it.
        let Ok(entries) = Dir::read_from(&directory) else { return };
        for entry in entries {
            let Ok(entry) = entry else { return };
            let name = entry.file_name();
            if name == c"." || name == c".." {
                continue;
            }
            if self.sum.inodes >= FILES_MAX {
                return;
            }
            if let Some(below) = self.entry(&directory, name) {
                self.directory(below, depth + 1);
            }
        }
    }

    /// Counts an entry; the directory that it is.
    fn entry(&mut self, directory: &OwnedFd, name: &CStr) -> Option<OwnedFd> {
        let stat = statat(directory.as_fd(), name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
        if stat.st_dev != self.device {
            return None;
        }
        self.count(&stat);
        let is_directory = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
        is_directory.then(|| below(directory, name).ok()).flatten()
    }

    fn count(&mut self, stat: &Stat) {
        let is_directory = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
        if !is_directory && stat.st_nlink > 1 && !self.seen.insert(stat.st_ino) {
            return;
        }
        // Blocks are of 512 bytes, whatever the file system's own are.
        let bytes = u64::try_from(stat.st_blocks).unwrap_or(0).saturating_mul(512);
        self.sum += DiskUsage { bytes, inodes: 1 };
    }
}

/// Opens a directory that was just seen in another: that one and no other, whatever its name leads to by now.
fn below(directory: &OwnedFd, name: &CStr) -> Result<OwnedFd> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    match openat2(directory, name, FLAGS, Mode::empty(), resolve) {
        // before Linux 5.6; the name is a plain one, and no link is followed
        Err(Errno::NOSYS) => openat(directory, name, FLAGS, Mode::empty()),
        opened => opened,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_count_once_and_links_lead_nowhere() {
        let dir = tempfile::tempdir().unwrap();
        let inner = dir.path().join("a/b");
        std::fs::create_dir_all(&inner).unwrap();
        std::fs::write(inner.join("f"), vec![1; 100_000]).unwrap();
        let before = of(dir.path()).unwrap();
        assert_eq!(before.inodes, 4);
        assert!(before.bytes >= 100_000, "{before:?}");
        std::fs::hard_link(inner.join("f"), inner.join("g")).unwrap();
        std::os::unix::fs::symlink("/", inner.join("root")).unwrap();
        let after = of(dir.path()).unwrap();
        assert_eq!(after.inodes, before.inodes + 1, "the symbolic link itself");
        assert!(after.bytes < before.bytes + 50_000);
        assert_eq!(of(&dir.path().join("none")).unwrap(), DiskUsage::default());
        assert!(of(&inner.join("root")).is_err(), "the top may not be a link either");
    }
}
