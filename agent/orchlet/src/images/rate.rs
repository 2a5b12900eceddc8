//! How fast pulls may begin. Pure: time is an argument.

use std::time::Duration;

/// A bucket of permissions that fills at a steady rate. Who finds it empty is told how long to wait, in the order of asking.
#[derive(Clone, Copy, Debug)]
pub struct Rate {
    /// Between two permissions in the long run; zero is no bound.
    every: Duration,
    /// How far permissions may be taken ahead of time.
    ahead: Duration,
    /// When the next permission would be given if all had come at the steady rate, since boot.
    next: Duration,
}

impl Rate {
    /// `qps` a second, `burst` at once; 0 a second is no bound.
    pub fn new(qps: u32, burst: u32) -> Self {
        let every = Duration::from_secs(1).checked_div(qps).unwrap_or_default();
        let ahead = every.saturating_mul(burst.saturating_sub(1));
        Self { every, ahead, next: Duration::ZERO }
    }

    /// Takes a permission; how long to wait before using it.
    pub fn take(&mut self, now: Duration) -> Duration {
        let at = self.next.max(now.saturating_sub(self.ahead));
        self.next = at + self.every;
        at.saturating_sub(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_passes_and_the_rest_comes_at_the_rate() {
        let mut rate = Rate::new(5, 3);
        let now = Duration::from_secs(100);
        let waits: Vec<u128> = (0..6).map(|_| rate.take(now).as_millis()).collect();
        assert_eq!(waits, [0, 0, 0, 200, 400, 600]);
        assert_eq!(rate.take(now + Duration::from_secs(60)).as_millis(), 0);
        let mut free = Rate::new(0, 0);
        assert!((0..100).all(|_| free.take(now).is_zero()));
    }
}
