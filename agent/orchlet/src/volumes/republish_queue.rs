//! Brings persistent volumes that a pod has up to date beside everything else: a driver that hangs or fails holds up neither the pod's
//! tokens nor its files, nor any other pod. One task a pod at a time, with the newest of what it was asked to do.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use proto_daemon::backoff::{Backoff, Retries};
use tokio::task::JoinHandle;

use crate::pods::ports::ErrorText;

/// After a call that failed.
const RETRY: Backoff = Backoff { first: Duration::from_secs(2), longest: Duration::from_secs(60) };

/// What is being done again, by uid of the pod.
pub struct RepublishQueue<J> {
    slots: Arc<Mutex<BTreeMap<String, Slot<J>>>>,
}

struct Slot<J> {
    /// What to do next, when the one under way has ended.
    next: Option<J>,
    task: JoinHandle<()>,
}

impl<J> Default for RepublishQueue<J> {
    fn default() -> Self {
        Self { slots: Arc::default() }
    }
}

/// Nothing is done on behalf of an agent that is gone.
impl<J> Drop for RepublishQueue<J> {
    fn drop(&mut self) {
        lock(&self.slots).values().for_each(|slot| slot.task.abort());
    }
}

impl<J: Clone + Send + 'static> RepublishQueue<J> {
    /// Does `job`, after the one of this pod that is under way, and until it works; `told` hears of each failure.
    pub fn ask<F>(
        &self,
        uid: &str,
        job: J,
        act: impl Fn(J) -> F + Send + 'static,
        told: impl Fn(&J, ErrorText) + Send + 'static,
    ) where
        F: Future<Output = Result<(), ErrorText>> + Send,
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
                        told(&job, line);
                        tokio::time::sleep(retries.next_delay(1.0)).await;
                        if let Some(slot) = lock(&all).get_mut(&of) {
                            slot.next.get_or_insert(job);
                        }
                    }
                }
                let mut slots = lock(&all);
                // Decided under the lock: whoever asks now either finds the task at work or begins another.
                if slots.get(&of).is_none_or(|slot| slot.next.is_none()) {
                    slots.remove(&of);
                    return;
                }
            }
        });
        slots.insert(uid.to_owned(), Slot { next: Some(job), task });
    }

    /// Ends what is done for a pod, and waits until it has let go of everything.
    pub async fn end(&self, uid: &str) {
        let slot = lock(&self.slots).remove(uid);
        if let Some(slot) = slot {
            slot.task.abort();
            // It was aborted, or had ended.
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
    async fn the_newest_is_done_after_the_one_under_way_until_it_works() {
        let again = RepublishQueue::default();
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
            again.ask("u", job, act, move |_, _| {
                failures.fetch_add(1, Ordering::Relaxed);
            });
        };
        ask(1);
        tokio::time::sleep(Duration::from_secs(1)).await;
        ask(2);
        ask(3);
        tokio::time::sleep(Duration::from_secs(600)).await;
        assert_eq!(*done.lock().expect("lock"), [1, 3, 3, 3], "2 was overtaken, 1 was replaced");
        assert_eq!(failures.load(Ordering::Relaxed), 3);
        assert!(lock(&again.slots).is_empty());
        ask(4);
        tokio::time::sleep(Duration::from_secs(6)).await;
        again.end("u").await;
        tokio::time::sleep(Duration::from_secs(600)).await;
        assert_eq!(*done.lock().expect("lock"), [1, 3, 3, 3, 4], "nothing comes after the end");
        ask(5);
        tokio::time::sleep(Duration::from_secs(1)).await;
        drop(again);
        tokio::time::sleep(Duration::from_secs(600)).await;
        assert_eq!(*done.lock().expect("lock"), [1, 3, 3, 3, 4], "nor after its owner");
    }
}
