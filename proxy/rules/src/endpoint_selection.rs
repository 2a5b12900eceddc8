//! Which endpoints serve a port of a service, as the API's conditions and policies have it.

use std::cmp::Reverse;
use std::net::IpAddr;

use crate::model::{EndpointState, LocalPort, Locality, family_of};
use crate::packed::Addressed;
use proxy_netfilter::nft::Family;

pub mod consistent;

mod by_port;
pub use by_port::SlicesByPort;

/// Where a connection may be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Backend {
    /// Address of the endpoint.
    pub address: IpAddr,
    /// Port of the endpoint.
    pub port: u16,
    /// Where it runs.
    pub place: Locality,
}

impl Addressed for Backend {
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
    /// For traffic under the policy Cluster, sorted.
    pub all: Vec<Backend>,
    /// For traffic under the policy Local, sorted.
    pub here: Vec<Backend>,
}

/// Chooses among the endpoints of `slices`. Of an endpoint that appears twice the better state counts;
/// draining ones are used where there is no ready one, for each policy by itself. Under the policy Cluster those
/// hinted for `zone` are preferred, if a zone is given.
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
                Hint::of(slice.hints.get(at).map(|zones| &**zones), zone)
            }),
        }));
    }
    // Of the same address and port the best comes first, and stays.
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

/// An endpoint that might be used.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    backend: Backend,
    state: EndpointState,
    hint: Hint,
}

/// What an endpoint's hints say about the node's zone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hint {
    /// It has none.
    None,
    /// It is for other zones.
    OtherZone,
    /// It is for this zone.
    OurZone,
}

impl Hint {
    fn of(zones: Option<&[Box<str>]>, ours: &str) -> Self {
        match zones {
            Some(zones) if zones.iter().any(|zone| **zone == *ours) => Self::OurZone,
            Some(zones) if !zones.is_empty() => Self::OtherZone,
            _ => Self::None,
        }
    }
}

/// The ready endpoints for our zone; nothing unless every ready one has hints and one of them is for it.
fn hinted(candidates: &[Candidate]) -> Option<Vec<Backend>> {
    let ready = || candidates.iter().filter(|f| f.state == EndpointState::Ready);
    let near: Vec<Backend> =
        ready().filter(|f| f.hint == Hint::OurZone).map(|f| f.backend).collect();
    (!near.is_empty() && ready().all(|f| f.hint != Hint::None)).then_some(near)
}

/// Puts `wanted`, which is sorted, into the slots of `old`, moving as few as possible: what stays keeps its slot, what comes
/// fills the gaps, the last ones fill what gaps remain.
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
