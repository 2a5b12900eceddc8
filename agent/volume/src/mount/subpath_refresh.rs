//! Refresh of a bind mount that containers use: they see the old file, then the new one, and never none.
//!
//! ```text
//!   the bind mount   shared; a container's mount is of what was on top when it started, and receives mounts made on that
//!     newest         mounted on it; the next one is mounted beneath this one, which is then unmounted
//!
//! What was on top when a container started has to stay, so the first refresh after a start is always mounted on top.

use std::os::fd::AsFd;

use rustix::io::Errno;
use rustix::mount::{MountPropagationFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags};

use super::{by_number, sys};
use crate::beneath;

/// Mounts beneath the top mount (Linux 6.5).
const BENEATH: MoveMountFlags = MoveMountFlags::from_bits_retain(0x200);

/// Makes the bind mount `name` in `parent` shared, so that later mounts on it propagate to containers that use it.
///
/// # Errors
/// Errors of the kernel.
pub(crate) fn make_shared(parent: impl AsFd, name: &str) -> rustix::io::Result<()> {
    let path = format!("{}/{name}", by_number(&parent));
    rustix::mount::mount_change(path, MountPropagationFlags::SHARED)
}

/// How a newer version replaces the visible one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefreshMethod {
    /// Mounted on top; the old one stays below.
    OnTop,
    /// Replaces the old one. Before Linux 6.5 the mount below is visible for a moment.
    Instead,
}

/// Mounts the open file `source` over the bind mount `name` in `parent`.
///
/// # Errors
/// Errors of the kernel; the old version stays visible.
pub(crate) fn replace(
    source: impl AsFd,
    parent: impl AsFd,
    name: &str,
    how: RefreshMethod,
) -> rustix::io::Result<()> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_EMPTY_PATH;
    let new = rustix::mount::open_tree(source.as_fd(), "", flags)?;
    // Otherwise mounts on it would also appear at its origin.
    sys::seclude(&new)?;
    let put = |place: MoveMountFlags| {
        let seen = beneath::open_handle(parent.as_fd(), name)?.ok_or(Errno::NOENT)?;
        let whole =
            MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
        rustix::mount::move_mount(&new, "", &seen, "", whole | place)
    };
    let take_off = || {
        let path = format!("{}/{name}", by_number(&parent));
        rustix::mount::unmount(path, UnmountFlags::NOFOLLOW | UnmountFlags::DETACH)
    };
    if how == RefreshMethod::OnTop {
        return put(MoveMountFlags::empty());
    }
    match put(BENEATH) {
        Ok(()) => take_off(),
        Err(Errno::INVAL) => {
            take_off()?;
            put(MoveMountFlags::empty())
        }
        Err(error) => Err(error),
    }
}
