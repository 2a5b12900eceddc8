//! What has no safe form: work between fork and exec, and waiting for a descriptor.
#![allow(unsafe_code, reason = "pre_exec and readiness of descriptors are unsafe by signature")]

use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::Command;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Makes `command` leave the caller's session, so that signals typed at a terminal do not reach it, and keep none of the
/// caller's descriptors but its own standard ones, so that what reads the caller's pipes sees their end.
pub fn run_in_new_session(command: &mut Command) {
    // SAFETY: two system calls and no allocation, which is allowed between fork and exec. The second one closes nothing before exec.
    unsafe {
        command.pre_exec(|| {
            nix::unistd::setsid()?;
            let (first, last) = (3, std::ffi::c_uint::MAX);
            let flags = nix::libc::CLOSE_RANGE_CLOEXEC;
            match nix::libc::syscall(nix::libc::SYS_close_range, first, last, flags) {
                0 => Ok(()),
                // Linux before 5.9: what std opens is closed by exec anyway.
                _ => match std::io::Error::last_os_error() {
                    error if error.raw_os_error() == Some(nix::libc::ENOSYS) => Ok(()),
                    error => Err(error),
                },
            }
        });
    }
}

/// Resolves when `fd` becomes readable.
pub fn readiness(fd: OwnedFd) -> std::io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: the descriptor is owned by what is returned, so it stays open and the same while it is registered.
    let registered = unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) };
    registered.map_err(Into::into)
}
