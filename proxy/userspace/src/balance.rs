//! Pure: chooses the endpoint of the next connection.

use std::collections::HashMap;
use std::hash::{Hash, Hasher};
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use proxy_rules::model::Choice;

/// Clients with affinity per Service port; beyond that the least recent are dropped.
const CLIENTS_MAX: usize = 65_536;

/// State of one port of a Service.
#[derive(Clone, Debug, Default)]
pub struct Balance {
    turn: usize,
    clients: HashMap<IpAddr, (SocketAddr, Instant)>,
}

impl Balance {
    /// An endpoint for a connection from `client` at `now`; `tried` are those that failed. `None` if none is left.
    pub fn pick(
        &mut self,
        backends: &[SocketAddr],
        choice: Choice,
        client: IpAddr,
        tried: &[SocketAddr],
        now: Instant,
    ) -> Option<SocketAddr> {
        let left = || backends.iter().filter(|backend| !tried.contains(backend)).copied();
        match choice {
            Choice::Random => self.next(left()),
            // Rendezvous hashing: few clients move when an endpoint is added or removed.
            Choice::Consistent => left().max_by_key(|backend| weight(client, *backend)),
            Choice::Sticky(seconds) => {
                let time = Duration::from_secs(seconds.into());
                let known = self.clients.get(&client).copied();
                let known = known.filter(|(_, last)| now.saturating_duration_since(*last) < time);
                let known = known.map(|(backend, _)| backend);
                let known = known.filter(|known| left().any(|backend| backend == *known));
                let picked = known.or_else(|| self.next(left()));
                if let Some(backend) = picked {
                    self.remember(client, backend, now);
                }
                picked
            }
        }
    }

    fn next(&mut self, mut left: impl Iterator<Item = SocketAddr> + Clone) -> Option<SocketAddr> {
        let at = self.turn.checked_rem(left.clone().count())?;
        self.turn = self.turn.wrapping_add(1);
        left.nth(at)
    }

    fn remember(&mut self, client: IpAddr, backend: SocketAddr, now: Instant) {
        if self.clients.len() >= CLIENTS_MAX && !self.clients.contains_key(&client) {
            // Drops the least recent half at once, so that this happens seldom.
            let mut times: Vec<Instant> = self.clients.values().map(|(_, last)| *last).collect();
            let middle = times.len() / 2;
            let (_, median, _) = times.select_nth_unstable(middle);
            let median = *median;
            self.clients.retain(|_, (_, last)| *last > median);
        }
        self.clients.insert(client, (backend, now));
    }
}

/// Fixed, so that all nodes and processes decide alike.
fn weight(client: IpAddr, backend: SocketAddr) -> u64 {
    let mut hasher = Fnv(0xcbf2_9ce4_8422_2325);
    (client, backend.ip(), backend.port()).hash(&mut hasher);
    // The last bytes hardly affect the upper bits: spread them (the finalizer of MurmurHash3).
    let mixed = (hasher.0 ^ (hasher.0 >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    let mixed = (mixed ^ (mixed >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    mixed ^ (mixed >> 33)
}

struct Fnv(u64);

impl Hasher for Fnv {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn backends(count: u8) -> Vec<SocketAddr> {
        (1..=count).map(|n| SocketAddr::from(([10, 0, 0, n], 80))).collect()
    }

    fn client(n: u32) -> IpAddr {
        std::net::Ipv4Addr::from(0x0a01_0000 + n).into()
    }

    #[test]
    fn in_turn_and_past_those_that_were_tried() {
        let mut balance = Balance::default();
        let all = backends(3);
        let mut pick = |tried: &[SocketAddr]| {
            balance.pick(&all, Choice::Random, client(1), tried, Instant::now())
        };
        let mut six: Vec<_> = (0..6).filter_map(|_| pick(&[])).collect();
        six.sort();
        assert_eq!(six, [all[0], all[0], all[1], all[1], all[2], all[2]]);
        assert_eq!(pick(&all[..2]), Some(all[2]));
        assert_eq!(pick(&all), None);
        assert_eq!(balance.pick(&[], Choice::Random, client(1), &[], Instant::now()), None);
    }

    #[test]
    fn a_client_keeps_its_endpoint_while_it_comes_and_while_it_is_there() {
        let mut balance = Balance::default();
        let all = backends(4);
        let start = Instant::now();
        let mut pick = |from: u32, backends: &[SocketAddr], tried: &[SocketAddr], secs| {
            let now = start + Duration::from_secs(secs);
            balance.pick(backends, Choice::sticky(10), client(from), tried, now).unwrap()
        };
        let first = pick(1, &all, &[], 0);
        assert_ne!(pick(2, &all, &[], 0), first);
        assert_eq!(pick(1, &all, &[], 9), first);
        assert_eq!(pick(1, &all, &[], 18), first, "each time counts anew");
        let others: Vec<_> = all.iter().copied().filter(|b| *b != first).collect();
        let second = pick(1, &others, &[], 19);
        assert_ne!(second, first);
        assert_eq!(pick(1, &all, &[], 20), second, "it has moved for good");
        let third = pick(1, &all, &[second], 21);
        assert_ne!(third, second);
        assert_eq!(pick(1, &all, &[], 22), third);
        // After the timeout any endpoint may be chosen: with four endpoints not always the same.
        let later: std::collections::BTreeSet<_> =
            (0..4).map(|n| pick(1, &all, &[], 100 + 20 * n)).collect();
        assert!(later.len() > 1);
    }

    #[test]
    fn the_consistent_choice_moves_few() {
        let mut balance = Balance::default();
        let mut pick = |all: &[SocketAddr], n: u32| {
            balance.pick(all, Choice::Consistent, client(n), &[], Instant::now()).unwrap()
        };
        let (ten, nine) = (backends(10), backends(9));
        let before: Vec<_> = (0..1000).map(|n| pick(&ten, n)).collect();
        let after: Vec<_> = (0..1000).map(|n| pick(&nine, n)).collect();
        let moved = before.iter().zip(&after).filter(|(a, b)| a != b).count();
        let gone = before.iter().filter(|b| **b == ten[9]).count();
        assert_eq!(moved, gone, "only those of the endpoint that went");
        for backend in &ten {
            let share = before.iter().filter(|b| *b == backend).count();
            assert!((50..200).contains(&share), "{backend} has {share} of 1000");
        }
    }

    #[test]
    fn a_bounded_number_of_clients_is_remembered() {
        let mut balance = Balance::default();
        let all = backends(2);
        let start = Instant::now();
        for n in 0..(2 * u32::try_from(CLIENTS_MAX).unwrap()) {
            let now = start + Duration::from_micros(n.into());
            balance.pick(&all, Choice::sticky(1000), client(n), &[], now);
            assert!(balance.clients.len() <= CLIENTS_MAX);
        }
        assert!(balance.clients.len() >= CLIENTS_MAX / 2);
    }
}
