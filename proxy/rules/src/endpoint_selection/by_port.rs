//! The slices of a service by the ports that they have, made once for all ports of the service: each of them looks
//! at its own endpoints and at no others.

#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

use crate::model::{LocalPort, LocalSlice, Protocol};

/// Slices by name and protocol of their ports.
#[derive(Clone, Debug, Default)]
pub struct SlicesByPort<'a> {
    /// Sorted by name and protocol.
    all: Vec<PortOfSlice<'a>>,
}

/// A port of a slice.
#[derive(Clone, Copy, Debug)]
struct PortOfSlice<'a> {
    name: &'a str,
    protocol: Protocol,
    number: u16,
    slice: &'a LocalSlice,
}

impl<'a> SlicesByPort<'a> {
    /// Of these slices.
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

    /// Slices that serve a port of the service, each with the number at which it does.
    pub(super) fn slices(&self, port: &LocalPort) -> impl Iterator<Item = (&'a LocalSlice, u16)> {
        self.matching_ports(port).iter().map(|port| (port.slice, port.number))
    }

    /// Endpoints to look at for a port of the service.
    pub fn endpoints_len(&self, port: &LocalPort) -> usize {
        let lens = self.slices(port).map(|(slice, _)| slice.endpoints.len());
        lens.fold(0, |sum, len| sum.saturating_add(len.max(1)))
    }
}
