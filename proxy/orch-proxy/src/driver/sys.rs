//! The kernel's notices as something that the runtime waits for.
#![allow(unsafe_code, reason = "the runtime cannot see that a descriptor stays open")]

use proxy_kernel::Notices;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Has the runtime say when there are notices to read.
pub(super) fn readiness(notices: Notices) -> std::io::Result<AsyncFd<Notices>> {
    // SAFETY: the descriptor is that of the socket in `notices`, which neither replaces nor closes it while it lives,
    // and `notices` lives as long as what is made of it here.
    let registered = unsafe { AsyncFd::register_with_interest(notices, Interest::READABLE) };
    registered.map_err(Into::into)
}
