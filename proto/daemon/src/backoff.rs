//! Back-off between retries: doubling, bounded, jittered. Pure; the dice are an argument.

use std::time::Duration;

/// How long to wait after the n-th failure in a row: `first`, doubled each time, never above
/// `longest`, spread by jitter.
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

    /// For single objects in a work queue: 5 ms to 60 s, so that a lost race is repeated at once
    /// and a broken object costs nothing.
    pub const OBJECT: Self =
        Self { first: Duration::from_millis(5), longest: Duration::from_secs(60) };

    /// The wait after `failures` failures in a row. `dice` in `0.0..1.0` picks a point in the upper
    /// half of the wait, so that many clients that failed together do not return together.
    pub fn delay(self, failures: u32, dice: f64) -> Duration {
        let Some(doublings) = failures.checked_sub(1) else { return Duration::ZERO };
        let factor = 1_u32 << doublings.min(31);
        let full = self.first.saturating_mul(factor).min(self.longest);
        full.mul_f64(0.5 + 0.5 * dice.clamp(0.0, 1.0))
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

    proptest! {
        #[test]
        fn stays_between_half_and_the_bound(failures in 1_u32.., dice in 0.0..1.0) {
            let wait = Backoff::OBJECT.delay(failures, dice);
            prop_assert!(wait >= Backoff::OBJECT.first / 2 && wait <= Backoff::OBJECT.longest);
        }
    }
}
