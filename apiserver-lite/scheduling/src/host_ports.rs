//! The host ports in use on a node. A lookup takes the same time however many there are.

use std::collections::{BTreeMap, BTreeSet};

use crate::pod_info::HostPort;

/// Addresses by port and protocol; the empty address stands for all.
#[derive(Clone, Debug, Default)]
pub struct HostPorts(BTreeMap<i32, BTreeMap<String, BTreeSet<String>>>);

/// The unspecified addresses become empty.
fn normalize(ip: &str) -> &str {
    proto_api::count_steps!(1);
    if matches!(ip, "0.0.0.0" | "::") { "" } else { ip }
}

impl HostPorts {
    /// Adds a port that a pod of the node uses.
    pub fn add(&mut self, port: &HostPort) {
        let of_number = self.0.entry(port.port).or_default();
        of_number.entry(port.protocol.clone()).or_default().insert(normalize(&port.ip).to_owned());
    }

    /// Whether another pod uses the port on an overlapping address.
    pub fn is_taken(&self, wanted: &HostPort) -> bool {
        proto_api::count_steps!(1);
        let of_number = self.0.get(&wanted.port);
        let Some(taken) = of_number.and_then(|all| all.get(&wanted.protocol)) else { return false };
        let ip = normalize(&wanted.ip);
        ip.is_empty() || taken.contains("") || taken.contains(ip)
    }
}
