//! Selects the endpoints of a Service's port by their conditions, policies and hints.

use std::cmp::Reverse;
use std::net::IpAddr;

use crate::model::{EndpointState, LocalPort, Locality, family_of};
use crate::packed::HasAddress;
use proxy_netfilter::nft::Family;

pub mod consistent;

mod by_port;
pub use by_port::SlicesByPort;

/// Address and port of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Backend {
    /// Address of the endpoint.
    pub address: IpAddr,
    /// Port of the endpoint.
    pub port: u16,
    /// Whether it is on this node.
    pub place: Locality,
}

impl HasAddress for Backend {
    type Rest = (u16, Locality);

    fn split(self) -> (IpAddr, Self::Rest) {
        (self.address, (self.port, self.place))
    }

    fn join(address: IpAddr, (port, place): Self::Rest) -> Self {
        Self { address, port, place }
    }
}

/// The endpoints of one port and family.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SelectedEndpoints {
    /// For traffic with the policy Cluster, sorted.
    pub all: Vec<Backend>,
    /// For traffic with the policy Local, sorted.
    pub here: Vec<Backend>,
}

/// Selects from the endpoints of `slices`. Of an endpoint that appears twice the better state counts. Terminating
/// endpoints that still serve are used if there is no ready one, for each policy separately. With the policy Cluster,
/// endpoints with a hint for `zone` are preferred.
pub fn select_endpoints(
    slices: &SlicesByPort<'_>,
    family: Family,
    port: &LocalPort,
    zone: Option<&str>,
) -> SelectedEndpoints {
    let mut candidates: Vec<Candidate> = Vec::new();
    for (slice, number) in slices.slices(port) {
        proto_api::count_steps!(slice.endpoints.len());
        let endpoints = slice.endpoints.iter().enumerate();
        let endpoints = endpoints.filter(|(_, e)| family_of(e.address) == family);
        candidates.extend(endpoints.map(|(at, e)| Candidate {
            backend: Backend { address: e.address, port: number, place: e.place },
            state: e.state,
            hint: zone.map_or(Hint::None, |zone| {
                Hint::from_zones(slice.hints.get(at).map(|zones| &**zones), zone)
            }),
        }));
    }
    // Of the same address and port the best state comes first and is kept.
    candidates.sort_unstable_by_key(|f| {
        (f.backend.address, f.backend.port, Reverse((f.state, f.backend.place)))
    });
    candidates.dedup_by_key(|f| (f.backend.address, f.backend.port));
    let matching_backends = |place: Locality, state: EndpointState| -> Vec<Backend> {
        let matching = candidates.iter().filter(|f| f.state == state && f.backend.place >= place);
        matching.map(|f| f.backend).collect()
    };
    let ready_or_draining = |place: Locality| match matching_backends(place, EndpointState::Ready) {
        ready if ready.is_empty() => matching_backends(place, EndpointState::Draining),
        ready => ready,
    };
    let near = zone.and_then(|_| hinted(&candidates));
    SelectedEndpoints {
        all: near.unwrap_or_else(|| ready_or_draining(Locality::Elsewhere)),
        here: ready_or_draining(Locality::Here),
    }
}

/// An endpoint that may be used.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    backend: Backend,
    state: EndpointState,
    hint: Hint,
}

/// The hints of an endpoint, compared with the node's zone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hint {
    /// No hints.
    None,
    /// Only for other zones.
    OtherZone,
    OurZone,
}

impl Hint {
    fn from_zones(zones: Option<&[Box<str>]>, ours: &str) -> Self {
        match zones {
            Some(zones) if zones.iter().any(|zone| **zone == *ours) => Self::OurZone,
            Some(zones) if !zones.is_empty() => Self::OtherZone,
            _ => Self::None,
        }
    }
}

/// The ready endpoints for the node's zone; `None` unless every ready one has hints and one of them is for it.
fn hinted(candidates: &[Candidate]) -> Option<Vec<Backend>> {
    let ready = || candidates.iter().filter(|f| f.state == EndpointState::Ready);
    let near: Vec<Backend> =
        ready().filter(|f| f.hint == Hint::OurZone).map(|f| f.backend).collect();
    (!near.is_empty() && ready().all(|f| f.hint != Hint::None)).then_some(near)
}

/// Assigns `wanted`, which is sorted, to the slots of `old` with as few moves as possible: endpoints that stay keep
/// their slots, new ones fill the gaps, then the last ones do.
pub fn reslot(old: impl Iterator<Item = Backend> + Clone, wanted: &[Backend]) -> Vec<Backend> {
    if old.clone().next().is_none() || old.clone().eq(wanted.iter().copied()) {
        return wanted.to_vec();
    }
    let mut stays = vec![false; wanted.len()];
    let mut stay = |backend: Backend| {
        let at = wanted.binary_search(&backend).ok()?;
        stays.get_mut(at).map(|stays| *stays = true)?;
        Some(backend)
    };
    let mut slots: Vec<Option<Backend>> = old.map(&mut stay).collect();
    slots.resize(slots.len().max(wanted.len()), None);
    let mut coming = wanted.iter().zip(&stays).filter(|(_, stays)| !**stays).map(|(b, _)| *b);
    for slot in slots.iter_mut().filter(|slot| slot.is_none()) {
        *slot = coming.next();
    }
    let (front, back) = slots.split_at(wanted.len());
    let mut movers = back.iter().rev().flatten();
    front.iter().filter_map(|slot| slot.as_ref().or_else(|| movers.next())).copied().collect()
}

#[cfg(test)]
mod tests;
