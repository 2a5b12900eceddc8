//! Polls for a state of the server at growing intervals, up to a limit.

use std::time::Duration;

use orchctl_client::{CommandError, Session};
use proto_api::duration;
use proto_daemon::backoff::Backoff;
use serde_json::Value;
use tokio::time::{Instant, sleep};

use crate::requests::{self, Place};

const PAUSES: Backoff =
    Backoff { first: Duration::from_millis(100), longest: Duration::from_secs(1) };
/// What a limit of zero means: a week.
const WEEK: Duration = Duration::from_secs(7 * 24 * 3600);

/// Reads a limit such as `30s`; zero is a week.
///
/// # Errors
/// When the flag has another form.
pub fn limit(flag: &str, text: &str) -> Result<Duration, CommandError> {
    let full = if text.parse::<u32>().is_ok() { format!("{text}s") } else { text.to_owned() };
    match duration::parse(&full) {
        Ok(Duration::ZERO) => Ok(WEEK),
        Ok(limit) => Ok(limit),
        Err(error) => Err(CommandError::with_text(format!("{flag}: {error}"))),
    }
}

/// Pauses of a loop, up to a limit.
#[derive(Debug)]
pub struct PollIntervals {
    until: Instant,
    done: u32,
}

impl PollIntervals {
    /// Up to this long from now on.
    pub fn up_to(limit: Duration) -> Self {
        Self { until: Instant::now() + limit, done: 0 }
    }

    /// When the time is up.
    pub fn until(&self) -> Instant {
        self.until
    }

    /// Waits a while; false when the time is up.
    pub async fn pause(&mut self) -> bool {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return false;
        }
        self.done = self.done.saturating_add(1);
        sleep(PAUSES.delay(self.done, 1.0).min(left)).await;
        true
    }
}

/// Waits until the object with this UID has gone.
///
/// # Errors
/// The deadline has passed, or the server cannot be reached.
pub async fn until_gone(
    session: &Session,
    place: &Place,
    uid: &str,
    pauses: &mut PollIntervals,
) -> Result<(), CommandError> {
    loop {
        match requests::find(session, place).await? {
            None => return Ok(()),
            Some(object) => {
                let now = object.pointer("/metadata/uid").and_then(Value::as_str);
                if !uid.is_empty() && now.is_some_and(|now| now != uid) {
                    return Ok(());
                }
            }
        }
        if !pauses.pause().await {
            return Err(CommandError::with_text(format!(
                "timed out waiting for the condition on {}/{}",
                place.resource.plural, place.name
            )));
        }
    }
}
