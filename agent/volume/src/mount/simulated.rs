//! Simulated in-memory file systems: plain directories and a per-thread table of mounts. Tests that create thousands of volumes
//! need neither privileges nor mount calls with it; real mounts are tested elsewhere.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::Mode;
use rustix::io::Errno;

use super::{Tmpfs, by_number};
use crate::beneath;

thread_local! {
    /// Inode of the directory that stands for the mount, by path. A removed directory removes the mount.
    static MOUNTED: RefCell<Option<BTreeMap<PathBuf, u64>>> = const { RefCell::new(None) };
}

/// Enables an empty table for this thread, or disables it.
pub fn set(on: bool) {
    MOUNTED.with_borrow_mut(|table| *table = on.then(BTreeMap::new));
}

/// Whether `path` is a simulated mount point.
#[must_use]
pub fn is_mounted(path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt as _;
    let inode = path.symlink_metadata().map(|meta| meta.ino()).ok();
    MOUNTED.with_borrow(|table| {
        let known = table.as_ref().and_then(|table| table.get(path));
        known.is_some() && known.copied() == inode
    })
}

/// Simulates a reboot: the content of mounts is lost, the directories stay.
pub fn lose_all() {
    let mounted = MOUNTED.with_borrow_mut(|table| table.as_mut().map(std::mem::take));
    for path in mounted.unwrap_or_default().into_keys() {
        if std::fs::remove_dir_all(&path).is_ok() {
            // The directory under the mount is empty again; if its parent is gone, so is the mount.
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
        // A mount that was not moved into place was never visible.
        beneath::remove(parent.as_fd(), name)?;
        return Err(error);
    }
    let inode = rustix::fs::fstat(&directory)?.st_ino;
    MOUNTED.with_borrow_mut(|table| table.as_mut().map(|table| table.insert(path, inode)));
    Ok(directory)
}
