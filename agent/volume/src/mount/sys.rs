//! The one call of mounts that the libraries lack, in its two uses.
#![allow(unsafe_code, reason = "a system call that no library wraps")]

use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd as _};

use rustix::io::Errno;

/// Makes `tree` and everything mounted below it read-only, and cuts all of it off from mounts made elsewhere later. All or nothing.
///
/// # Errors
/// `ENOSYS` before Linux 5.12; otherwise what the kernel says.
pub(super) fn freeze(tree: impl AsFd) -> rustix::io::Result<()> {
    set(tree, libc::MOUNT_ATTR_RDONLY, libc::AT_RECURSIVE)
}

/// Cuts `tree` off from mounts made elsewhere later.
///
/// # Errors
/// The same.
pub(super) fn seclude(tree: impl AsFd) -> rustix::io::Result<()> {
    set(tree, 0, 0)
}

fn set(tree: impl AsFd, attr_set: u64, extent: libc::c_int) -> rustix::io::Result<()> {
    let attributes =
        libc::mount_attr { attr_set, attr_clr: 0, propagation: libc::MS_PRIVATE, userns_fd: 0 };
    let flags = libc::AT_EMPTY_PATH | extent;
    // SAFETY: the descriptor is open for the call, the path is a constant that ends with a zero byte, and the kernel only reads the
    // attributes, whose size it is told.
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
