//! Results of health check node ports: whether this node has endpoints of a Service.

#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use crate::model::{EndpointState, LocalSlice, Locality, ServiceId};

/// The result for one Service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HealthCheck {
    /// `spec.healthCheckNodePort`.
    pub port: u16,
    /// Number of ready endpoints on this node.
    pub local_endpoints: usize,
}

/// The results of all Services with a health check node port.
pub type HealthChecks = BTreeMap<ServiceId, HealthCheck>;

/// Number of endpoints that are ready and on this node. An endpoint of two families counts once.
pub fn local_endpoints<'a>(slices: impl Iterator<Item = &'a LocalSlice>) -> usize {
    let endpoints = slices.flat_map(|slice| slice.endpoints.iter());
    let here = endpoints.filter(|e| (e.state, e.place) == (EndpointState::Ready, Locality::Here));
    let (v4, v6): (BTreeSet<IpAddr>, BTreeSet<IpAddr>) =
        here.map(|e| e.address).partition(IpAddr::is_ipv4);
    v4.len().max(v6.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::LocalEndpoint;

    #[test]
    fn an_endpoint_counts_once_if_it_is_ready_and_here() {
        let slice = |endpoints: &[(&str, EndpointState, Locality)]| LocalSlice {
            endpoints: endpoints
                .iter()
                .map(|&(address, state, place)| LocalEndpoint {
                    address: address.parse().unwrap(),
                    state,
                    place,
                })
                .collect(),
            ..LocalSlice::default()
        };
        use EndpointState::{Draining, Ready};
        let v4 = slice(&[
            ("10.0.0.1", Ready, Locality::Here),
            ("10.0.0.2", Ready, Locality::Elsewhere),
            ("10.0.0.3", Draining, Locality::Here),
        ]);
        let v6 = slice(&[("fd00::1", Ready, Locality::Here), ("fd00::4", Ready, Locality::Here)]);
        assert_eq!(local_endpoints([&v4, &v4].into_iter()), 1);
        assert_eq!(local_endpoints([&v4, &v6].into_iter()), 2);
        assert_eq!(local_endpoints([].into_iter()), 0);
    }
}
