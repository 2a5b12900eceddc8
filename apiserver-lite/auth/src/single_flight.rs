//! Deduplication of concurrent equal requests: the first caller starts the request, later callers wait for its result.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::watch;

use crate::expiring_cache::CacheKey;

/// The requests in flight.
pub struct SingleFlight<A>(Arc<Mutex<Questions<A>>>);

type Questions<A> = HashMap<CacheKey, Arc<watch::Sender<Option<A>>>>;

impl<A: Clone + Send + Sync + 'static> SingleFlight<A> {
    /// One without questions.
    pub fn new() -> Self {
        Self(Arc::default())
    }

    /// The result of the request with this key. Starts `ask` unless such a request is in flight; it runs in a task of its own, until it ends or
    /// no caller waits for it. `None` if it ended without a result.
    ///
    /// # Errors
    /// Those of `ask`, which decides whether the request may be sent.
    pub async fn answer<E, F>(
        &self,
        key: CacheKey,
        ask: impl FnOnce() -> Result<F, E>,
    ) -> Result<Option<A>, E>
    where
        F: Future<Output = A> + Send + 'static,
    {
        let mut waiting = {
            let mut questions = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            match questions.get(&key) {
                Some(question) => question.subscribe(),
                None => {
                    let asking = ask()?;
                    let (sender, waiting) = watch::channel(None);
                    let question = Question { key, sender: Arc::new(sender), all: self.0.clone() };
                    questions.insert(key, question.sender.clone());
                    tokio::spawn(question.run(asking));
                    waiting
                }
            }
        };
        let answer = waiting.wait_for(Option::is_some).await;
        Ok(answer.ok().and_then(|answer| answer.clone()))
    }
}

/// A question on its way.
struct Question<A> {
    key: CacheKey,
    sender: Arc<watch::Sender<Option<A>>>,
    all: Arc<Mutex<Questions<A>>>,
}

impl<A> Question<A> {
    async fn run(self, asking: impl Future<Output = A>) {
        tokio::pin!(asking);
        loop {
            // Cancel safe: the question goes on in the next round.
            tokio::select! {
                answer = &mut asking => {
                    // Later callers start a new request.
                    self.leave();
                    self.sender.send_replace(Some(answer));
                    return;
                }
                () = self.sender.closed() => {}
            }
            let mut questions = self.all.lock().unwrap_or_else(PoisonError::into_inner);
            // A caller may have subscribed before the lock was taken.
            if self.sender.receiver_count() == 0 {
                questions.remove(&self.key);
                return;
            }
        }
    }

    fn leave(&self) {
        let mut questions = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        if questions.get(&self.key).is_some_and(|other| Arc::ptr_eq(other, &self.sender)) {
            questions.remove(&self.key);
        }
    }
}

impl<A> Drop for Question<A> {
    /// Removes a request that panicked, so that later callers start a new one.
    fn drop(&mut self) {
        self.leave();
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::time::Duration;

    use super::*;
    use crate::expiring_cache::key;

    /// Counts the started requests and the received results.
    #[derive(Default)]
    struct Counts {
        asked: AtomicU32,
        answered: AtomicU32,
    }

    async fn ask(
        questions: &SingleFlight<u32>,
        counts: &Arc<Counts>,
        question: &'static str,
    ) -> Option<u32> {
        let counts = counts.clone();
        let slow = move || {
            let nth = counts.asked.fetch_add(1, Ordering::Relaxed);
            Ok::<_, Infallible>(async move {
                tokio::time::sleep(Duration::from_secs(1)).await;
                counts.answered.fetch_add(1, Ordering::Relaxed);
                nth
            })
        };
        match questions.answer(key(question.as_bytes()), slow).await {
            Ok(answer) => answer,
            Err(never) => match never {},
        }
    }

    #[tokio::test(start_paused = true)]
    async fn equal_questions_share_an_answer() {
        let (questions, counts) = (SingleFlight::new(), Arc::default());
        let all = tokio::join!(
            ask(&questions, &counts, "a"),
            ask(&questions, &counts, "a"),
            ask(&questions, &counts, "b"),
        );
        assert_eq!(all, (Some(0), Some(0), Some(1)));
        assert_eq!(ask(&questions, &counts, "a").await, Some(2), "an answer is not kept");
        assert!(questions.0.lock().unwrap().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_shared_call_continues_while_a_caller_waits() {
        let (questions, counts) = (Arc::new(SingleFlight::new()), Arc::<Counts>::default());
        let spawn = || {
            let (questions, counts) = (questions.clone(), counts.clone());
            tokio::spawn(async move { ask(&questions, &counts, "a").await })
        };
        let half = || tokio::time::sleep(Duration::from_millis(500));
        let (first, second) = (spawn(), spawn());
        half().await;
        first.abort();
        assert_eq!(second.await.unwrap(), Some(0), "the one who began has left");
        let alone = spawn();
        half().await;
        alone.abort();
        half().await;
        half().await;
        assert!(questions.0.lock().unwrap().is_empty());
        assert_eq!(counts.answered.load(Ordering::Relaxed), 1, "nobody waited for the second");
    }

    #[tokio::test]
    async fn a_panic_leaves_no_question_behind() {
        let questions: SingleFlight<u32> = SingleFlight::new();
        let broken = || Ok::<_, Infallible>(async { panic!("broken") });
        assert_eq!(questions.answer(key(b"a"), broken).await, Ok(None));
        assert!(questions.0.lock().unwrap().is_empty());
    }
}
