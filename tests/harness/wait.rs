//! Waiting for a condition, never for a fixed time: the error has the last observed state.

use std::time::Duration;

use anyhow::Result;
use apiserver_bootstrap::poll_until;

/// Between two looks.
const POLL: Duration = Duration::from_millis(20);

/// Looks until `look` gives `Ok`, at most `patience`; the last `Err` says what was seen instead.
pub async fn until<T, S: std::fmt::Display>(
    what: &str,
    patience: Duration,
    look: impl AsyncFnMut() -> Result<T, S>,
) -> Result<T> {
    Ok(poll_until::until(what, patience, POLL, look).await?)
}
