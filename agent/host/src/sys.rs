//! Registration of files with the async runtime.
#![allow(unsafe_code, reason = "the runtime asks for a promise about the descriptor")]

use std::fs::File;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// A file whose readiness can be awaited. Needs a tokio runtime.
pub(crate) fn async_fd(file: File, interest: Interest) -> std::io::Result<AsyncFd<File>> {
    // SAFETY: the file owns its descriptor, keeps the same one while it lives, and is moved into the registration, which is
    // removed before the file is closed.
    let registered = unsafe { AsyncFd::register_with_interest(file, interest) };
    Ok(registered?)
}
