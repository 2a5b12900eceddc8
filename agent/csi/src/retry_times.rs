//! Retry times of failed operations: each operation by itself, with exponential delays.

use std::collections::BTreeMap;
use std::time::Duration;

use proto_daemon::backoff::{Backoff, Retries};
use tokio::time::Instant;

/// The delays of Kubernetes' volume manager.
const RETRY: Backoff =
    Backoff { first: Duration::from_millis(500), longest: Duration::from_secs(122) };
/// Interval between checks without notifications.
const PERIOD: Duration = Duration::from_secs(60);

/// Retry times of failed operations, bounded by the number of operations.
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
    /// Whether the operation may be tried.
    pub fn is_due(&self, what: &K, now: Instant) -> bool {
        self.0.get(what).is_none_or(|wait| wait.until <= now)
    }

    /// Records a failure at `now`.
    pub fn record_failure(&mut self, what: K, now: Instant) {
        let mut retries = self.0.get(&what).map_or(Retries::new(RETRY), |wait| wait.retries);
        let until = now + retries.next_delay(1.0);
        self.0.insert(what, Wait { until, retries });
    }

    pub fn record_success(&mut self, what: &K) {
        self.0.remove(what);
    }

    /// Allows all operations to be retried at once.
    pub fn forget(&mut self) {
        self.0.clear();
    }

    /// Time of the next check if there is no notification before.
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
            waits.record_failure("a", now);
            assert!(!waits.is_due(&"a", now));
            let wait = waits.0["a"].until - now;
            assert!(wait > last || wait == RETRY.longest, "{wait:?}");
            last = wait;
        }
        assert_eq!(last, RETRY.longest);
        waits.record_failure("b", now);
        assert_eq!(waits.first(now), now + RETRY.first);
        assert!(waits.is_due(&"a", now + RETRY.longest));
        waits.record_success(&"a");
        assert!(waits.is_due(&"a", now) && !waits.is_due(&"b", now));
        waits.forget();
        assert!(waits.is_due(&"b", now));
    }
}
