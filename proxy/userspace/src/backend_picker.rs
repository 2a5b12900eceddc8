//! The endpoint of a connection or session.

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use crate::balance::Balance;
use crate::forwarder_state::Shared;
use crate::plan::FrontendBackends;

/// Chooses the endpoints of one listener.
#[derive(Clone, Debug)]
pub struct BackendPicker {
    /// The endpoints.
    pub target: Arc<FrontendBackends>,
    /// Turns and affinity, shared by the frontends of a Service's port.
    pub balance: Arc<Mutex<Balance>>,
}

impl BackendPicker {
    /// An endpoint for a client; `tried` are those that failed.
    pub fn pick(
        &self,
        shared: &Shared,
        client: IpAddr,
        tried: &[SocketAddr],
    ) -> Option<SocketAddr> {
        let client = client.to_canonical();
        let backends = self.target.backends(client, shared.is_inside(client));
        let mut balance = self.balance.lock().unwrap_or_else(PoisonError::into_inner);
        balance.pick(backends, self.target.choice, client, tried, Instant::now())
    }
}
