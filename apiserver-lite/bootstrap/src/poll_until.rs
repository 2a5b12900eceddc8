//! Waiting for a condition, never for a fixed time.

use std::fmt::Display;
use std::time::Duration;

use tokio::time::{Instant, sleep};

/// What was seen in place of a condition. It is looked again.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct NotYet(pub String);

/// A condition that did not come in time.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("timed out after {seconds} s waiting until {what}; last state: {state}")]
pub struct NotInTime {
    /// How long it was waited for.
    pub seconds: u64,
    /// The condition.
    pub what: String,
    /// What was seen in its place.
    pub state: String,
}

/// Looks every `poll` until `look` gives `Ok`, at most for `patience`; its last `Err` says what was seen instead.
///
/// # Errors
/// [`NotInTime`].
pub async fn until<T, S: Display>(
    what: &str,
    patience: Duration,
    poll: Duration,
    mut look: impl AsyncFnMut() -> Result<T, S>,
) -> Result<T, NotInTime> {
    let deadline = Instant::now() + patience;
    loop {
        match look().await {
            Ok(seen) => return Ok(seen),
            Err(state) if Instant::now() >= deadline => {
                return Err(NotInTime {
                    seconds: patience.as_secs(),
                    what: what.to_owned(),
                    state: state.to_string(),
                });
            }
            Err(_) => sleep(poll).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_timeout_reports_the_last_state_which_is_read_at_the_deadline() {
        let poll = Duration::from_millis(250);
        let mut looks = 0;
        let patience = Duration::from_secs(1);
        let error = until("it is done", patience, poll, async || {
            looks += 1;
            Err::<(), _>(format!("look {looks}"))
        });
        let error = error.await.unwrap_err();
        assert_eq!(
            error.to_string(),
            "timed out after 1 s waiting until it is done; last state: look 5"
        );
        assert_eq!(until("x", patience, poll, async || Ok::<_, String>(7)).await, Ok(7));
    }
}
