//! Registers the notification socket with the async runtime.
#![allow(unsafe_code, reason = "the runtime cannot see that a descriptor stays open")]

use proxy_kernel::NftMonitor;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Makes readiness of the socket awaitable.
pub(super) fn register(nft_monitor: NftMonitor) -> std::io::Result<AsyncFd<NftMonitor>> {
    // SAFETY: the descriptor belongs to the socket in `nft_monitor`, which neither replaces nor closes it while it
    // lives, and the returned value owns `nft_monitor`.
    let registered = unsafe { AsyncFd::register_with_interest(nft_monitor, Interest::READABLE) };
    registered.map_err(Into::into)
}
