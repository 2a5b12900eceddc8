//! The time, both ways of telling it.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use agent_pod::lifecycle::Now;
use rustix::time::{ClockId, clock_gettime};
use tokio::time::Instant;

/// Now.
pub fn now() -> Now {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let unix_seconds = i64::try_from(since_epoch.as_secs()).unwrap_or(i64::MAX);
    Now { unix_seconds, boot: boot() }
}

/// Time since boot, suspended time included.
pub fn boot() -> Duration {
    let time = clock_gettime(ClockId::Boottime);
    let secs = u64::try_from(time.tv_sec).unwrap_or(0);
    Duration::new(secs, u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// When a timer has to fire for a point in time since boot.
pub fn instant(at: Duration) -> Instant {
    Instant::now() + at.saturating_sub(boot())
}
