//! What the listeners of a forwarder share.

use std::net::IpAddr;
use std::sync::{Arc, PoisonError, RwLock};

use proto_daemon::drain::DrainWatch;

use crate::connection_limiter::ConnectionLimiter;
use crate::limits::ForwarderLimits;
use crate::listening::ListeningFrontends;
use crate::metrics::ForwardMetrics;
use crate::plan::ClusterRange;

/// State that all listeners share.
#[derive(Debug)]
pub struct Shared {
    /// Bounds and times.
    pub limits: ForwarderLimits,
    /// Permits for connections and sessions of all frontends.
    pub room: ConnectionLimiter,
    /// What is counted.
    pub metrics: ForwardMetrics,
    /// Held by each connection, so that the program waits for it when it ends.
    pub drain: DrainWatch,
    /// The open frontends.
    pub listening: ListeningFrontends,
    inside: RwLock<Arc<ClusterRange>>,
}

impl Shared {
    /// The cluster's clients are not known yet.
    pub fn new(limits: ForwarderLimits, metrics: ForwardMetrics, drain: DrainWatch) -> Self {
        // With a low limit of open files a client's share shrinks too.
        let each = limits.each.min(limits.connections.div_ceil(4));
        let room = ConnectionLimiter::new(limits.connections, each);
        let listening = ListeningFrontends::default();
        Self { limits, room, metrics, drain, listening, inside: RwLock::default() }
    }

    /// Sets the clients inside the cluster.
    pub fn set_inside(&self, inside: ClusterRange) {
        *self.inside.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(inside);
    }

    /// Whether a client is inside the cluster.
    pub fn is_inside(&self, client: IpAddr) -> bool {
        let inside = self.inside.read().unwrap_or_else(PoisonError::into_inner).clone();
        inside.contains(client)
    }
}
