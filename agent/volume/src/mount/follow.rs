//! A binding that is brought up to date under whoever uses it: what they see changes from the old to the new at once, and is never
//! nothing.
//!
//! ```text
//!   first binding   shared; a container's own mount of it receives what is mounted on it
//!     newest        mounted on it; the next is put beneath this one, which is then taken off
//! ```

use std::os::fd::AsFd;
use std::path::Path;

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

/// Shows what is open as `source` where the binding `name` of `parent` is, whose path is `at`. Before Linux 6.5 what was bound first
/// shows for a moment in between.
///
/// # Errors
/// What the kernel says; what is seen is then the old.
pub(crate) fn replace(
    source: impl AsFd,
    parent: impl AsFd,
    name: &str,
    at: &Path,
) -> rustix::io::Result<()> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_EMPTY_PATH;
    let new = rustix::mount::open_tree(source.as_fd(), "", flags)?;
    // Else what is mounted on it would show where it comes from.
    sys::seclude(&new)?;
    let put = |how: MoveMountFlags| {
        let seen = beneath::handle(parent.as_fd(), name)?.ok_or(Errno::NOENT)?;
        let whole =
            MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
        rustix::mount::move_mount(&new, "", &seen, "", whole | how)
    };
    let take_off = || {
        let path = format!("{}/{name}", by_number(&parent));
        rustix::mount::unmount(path, UnmountFlags::NOFOLLOW | UnmountFlags::DETACH)
    };
    if depth(at)? < 2 {
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

/// How many mounts lie on a place, one over the other.
fn depth(at: &Path) -> rustix::io::Result<usize> {
    let table = std::fs::read_to_string("/proc/self/mountinfo");
    let table = table.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
    // The table writes spaces in octal.
    let at = at.to_string_lossy().replace(' ', "\\040");
    Ok(table.lines().filter(|line| line.split(' ').nth(4) == Some(&at)).count())
}
