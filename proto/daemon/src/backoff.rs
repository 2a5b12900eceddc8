//! Back-off between retries: doubling, bounded, jittered. Pure; the random number is an argument.

use std::time::Duration;

/// How long to wait after the n-th failure in a row: `first`, doubled each time up to `longest`, less a random part of at most half.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// Wait after the first failure.
    pub first: Duration,
    /// No wait is longer.
    pub longest: Duration,
}

impl Backoff {
    /// For reconcile loops: 100 ms to 30 s.
    pub const LOOP: Self =
        Self { first: Duration::from_millis(100), longest: Duration::from_secs(30) };

    /// For single objects in a work queue: 5 ms to 60 s. A lost race is repeated at once; an object that always fails costs little.
    pub const OBJECT: Self =
        Self { first: Duration::from_millis(5), longest: Duration::from_secs(60) };

    /// The wait after `failures` failures in a row. `dice` in `0.0..=1.0` chooses a point in the upper half of the wait (1.0 is the whole wait), so that
    /// clients that failed together do not retry together.
    pub fn delay(self, failures: u32, dice: f64) -> Duration {
        let Some(doublings) = failures.checked_sub(1) else { return Duration::ZERO };
        let factor = 1_u32 << doublings.min(31);
        let full = self.first.saturating_mul(factor).min(self.longest);
        full.mul_f64(0.5 + 0.5 * dice.clamp(0.0, 1.0))
    }
}

/// The failures in a row of one loop.
#[derive(Clone, Copy, Debug)]
pub struct Retries {
    backoff: Backoff,
    failures: u32,
}

impl Retries {
    /// Without a failure yet.
    pub const fn new(backoff: Backoff) -> Self {
        Self { backoff, failures: 0 }
    }

    /// Counts a failure; how long to wait after it. `dice` as in [`Backoff::delay`].
    pub fn next_delay(&mut self, dice: f64) -> Duration {
        self.failures = self.failures.saturating_add(1);
        self.backoff.delay(self.failures, dice)
    }

    /// After a success: the next wait is the first one again.
    pub fn reset(&mut self) {
        self.failures = 0;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn doubles_up_to_the_bound() {
        let wait = |failures| Backoff::LOOP.delay(failures, 1.0).as_millis();
        assert_eq!([0, 1, 2, 3, 9, 10, 99].map(wait), [0, 100, 200, 400, 25_600, 30_000, 30_000]);
        assert_eq!(Backoff::LOOP.delay(1, 0.0), Duration::from_millis(50));
    }

    #[test]
    fn the_backoff_is_reset_after_a_success() {
        let mut retries = Retries::new(Backoff::LOOP);
        let mut wait = || retries.next_delay(1.0).as_millis();
        assert_eq!([wait(), wait(), wait()], [100, 200, 400]);
        retries.reset();
        assert_eq!(retries.next_delay(1.0).as_millis(), 100);
    }

    proptest! {
        #[test]
        fn stays_between_half_and_the_bound(failures in 1_u32.., dice in 0.0..1.0) {
            let wait = Backoff::OBJECT.delay(failures, dice);
            prop_assert!(wait >= Backoff::OBJECT.first / 2 && wait <= Backoff::OBJECT.longest);
        }
    }
}
