//! Limits of concurrent connections and sessions: in total, and for each client, so that one client cannot use all of
//! them.

#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Limits the forwarded connections in total and per client address.
#[derive(Clone, Debug)]
pub struct ConnectionLimiter {
    all: usize,
    each: usize,
    counts: Arc<Mutex<ConnectionCounts>>,
}

#[derive(Debug, Default)]
struct ConnectionCounts {
    sum: usize,
    by_client: HashMap<IpAddr, usize>,
}

/// One permit; returned when dropped.
#[derive(Debug)]
pub struct ConnectionPermit {
    limiter: ConnectionLimiter,
    client: IpAddr,
}

impl ConnectionLimiter {
    /// `all` in total, `each` per client.
    pub fn new(all: usize, each: usize) -> Self {
        Self { all, each, counts: Arc::default() }
    }

    /// A permit for a client, if there is one. Local processes share an address: for them only the total counts.
    pub fn admit(&self, client: IpAddr) -> Option<ConnectionPermit> {
        let client = client.to_canonical();
        let mut held = self.counts();
        let own = held.by_client.get(&client).copied().unwrap_or_default();
        if held.sum >= self.all || (own >= self.each && !client.is_loopback()) {
            return None;
        }
        held.sum = held.sum.saturating_add(1);
        held.by_client.insert(client, own.saturating_add(1));
        Some(ConnectionPermit { limiter: self.clone(), client })
    }

    fn counts(&self) -> MutexGuard<'_, ConnectionCounts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        let mut held = self.limiter.counts();
        held.sum = held.sum.saturating_sub(1);
        if let Some(count) = held.by_client.get_mut(&self.client) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                held.by_client.remove(&self.client);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_that_takes_all_it_may_leaves_room_for_others() {
        let limiter = ConnectionLimiter::new(10, 4);
        let [greedy, mapped, other, itself] =
            ["10.0.0.1", "::ffff:10.0.0.1", "10.0.0.2", "127.0.0.1"].map(|ip| ip.parse().unwrap());
        let mut held: Vec<ConnectionPermit> =
            (0..9).filter_map(|_| limiter.admit(greedy)).collect();
        assert_eq!((held.len(), limiter.admit(mapped).is_none()), (4, true));
        held.extend(limiter.admit(other));
        assert_eq!(held.len(), 5);
        held.extend((0..9).filter_map(|_| limiter.admit(itself)));
        assert_eq!((held.len(), limiter.admit(other).is_none()), (10, true));
        held.remove(0);
        assert!(limiter.admit(greedy).is_some());
        drop(held);
        assert!(limiter.counts().by_client.is_empty() && limiter.counts().sum == 0);
    }
}
