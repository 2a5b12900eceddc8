//! A map whose entries expire. Expired entries are removed when the map has doubled, so that it holds at most twice the live ones.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Number of entries below which expired ones are not removed.
const SWEEP_MIN: usize = 1024;

/// The map. Entries are kept for `lifetime` at least.
#[derive(Debug)]
pub struct ExpiringMap<K, V> {
    entries: BTreeMap<K, (Instant, V)>,
    lifetime: Duration,
    sweep_len: usize,
}

impl<K: Ord, V> ExpiringMap<K, V> {
    pub fn new(lifetime: Duration) -> Self {
        Self { entries: BTreeMap::new(), lifetime, sweep_len: SWEEP_MIN }
    }

    /// Sets an entry with the time `now`.
    pub fn insert(&mut self, key: K, value: V, now: Instant) {
        if self.entries.len() >= self.sweep_len {
            let lifetime = self.lifetime;
            self.entries.retain(|_, (at, _)| now.saturating_duration_since(*at) < lifetime);
            self.sweep_len = self.entries.len().saturating_mul(2).max(SWEEP_MIN);
        }
        self.entries.insert(key, (now, value));
    }

    /// An entry and the time at which it was set.
    pub fn get_mut(&mut self, key: &K) -> Option<(Instant, &mut V)> {
        self.entries.get_mut(key).map(|(at, value)| (*at, value))
    }

    pub fn remove<Q: Ord + ?Sized>(&mut self, key: &Q)
    where
        K: std::borrow::Borrow<Q>,
    {
        self.entries.remove(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expired_entries_are_removed() {
        let (start, lifetime) = (Instant::now(), Duration::from_secs(5));
        let mut map = ExpiringMap::new(lifetime);
        for nth in 0..100_000_u32 {
            // A thousand entries per second, none of which is read again.
            map.insert(nth, (), start + Duration::from_millis(u64::from(nth)));
            assert!(map.entries.len() <= 2 * 5_001, "{nth}");
        }
        assert!((95_001..100_000).all(|nth| map.get_mut(&nth).is_some()));
        map.remove(&99_999);
        assert!(map.get_mut(&99_999).is_none());
    }
}
