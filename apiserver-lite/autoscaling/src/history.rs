//! What the controller remembers of an autoscaler: what it recommended and how it scaled. Lost with the process, as in Kubernetes.

use std::time::{Duration, Instant};

/// Most entries that are kept of either kind, whatever the windows are. At one a sync period of 15 s they are more than a day.
const ENTRIES_MAX: usize = 8192;

/// The recent past of an autoscaler.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScaleHistory {
    /// Recommendations before stabilization: when, and how many replicas.
    recommendations: Vec<(Instant, i32)>,
    /// Replicas that were added: when, and how many.
    added: Vec<(Instant, i32)>,
    /// Replicas that were removed.
    removed: Vec<(Instant, i32)>,
}

impl ScaleHistory {
    /// Remembers the replicas of a target that is seen for the first time: it is not scaled down at once.
    pub(crate) fn begin(&mut self, current: i32, now: Instant) {
        if self.recommendations.is_empty() {
            self.recommendations.push((now, current));
        }
    }

    /// Recommendations that are younger than `window`.
    pub(crate) fn within(&self, window: Duration, now: Instant) -> impl Iterator<Item = i32> {
        let recent = self.recommendations.iter().filter(move |(at, _)| age(*at, now) < window);
        recent.map(|(_, replicas)| *replicas)
    }

    /// The highest recommendation that is remembered.
    pub(crate) fn highest(&self) -> Option<i32> {
        self.recommendations.iter().map(|(_, replicas)| *replicas).max()
    }

    /// Remembers a recommendation, and forgets those that are older than `window`.
    pub(crate) fn recommend(&mut self, replicas: i32, now: Instant, window: Duration) {
        self.recommendations.retain(|(at, _)| age(*at, now) <= window);
        push(&mut self.recommendations, (now, replicas));
    }

    /// Remembers a change of replicas, and forgets those that are older than the longest period of the rules.
    pub(crate) fn scaled(&mut self, from: i32, to: i32, now: Instant, period: Duration) {
        let changes = if to > from { &mut self.added } else { &mut self.removed };
        changes.retain(|(at, _)| age(*at, now) <= period);
        let change = i32::try_from(to.abs_diff(from)).unwrap_or(i32::MAX);
        push(changes, (now, change));
    }

    /// The replicas that were added and removed in the last `period`.
    pub(crate) fn changed(&self, now: Instant, period: Duration) -> (i64, i64) {
        let sum = |changes: &[(Instant, i32)]| {
            let recent = changes.iter().filter(|(at, _)| age(*at, now) < period);
            recent.map(|(_, by)| i64::from(*by)).sum()
        };
        (sum(&self.added), sum(&self.removed))
    }

    /// The number of entries.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.recommendations.len() + self.added.len() + self.removed.len()
    }
}

fn push(entries: &mut Vec<(Instant, i32)>, entry: (Instant, i32)) {
    if entries.len() >= ENTRIES_MAX {
        entries.remove(0);
    }
    entries.push(entry);
}

fn age(at: Instant, now: Instant) -> Duration {
    now.saturating_duration_since(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scaling_history_is_bounded() {
        let mut history = ScaleHistory::default();
        let (now, seconds) = (Instant::now(), Duration::from_secs);
        for n in 0..20_000 {
            history.recommend(n, now, seconds(300));
            history.scaled(n, n + 1, now, seconds(1800));
            history.scaled(n + 1, n, now, seconds(1800));
        }
        assert_eq!(history.len(), 3 * ENTRIES_MAX);
        assert_eq!(history.within(seconds(1), now).last(), Some(19_999));
        assert_eq!(history.highest(), Some(19_999));
        let later = now + seconds(5000);
        history.recommend(1, later, seconds(1000));
        history.scaled(1, 2, later, seconds(60));
        history.scaled(2, 1, later, seconds(60));
        assert_eq!(history.len(), 3, "what is too old to matter is forgotten");
    }
}
