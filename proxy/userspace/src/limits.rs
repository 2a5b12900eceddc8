//! Limits of a forwarder.

use std::time::Duration;

use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Open files reserved for other purposes than connections.
const FILES_BESIDE: u64 = 1024;

/// Bounds and times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForwarderLimits {
    /// Listening sockets.
    pub frontends: usize,
    /// Connections and sessions of all frontends. A connection uses two files, a session one.
    pub connections: usize,
    /// Those of one client, except for local processes.
    pub each: usize,
    /// Sessions of one UDP frontend; beyond that the one that is idle for the longest time ends.
    pub sessions: usize,
    /// Timeout of connecting to an endpoint.
    pub dial: Duration,
    /// Idle timeout of UDP sessions.
    pub idle: Duration,
}

impl ForwarderLimits {
    /// Raises this process's limit of open files as far as it may; connections are limited by it, and by the default.
    pub fn of_open_files() -> Self {
        let most = Self::default();
        let Ok((_, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else { return most };
        if let Err(error) = setrlimit(Resource::RLIMIT_NOFILE, hard, hard) {
            tracing::debug!(%error, "cannot raise the limit of open files; it keeps its value");
        }
        let (files, _) = getrlimit(Resource::RLIMIT_NOFILE).unwrap_or((hard, hard));
        let fit = usize::try_from(files.saturating_sub(FILES_BESIDE) / 2);
        let fit = fit.unwrap_or(most.connections);
        Self { connections: most.connections.min(fit.max(1)), ..most }
    }
}

impl Default for ForwarderLimits {
    fn default() -> Self {
        Self {
            frontends: 65_536,
            connections: 16_384,
            each: 4096,
            sessions: 4096,
            dial: Duration::from_secs(2),
            // As conntrack's timeout of unreplied UDP flows.
            idle: Duration::from_secs(30),
        }
    }
}
