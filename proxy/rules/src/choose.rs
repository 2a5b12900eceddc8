//! Which endpoints serve a port of a service, as the API's conditions and policies have it.

use std::cmp::Reverse;
use std::net::IpAddr;

use crate::model::{EndpointState, LocalPort, LocalSlice, Place, SlicePort, family_of};
use proxy_netfilter::nft::Family;

/// Where a connection may be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Backend {
    /// Address of the endpoint.
    pub address: IpAddr,
    /// Port of the endpoint.
    pub port: u16,
    /// Where it runs.
    pub place: Place,
}

/// The endpoints of one port and family.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Chosen {
    /// For traffic under the policy Cluster, sorted.
    pub all: Vec<Backend>,
    /// For traffic under the policy Local, sorted.
    pub here: Vec<Backend>,
}

/// Chooses among the endpoints of `slices`. Of an endpoint that appears twice the better state counts;
/// draining ones are used where there is no ready one, for each policy by itself.
pub fn choose<'a>(
    slices: impl Iterator<Item = &'a LocalSlice>,
    family: Family,
    port: &LocalPort,
) -> Chosen {
    let mut found: Vec<(Backend, EndpointState)> = Vec::new();
    for slice in slices {
        let is_ours = |p: &&SlicePort| p.name == port.name && p.protocol == port.protocol;
        for number in slice.ports.iter().filter(is_ours).map(|p| p.port) {
            let endpoints = slice.endpoints.iter().filter(|e| family_of(e.address) == family);
            found.extend(
                endpoints.map(|e| {
                    (Backend { address: e.address, port: number, place: e.place }, e.state)
                }),
            );
        }
    }
    // Of the same address and port the best comes first, and stays.
    found.sort_unstable_by_key(|(b, state)| (b.address, b.port, Reverse((*state, b.place))));
    found.dedup_by_key(|(b, _)| (b.address, b.port));
    let pick = |place: Place, state: EndpointState| -> Vec<Backend> {
        let matching = found.iter().filter(|(b, s)| *s == state && b.place >= place);
        matching.map(|(backend, _)| *backend).collect()
    };
    let ready_or_draining = |place: Place| match pick(place, EndpointState::Ready) {
        ready if ready.is_empty() => pick(place, EndpointState::Draining),
        ready => ready,
    };
    Chosen { all: ready_or_draining(Place::Elsewhere), here: ready_or_draining(Place::Here) }
}

/// Puts `wanted`, which is sorted, into the slots of `old`, moving as few as possible: what stays keeps its slot, what comes
/// fills the gaps, the last ones fill what gaps remain.
pub fn reslot(old: &[Backend], wanted: &[Backend]) -> Vec<Backend> {
    if old.is_empty() || old == wanted {
        return wanted.to_vec();
    }
    let mut stays = vec![false; wanted.len()];
    let mut stay = |backend: &Backend| {
        let at = wanted.binary_search(backend).ok()?;
        stays.get_mut(at).map(|stays| *stays = true)?;
        Some(*backend)
    };
    let mut slots: Vec<Option<Backend>> = old.iter().map(&mut stay).collect();
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
