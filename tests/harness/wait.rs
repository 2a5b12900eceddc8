//! Waiting for a condition, never for a fixed time: the error has the last observed state.

use std::time::Duration;

use anyhow::{Result, bail};
use tokio::time::{Instant, sleep};

/// Between two looks.
const POLL: Duration = Duration::from_millis(20);

/// Looks until `look` gives `Ok`, at most `patience`; the last `Err` says what was seen instead.
pub async fn until<T, S: std::fmt::Display>(
    what: &str,
    patience: Duration,
    mut look: impl AsyncFnMut() -> Result<T, S>,
) -> Result<T> {
    let deadline = Instant::now() + patience;
    loop {
        match look().await {
            Ok(seen) => return Ok(seen),
            Err(state) if Instant::now() >= deadline => {
                bail!("{what}: not within {} s; last seen: {state}", patience.as_secs())
            }
            Err(_) => sleep(POLL).await,
        }
    }
}
