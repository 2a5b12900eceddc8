//! Seconds of API fields, bounded where they enter.

use std::time::Duration;

/// Largest number of seconds read from any field: the API's bound for `activeDeadlineSeconds`, 68 years. Grace periods have no
/// bound in the API; this one keeps every sum with the clock from overflowing.
const SECS_MAX: i64 = i32::MAX as i64;

/// Seconds of an API field, clamped to 0 and `i32::MAX`.
pub fn clamp_seconds(value: i64) -> Duration {
    Duration::from_secs(value.clamp(0, SECS_MAX).unsigned_abs())
}
