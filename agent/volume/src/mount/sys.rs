//! `mount_setattr(2)`, which the libraries lack, in its two uses.
#![allow(unsafe_code, reason = "a system call that no library wraps")]

use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd as _};

use rustix::io::Errno;

/// Makes `tree` and all mounts below it read-only and stops propagation of later mounts into it. All or nothing.
///
/// # Errors
/// `ENOSYS` before Linux 5.12; otherwise errors of the kernel.
pub(super) fn freeze(tree: impl AsFd) -> rustix::io::Result<()> {
    set(tree, libc::MOUNT_ATTR_RDONLY, libc::AT_RECURSIVE)
}

/// Stops propagation of later mounts into `tree`.
///
/// # Errors
/// As above.
pub(super) fn seclude(tree: impl AsFd) -> rustix::io::Result<()> {
    set(tree, 0, 0)
}

fn set(tree: impl AsFd, attr_set: u64, extent: libc::c_int) -> rustix::io::Result<()> {
    let attributes =
        libc::mount_attr { attr_set, attr_clr: 0, propagation: libc::MS_PRIVATE, userns_fd: 0 };
    let flags = libc::AT_EMPTY_PATH | extent;
    // SAFETY: the descriptor is open during the call, the path is a constant with a terminating NUL, and the kernel only reads
    // the attributes, whose size is passed.
    let done = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            tree.as_fd().as_raw_fd(),
            c"".as_ptr(),
            flags,
            &raw const attributes,
            size_of::<libc::mount_attr>(),
        )
    };
    if done == 0 {
        return Ok(());
    }
    let error = std::io::Error::last_os_error();
    Err(Errno::from_io_error(&error).unwrap_or(Errno::IO))
}
