//! Whether passes succeed, for the health pages.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

/// Passes failing, or one running, for this long make the proxy unhealthy.
const STALE_AFTER: Duration = Duration::from_secs(60);

/// The result of the last passes. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct SyncHealth(Arc<Mutex<LastSync>>);

/// Why the node's rules are not known to be current. A restart helps a pass that hangs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SyncStalled {
    /// Passes have been failing for this many seconds.
    #[error("every sync of the ruleset has failed for {0} s")]
    Failing(u64),
    /// One pass has been running for this many seconds.
    #[error("a sync of the ruleset has been running for {0} s")]
    Running(u64),
}

#[derive(Clone, Copy, Debug, Default)]
struct LastSync {
    /// When the running pass began.
    began: Option<Instant>,
    /// When the first of the failures in a row happened.
    failing_since: Option<Instant>,
    last_success: Option<SystemTime>,
}

impl SyncHealth {
    /// An error when passes have been failing, or one pass has been running, for more than a minute.
    pub fn check(&self) -> Result<(), SyncStalled> {
        self.last_sync().check(Instant::now())
    }

    /// When a pass last succeeded.
    pub fn last_success(&self) -> Option<SystemTime> {
        self.last_sync().last_success
    }

    fn last_sync(&self) -> LastSync {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that a pass begins.
    pub(crate) fn begin_pass(&self) {
        let mut last_sync = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        last_sync.began = Some(Instant::now());
    }

    /// Records how a pass ended.
    pub fn record_pass(&self, ok: bool) {
        let mut last_sync = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *last_sync = match ok {
            true => {
                LastSync { began: None, failing_since: None, last_success: Some(SystemTime::now()) }
            }
            false => LastSync {
                began: None,
                failing_since: last_sync.failing_since.or_else(|| Some(Instant::now())),
                ..*last_sync
            },
        };
    }
}

impl LastSync {
    fn check(&self, now: Instant) -> Result<(), SyncStalled> {
        let stale = |since: Option<Instant>| {
            let seconds = now.saturating_duration_since(since?);
            (seconds > STALE_AFTER).then_some(seconds.as_secs())
        };
        if let Some(seconds) = stale(self.failing_since) {
            return Err(SyncStalled::Failing(seconds));
        }
        match stale(self.began) {
            Some(seconds) => Err(SyncStalled::Running(seconds)),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pass_that_hangs_is_as_unhealthy_as_passes_that_fail() {
        let health = SyncHealth::default();
        health.begin_pass();
        let later = |seconds| Instant::now() + Duration::from_secs(seconds);
        let check = |seconds| health.last_sync().check(later(seconds));
        assert_eq!(check(59), Ok(()));
        assert_eq!(check(62), Err(SyncStalled::Running(62)));
        health.record_pass(true);
        assert_eq!(check(62), Ok(()));
        health.begin_pass();
        health.record_pass(false);
        health.begin_pass();
        assert!(matches!(check(62), Err(SyncStalled::Failing(_))));
    }
}
