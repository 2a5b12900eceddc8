//! Readiness: a part holds a [`ReadyGuard`] until it is ready; the program is ready when no guard exists.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::watch;

/// The parts that are not ready yet. Cheap to clone; all clones share one state.
#[derive(Clone, Debug)]
pub struct Readiness {
    /// Every part that ever had a guard, with how many it holds. Bounded by the number of parts, which are named in code.
    parts: Arc<Mutex<BTreeMap<&'static str, usize>>>,
    pending: watch::Sender<usize>,
}

/// Dropped when its part is ready.
#[derive(Debug)]
pub struct ReadyGuard {
    readiness: Readiness,
    part: &'static str,
}

impl Default for Readiness {
    fn default() -> Self {
        Self { parts: Arc::default(), pending: watch::Sender::new(0) }
    }
}

impl Readiness {
    /// A guard; the program is not ready until it is dropped. `part` is the name of the check at `/readyz`.
    #[must_use = "dropping the guard says that the part is ready"]
    pub fn guard(&self, part: &'static str) -> ReadyGuard {
        self.change(part, |held| held + 1);
        ReadyGuard { readiness: self.clone(), part }
    }

    /// Every part that ever had a guard and whether it is ready, by name.
    pub fn parts(&self) -> Vec<(&'static str, bool)> {
        let parts = self.parts.lock().unwrap_or_else(PoisonError::into_inner);
        parts.iter().map(|(part, held)| (*part, *held == 0)).collect()
    }

    /// Whether no guard exists.
    pub fn is_ready(&self) -> bool {
        *self.pending.borrow() == 0
    }

    /// Returns once no guard exists. Cancel safe.
    pub async fn ready(&self) {
        // self holds the sender: the channel cannot close.
        let _ = self.pending.subscribe().wait_for(|pending| *pending == 0).await;
    }

    fn change(&self, part: &'static str, by: impl FnOnce(usize) -> usize) {
        let mut parts = self.parts.lock().unwrap_or_else(PoisonError::into_inner);
        let held = parts.entry(part).or_default();
        *held = by(*held);
        self.pending.send_replace(parts.values().sum());
    }
}

impl Drop for ReadyGuard {
    fn drop(&mut self) {
        self.readiness.change(self.part, |held| held.saturating_sub(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn readiness_follows_when_the_last_guard_is_dropped() {
        let readiness = Readiness::default();
        assert!(readiness.is_ready());
        let (pods, services) = (readiness.guard("pods"), readiness.guard("services"));
        drop(pods);
        assert_eq!(readiness.parts(), [("pods", true), ("services", false)]);
        assert!(!readiness.is_ready());
        let waiter = tokio::spawn({
            let readiness = readiness.clone();
            async move { readiness.ready().await }
        });
        drop(services);
        waiter.await.expect("became ready");
        assert!(readiness.is_ready());
    }
}
