//! The limit of open files.

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use proxy_userspace::ForwarderLimits;

/// Open files reserved for other purposes than connections.
const FILES_BESIDE: u64 = 1024;

/// Maximum of concurrent connections: by the limit of open files, within the forwarder's own limit.
pub(crate) fn connections() -> usize {
    let most = ForwarderLimits::default().connections;
    let Ok((_, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else { return most };
    if let Err(error) = setrlimit(Resource::RLIMIT_NOFILE, hard, hard) {
        tracing::debug!(%error, "cannot raise the limit of open files; it keeps its value");
    }
    let (files, _) = getrlimit(Resource::RLIMIT_NOFILE).unwrap_or((hard, hard));
    let fit = usize::try_from(files.saturating_sub(FILES_BESIDE) / 2).unwrap_or(most);
    most.min(fit.max(1))
}
