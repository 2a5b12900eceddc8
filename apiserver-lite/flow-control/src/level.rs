//! A priority level as configured, and how the seats of the server are divided among levels.

use crate::shuffle_sharding::HAND_MAX;

/// Most queues of a level. More in a configuration count as this many: what more would add is below one flow in a thousand that meets another.
const QUEUES_MAX: usize = 1024;
/// Most requests in a queue. More in a configuration count as this many.
const QUEUE_LENGTH_MAX: usize = 4096;

/// A PriorityLevelConfiguration, read once: shares, queues, or exempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PriorityLevel {
    pub name: String,
    /// Its identity; empty for a mandatory one that is not stored yet.
    pub uid: String,
    /// How its requests are limited.
    pub limit: Limit,
}

/// How the requests of a level are limited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// Not at all.
    Exempt,
    /// To its part of the server's seats.
    Limited {
        /// The part, in relation to the shares of other levels.
        shares: u32,
        /// What happens when all seats are taken.
        response: LimitResponse,
    },
}

/// What happens to a request when all seats are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitResponse {
    Reject,
    /// It waits.
    Queue(Queuing),
}

/// The queues of a level. The numbers are within bounds whatever an object says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Queuing {
    /// How many there are.
    pub(crate) queues: usize,
    /// How many of them one flow may use.
    pub(crate) hand: usize,
    /// How many requests may wait in one.
    pub(crate) length: usize,
}

impl Queuing {
    /// At least one of each; what is more than can be useful is cut off.
    #[must_use]
    pub fn new(queues: i64, hand: i64, length: i64) -> Self {
        let within = |number: i64, max: usize| usize::try_from(number).unwrap_or(1).clamp(1, max);
        let queues = within(queues, QUEUES_MAX);
        Self {
            queues,
            hand: within(hand, queues.min(HAND_MAX)),
            length: within(length, QUEUE_LENGTH_MAX),
        }
    }
}

impl Limit {
    /// The shares; none without a limit.
    #[must_use]
    pub fn shares(&self) -> Option<u32> {
        match self {
            Self::Exempt => None,
            Self::Limited { shares, .. } => Some(*shares),
        }
    }
}

/// The seats of a level with `shares` of `sum`, rounded up: all levels together may have a few more than `total`.
#[must_use]
pub fn divide(total: u32, shares: u32, sum: u64) -> usize {
    let product = u64::from(total).saturating_mul(u64::from(shares));
    usize::try_from(product.div_ceil(sum.max(1))).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seats_are_divided_as_kubernetes_divides_them() {
        // system, node-high, leader-election, workload-high, workload-low, global-default, catch-all
        let shares = [30, 40, 10, 40, 100, 20, 5];
        let sum = shares.iter().map(|shares| u64::from(*shares)).sum();
        assert_eq!(shares.map(|shares| divide(600, shares, sum)), [74, 98, 25, 98, 245, 49, 13]);
        assert_eq!(shares.map(|shares| divide(1, shares, sum)), [1; 7]);
        assert_eq!(divide(600, u32::MAX, u64::from(u32::MAX)), 600);
        assert_eq!((divide(600, 1, 0), divide(0, 1, 1)), (600, 0));
    }

    #[test]
    fn numbers_of_queues_are_bounded() {
        let of = |queues, hand, length| {
            let Queuing { queues, hand, length } = Queuing::new(queues, hand, length);
            (queues, hand, length)
        };
        assert_eq!(of(128, 6, 50), (128, 6, 50));
        assert_eq!(of(0, 0, 0), (1, 1, 1));
        assert_eq!(of(-5, -5, i64::MIN), (1, 1, 1));
        assert_eq!(of(4, 9, 1), (4, 4, 1));
        assert_eq!(of(i64::MAX, i64::MAX, i64::MAX), (QUEUES_MAX, HAND_MAX, QUEUE_LENGTH_MAX));
    }
}
