//! Requests to a server that is busy, or not ready yet: they are sent again after the time that it asks for (`Retry-After`).

use std::time::Duration;

use proto_client::ClientError;

/// How often a request is sent again.
const RETRIES_MAX: u32 = 10;
/// The longest that the pauses of a request take together.
const PAUSES_MAX: Duration = Duration::from_secs(60);

/// What is left of the retries of one request.
struct Retries {
    count: u32,
    pauses: Duration,
}

impl Retries {
    fn new() -> Self {
        Self { count: RETRIES_MAX, pauses: PAUSES_MAX }
    }

    /// How long to wait before the refused request is sent again; `None` if its error is the last word.
    fn pause(&mut self, error: &ClientError) -> Option<Duration> {
        let ClientError::Api { retry_after: Some(pause), .. } = error else { return None };
        if !matches!(error.code(), Some(429 | 500..=599)) {
            return None;
        }
        self.count = self.count.checked_sub(1)?;
        self.pauses = self.pauses.checked_sub(*pause)?;
        Some(*pause)
    }
}

/// Sends a request until the server takes it, or refuses it without a time to wait. `note` learns of each refusal that is not the last.
///
/// # Errors
/// The error of the last try.
pub async fn until_taken<T, Sent: Future<Output = Result<T, ClientError>>>(
    send: impl Fn() -> Sent,
    note: impl Fn(&ClientError, Duration),
) -> Result<T, ClientError> {
    let mut retries = Retries::new();
    loop {
        let error = match send().await {
            Ok(taken) => return Ok(taken),
            Err(error) => error,
        };
        let Some(pause) = retries.pause(&error) else { return Err(error) };
        note(&error, pause);
        tokio::time::sleep(pause).await;
    }
}

#[cfg(test)]
mod tests {
    use proto_api::meta::v1::Status;

    use super::*;

    fn refusal(code: i32, secs: Option<u64>) -> ClientError {
        ClientError::Api {
            request: "GET /x".into(),
            status: Box::new(Status { code, ..Status::default() }),
            retry_after: secs.map(Duration::from_secs),
        }
    }

    #[test]
    fn only_a_busy_server_that_says_when_is_asked_again() {
        for (code, secs, is_retried) in [
            (429, Some(1), true),
            (503, Some(0), true),
            (500, Some(60), true),
            (429, None, false),
            (503, None, false),
            (409, Some(1), false),
            (404, Some(1), false),
            (429, Some(61), false),
            (429, Some(u64::MAX), false),
        ] {
            let pause = Retries::new().pause(&refusal(code, secs));
            assert_eq!(pause.is_some(), is_retried, "{code} {secs:?}");
        }
    }

    #[test]
    fn tries_and_time_are_bounded() {
        let count = |secs: u64| {
            let mut retries = Retries::new();
            std::iter::from_fn(|| retries.pause(&refusal(429, Some(secs)))).count()
        };
        for (secs, wanted) in [(0, 10), (1, 10), (6, 10), (7, 8), (30, 2), (60, 1)] {
            assert_eq!(count(secs), wanted, "{secs} s");
        }
    }
}
