//! The share of restarts in what the runtime does: containers that crash again and again, however many and however fast, leave room for
//! those that start for the first time.

use std::time::Duration;

use tokio::sync::Semaphore;

/// How long a call keeps its place. One that takes longer waits for something, and others go on without it.
const KEPT_MAX: Duration = Duration::from_secs(5);

/// Places for restarts of one node: as many as it has processors, a fraction of what is in flight in all.
#[derive(Debug)]
pub struct Restarts(Semaphore);

impl Restarts {
    /// For a machine with so many processors.
    pub fn new(processors: usize) -> Self {
        Self(Semaphore::new(processors.max(1)))
    }

    /// Does `work`, which makes this attempt at a container: the first one at once, others when there is a place. Cancel safe as
    /// `work` is.
    pub async fn take<T>(&self, attempt: u32, work: impl Future<Output = T>) -> T {
        if attempt == 0 {
            return work.await;
        }
        // Never closed: an error would be one that cannot happen.
        let place = self.0.acquire().await;
        tokio::pin!(work);
        // Cancel safe: a place that is dropped is given back, and the work goes on below.
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
        let restarts = Arc::new(Restarts::new(2));
        let storm: Vec<_> = (1..=2)
            .map(|attempt| {
                let restarts = restarts.clone();
                tokio::spawn(async move { restarts.take(attempt, pending::<()>()).await })
            })
            .collect();
        tokio::task::yield_now().await;
        assert!(restarts.take(1, ready(())).now_or_never().is_none(), "no place for a third");
        assert!(restarts.take(0, ready(())).now_or_never().is_some(), "a first start needs none");
        tokio::time::sleep(KEPT_MAX * 2).await;
        assert!(restarts.take(1, ready(())).now_or_never().is_some(), "what hangs is passed by");
        storm.iter().for_each(|task| task.abort());
    }
}
