//! File systems in memory that are only said to be there: plain directories and a table of them, a thread's own. Tests that make
//! thousands of volumes need neither privilege nor the kernel's time for them; what is mounted for good is tried elsewhere.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::Mode;
use rustix::io::Errno;

use super::{Tmpfs, by_number};
use crate::beneath;

thread_local! {
    /// By place, the number of the directory that stands for what is mounted there. A directory that was removed took it along.
    static MOUNTED: RefCell<Option<BTreeMap<PathBuf, u64>>> = const { RefCell::new(None) };
}

/// Whether this thread has a table; with `true` an empty one.
pub fn set(on: bool) {
    MOUNTED.with_borrow_mut(|table| *table = on.then(BTreeMap::new));
}

/// Whether something is said to be mounted at `path`.
#[must_use]
pub fn is_mounted(path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt as _;
    let inode = path.symlink_metadata().map(|meta| meta.ino()).ok();
    MOUNTED.with_borrow(|table| {
        let known = table.as_ref().and_then(|table| table.get(path));
        known.is_some() && known.copied() == inode
    })
}

/// No mount outlives a boot: what was in them is gone, the directories stay.
pub fn lose_all() {
    let mounted = MOUNTED.with_borrow_mut(|table| table.as_mut().map(std::mem::take));
    for path in mounted.unwrap_or_default().into_keys() {
        if std::fs::remove_dir_all(&path).is_ok() {
            // As it was under the mount. A parent that is gone has taken it along.
            let _ = std::fs::create_dir(&path);
        }
    }
}

pub(super) fn is_on() -> bool {
    MOUNTED.with_borrow(Option::is_some)
}

pub(super) fn tmpfs_on<E: From<Errno>>(
    parent: impl AsFd,
    name: &str,
    tmpfs: Tmpfs,
    prepare: impl FnOnce(&OwnedFd) -> Result<(), E>,
) -> Result<OwnedFd, E> {
    let directory = beneath::make_directory(parent.as_fd(), name, 0o700)?;
    let path = std::fs::read_link(by_number(&directory));
    let path = path.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
    if is_mounted(&path) {
        return Ok(directory);
    }
    rustix::fs::fchmod(&directory, Mode::from_raw_mode(tmpfs.mode))?;
    if let Err(error) = prepare(&directory) {
        // What was not moved to its place was never seen.
        beneath::remove(parent.as_fd(), name)?;
        return Err(error);
    }
    let inode = rustix::fs::fstat(&directory)?.st_ino;
    MOUNTED.with_borrow_mut(|table| table.as_mut().map(|table| table.insert(path, inode)));
    Ok(directory)
}
