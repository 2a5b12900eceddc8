//! Shares of the node's watches and reads: what the pods of one namespace refer to leaves enough to those of others.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::Semaphore;

/// Most watches of single objects. An API server may grant a user 8,192 streams, of which a node needs some for everything else.
const WATCHES_MAX: usize = 6_144;
/// Most of them for the pods of one namespace.
const WATCHES_OF_NAMESPACE_MAX: usize = 2_048;
/// Most reads at a time for the pods of one namespace.
const READS_MAX: usize = 4;
/// How long a read keeps its place after it has ended.
const READ_PAUSE: Duration = Duration::from_millis(20);

/// The shares of all namespaces with pods on the node.
pub(super) struct Shares {
    watches_max: usize,
    of_namespace_max: usize,
    taken: Mutex<Taken>,
    reads: Mutex<BTreeMap<String, Weak<Semaphore>>>,
}

#[derive(Default)]
struct Taken {
    all: usize,
    by_namespace: BTreeMap<String, Share>,
}

#[derive(Default)]
struct Share {
    watches: usize,
    is_exhausted: bool,
}

impl Default for Shares {
    fn default() -> Self {
        Self::new(WATCHES_MAX, WATCHES_OF_NAMESPACE_MAX)
    }
}

impl Shares {
    pub(super) fn new(watches_max: usize, of_namespace_max: usize) -> Self {
        Self { watches_max, of_namespace_max, taken: Mutex::default(), reads: Mutex::default() }
    }

    /// A place for a watch that pods of the namespace need; `None` if they have their share, or all are taken.
    pub(super) fn watch(self: &Arc<Self>, namespace: &str) -> Option<WatchPlace> {
        let mut taken = self.lock_taken();
        let is_full = taken.all >= self.watches_max;
        let known = taken.by_namespace.get_mut(namespace);
        if is_full || known.as_ref().is_some_and(|share| share.watches >= self.of_namespace_max) {
            if let Some(share) = known.filter(|share| !share.is_exhausted) {
                share.is_exhausted = true;
                let watches = share.watches;
                tracing::warn!(
                    namespace,
                    watches,
                    "no more objects are watched for the pods of the namespace; further ones are read at intervals"
                );
            }
            return None;
        }
        let share = taken.by_namespace.entry(namespace.to_owned()).or_default();
        share.watches = share.watches.saturating_add(1);
        taken.all = taken.all.saturating_add(1);
        drop(taken);
        Some(WatchPlace { shares: self.clone(), namespace: namespace.to_owned() })
    }

    /// The places of reads for pods of the namespace.
    pub(super) fn reads(&self, namespace: &str) -> Reads {
        let mut all = self.reads.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(places) = all.get(namespace).and_then(Weak::upgrade) {
            return Reads(places);
        }
        all.retain(|_, places| places.strong_count() > 0);
        let places = Arc::new(Semaphore::new(READS_MAX));
        all.insert(namespace.to_owned(), Arc::downgrade(&places));
        Reads(places)
    }

    fn lock_taken(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A place for one watch, until it is dropped.
pub(super) struct WatchPlace {
    shares: Arc<Shares>,
    namespace: String,
}

impl Drop for WatchPlace {
    fn drop(&mut self) {
        let mut taken = self.shares.lock_taken();
        taken.all = taken.all.saturating_sub(1);
        if let Some(share) = taken.by_namespace.get_mut(&self.namespace) {
            share.watches = share.watches.saturating_sub(1);
            if share.watches == 0 {
                taken.by_namespace.remove(&self.namespace);
            }
        }
    }
}

/// The places of reads for the pods of one namespace.
#[derive(Clone)]
pub(super) struct Reads(Arc<Semaphore>);

impl Reads {
    /// Reads when there is a place.
    pub(super) async fn read<T>(&self, read: impl Future<Output = T>) -> T {
        let place = self.0.clone().acquire_owned().await;
        let result = read.await;
        tokio::spawn(async move {
            tokio::time::sleep(READ_PAUSE).await;
            drop(place);
        });
        result
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn a_namespace_leaves_watches_to_others() {
        let shares = Arc::new(Shares::new(5, 2));
        let take = |namespace: &str| (0..9).filter_map(|_| shares.watch(namespace)).collect();
        let (a, b): (Vec<_>, Vec<_>) = (take("a"), take("b"));
        assert_eq!((a.len(), b.len()), (2, 2));
        let c: Vec<_> = take("c");
        assert_eq!(c.len(), 1, "all are taken");
        drop(a);
        assert_eq!(take("c").len(), 1, "its second");
        assert_eq!(take("a").len(), 2, "given back");
        drop((b, c));
        assert!(shares.lock_taken().by_namespace.is_empty() && shares.lock_taken().all == 0);
    }

    #[tokio::test(start_paused = true)]
    async fn reads_of_a_namespace_take_turns() {
        let shares = Shares::default();
        let (running, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let read = async || {
            let now = running.fetch_add(1, Ordering::SeqCst) + 1;
            most.fetch_max(now, Ordering::SeqCst);
            tokio::time::sleep(Duration::from_millis(1)).await;
            running.fetch_sub(1, Ordering::SeqCst);
        };
        let reads = shares.reads("a");
        let began = tokio::time::Instant::now();
        let all = (0..40).map(|_| reads.read(read()));
        futures_util::future::join_all(all).await;
        assert_eq!(most.load(Ordering::SeqCst), READS_MAX);
        assert!(began.elapsed() >= READ_PAUSE * 9, "in virtual time");
        // Another namespace does not wait for them, and what no task needs is forgotten.
        drop(reads);
        tokio::time::sleep(READ_PAUSE * 2).await;
        shares.reads("b").read(read()).await;
        assert_eq!(shares.reads.lock().expect("no panic").len(), 1);
    }
}
