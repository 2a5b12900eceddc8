//! A binding that is brought up to date under whoever uses it: what they see changes from the old to the new at once, and is never
//! nothing.
//!
//! ```text
//!   what is bound   shared; a container's own mount is of what lay on top when it started, and receives what is mounted on that
//!     newest        mounted on it; the next is put beneath this one, which is then taken off
//! ```
//!
//! Whatever lay on top when a container started must stay, so that the first after a start always comes on top.

use std::os::fd::AsFd;

use rustix::io::Errno;
use rustix::mount::{MountPropagationFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags};

use super::{by_number, sys};
use crate::beneath;

/// Puts a mount beneath the one that is seen (Linux 6.5).
const BENEATH: MoveMountFlags = MoveMountFlags::from_bits_retain(0x200);

/// Has what is mounted on the binding `name` of `parent` from now on travel to whoever was given it.
///
/// # Errors
/// What the kernel says.
pub(crate) fn lead(parent: impl AsFd, name: &str) -> rustix::io::Result<()> {
    let path = format!("{}/{name}", by_number(&parent));
    rustix::mount::mount_change(path, MountPropagationFlags::SHARED)
}

/// How a newer version is put in the place of what is seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Renewal {
    /// On top of it, which stays.
    OnTop,
    /// Instead of it. Before Linux 6.5 what lies below shows for a moment in between.
    Instead,
}

/// Shows what is open as `source` where the binding `name` of `parent` is.
///
/// # Errors
/// What the kernel says; what is seen is then the old.
pub(crate) fn replace(
    source: impl AsFd,
    parent: impl AsFd,
    name: &str,
    how: Renewal,
) -> rustix::io::Result<()> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_EMPTY_PATH;
    let new = rustix::mount::open_tree(source.as_fd(), "", flags)?;
    // Else what is mounted on it would show where it comes from.
    sys::seclude(&new)?;
    let put = |place: MoveMountFlags| {
        let seen = beneath::handle(parent.as_fd(), name)?.ok_or(Errno::NOENT)?;
        let whole =
            MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
        rustix::mount::move_mount(&new, "", &seen, "", whole | place)
    };
    let take_off = || {
        let path = format!("{}/{name}", by_number(&parent));
        rustix::mount::unmount(path, UnmountFlags::NOFOLLOW | UnmountFlags::DETACH)
    };
    if how == Renewal::OnTop {
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
