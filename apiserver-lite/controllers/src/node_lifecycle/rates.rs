//! How fast the nodes of a zone are evicted one after the other.

/// Bound of the time between two evictions, in seconds: a year. A rate that is not 0 evicts in the end.
const PAUSE_MAX: f64 = 365.0 * 86_400.0;
/// Nodes that have to fail before a zone does.
const FAILED_MIN: usize = 3;

/// Rates of evictions, in nodes a second for each zone; and which zones fail.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EvictionRates {
    /// The rate of a zone that has not failed; 0 evicts none.
    pub healthy: f64,
    /// The rate of a large zone that has; 0 evicts none.
    pub failing: f64,
    /// Nodes up to which a zone is small: once it has failed, none are evicted.
    pub small_zone: u32,
    /// The share of its nodes that are not ready from which a zone fails, from 0 to 1.
    pub failed_share: f64,
}

impl Default for EvictionRates {
    fn default() -> Self {
        Self { healthy: 0.1, failing: 0.01, small_zone: 50, failed_share: 0.55 }
    }
}

/// The pace of evictions in a zone: this many nodes in this many seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pace {
    pub nodes: usize,
    pub seconds: i64,
}

impl Pace {
    /// Taints have whole seconds: below one node a second the pauses are rounded up, above the nodes are rounded down.
    fn from_rate(rate: f64) -> Option<Self> {
        // A rate that is not a number evicts none.
        match rate {
            _ if rate >= 1.0 => Some(Self { nodes: rate as usize, seconds: 1 }),
            _ if rate > 0.0 => {
                Some(Self { nodes: 1, seconds: (1.0 / rate).min(PAUSE_MAX).ceil() as i64 })
            }
            _ => None,
        }
    }
}

impl EvictionRates {
    /// The longest time between two evictions that any zone has, in seconds.
    pub(super) fn longest_pause(&self) -> i64 {
        let paces = [self.healthy, self.failing].into_iter().filter_map(Pace::from_rate);
        paces.map(|pace| pace.seconds).max().unwrap_or(0)
    }

    /// The pace in a zone with these nodes; none if none are to be evicted.
    pub(super) fn pace(&self, ready: usize, failed: usize) -> Option<Pace> {
        let all = ready.saturating_add(failed);
        let fails =
            ready > 0 && failed >= FAILED_MIN && failed as f64 / all as f64 >= self.failed_share;
        match fails {
            true if u32::try_from(all).is_ok_and(|all| all <= self.small_zone) => None,
            true => Pace::from_rate(self.failing),
            false => Pace::from_rate(self.healthy),
        }
    }
}
