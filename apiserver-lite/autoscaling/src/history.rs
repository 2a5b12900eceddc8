//! What the controller remembers of an autoscaler: what it recommended and how it scaled. Lost with the process, as in Kubernetes.

use proto_api::Time;

/// Most entries that are kept of either kind, whatever the windows are. At one a sync period of 15 s they are more than a day.
const ENTRIES_MAX: usize = 8192;

/// The recent past of an autoscaler.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct History {
    /// Recommendations before stabilization: when, and how many replicas.
    recommendations: Vec<(i64, i32)>,
    /// Replicas that were added: when, and how many.
    added: Vec<(i64, i32)>,
    /// Replicas that were removed.
    removed: Vec<(i64, i32)>,
}

impl History {
    /// Remembers the replicas of a target that is seen for the first time: it is not scaled down at once.
    pub(crate) fn begin(&mut self, current: i32, now: Time) {
        if self.recommendations.is_empty() {
            self.recommendations.push((seconds(now), current));
        }
    }

    /// Recommendations after a time.
    pub(crate) fn after(&self, time: i64) -> impl Iterator<Item = i32> {
        let later = self.recommendations.iter().filter(move |(at, _)| *at > time);
        later.map(|(_, replicas)| *replicas)
    }

    /// Remembers a recommendation, and forgets those from before `oldest`.
    pub(crate) fn recommend(&mut self, replicas: i32, now: Time, oldest: i64) {
        self.recommendations.retain(|(at, _)| *at >= oldest);
        push(&mut self.recommendations, (seconds(now), replicas));
    }

    /// Remembers a change of replicas, and forgets those that are older than the longest period of the rules.
    pub(crate) fn scaled(&mut self, from: i32, to: i32, now: Time, period: i64) {
        let changes = if to > from { &mut self.added } else { &mut self.removed };
        let oldest = seconds(now).saturating_sub(period);
        changes.retain(|(at, _)| *at >= oldest);
        let change = i32::try_from(to.abs_diff(from)).unwrap_or(i32::MAX);
        push(changes, (seconds(now), change));
    }

    /// The replicas that were added and removed in the last `period` seconds.
    pub(crate) fn changed(&self, now: Time, period: i64) -> (i64, i64) {
        let start = seconds(now).saturating_sub(period);
        let sum = |changes: &[(i64, i32)]| {
            changes.iter().filter(|(at, _)| *at > start).map(|(_, by)| i64::from(*by)).sum()
        };
        (sum(&self.added), sum(&self.removed))
    }

    /// The number of entries.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.recommendations.len() + self.added.len() + self.removed.len()
    }
}

fn push(entries: &mut Vec<(i64, i32)>, entry: (i64, i32)) {
    if entries.len() >= ENTRIES_MAX {
        entries.remove(0);
    }
    entries.push(entry);
}

/// Seconds since 1970.
pub(crate) fn seconds(time: Time) -> i64 {
    time.unix().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_bounded() {
        let mut history = History::default();
        let now = Time::from_unix(0);
        for n in 0..20_000 {
            history.recommend(n, now, 0);
            history.scaled(n, n + 1, now, 1800);
            history.scaled(n + 1, n, now, 1800);
        }
        assert_eq!(history.len(), 3 * ENTRIES_MAX);
        assert_eq!(history.after(-1).last(), Some(19_999));
        let later = Time::from_unix(5000);
        history.recommend(1, later, 4000);
        history.scaled(1, 2, later, 60);
        history.scaled(2, 1, later, 60);
        assert_eq!(history.len(), 3, "what is too old to matter is forgotten");
    }
}
