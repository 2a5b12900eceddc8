//! Answers that hold for some time, by the digest of what was asked.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use ring::digest::{SHA256, SHA256_OUTPUT_LEN, digest};
use tokio::time::Instant;

/// Most answers that are kept.
const ENTRIES_MAX: usize = 4096;

/// A digest, so that neither secrets nor long texts are kept.
pub type Key = [u8; SHA256_OUTPUT_LEN];

/// The key of a question.
pub fn key(question: &[u8]) -> Key {
    let mut key = [0; SHA256_OUTPUT_LEN];
    key.copy_from_slice(digest(&SHA256, question).as_ref());
    key
}

/// A bounded cache.
pub struct ExpiringCache<V>(Mutex<HashMap<Key, (Instant, V)>>);

impl<V: Clone> ExpiringCache<V> {
    /// An empty one.
    pub fn new() -> Self {
        Self(Mutex::new(HashMap::new()))
    }

    /// The answer, if it still holds.
    pub fn get(&self, key: &Key) -> Option<V> {
        let entries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (until, value) = entries.get(key)?;
        (Instant::now() < *until).then(|| value.clone())
    }

    /// Keeps an answer for `ttl`. When the cache is full, what has expired makes room, else everything.
    pub fn insert(&self, key: Key, value: V, ttl: Duration) {
        let now = Instant::now();
        let Some(until) = now.checked_add(ttl).filter(|until| *until > now) else { return };
        let mut entries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if entries.len() >= ENTRIES_MAX {
            entries.retain(|_, (until, _)| now < *until);
        }
        if entries.len() >= ENTRIES_MAX {
            entries.clear();
        }
        entries.insert(key, (until, value));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn answers_expire_and_their_number_is_bounded() {
        let cache = ExpiringCache::new();
        let (a, b) = (key(b"a"), key(b"b"));
        cache.insert(a, 1, Duration::from_secs(10));
        cache.insert(b, 2, Duration::ZERO);
        assert_eq!((cache.get(&a), cache.get(&b)), (Some(1), None));
        tokio::time::advance(Duration::from_secs(10)).await;
        assert_eq!(cache.get(&a), None);
        for nth in 0..2 * ENTRIES_MAX {
            cache.insert(key(&nth.to_be_bytes()), 3, Duration::from_secs(60));
        }
        assert!(cache.0.lock().unwrap().len() <= ENTRIES_MAX);
    }
}
