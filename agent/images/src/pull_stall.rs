//! Detects stalled pulls. Pure: time and progress are arguments.
//!
//! A registry that stops within a layer would hold a pull and its slot for ever. The runtime
//! reports progress for all pulls together, so stalls are detected for all: if nothing has moved
//! for long, the pull that started first is cancelled and retried with back-off, then the next. If
//! no data is in transit, an image is being unpacked, which has no time limit.

use std::time::Duration;

use agent_runtime::runtime::ArrivingParts;

/// Default time without progress.
pub const STANDSTILL: Duration = Duration::from_secs(300);
/// Checks within that time.
const LOOKS: u32 = 10;

/// Progress of all pulls as seen by one.
#[derive(Debug)]
pub struct Watch {
    after: Duration,
    /// Partial layers that earlier pulls left.
    left: ArrivingParts,
    /// Data in transit, of how many pulls, and when that was first seen since the pull started.
    last: (ArrivingParts, usize),
    since: Duration,
}

impl Watch {
    /// For a starting pull: `left` is already partially downloaded. `after` is the time limit
    /// without progress.
    pub fn new(after: Duration, left: ArrivingParts) -> Self {
        Self { after, left, last: (left, 0), since: Duration::ZERO }
    }

    /// Interval between checks.
    pub fn pause(&self) -> Duration {
        self.after.checked_div(LOOKS).unwrap_or(self.after)
    }

    /// Checks the progress of `pulls` pulls after this one has run for `waited`. Returns whether it
    /// is stalled.
    pub fn is_stalled(&mut self, arrivals: ArrivingParts, pulls: usize, waited: Duration) -> bool {
        if self.last != (arrivals, pulls) {
            (self.last, self.since) = ((arrivals, pulls), waited);
        }
        let awaited =
            arrivals.parts > 0 && arrivals.parts >= self.left.parts && arrivals != self.left;
        awaited && waited.saturating_sub(self.since) >= self.after
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is on its way, of how many pulls, when.
    type Look = (ArrivingParts, usize, u64);

    #[test]
    fn a_pull_without_progress_for_the_deadline_is_stalled() {
        let arrivals = |parts, bytes| ArrivingParts { parts, bytes, total: 100 };
        let nothing = arrivals(0, 0);
        let moves = [(nothing, 1, 10), (arrivals(2, 5), 1, 20), (arrivals(2, 6), 1, 30)];
        let table: &[(&str, ArrivingParts, &[Look], bool)] = &[
            ("something came last", nothing, &[(arrivals(2, 7), 1, 500)], false),
            ("a while", nothing, &[(arrivals(2, 6), 1, 329)], false),
            ("long", nothing, &[(arrivals(2, 6), 1, 329), (arrivals(2, 6), 1, 330)], true),
            ("it is unpacked", nothing, &[(nothing, 1, 31), (nothing, 1, 900)], false),
            ("another has ended", nothing, &[(arrivals(2, 6), 0, 330)], false),
            (
                "only what was left lies there",
                arrivals(1, 3),
                &[(arrivals(1, 3), 1, 40), (arrivals(1, 3), 1, 900)],
                false,
            ),
            ("what was left is gone on with", arrivals(2, 3), &[(arrivals(2, 6), 1, 330)], true),
            ("of what was left less is there", arrivals(3, 8), &[(arrivals(2, 6), 1, 900)], false),
        ];
        for (what, left, then, expect) in table {
            let mut watch = Watch::new(Duration::from_secs(300), *left);
            let looks = moves.iter().chain(*then);
            let stands = looks.map(|(arrivals, pulls, at)| {
                watch.is_stalled(*arrivals, *pulls, Duration::from_secs(*at))
            });
            assert_eq!(stands.last(), Some(*expect), "{what}");
        }
    }
}
