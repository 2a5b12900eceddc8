//! Answers that stay good for a while. Bounded; the time is an argument.

use std::collections::BTreeMap;

use tokio::time::Instant;

/// Answers kept at most.
const LEN_MAX: usize = 1024;

/// Answers by question, each until its time.
#[derive(Debug)]
pub(super) struct TtlCache<K, V>(BTreeMap<K, (V, Instant)>);

impl<K, V> Default for TtlCache<K, V> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<K: Ord, V: Clone> TtlCache<K, V> {
    pub(super) fn get(&self, key: &K, now: Instant) -> Option<V> {
        self.0.get(key).filter(|(_, until)| now < *until).map(|(value, _)| value.clone())
    }

    /// When full, what is out of date goes; when nothing is, all goes: asking again is cheap.
    pub(super) fn put(&mut self, key: K, value: V, until: Instant) {
        if self.0.len() >= LEN_MAX {
            let now = Instant::now();
            self.0.retain(|_, (_, until)| now < *until);
            if self.0.len() >= LEN_MAX {
                self.0.clear();
            }
        }
        self.0.insert(key, (value, until));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_cache_is_bounded() {
        let mut remembered = TtlCache::default();
        let until = Instant::now() + Duration::from_secs(9);
        for n in 0..5000 {
            remembered.put(n, (), until);
        }
        assert!(remembered.get(&4999, Instant::now()).is_some());
        let kept = (0..5000).filter(|n| remembered.get(n, Instant::now()).is_some()).count();
        assert!(kept <= 1024, "{kept}");
    }
}
