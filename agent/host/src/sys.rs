//! Registers files with the async runtime.
#![allow(unsafe_code, reason = "the runtime asks for a promise about the descriptor")]

use std::fs::File;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// A file whose readiness of that kind can be waited for. Needs a runtime.
pub(crate) fn awaited(file: File, interest: Interest) -> std::io::Result<AsyncFd<File>> {
    // SAFETY: the file owns its descriptor, names the same one for as long as it lives, and goes into the registration, which is
    // taken back before the file is closed.
    let registered = unsafe { AsyncFd::register_with_interest(file, interest) };
    Ok(registered?)
}
