//! What a directory takes of its disk. Walks by descriptor, so that whoever writes there cannot lead the walk elsewhere; stays on the
//! file system; counts a file with several names once; stops at a bound of files, at none of depth.

use std::collections::HashSet;
use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Mode, OFlags, ResolveFlags, Stat, fstat, openat, openat2, statat,
};
use rustix::io::{Errno, Result};

/// Levels of a tree that are walked with a descriptor open for each. Deeper ones are left by their `..`.
const OPEN_MAX: usize = 64;
/// Most directories that wait to be looked into.
const WAITING_MAX: usize = 1_000_000;
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
    let mut walk =
        Walk { device: stat.st_dev, seen: HashSet::new(), waiting: 0, sum: DiskUsage::default() };
    walk.count(&stat);
    walk.tree(opened, &stat);
    Ok(walk.sum)
}

const FLAGS: OFlags =
    OFlags::DIRECTORY.union(OFlags::NOFOLLOW).union(OFlags::RDONLY).union(OFlags::CLOEXEC);

struct Walk {
    device: u64,
    /// Inodes with several names that were counted.
    seen: HashSet<u64>,
    /// Directories that are still to be looked into.
    waiting: usize,
    sum: DiskUsage,
}

/// A directory on the way to where the walk is.
struct Level {
    /// Given up below [`OPEN_MAX`] while a directory in it is looked at.
    opened: Option<OwnedFd>,
    inode: u64,
    /// Directories in it that are still to be looked into.
    waiting: Vec<CString>,
}

impl Walk {
    /// Depth costs neither stack nor descriptors: however deep something lies, it is counted.
    fn tree(&mut self, top: OwnedFd, stat: &Stat) {
        let mut levels = vec![self.level(top, stat.st_ino)];
        while let Some(level) = levels.last_mut() {
            let Some(name) = level.waiting.pop() else {
                let Some(done) = levels.pop() else { return };
                go_up(&mut levels, done.opened);
                continue;
            };
            self.waiting = self.waiting.saturating_sub(1);
            let opened = level.opened.as_ref().and_then(|opened| below(opened, &name).ok());
            let Some(inner) = opened else { continue };
            let Ok(stat) = fstat(&inner) else { continue };
            if levels.len() > OPEN_MAX
                && let Some(level) = levels.last_mut()
            {
                level.opened = None;
            }
            levels.push(self.level(inner, stat.st_ino));
        }
    }

    /// Counts what is in a directory. One that cannot be read counts with what was seen of it.
    fn level(&mut self, opened: OwnedFd, inode: u64) -> Level {
        let mut waiting = Vec::new();
        for entry in Dir::read_from(&opened).into_iter().flatten() {
            let Ok(entry) = entry else { break };
            let name = entry.file_name();
            if name == c"." || name == c".." {
                continue;
            }
            if self.sum.inodes >= FILES_MAX {
                break;
            }
            if self.is_directory(&opened, name) && self.waiting < WAITING_MAX {
                self.waiting = self.waiting.saturating_add(1);
                waiting.push(name.to_owned());
            }
        }
        Level { opened: Some(opened), inode, waiting }
    }

    /// Counts an entry; whether it is a directory to look into.
    fn is_directory(&mut self, directory: &OwnedFd, name: &CStr) -> bool {
        let stat = statat(directory.as_fd(), name, AtFlags::SYMLINK_NOFOLLOW);
        let Some(stat) = stat.ok().filter(|stat| stat.st_dev == self.device) else { return false };
        self.count(&stat);
        FileType::from_raw_mode(stat.st_mode) == FileType::Directory
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

/// Opens the last of the levels again, if it is not open: it is what `done` lies in. Should that have been moved meanwhile, the walk goes
/// on above, where it is open.
fn go_up(levels: &mut Vec<Level>, done: Option<OwnedFd>) {
    let Some(level) = levels.last_mut().filter(|level| level.opened.is_none()) else { return };
    let above = done.and_then(|done| openat(done, "..", FLAGS, Mode::empty()).ok());
    level.opened = above.filter(|above| fstat(above).is_ok_and(|stat| stat.st_ino == level.inode));
    while levels.last().is_some_and(|level| level.opened.is_none()) {
        levels.pop();
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

    #[test]
    fn nothing_is_too_deep_to_count() {
        let dir = tempfile::tempdir().unwrap();
        let mut directory = openat(CWD, dir.path(), FLAGS, Mode::empty()).unwrap();
        for _ in 0..1_000 {
            // Beside the way down lies something to come back for.
            for name in ["beside", "down"] {
                rustix::fs::mkdirat(&directory, name, Mode::from_raw_mode(0o700)).unwrap();
            }
            directory = openat(&directory, "down", FLAGS, Mode::empty()).unwrap();
        }
        let flags = OFlags::CREATE | OFlags::WRONLY;
        let file = openat(&directory, "f", flags, Mode::from_raw_mode(0o600)).unwrap();
        std::io::Write::write_all(&mut std::fs::File::from(file), &[1; 100_000]).unwrap();
        let open = || std::fs::read_dir("/proc/self/fd").unwrap().count();
        let (before, found) = (open(), of(dir.path()).unwrap());
        assert_eq!(found.inodes, 2_002);
        assert!(found.bytes >= 100_000, "{found:?}");
        assert!(open() < before + 20);
    }
}
