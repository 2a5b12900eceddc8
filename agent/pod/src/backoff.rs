//! Back-off: delays between restarts of a container and between attempts of any other step of a pod.
//!
//! All times are durations since boot, so setting the wall clock neither starts nor stalls anything.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// First delay between restarts of a crashing container.
pub const CRASH_DELAY_FIRST: Duration = Duration::from_secs(10);
/// Longest delay between restarts.
pub const CRASH_DELAY_MAX: Duration = Duration::from_secs(300);
/// A container that ran this long restarts without delay, as after its first crash.
pub const CRASH_RESET: Duration = Duration::from_secs(600);

/// Restart back-off of one container: none for the first crash, then 10 s doubled up to 300 s.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CrashBackoff {
    /// Exits since the container last ran for [`CRASH_RESET`].
    pub exits: u32,
    /// Current delay; zero if the next instance may start at once.
    pub delay: Duration,
    /// When the next instance may start, since boot.
    pub not_before: Duration,
    /// When the last exit was recorded, since boot.
    pub noted: Duration,
    /// Attempt of the newest instance counted in `exits`.
    pub counted: Option<u32>,
}

/// Exits that were not recorded when they happened, because the journal lost them or another kubelet ran the pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MissedExits {
    /// Number of exits.
    pub count: u32,
    /// Pause between the last of them and the start of the next instance, if known.
    pub paused: Option<Duration>,
    /// Time of the last of them, since boot.
    pub last: Duration,
}

impl CrashBackoff {
    /// Records an exit at `now`.
    pub fn record_exit(&mut self, now: Duration) {
        self.count(now);
        self.not_before = now.saturating_add(self.delay);
        self.noted = now;
    }

    /// Records that the agent stopped an instance at `now` because a probe or hook failed. The delay runs from the previous exit,
    /// so the next instance starts at once unless instances fail faster than that.
    pub fn record_stop(&mut self, now: Duration) {
        self.count(now);
        self.not_before = self.noted.saturating_add(self.delay).max(now);
        self.noted = now;
    }

    /// Time since boot when the next instance may start, with delays capped at `longest`. The stored delay uses Kubernetes'
    /// default cap, so the node's setting may change at any time.
    pub fn next_start(&self, longest: Duration) -> Duration {
        let shorter = self.delay.saturating_sub(longest);
        self.not_before.saturating_sub(shorter).max(self.noted)
    }

    /// Counts missed exits. The pause after the last of them equals the delay then in force, from which the number of earlier
    /// exits follows; without a known pause all of them count.
    pub(crate) fn record_missed_exits(&mut self, missed: MissedExits) {
        let most = self.exits.saturating_add(missed.count);
        self.exits = missed.paused.map_or(most, |paused| most.min(exits_before(paused)));
        self.delay = delay(self.exits.saturating_sub(1), CRASH_DELAY_FIRST, CRASH_DELAY_MAX);
        (self.noted, self.not_before) = (missed.last, missed.last);
    }

    fn count(&mut self, now: Duration) {
        if self.exits > 0 && now.saturating_sub(self.noted) > CRASH_RESET {
            self.exits = 0;
        }
        self.delay = delay(self.exits, CRASH_DELAY_FIRST, CRASH_DELAY_MAX);
        self.exits = self.exits.saturating_add(1);
    }

    /// Resets the points in time, which are meaningless after another boot; the number of exits stays.
    pub fn after_reboot(&mut self) {
        self.not_before = Duration::ZERO;
        self.noted = Duration::ZERO;
        self.delay = Duration::ZERO;
    }
}

/// Delay after `failures` failures: zero for none, then `first`, doubled up to `max`.
fn delay(failures: u32, first: Duration, max: Duration) -> Duration {
    match failures {
        0 => Duration::ZERO,
        n => first.saturating_mul(1 << n.saturating_sub(1).min(16)).min(max),
    }
}

/// The largest number of exits in a row whose delay is not longer than `paused`.
fn exits_before(paused: Duration) -> u32 {
    let mut exits = 1;
    loop {
        let next = delay(exits, CRASH_DELAY_FIRST, CRASH_DELAY_MAX);
        if next > paused {
            return exits;
        }
        exits = exits.saturating_add(1);
        if next == CRASH_DELAY_MAX {
            return exits;
        }
    }
}

/// A step of a pod that fails and is retried independently of the others.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum RetryStep {
    /// Setting up the volumes.
    Volumes,
    /// Creating a sandbox.
    Sandbox,
    /// Pulling an image.
    Image(String),
    /// Creating or starting a container.
    Container(String),
    /// Stopping or removing something.
    Cleanup,
    /// Deleting the API object of a pod that has ended.
    Report,
}

impl RetryStep {
    /// Delay after the first failure, and the longest delay.
    fn delays(&self) -> (Duration, Duration) {
        match self {
            Self::Image(_) => (CRASH_DELAY_FIRST, CRASH_DELAY_MAX),
            Self::Volumes => (Duration::from_millis(500), Duration::from_secs(122)),
            Self::Sandbox | Self::Container(_) => (Duration::from_secs(1), Duration::from_secs(60)),
            Self::Cleanup => (Duration::from_millis(100), Duration::from_secs(10)),
            Self::Report => (Duration::from_millis(250), Duration::from_secs(10)),
        }
    }
}

/// A step whose last attempt failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepFailure {
    pub step: RetryStep,
    /// Failures in a row.
    pub failures: u32,
    /// When the last failure was recorded, since boot.
    pub at: Duration,
    /// Earliest time of the next attempt, since boot.
    pub until: Duration,
    /// Reason of a waiting container, such as `ErrImagePull`.
    pub reason: String,
    /// Message for users.
    pub message: String,
}

/// Time for which a failed pull shows its error before `ImagePullBackOff`.
const PULL_ERROR_SHOWN: Duration = Duration::from_secs(5);

impl StepFailure {
    /// When the waiting reason of a failed pull changes from the error to the back-off, since boot.
    pub(crate) fn shows_error_until(&self) -> Duration {
        self.at.saturating_add(PULL_ERROR_SHOWN)
    }

    /// Failure of a step: the first, or one more after `before`.
    pub fn next(
        before: Option<&Self>,
        step: RetryStep,
        reason: &str,
        message: &str,
        now: Duration,
    ) -> Self {
        let failures = before.map_or(0, |t| t.failures).saturating_add(1);
        let (first, max) = step.delays();
        let until = now.saturating_add(delay(failures, first, max));
        let (reason, message) = (reason.to_owned(), message.to_owned());
        Self { step, failures, at: now, until, reason, message }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn s(secs: u64) -> Duration {
        Duration::from_secs(secs)
    }

    #[test]
    fn the_first_crash_restarts_at_once_and_the_rest_double_to_the_cap() {
        let mut backoff = CrashBackoff::default();
        let mut now = s(1000);
        let mut delays = Vec::new();
        for _ in 0..8 {
            backoff.record_exit(now);
            delays.push(backoff.delay.as_secs());
            now = backoff.not_before + s(1);
        }
        assert_eq!(delays, [0, 10, 20, 40, 80, 160, 300, 300]);
    }

    #[test]
    fn a_node_may_have_shorter_delays_than_the_default() {
        let mut backoff = CrashBackoff::default();
        for _ in 0..5 {
            backoff.record_exit(s(1000));
        }
        assert_eq!(backoff.not_before, s(1080));
        let cases = [(300, 1080), (80, 1080), (60, 1060), (1, 1001)];
        for (longest, until) in cases {
            assert_eq!(backoff.next_start(s(longest)), s(until), "{longest}");
        }
        // An instance stopped for its health has already waited while it ran.
        backoff.record_stop(s(1070));
        assert_eq!((backoff.delay, backoff.next_start(s(60))), (s(160), s(1070)));
    }

    #[test]
    fn ten_quiet_minutes_forget_the_crashes() {
        let mut backoff = CrashBackoff::default();
        backoff.record_exit(s(0));
        backoff.record_exit(s(1));
        backoff.record_exit(s(602));
        assert_eq!(backoff.delay, s(0));
        assert_eq!(backoff.exits, 1);
        let mut busy = CrashBackoff::default();
        busy.record_exit(s(0));
        busy.record_exit(s(600));
        assert_eq!(busy.delay, s(10));
    }

    #[test]
    fn an_instance_that_was_stopped_has_waited_while_it_ran() {
        let mut backoff = CrashBackoff::default();
        let starts = [1000, 1012, 1024, 1044, 1076, 1136].map(s);
        for (n, start) in starts.iter().enumerate() {
            backoff.record_stop(*start + s(12));
            let next = starts.get(n + 1).copied().unwrap_or(backoff.not_before);
            assert_eq!(backoff.not_before, next, "after the {n}th");
        }
    }

    #[test]
    fn the_backoff_after_missed_exits_follows_from_the_pause_after_the_last_one() {
        // Exits known before, missed exits, pause after the last of them; expected delay after the next exit.
        let table = [
            (0, 1, Some(0), 10),
            (0, 9, Some(1), 10),
            (0, 2, Some(10), 20),
            (0, 9, Some(39), 40),
            (0, 3, Some(39), 40),
            (0, 2, Some(39), 20),
            (0, 99, Some(300), 300),
            (2, 1, Some(86_400), 40),
            (1, 1, None, 20),
            (5, 0, Some(0), 10),
        ];
        for (exits, count, paused, expect) in table {
            let mut backoff = CrashBackoff { exits, ..CrashBackoff::default() };
            backoff.record_missed_exits(MissedExits {
                count,
                paused: paused.map(s),
                last: s(1000),
            });
            backoff.record_exit(s(1001));
            assert_eq!(backoff.delay, s(expect), "{exits} {count} {paused:?}");
        }
    }

    #[test]
    fn missed_exits_of_long_ago_are_forgotten() {
        let mut backoff = CrashBackoff::default();
        backoff.record_missed_exits(MissedExits { count: 9, paused: None, last: s(1000) });
        backoff.record_exit(s(1601));
        assert_eq!(backoff.delay, s(0));
    }

    #[test]
    fn a_failing_pull_waits_like_a_crashing_container() {
        let step = RetryStep::Image("i".into());
        let mut last: Option<StepFailure> = None;
        let mut waits = Vec::new();
        for _ in 0..7 {
            let next = StepFailure::next(last.as_ref(), step.clone(), "ErrImagePull", "no", s(100));
            waits.push((next.until - next.at).as_secs());
            last = Some(next);
        }
        assert_eq!(waits, [10, 20, 40, 80, 160, 300, 300]);
    }
}
