//! The ports of a node that its pods have for themselves. A question costs the same however many there are.

use std::collections::{BTreeMap, BTreeSet};

use crate::pod_info::HostPort;

/// Addresses by number and protocol; the empty one stands for all addresses.
#[derive(Clone, Debug, Default)]
pub struct Ports(BTreeMap<i32, BTreeMap<String, BTreeSet<String>>>);

/// The address as it is kept.
fn plain(ip: &str) -> &str {
    if matches!(ip, "0.0.0.0" | "::") { "" } else { ip }
}

impl Ports {
    /// Takes a port.
    pub fn add(&mut self, port: &HostPort) {
        let of_number = self.0.entry(port.port).or_default();
        of_number.entry(port.protocol.clone()).or_default().insert(plain(&port.ip).to_owned());
    }

    /// Whether a pod cannot have the port, since another has it on one of the addresses.
    pub fn is_taken(&self, wanted: &HostPort) -> bool {
        let of_number = self.0.get(&wanted.port);
        let Some(taken) = of_number.and_then(|all| all.get(&wanted.protocol)) else { return false };
        let ip = plain(&wanted.ip);
        ip.is_empty() || taken.contains("") || taken.contains(ip)
    }
}
