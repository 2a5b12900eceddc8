//! The time, both ways of telling it.

use std::time::Duration;
#[cfg(not(test))]
use std::time::{SystemTime, UNIX_EPOCH};

use agent_pod::lifecycle::Now;
#[cfg(not(test))]
use rustix::time::{ClockId, clock_gettime};
use tokio::time::Instant;

/// Now.
#[cfg(not(test))]
pub fn now() -> Now {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let unix_seconds = i64::try_from(since_epoch.as_secs()).unwrap_or(i64::MAX);
    Now { unix_seconds, boot: boot() }
}

/// Time since boot, suspended time included.
#[cfg(not(test))]
pub fn boot() -> Duration {
    let time = clock_gettime(ClockId::Boottime);
    let secs = u64::try_from(time.tv_sec).unwrap_or(0);
    Duration::new(secs, u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// The runtime's time instead, which tests may hold and turn.
#[cfg(test)]
pub use virtual_time::{boot, now, reset};

/// When a timer has to fire for a point in time since boot.
pub fn instant(at: Duration) -> Instant {
    Instant::now() + at.saturating_sub(boot())
}

#[cfg(test)]
mod virtual_time {
    use super::{Duration, Instant, Now};

    thread_local! {
        static BOOTED: std::cell::Cell<Option<Instant>> = const { std::cell::Cell::new(None) };
    }

    /// Boots now: what follows is the same each time, down to the last digit of a time.
    pub fn reset() {
        BOOTED.set(Some(Instant::now()));
    }

    /// Now.
    pub fn now() -> Now {
        let secs = i64::try_from(boot().as_secs()).expect("small");
        Now { unix_seconds: 1_700_000_000 + secs, boot: boot() }
    }

    /// Time since boot.
    pub fn boot() -> Duration {
        let booted = BOOTED.get().unwrap_or_else(Instant::now);
        BOOTED.set(Some(booted));
        Duration::from_secs(1000) + booted.elapsed()
    }
}
