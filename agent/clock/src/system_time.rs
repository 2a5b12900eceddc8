//! The clocks of the system.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use agent_pod::observed::Now;
use rustix::time::{ClockId, clock_gettime};

/// Whether the clocks are virtual. A program built so is for tests only.
pub const IS_VIRTUAL: bool = false;

pub fn now() -> Now {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let unix_seconds = i64::try_from(since_epoch.as_secs()).unwrap_or(i64::MAX);
    Now { unix_seconds, boot: boot() }
}

/// Time since boot, including suspended time.
pub fn boot() -> Duration {
    let time = clock_gettime(ClockId::Boottime);
    let secs = u64::try_from(time.tv_sec).unwrap_or(0);
    Duration::new(secs, u32::try_from(time.tv_nsec).unwrap_or(0))
}
