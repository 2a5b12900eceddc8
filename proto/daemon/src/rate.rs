//! Rate limit: a steady rate with bursts. Pure: time is an argument.

use std::time::Duration;

/// A token bucket. Takers of an empty one get increasing waits, in their order.
#[derive(Clone, Copy, Debug)]
pub struct Rate {
    /// Between two tokens in the long run; zero for no limit.
    every: Duration,
    /// How far ahead of time tokens may be taken.
    ahead: Duration,
    /// When the bucket is full again.
    full: Duration,
}

impl Rate {
    /// `qps` a second, `burst` at once; 0 a second for no limit.
    pub fn new(qps: u32, burst: u32) -> Self {
        let every = Duration::from_secs(1).checked_div(qps).unwrap_or_default();
        let ahead = every.saturating_mul(burst.saturating_sub(1));
        Self { every, ahead, full: Duration::ZERO }
    }

    /// Takes a token; returns how long to wait before using it. `now` counts from any fixed moment.
    pub fn take(&mut self, now: Duration) -> Duration {
        let wait = self.wait(now);
        self.full = self.full.max(now) + self.every;
        wait
    }

    /// How long it takes until a token can be used at once.
    pub fn wait(&self, now: Duration) -> Duration {
        self.full.saturating_sub(now.saturating_add(self.ahead))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_passes_and_the_rest_comes_at_the_rate() {
        let mut rate = Rate::new(5, 3);
        let now = Duration::ZERO;
        let mut taken = || {
            let waits = rate.wait(now);
            assert_eq!(rate.take(now), waits);
            waits.as_millis()
        };
        let waits: Vec<u128> = (0..6).map(|_| taken()).collect();
        assert_eq!(waits, [0, 0, 0, 200, 400, 600]);
        assert_eq!(rate.take(now + Duration::from_secs(60)).as_millis(), 0);
        let mut free = Rate::new(0, 0);
        assert!((0..100).all(|_| free.take(now).is_zero()));
    }
}
