//! The wall clock, in the API's seconds.

use std::time::{SystemTime, UNIX_EPOCH};

use proto_api::Time;

/// The wall-clock time; 1970 on a machine whose clock is before it.
pub fn now() -> Time {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Time::from_unix(i64::try_from(since.as_secs()).unwrap_or(i64::MAX))
}
