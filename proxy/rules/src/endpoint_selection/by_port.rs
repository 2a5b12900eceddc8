//! Index of a Service's EndpointSlices by port, built once for all ports of the Service, so that each port examines
//! only its own endpoints.

#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

use crate::model::{LocalPort, LocalSlice, Protocol};

/// EndpointSlices by name and protocol of their ports.
#[derive(Clone, Debug, Default)]
pub struct SlicesByPort<'a> {
    /// Sorted by name and protocol.
    all: Vec<PortOfSlice<'a>>,
}

/// A port of an EndpointSlice.
#[derive(Clone, Copy, Debug)]
struct PortOfSlice<'a> {
    name: &'a str,
    protocol: Protocol,
    number: u16,
    slice: &'a LocalSlice,
}

impl<'a> SlicesByPort<'a> {
    /// Builds the index.
    pub fn new(slices: impl Iterator<Item = &'a LocalSlice>) -> Self {
        let ports = slices.flat_map(|slice| {
            slice.ports.iter().map(move |port| PortOfSlice {
                name: &port.name,
                protocol: port.protocol,
                number: port.port,
                slice,
            })
        });
        let mut all: Vec<PortOfSlice<'_>> = ports.collect();
        proto_api::count_steps!(all.len());
        all.sort_by(|a, b| (a.name, a.protocol).cmp(&(b.name, b.protocol)));
        Self { all }
    }

    fn matching_ports(&self, port: &LocalPort) -> &[PortOfSlice<'a>] {
        let wanted = (&*port.name, port.protocol);
        let begin = self.all.partition_point(|port| (port.name, port.protocol) < wanted);
        let rest = self.all.get(begin..).unwrap_or_default();
        let len = rest.partition_point(|port| (port.name, port.protocol) == wanted);
        rest.get(..len).unwrap_or_default()
    }

    /// EndpointSlices that serve a port of the Service, each with the target port.
    pub(super) fn slices(&self, port: &LocalPort) -> impl Iterator<Item = (&'a LocalSlice, u16)> {
        self.matching_ports(port).iter().map(|port| (port.slice, port.number))
    }

    /// Number of endpoints to examine for a port of the Service.
    pub fn endpoints_len(&self, port: &LocalPort) -> usize {
        let lens = self.slices(port).map(|(slice, _)| slice.endpoints.len());
        lens.fold(0, |sum, len| sum.saturating_add(len.max(1)))
    }
}
