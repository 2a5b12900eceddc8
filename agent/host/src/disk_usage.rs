//! Disk usage of a directory. The walk uses file descriptors, so a process that can write there cannot redirect it; it stays on the file
//! system, counts hard links once, and is bounded in the number of files and in time ([`WalkBudget`]) but not in depth.

use std::collections::HashSet;
use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Mode, OFlags, ResolveFlags, Stat, fstat, openat, openat2, statat,
};
use rustix::io::{Errno, Result};

/// Directory levels kept open during the walk; deeper ones are left through `..`.
const OPEN_MAX: usize = 64;
/// Most directories queued.
const WAITING_MAX: usize = 1_000_000;
/// Most files that [`measure`] looks at.
const FILES_MAX: u64 = 5_000_000;
/// Interval at which a walk looks at the clock, in files.
const FILES_PER_LOOK: u64 = 256;

/// Disk usage of a directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskUsage {
    /// Bytes of the allocated blocks.
    pub bytes: u64,
    /// Number of files and directories.
    pub inodes: u64,
}

impl std::ops::AddAssign for DiskUsage {
    fn add_assign(&mut self, other: Self) {
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.inodes = self.inodes.saturating_add(other.inodes);
    }
}

/// What is left of the files and the time that walks may take together. A walk that exceeds it ends, and its result is a lower bound.
#[derive(Clone, Copy, Debug)]
pub struct WalkBudget {
    files: u64,
    until: Option<Instant>,
    is_exceeded: bool,
}

impl WalkBudget {
    /// A budget that begins now.
    pub fn new(files: u64, time: Duration) -> Self {
        Self { files, until: Instant::now().checked_add(time), is_exceeded: false }
    }

    /// Whether a walk ended before it had seen all files.
    pub fn is_exceeded(&self) -> bool {
        self.is_exceeded
    }

    /// Takes one file; false if none is left.
    fn take_file(&mut self) -> bool {
        let looks = self.files.is_multiple_of(FILES_PER_LOOK);
        let is_late = looks && self.until.is_some_and(|until| Instant::now() >= until);
        if is_late || self.files == 0 {
            self.is_exceeded = true;
        }
        self.files = self.files.saturating_sub(1);
        !self.is_exceeded
    }
}

/// Measures `directory` including itself; zero if it does not exist. Files removed during the walk are not counted.
///
/// # Errors
/// The directory cannot be opened.
pub fn measure(directory: &Path) -> Result<DiskUsage> {
    measure_within(directory, &mut without_time_limit())
}

/// The same within a budget.
///
/// # Errors
/// The directory cannot be opened.
pub fn measure_within(directory: &Path, budget: &mut WalkBudget) -> Result<DiskUsage> {
    match openat(CWD, directory, FLAGS, Mode::empty()) {
        Err(Errno::NOENT) => Ok(DiskUsage::default()),
        opened => measure_open_within(opened?, budget),
    }
}

/// Measures an open directory.
///
/// # Errors
/// The kernel cannot stat it.
pub fn measure_open(opened: OwnedFd) -> Result<DiskUsage> {
    measure_open_within(opened, &mut without_time_limit())
}

/// The same within a budget.
///
/// # Errors
/// The kernel cannot stat it.
pub fn measure_open_within(opened: OwnedFd, budget: &mut WalkBudget) -> Result<DiskUsage> {
    let stat = fstat(&opened)?;
    let (seen, sum) = (HashSet::new(), DiskUsage::default());
    let mut walk = Walk { device: stat.st_dev, budget, seen, waiting: 0, sum };
    walk.count(&stat);
    walk.tree(opened, &stat);
    Ok(walk.sum)
}

fn without_time_limit() -> WalkBudget {
    WalkBudget { files: FILES_MAX, until: None, is_exceeded: false }
}

const FLAGS: OFlags =
    OFlags::DIRECTORY.union(OFlags::NOFOLLOW).union(OFlags::RDONLY).union(OFlags::CLOEXEC);

struct Walk<'a> {
    device: u64,
    budget: &'a mut WalkBudget,
    /// Inodes with several hard links that were counted.
    seen: HashSet<u64>,
    /// Number of queued directories.
    waiting: usize,
    sum: DiskUsage,
}

/// A directory on the path to the current position.
struct Level {
    /// Closed below [`OPEN_MAX`] levels while a directory in it is walked.
    opened: Option<OwnedFd>,
    inode: u64,
    /// Directories in it that are not walked yet.
    waiting: Vec<CString>,
}

impl Walk<'_> {
    /// Walks a tree. Depth costs neither stack nor file descriptors.
    fn tree(&mut self, top: OwnedFd, stat: &Stat) {
        let mut levels = vec![self.level(top, stat.st_ino)];
        while let Some(level) = levels.last_mut().filter(|_| !self.budget.is_exceeded) {
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

    /// Counts the entries of a directory; an unreadable one counts as far as it was read.
    fn level(&mut self, opened: OwnedFd, inode: u64) -> Level {
        let mut waiting = Vec::new();
        for entry in Dir::read_from(&opened).into_iter().flatten() {
            let Ok(entry) = entry else { break };
            let name = entry.file_name();
            if name == c"." || name == c".." {
                continue;
            }
            if !self.budget.take_file() {
                break;
            }
            if !self.is_directory(&opened, name) {
                continue;
            }
            if self.waiting >= WAITING_MAX {
                self.budget.is_exceeded = true;
                break;
            }
            self.waiting = self.waiting.saturating_add(1);
            waiting.push(name.to_owned());
        }
        Level { opened: Some(opened), inode, waiting }
    }

    /// Counts an entry; returns whether it is a directory to walk.
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
        // `st_blocks` counts units of 512 bytes on every file system.
        let bytes = u64::try_from(stat.st_blocks).unwrap_or(0).saturating_mul(512);
        self.sum += DiskUsage { bytes, inodes: 1 };
    }
}

/// Reopens the last level as the parent of `done` if it is closed. If `done` was moved meanwhile, the walk continues at the next
/// open level.
fn go_up(levels: &mut Vec<Level>, done: Option<OwnedFd>) {
    let Some(level) = levels.last_mut().filter(|level| level.opened.is_none()) else { return };
    let above = done.and_then(|done| openat(done, "..", FLAGS, Mode::empty()).ok());
    level.opened = above.filter(|above| fstat(above).is_ok_and(|stat| stat.st_ino == level.inode));
    while levels.last().is_some_and(|level| level.opened.is_none()) {
        levels.pop();
    }
}

/// Opens a directory just found in another, and only that one, whatever its name refers to by now.
fn below(directory: &OwnedFd, name: &CStr) -> Result<OwnedFd> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    match openat2(directory, name, FLAGS, Mode::empty(), resolve) {
        // Before Linux 5.6; the name is plain, and no link is followed.
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
        let before = measure(dir.path()).unwrap();
        assert_eq!(before.inodes, 4);
        assert!(before.bytes >= 100_000, "{before:?}");
        std::fs::hard_link(inner.join("f"), inner.join("g")).unwrap();
        std::os::unix::fs::symlink("/", inner.join("root")).unwrap();
        let after = measure(dir.path()).unwrap();
        assert_eq!(after.inodes, before.inodes + 1, "the symbolic link itself");
        assert!(after.bytes < before.bytes + 50_000);
        assert_eq!(measure(&dir.path().join("none")).unwrap(), DiskUsage::default());
        assert!(measure(&inner.join("root")).is_err(), "the top may not be a link either");
    }

    #[test]
    fn a_walk_ends_with_its_budget() {
        let dir = tempfile::tempdir().unwrap();
        for directory in ["a", "b", "c"] {
            std::fs::create_dir(dir.path().join(directory)).unwrap();
            for file in 0..20 {
                std::fs::write(dir.path().join(format!("{directory}/{file}")), "x").unwrap();
            }
        }
        let within = |files, time| {
            let mut budget = WalkBudget::new(files, time);
            let sum = [(); 2].map(|()| measure_within(dir.path(), &mut budget).unwrap().inodes);
            (sum, budget.is_exceeded())
        };
        let hour = Duration::from_secs(3600);
        assert_eq!(
            within(126, hour),
            ([64, 64], false),
            "the tops are counted, and not looked for"
        );
        assert_eq!(within(125, hour), ([64, 63], true));
        assert_eq!(within(10, hour), ([11, 1], true), "the walks share it");
        assert_eq!(within(256, Duration::ZERO), ([1, 1], true));
    }

    #[test]
    fn nothing_is_too_deep_to_count() {
        let dir = tempfile::tempdir().unwrap();
        let mut directory = openat(CWD, dir.path(), FLAGS, Mode::empty()).unwrap();
        for _ in 0..1_000 {
            // Directories next to the path have to be walked later.
            for name in ["beside", "down"] {
                rustix::fs::mkdirat(&directory, name, Mode::from_raw_mode(0o700)).unwrap();
            }
            directory = openat(&directory, "down", FLAGS, Mode::empty()).unwrap();
        }
        let flags = OFlags::CREATE | OFlags::WRONLY;
        let file = openat(&directory, "f", flags, Mode::from_raw_mode(0o600)).unwrap();
        std::io::Write::write_all(&mut std::fs::File::from(file), &[1; 100_000]).unwrap();
        let open = || std::fs::read_dir("/proc/self/fd").unwrap().count();
        let (before, found) = (open(), measure(dir.path()).unwrap());
        assert_eq!(found.inodes, 2_002);
        assert!(found.bytes >= 100_000, "{found:?}");
        assert!(open() < before + 20);
    }
}
