//! Limits of a forwarder.

use std::time::Duration;

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
