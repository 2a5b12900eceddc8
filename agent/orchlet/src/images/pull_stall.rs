//! Whether pulls have come to a standstill. Pure: time and what the runtime tells are arguments.
//!
//! A registry that stops in the middle of a layer keeps a pull for as long as it likes, and with it the pull's place among those that may
//! run. The runtime tells what is on its way for all pulls together, so this is decided for all of them together: when nothing has moved
//! for long the one that began first is given up and tried again after its back-off; then the next. When
//! nothing is on its way an image is being unpacked, and that may take as long as it takes.

use std::time::Duration;

use agent_runtime::runtime::ArrivingParts;

/// How long nothing may move.
pub const STANDSTILL: Duration = Duration::from_secs(300);
/// Looks in that time.
const LOOKS: u32 = 10;

/// What one pull has seen of all.
#[derive(Debug)]
pub struct Watch {
    after: Duration,
    /// What lay there before the pull: parts that earlier ones left.
    left: ArrivingParts,
    /// What is on its way, of how many pulls, and when that was first seen: time since the pull began.
    last: (ArrivingParts, usize),
    since: Duration,
}

impl Watch {
    /// For a pull that begins: `left` is on its way already. Nothing may move for `after`.
    pub fn new(after: Duration, left: ArrivingParts) -> Self {
        Self { after, left, last: (left, 0), since: Duration::ZERO }
    }

    /// Between two looks.
    pub fn pause(&self) -> Duration {
        self.after.checked_div(LOOKS).unwrap_or(self.after)
    }

    /// Takes in what is on its way of `pulls` pulls when this one has gone on for `waited`; whether nothing has moved for too long.
    pub fn stands(&mut self, arrivals: ArrivingParts, pulls: usize, waited: Duration) -> bool {
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
    fn what_stands_still_for_long_stands() {
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
                watch.stands(*arrivals, *pulls, Duration::from_secs(*at))
            });
            assert_eq!(stands.last(), Some(*expect), "{what}");
        }
    }
}
