//! Whether what is desired reaches the kernel.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

/// Failing for so long makes the process unhealthy.
const STALE_AFTER: Duration = Duration::from_secs(60);

/// Says whether what is marked reaches the kernel, for `/healthz`.
#[derive(Clone, Debug, Default)]
pub struct Freshness(Arc<Mutex<Reached>>);

#[derive(Clone, Copy, Debug, Default)]
struct Reached {
    /// Since when passes have been failing.
    failing_since: Option<Instant>,
    /// When the last one succeeded.
    last: Option<SystemTime>,
}

impl Freshness {
    /// An error when passes have been failing for long.
    pub fn check(&self) -> Result<(), String> {
        match self.reached().failing_since.map(|since| since.elapsed()) {
            Some(failing) if failing > STALE_AFTER => {
                Err(format!("forwarding has not followed for {} s", failing.as_secs()))
            }
            _ => Ok(()),
        }
    }

    /// When a pass last succeeded.
    pub fn last(&self) -> Option<SystemTime> {
        self.reached().last
    }

    fn reached(&self) -> Reached {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes how a pass ended.
    pub(crate) fn set(&self, ok: bool) {
        let mut reached = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *reached = match ok {
            true => Reached { failing_since: None, last: Some(SystemTime::now()) },
            false => Reached {
                failing_since: reached.failing_since.or_else(|| Some(Instant::now())),
                ..*reached
            },
        };
    }
}
