//! Consistent hashing: a table of slots that every node computes alike, independent of history, and that changes
//! little when an endpoint is added or removed. A client's address and port are hashed to a slot.
//!
//! The table is filled as in Maglev (Eisenbud et al., NSDI 2016, section 3.4): each endpoint has its own permutation
//! of the slots, and the endpoints take turns.

use super::Backend;
use crate::layout::{BACKENDS_MAX, address_value};

/// Table sizes: primes, so that every step visits every slot. The last is the largest that fits the slots of a
/// frontend.
const SIZES: [usize; 5] = [251, 1021, 4093, 16_381, 32_749];
/// Slots per endpoint, where the table has room: shares then differ by a quarter at most.
const SLOTS_EACH: usize = 4;

/// Table size for this many endpoints.
pub fn table_len(backends: usize) -> usize {
    let len = backends.saturating_mul(SLOTS_EACH);
    let [.., largest] = SIZES;
    SIZES.into_iter().find(|size| *size >= len).unwrap_or(largest)
}

/// The endpoint of each slot. `backends` are sorted by address and port; those that do not fit are left out.
pub fn build_table(backends: &[Backend]) -> Vec<Backend> {
    let size = table_len(backends.len());
    debug_assert!(size <= BACKENDS_MAX);
    let mut slots: Vec<Option<Backend>> = vec![None; size];
    let mut turns: Vec<Permutation> =
        backends.iter().take(size).map(|b| Permutation::new(b, size)).collect();
    if turns.is_empty() {
        return Vec::new();
    }
    let mut free = size;
    while free > 0 {
        for turn in &mut turns {
            if free == 0 {
                break;
            }
            // A permutation visits every slot once, so the search ends while a slot is free.
            let slot = loop {
                match slots.get_mut(turn.advance(size)) {
                    Some(slot) if slot.is_none() => break slot,
                    _ => {}
                }
            };
            *slot = Some(turn.backend);
            free = free.saturating_sub(1);
        }
    }
    slots.into_iter().flatten().collect()
}

/// The permutation of an endpoint.
struct Permutation {
    backend: Backend,
    next: usize,
    step: usize,
}

impl Permutation {
    fn new(backend: &Backend, size: usize) -> Self {
        let mut bytes = address_value(&backend.address).bytes().to_vec();
        bytes.extend_from_slice(&backend.port.to_be_bytes());
        let hash = fnv(&bytes);
        let (high, low) = (mix(hash), mix(hash ^ u64::MAX));
        let modulo = |number: u64, by: usize| {
            number.checked_rem(by as u64).and_then(|rest| usize::try_from(rest).ok()).unwrap_or(0)
        };
        let step = modulo(low, size.saturating_sub(1)).saturating_add(1);
        Self { backend: *backend, next: modulo(high, size), step }
    }

    fn advance(&mut self, size: usize) -> usize {
        let slot = self.next;
        self.next = self.next.saturating_add(self.step).checked_rem(size).unwrap_or(0);
        slot
    }
}

/// FNV-1a. The standard library's hashes may change between releases, and nodes of two releases must agree.
fn fnv(bytes: &[u8]) -> u64 {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, step)
}

/// The finalizer of SplitMix64.
fn mix(number: u64) -> u64 {
    let number = (number ^ number >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ number >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ number >> 31
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Locality;
    use std::collections::HashMap;

    fn backends(count: u16) -> Vec<Backend> {
        let backend = |n: u16| {
            let [high, low] = n.to_be_bytes();
            Backend { address: [10, 0, high, low].into(), port: 80, place: Locality::Elsewhere }
        };
        (0..count).map(backend).collect()
    }

    #[test]
    fn every_endpoint_has_its_share() {
        assert_eq!(build_table(&[]), []);
        for count in [1, 2, 3, 60, 62, 63, 200, 1000] {
            let table = build_table(&backends(count));
            let mut shares: HashMap<Backend, usize> = HashMap::new();
            table.iter().for_each(|b| *shares.entry(*b).or_default() += 1);
            let (least, most) = (shares.values().min().unwrap(), shares.values().max().unwrap());
            assert_eq!(shares.len(), usize::from(count));
            assert!(most - least <= 1, "{count}: {least} to {most}");
        }
    }

    #[test]
    fn where_an_endpoint_runs_makes_no_difference() {
        let here = |b: Backend| Backend { place: Locality::Here, ..b };
        let there = build_table(&backends(5));
        let moved = build_table(&backends(5).into_iter().map(here).collect::<Vec<_>>());
        assert!(there.iter().map(|b| b.address).eq(moved.iter().map(|b| b.address)));
    }

    #[test]
    fn the_slots_of_those_that_stay_mostly_stay() {
        let all = backends(10);
        let before = build_table(&all);
        for gone in 0..all.len() {
            let mut rest = all.clone();
            let gone = rest.remove(gone);
            let after = build_table(&rest);
            let moved = before.iter().zip(&after).filter(|(a, b)| a != b && **a != gone).count();
            assert!(moved * 4 < before.len(), "{moved} of {} moved", before.len());
        }
    }
}
