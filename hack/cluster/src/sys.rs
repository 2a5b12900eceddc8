//! What has no safe form: work between fork and exec.
#![allow(unsafe_code, reason = "pre_exec is unsafe by signature")]

use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::Command;

use nix::sched::{CloneFlags, setns, unshare};

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
