//! The addresses and node ports that a Service has, which no other one may have.

use std::collections::HashSet;
use std::net::IpAddr;

use apiserver_schema::{Object, Value};

/// The addresses and node ports of one Service.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct AllocatedValues {
    pub addresses: HashSet<IpAddr>,
    pub node_ports: HashSet<u16>,
}

impl AllocatedValues {
    pub fn from_service(service: &Object) -> Self {
        let Some(spec) = service.spec() else { return Self::default() };
        let addresses =
            texts(spec.list("clusterIPs")).filter_map(|text| text.parse().ok()).collect();
        let ports = spec.maps("ports").filter_map(|port| port.int("nodePort"));
        let ports = ports.chain(spec.int("healthCheckNodePort"));
        let node_ports =
            ports.filter(|port| *port > 0).filter_map(|port| u16::try_from(port).ok()).collect();
        Self { addresses, node_ports }
    }

    pub fn without(&self, other: &Self) -> Self {
        Self {
            addresses: self.addresses.difference(&other.addresses).copied().collect(),
            node_ports: self.node_ports.difference(&other.node_ports).copied().collect(),
        }
    }
}

/// What no two Services have: addresses and node ports. Empty for other objects.
pub(crate) fn claims(object: &Object) -> Vec<String> {
    if !object.kind.is("", "Service") {
        return Vec::new();
    }
    let AllocatedValues { addresses, node_ports } = AllocatedValues::from_service(object);
    let addresses = addresses.iter().map(|address| format!("addresses/{address}"));
    let ports = node_ports.iter().map(|port| format!("node-ports/{port}"));
    addresses.chain(ports).collect()
}

pub(crate) fn texts(values: &[Value]) -> impl Iterator<Item = &str> {
    values.iter().filter_map(Value::as_str)
}
