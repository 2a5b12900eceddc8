//! Limits of concurrent queries or connections: in total, and for each client, so that one client cannot use all of
//! them.

#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Limits the queries in flight in total and per client address.
#[derive(Clone, Debug)]
pub struct ClientLimiter {
    all: usize,
    each: usize,
    counts: Arc<Mutex<Counts>>,
}

#[derive(Debug, Default)]
struct Counts {
    sum: usize,
    by_asker: HashMap<IpAddr, usize>,
}

/// One permit; returned when dropped.
#[derive(Debug)]
pub struct ClientPermit {
    limiter: ClientLimiter,
    address: IpAddr,
}

impl ClientLimiter {
    /// `all` in total, `each` per client.
    pub fn new(all: usize, each: usize) -> Self {
        Self { all, each, counts: Arc::default() }
    }

    /// A permit for a client, if there is one.
    pub fn admit(&self, address: IpAddr) -> Option<ClientPermit> {
        let address = address.to_canonical();
        let mut counts = self.counts();
        let own = counts.by_asker.get(&address).copied().unwrap_or_default();
        if counts.sum >= self.all || own >= self.each {
            return None;
        }
        counts.sum = counts.sum.saturating_add(1);
        counts.by_asker.insert(address, own.saturating_add(1));
        Some(ClientPermit { limiter: self.clone(), address })
    }

    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for ClientPermit {
    fn drop(&mut self) {
        let mut counts = self.limiter.counts();
        counts.sum = counts.sum.saturating_sub(1);
        if let Some(count) = counts.by_asker.get_mut(&self.address) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                counts.by_asker.remove(&self.address);
            }
        }
    }
}
