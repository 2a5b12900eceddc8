//! Whether the desired ruleset reaches the kernel.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

/// Passes failing for this long make the process unhealthy.
const STALE_AFTER: Duration = Duration::from_secs(60);

/// Reports to `/healthz` whether changes reach the kernel.
#[derive(Clone, Debug, Default)]
pub struct SyncHealth(Arc<Mutex<LastSync>>);

#[derive(Clone, Copy, Debug, Default)]
struct LastSync {
    /// Since when passes have been failing.
    failing_since: Option<Instant>,
    /// When the last one succeeded.
    last_success: Option<SystemTime>,
}

impl SyncHealth {
    /// An error when passes have been failing for long.
    pub fn check(&self) -> Result<(), String> {
        match self.last_sync().failing_since.map(|since| since.elapsed()) {
            Some(failing) if failing > STALE_AFTER => {
                Err(format!("forwarding has not followed for {} s", failing.as_secs()))
            }
            _ => Ok(()),
        }
    }

    /// When a pass last succeeded.
    pub fn last_success(&self) -> Option<SystemTime> {
        self.last_sync().last_success
    }

    fn last_sync(&self) -> LastSync {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes how a pass ended.
    pub(crate) fn record_pass(&self, ok: bool) {
        let mut last_sync = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *last_sync = match ok {
            true => LastSync { failing_since: None, last_success: Some(SystemTime::now()) },
            false => LastSync {
                failing_since: last_sync.failing_since.or_else(|| Some(Instant::now())),
                ..*last_sync
            },
        };
    }
}
