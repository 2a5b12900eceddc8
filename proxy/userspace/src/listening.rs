//! The frontends at which this process listens. An endpoint that is one of them leads back here: a connection would become another one of this process,
//! and that one the next, until no more are admitted.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::{PoisonError, RwLock};

use proxy_rules::model::Protocol;

use crate::plan::Frontend;

/// All open frontends.
#[derive(Debug, Default)]
pub struct ListeningFrontends(RwLock<HashSet<Frontend>>);

impl ListeningFrontends {
    /// Adds one; before its first client is accepted.
    pub fn opened(&self, frontend: Frontend) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).insert(frontend);
    }

    /// Removes one.
    pub fn closed(&self, frontend: &Frontend) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).remove(frontend);
    }

    /// Whether connections to an endpoint would be accepted here.
    pub fn leads_back(&self, protocol: Protocol, backend: SocketAddr) -> bool {
        let at = SocketAddr::new(backend.ip().to_canonical(), backend.port());
        let open = self.0.read().unwrap_or_else(PoisonError::into_inner);
        open.contains(&Frontend { protocol, at })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_that_is_a_frontend_leads_back() {
        let at = |text: &str| -> SocketAddr { text.parse().unwrap() };
        let frontend = |protocol, text: &str| Frontend { protocol, at: at(text) };
        let listening = ListeningFrontends::default();
        // A cluster IP, an external address, and a node port at addresses of the node.
        for text in ["10.96.0.1:80", "198.51.100.1:80", "192.0.2.1:30080", "[fd00::1]:30080"] {
            listening.opened(frontend(Protocol::Tcp, text));
        }
        listening.opened(frontend(Protocol::Udp, "10.96.0.10:53"));
        for (protocol, backend, expected) in [
            (Protocol::Tcp, "10.96.0.1:80", true),
            (Protocol::Tcp, "[::ffff:10.96.0.1]:80", true),
            (Protocol::Tcp, "10.96.0.1:81", false),
            (Protocol::Udp, "10.96.0.1:80", false),
            (Protocol::Tcp, "198.51.100.1:80", true),
            (Protocol::Tcp, "192.0.2.1:30080", true),
            (Protocol::Tcp, "192.0.2.1:8080", false),
            (Protocol::Tcp, "[fd00::1]:30080", true),
            (Protocol::Udp, "10.96.0.10:53", true),
            (Protocol::Tcp, "10.244.0.5:80", false),
        ] {
            assert_eq!(listening.leads_back(protocol, at(backend)), expected, "{backend}");
        }
        listening.closed(&frontend(Protocol::Tcp, "10.96.0.1:80"));
        assert!(!listening.leads_back(Protocol::Tcp, at("10.96.0.1:80")));
    }
}
