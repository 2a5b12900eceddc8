//! Instants of timers.

use std::time::Duration;

use tokio::time::Instant;

use crate::boot;

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
