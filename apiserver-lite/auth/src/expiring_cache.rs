//! A cache of responses with an expiry, by the digest of the request.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use ring::digest::{SHA256, SHA256_OUTPUT_LEN, digest};
use tokio::time::Instant;

/// Most answers that are kept.
const ENTRIES_MAX: usize = 4096;

/// A digest, so that neither secrets nor long texts are kept.
pub type CacheKey = [u8; SHA256_OUTPUT_LEN];

/// The key of a question.
pub fn key(question: &[u8]) -> CacheKey {
    let mut key = [0; SHA256_OUTPUT_LEN];
    key.copy_from_slice(digest(&SHA256, question).as_ref());
    key
}

/// A bounded cache. When it is full, the oldest answer makes room.
pub struct ExpiringCache<V>(Mutex<Entries<V>>);

struct Entries<V> {
    answers: HashMap<CacheKey, (Instant, V)>,
    /// In the order of their insertion; an answer that was replaced is in it twice.
    order: VecDeque<(CacheKey, Instant)>,
}

impl<V: Clone> ExpiringCache<V> {
    /// An empty one.
    pub fn new() -> Self {
        Self(Mutex::new(Entries { answers: HashMap::new(), order: VecDeque::new() }))
    }

    /// The answer, if it still holds.
    pub fn get(&self, key: &CacheKey) -> Option<V> {
        let entries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (until, value) = entries.answers.get(key)?;
        (Instant::now() < *until).then(|| value.clone())
    }

    /// Keeps an answer for `ttl`.
    pub fn insert(&self, key: CacheKey, value: V, ttl: Duration) {
        let now = Instant::now();
        let Some(until) = now.checked_add(ttl).filter(|until| *until > now) else { return };
        let mut entries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Entries { answers, order } = &mut *entries;
        answers.insert(key, (until, value));
        order.push_back((key, until));
        while order.len() > ENTRIES_MAX {
            let Some((oldest, until)) = order.pop_front() else { break };
            if answers.get(&oldest).is_some_and(|(latest, _)| *latest == until) {
                answers.remove(&oldest);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn answers_expire_and_the_oldest_make_room() {
        let cache = ExpiringCache::new();
        let (a, b) = (key(b"a"), key(b"b"));
        cache.insert(a, 1, Duration::from_secs(10));
        cache.insert(b, 2, Duration::ZERO);
        assert_eq!((cache.get(&a), cache.get(&b)), (Some(1), None));
        tokio::time::advance(Duration::from_secs(10)).await;
        assert_eq!(cache.get(&a), None);
        let nth = |nth: usize| key(&nth.to_be_bytes());
        for at in 0..ENTRIES_MAX + 10 {
            cache.insert(nth(at), 3, Duration::from_secs(60));
            tokio::time::advance(Duration::from_millis(1)).await;
        }
        assert_eq!((cache.get(&nth(9)), cache.get(&nth(10))), (None, Some(3)));
        cache.insert(nth(10), 4, Duration::from_secs(60));
        cache.insert(a, 5, Duration::from_secs(60));
        assert_eq!(cache.get(&nth(10)), Some(4), "the newer of two insertions counts");
        let entries = cache.0.lock().unwrap();
        assert!(entries.answers.len() <= ENTRIES_MAX && entries.order.len() <= ENTRIES_MAX);
    }
}
