//! Updates of persistent volumes that are already set up, in the background: a driver that hangs or fails delays neither the pod's tokens
//! and files nor any other pod. One task per pod at a time; the newest request replaces a waiting one.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use proto_daemon::backoff::{Backoff, Retries};
use tokio::task::JoinHandle;

/// After a call that failed.
const RETRY: Backoff = Backoff { first: Duration::from_secs(2), longest: Duration::from_secs(60) };

/// Background updates by pod uid.
pub struct RepublishQueue<J> {
    slots: Arc<Mutex<BTreeMap<String, Slot<J>>>>,
}

struct Slot<J> {
    /// The next request, after the one in progress.
    next: Option<J>,
    task: JoinHandle<()>,
}

impl<J> Default for RepublishQueue<J> {
    fn default() -> Self {
        Self { slots: Arc::default() }
    }
}

impl<J> Drop for RepublishQueue<J> {
    fn drop(&mut self) {
        lock(&self.slots).values().for_each(|slot| slot.task.abort());
    }
}

impl<J: Clone + Send + 'static> RepublishQueue<J> {
    /// Runs `job` after the pod's job in progress, and retries it until it succeeds. `report` receives each failure.
    pub fn push<F, E>(
        &self,
        uid: &str,
        job: J,
        act: impl Fn(J) -> F + Send + 'static,
        report: impl Fn(&J, E) + Send + 'static,
    ) where
        F: Future<Output = Result<(), E>> + Send,
        E: Send,
    {
        let mut slots = lock(&self.slots);
        if let Some(slot) = slots.get_mut(uid).filter(|slot| !slot.task.is_finished()) {
            slot.next = Some(job);
            return;
        }
        let (all, of) = (self.slots.clone(), uid.to_owned());
        let task = tokio::spawn(async move {
            let mut retries = Retries::new(RETRY);
            loop {
                let Some(job) = lock(&all).get_mut(&of).and_then(|slot| slot.next.take()) else {
                    return;
                };
                match act(job.clone()).await {
                    Ok(()) => retries.reset(),
                    Err(line) => {
                        report(&job, line);
                        tokio::time::sleep(retries.next_delay(1.0)).await;
                        if let Some(slot) = lock(&all).get_mut(&of) {
                            slot.next.get_or_insert(job);
                        }
                    }
                }
                let mut slots = lock(&all);
                // Decided under the lock: a later push finds either this task or none and spawns one.
                if slots.get(&of).is_none_or(|slot| slot.next.is_none()) {
                    slots.remove(&of);
                    return;
                }
            }
        });
        slots.insert(uid.to_owned(), Slot { next: Some(job), task });
    }

    /// Cancels the updates of a pod and waits until their task has ended.
    pub async fn cancel(&self, uid: &str) {
        let slot = lock(&self.slots).remove(uid);
        if let Some(slot) = slot {
            slot.task.abort();
            // The error only says that it was aborted.
            let _ = slot.task.await;
        }
    }
}

fn lock<J>(slots: &Mutex<BTreeMap<String, Slot<J>>>) -> MutexGuard<'_, BTreeMap<String, Slot<J>>> {
    slots.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_newest_job_runs_after_the_current_one_until_it_succeeds() {
        let queue = RepublishQueue::default();
        let done = Arc::new(Mutex::new(Vec::new()));
        let failures = Arc::new(AtomicUsize::new(0));
        let ask = |job: u32| {
            let (done, failures) = (done.clone(), failures.clone());
            let act = move |job: u32| {
                let done = done.clone();
                async move {
                    tokio::time::sleep(Duration::from_secs(5)).await;
                    let mut done = done.lock().expect("lock");
                    done.push(job);
                    if done.iter().filter(|d| **d == job).count() < 3 {
                        Err("no".into())
                    } else {
                        Ok(())
                    }
                }
            };
            queue.push("u", job, act, move |_, _: String| {
                failures.fetch_add(1, Ordering::Relaxed);
            });
        };
        ask(1);
        tokio::time::sleep(Duration::from_secs(1)).await;
        ask(2);
        ask(3);
        tokio::time::sleep(Duration::from_secs(600)).await;
        assert_eq!(
            *done.lock().expect("lock"),
            [1, 3, 3, 3],
            "2 was replaced by 3, and so was the retry of 1"
        );
        assert_eq!(failures.load(Ordering::Relaxed), 3);
        assert!(lock(&queue.slots).is_empty());
        ask(4);
        tokio::time::sleep(Duration::from_secs(6)).await;
        queue.cancel("u").await;
        tokio::time::sleep(Duration::from_secs(600)).await;
        assert_eq!(
            *done.lock().expect("lock"),
            [1, 3, 3, 3, 4],
            "nothing runs after the cancellation"
        );
        ask(5);
        tokio::time::sleep(Duration::from_secs(1)).await;
        drop(queue);
        tokio::time::sleep(Duration::from_secs(600)).await;
        assert_eq!(*done.lock().expect("lock"), [1, 3, 3, 3, 4], "nor after the drop of the queue");
    }
}
