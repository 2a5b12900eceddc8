//! io: the boot clock and the wall clock; with the feature `testing`, virtual time that a test resets and steps.

#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

#[cfg(feature = "testing")]
mod virtual_time;

use std::time::Duration;
#[cfg(not(feature = "testing"))]
use std::time::{SystemTime, UNIX_EPOCH};

use agent_pod::observed::Now;
#[cfg(not(feature = "testing"))]
use rustix::time::{ClockId, clock_gettime};
use tokio::time::Instant;

/// Whether the clocks are virtual. A program built so is for tests only.
pub const IS_VIRTUAL: bool = cfg!(feature = "testing");

/// Now.
#[cfg(not(feature = "testing"))]
pub fn now() -> Now {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let unix_seconds = i64::try_from(since_epoch.as_secs()).unwrap_or(i64::MAX);
    Now { unix_seconds, boot: boot() }
}

/// Time since boot, including suspended time.
#[cfg(not(feature = "testing"))]
pub fn boot() -> Duration {
    let time = clock_gettime(ClockId::Boottime);
    let secs = u64::try_from(time.tv_sec).unwrap_or(0);
    Duration::new(secs, u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// Tests use the time of the tokio runtime, which they can pause and advance.
#[cfg(feature = "testing")]
pub use virtual_time::{boot, now, reboot, reset, server_unix, since_began, step};

/// The instant of a point in time since boot.
pub fn instant(at: Duration) -> Instant {
    after(at.saturating_sub(boot()))
}

/// The longest timer; later events are checked again then.
const LONGEST: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// The instant `wait` from now, ten years at most.
pub fn after(wait: Duration) -> Instant {
    let now = Instant::now();
    now.checked_add(wait.min(LONGEST)).unwrap_or(now)
}
