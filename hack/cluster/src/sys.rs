//! What has no safe form: work between fork and exec, and waiting for a descriptor.
#![allow(unsafe_code, reason = "pre_exec and readiness of descriptors are unsafe by signature")]

use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::Command;

use nix::sched::{CloneFlags, setns, unshare};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Makes `command` run in the network, mount and host-name namespaces of the process behind `holder` (a pidfd).
pub fn run_in_namespaces_of(command: &mut Command, holder: OwnedFd) {
    let kinds = CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWUTS;
    // SAFETY: the closure only makes one system call and allocates nothing, which is allowed between fork and exec.
    unsafe {
        command.pre_exec(move || setns(&holder, kinds).map_err(std::io::Error::from));
    }
}

/// Makes `command` start in network, mount and host-name namespaces of its own.
pub fn run_in_new_namespaces(command: &mut Command) {
    let kinds = CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWUTS;
    // SAFETY: as above, one system call and no allocation.
    unsafe {
        command.pre_exec(move || unshare(kinds).map_err(std::io::Error::from));
    }
}

/// Makes `command` leave the caller's session, so that signals typed at a terminal do not reach it, and keep none of the
/// caller's descriptors but its own standard ones, so that what reads the caller's pipes sees their end.
pub fn run_in_new_session(command: &mut Command) {
    // SAFETY: as above, two system calls and no allocation. The second one closes nothing before exec.
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

/// Tells when `fd` becomes readable.
pub fn readiness(fd: OwnedFd) -> std::io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: the descriptor is owned by what is returned, so it stays open and the same while it is registered.
    let registered = unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) };
    registered.map_err(Into::into)
}
