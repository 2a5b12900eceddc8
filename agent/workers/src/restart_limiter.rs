//! Bounds restarts among concurrent runtime calls, so that crash-looping containers leave room for
//! containers that start for the first time.

use std::time::Duration;

use tokio::sync::Semaphore;

/// How long a call holds its permit. A slower call waits for something else, and others proceed.
const KEPT_MAX: Duration = Duration::from_secs(5);

/// Permits for restarts on one node: one per processor, a fraction of all concurrent calls.
#[derive(Debug)]
pub struct RestartLimiter(Semaphore);

impl RestartLimiter {
    /// A limiter for a machine with this number of processors.
    pub fn new(processors: usize) -> Self {
        Self(Semaphore::new(processors.max(1)))
    }

    /// Runs `work`, which creates this attempt of a container: the first attempt at once, later
    /// ones with a permit. Cancel safe if `work` is.
    pub async fn run<T>(&self, attempt: u32, work: impl Future<Output = T>) -> T {
        if attempt == 0 {
            return work.await;
        }
        // The semaphore is never closed.
        let place = self.0.acquire().await;
        tokio::pin!(work);
        // Cancel safe: dropping the permit releases it, and the work continues below.
        tokio::select! {
            biased;
            done = &mut work => return done,
            () = tokio::time::sleep(KEPT_MAX) => {}
        }
        drop(place);
        work.await
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};
    use std::sync::Arc;

    use futures_util::FutureExt as _;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_storm_of_restarts_leaves_room_for_first_starts() {
        let restarts = Arc::new(RestartLimiter::new(2));
        let storm: Vec<_> = (1..=2)
            .map(|attempt| {
                let restarts = restarts.clone();
                tokio::spawn(async move { restarts.run(attempt, pending::<()>()).await })
            })
            .collect();
        tokio::task::yield_now().await;
        assert!(restarts.run(1, ready(())).now_or_never().is_none(), "no place for a third");
        assert!(restarts.run(0, ready(())).now_or_never().is_some(), "a first start needs none");
        tokio::time::sleep(KEPT_MAX * 2).await;
        assert!(restarts.run(1, ready(())).now_or_never().is_some(), "what hangs is passed by");
        storm.iter().for_each(|task| task.abort());
    }
}
