//! A map whose entries are worth nothing once they are old. Old ones go when the map has doubled, so that it never holds more than twice what
//! is young.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Entries that are kept without a look at their age.
const SWEEP_MIN: usize = 1024;

/// The map. Entries are at least kept for `life`.
#[derive(Debug)]
pub struct ExpiringMap<K, V> {
    entries: BTreeMap<K, (Instant, V)>,
    life: Duration,
    sweep_len: usize,
}

impl<K: Ord, V> ExpiringMap<K, V> {
    /// An empty map.
    pub fn new(life: Duration) -> Self {
        Self { entries: BTreeMap::new(), life, sweep_len: SWEEP_MIN }
    }

    /// Sets an entry, which is as old as `now`.
    pub fn insert(&mut self, key: K, value: V, now: Instant) {
        if self.entries.len() >= self.sweep_len {
            let life = self.life;
            self.entries.retain(|_, (at, _)| now.saturating_duration_since(*at) < life);
            self.sweep_len = self.entries.len().saturating_mul(2).max(SWEEP_MIN);
        }
        self.entries.insert(key, (now, value));
    }

    /// An entry, and since when it is there.
    pub fn get_mut(&mut self, key: &K) -> Option<(Instant, &mut V)> {
        self.entries.get_mut(key).map(|(at, value)| (*at, value))
    }

    /// Takes an entry out.
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
    fn old_entries_go_and_young_ones_stay() {
        let (start, life) = (Instant::now(), Duration::from_secs(5));
        let mut map = ExpiringMap::new(life);
        for nth in 0..100_000_u32 {
            // A thousand a second, none of which is ever looked at again.
            map.insert(nth, (), start + Duration::from_millis(u64::from(nth)));
            assert!(map.entries.len() <= 2 * 5_001, "{nth}");
        }
        assert!((95_001..100_000).all(|nth| map.get_mut(&nth).is_some()));
        map.remove(&99_999);
        assert!(map.get_mut(&99_999).is_none());
    }
}
