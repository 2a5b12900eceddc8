//! When what has failed is tried again: each thing by itself, after longer and longer waits.

use std::collections::BTreeMap;
use std::time::Duration;

use proto_daemon::backoff::{Backoff, Retries};
use tokio::time::Instant;

/// The figures of Kubernetes' volume manager.
const RETRY: Backoff =
    Backoff { first: Duration::from_millis(500), longest: Duration::from_secs(122) };
/// Between two looks when nothing has been heard.
const PERIOD: Duration = Duration::from_secs(60);

/// What has failed and is tried again. Bounded by what there is to try.
#[derive(Debug)]
pub struct RetryTimes<K>(BTreeMap<K, Wait>);

#[derive(Clone, Copy, Debug)]
struct Wait {
    until: Instant,
    retries: Retries,
}

impl<K> Default for RetryTimes<K> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<K: Ord> RetryTimes<K> {
    /// Whether it may be tried.
    pub fn is_due(&self, what: &K, now: Instant) -> bool {
        self.0.get(what).is_none_or(|wait| wait.until <= now)
    }

    /// It was tried, and waits from now on.
    pub fn failed(&mut self, what: K, now: Instant) {
        let mut retries = self.0.get(&what).map_or(Retries::new(RETRY), |wait| wait.retries);
        let until = now + retries.next_delay(1.0);
        self.0.insert(what, Wait { until, retries });
    }

    /// It was tried, and is done.
    pub fn worked(&mut self, what: &K) {
        self.0.remove(what);
    }

    /// Everything may be tried at once.
    pub fn forget(&mut self) {
        self.0.clear();
    }

    /// When to look again, if nothing is heard before.
    pub fn first(&self, now: Instant) -> Instant {
        let all = self.0.values().map(|wait| wait.until).filter(|until| *until > now);
        all.min().unwrap_or(now + PERIOD).min(now + PERIOD)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn waits_grow_to_a_bound() {
        let mut waits = RetryTimes::default();
        let now = Instant::now();
        assert!(waits.is_due(&"a", now));
        assert_eq!(waits.first(now), now + PERIOD);
        let mut last = Duration::ZERO;
        for _ in 0..12 {
            waits.failed("a", now);
            assert!(!waits.is_due(&"a", now));
            let wait = waits.0["a"].until - now;
            assert!(wait > last || wait == RETRY.longest, "{wait:?}");
            last = wait;
        }
        assert_eq!(last, RETRY.longest);
        waits.failed("b", now);
        assert_eq!(waits.first(now), now + RETRY.first);
        assert!(waits.is_due(&"a", now + RETRY.longest));
        waits.worked(&"a");
        assert!(waits.is_due(&"a", now) && !waits.is_due(&"b", now));
        waits.forget();
        assert!(waits.is_due(&"b", now));
    }
}
