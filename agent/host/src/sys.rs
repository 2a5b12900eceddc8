//! Registration of files with the async runtime, and a handler of the process' own abort.
#![allow(
    unsafe_code,
    reason = "the runtime asks for a promise about the descriptor; handlers of signals have no safe wrapper"
)]

use std::fs::File;
use std::os::fd::IntoRawFd as _;
use std::sync::atomic::{AtomicI32, Ordering};

use nix::libc;
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// A file whose readiness can be awaited. Needs a tokio runtime.
pub(crate) fn async_fd(file: File, interest: Interest) -> std::io::Result<AsyncFd<File>> {
    // SAFETY: the file owns its descriptor, keeps the same one while it lives, and is moved into the registration, which is
    // removed before the file is closed.
    let registered = unsafe { AsyncFd::register_with_interest(file, interest) };
    Ok(registered?)
}

/// The descriptor that [`mark`] writes to. It is never closed.
static MARKED: AtomicI32 = AtomicI32::new(-1);

extern "C" fn mark(signal: libc::c_int) {
    // SAFETY: pwrite and raise are safe in handlers of signals (signal-safety(7)). The byte is static, and the descriptor is never closed. The signal
    // is blocked here and has its default action again: it ends the process when this returns.
    unsafe {
        libc::pwrite(MARKED.load(Ordering::Relaxed), b"1".as_ptr().cast(), 1, 0);
        libc::raise(signal);
    }
}

/// From now on an abort of this process writes `1` in the place of the first byte of `file`.
pub(crate) fn mark_aborts(file: File) -> nix::Result<()> {
    MARKED.store(file.into_raw_fd(), Ordering::Relaxed);
    // On the stack that is kept for handlers: a stack that ran full ends in an abort, too.
    let flags = SaFlags::SA_RESETHAND | SaFlags::SA_ONSTACK;
    let action = SigAction::new(SigHandler::Handler(mark), flags, SigSet::empty());
    for signal in [Signal::SIGABRT, Signal::SIGILL] {
        // SAFETY: the handler calls only functions that are safe in handlers, and touches no state but an atomic number.
        unsafe { sigaction(signal, &action) }?;
    }
    Ok(())
}
