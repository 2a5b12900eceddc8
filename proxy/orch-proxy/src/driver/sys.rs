//! The kernel's notices as something that the runtime waits for.
#![allow(unsafe_code, reason = "the runtime cannot see that a descriptor stays open")]

use proxy_kernel::NftMonitor;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Has the runtime say when there are notices to read.
pub(super) fn register(nft_monitor: NftMonitor) -> std::io::Result<AsyncFd<NftMonitor>> {
    // SAFETY: the descriptor is that of the socket in `nft_monitor`, which neither replaces nor closes it while it lives,
    // and `nft_monitor` lives as long as what is made of it here.
    let registered = unsafe { AsyncFd::register_with_interest(nft_monitor, Interest::READABLE) };
    registered.map_err(Into::into)
}
