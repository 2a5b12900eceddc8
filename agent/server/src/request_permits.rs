//! RequestPermits of sessions and logs: bounded, each namespace has a share, and some are kept for short requests.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Concurrent sessions and logs; a further one gets 429.
pub(crate) const PERMITS_MAX: usize = 128;
/// Most of one namespace.
pub(crate) const PERMITS_MAX_PER_NAMESPACE: usize = PERMITS_MAX / 4;
/// Those that only requests that end by themselves get.
const KEPT_FOR_SHORT: usize = 16;

/// How long a request lasts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lasting {
    /// It ends by itself: a log or file as it is.
    Short,
    /// It lasts as long as its client wants: a session, a followed log; or as a command of `/run`.
    Long,
}

/// The permits that are held, by namespace.
#[derive(Debug, Default)]
pub struct RequestPermits {
    taken: Mutex<HashMap<String, usize>>,
}

/// A permit, held until it is dropped.
#[derive(Debug)]
pub struct RequestPermit {
    permits: Arc<RequestPermits>,
    namespace: String,
}

impl RequestPermits {
    /// A permit for a request about `namespace`, which is empty for files of the node; `None` where it would exceed a bound.
    pub(crate) fn take(
        self: &Arc<Self>,
        namespace: &str,
        lasting: Lasting,
    ) -> Option<RequestPermit> {
        let all_max = match lasting {
            Lasting::Short => PERMITS_MAX,
            Lasting::Long => PERMITS_MAX - KEPT_FOR_SHORT,
        };
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let own = taken.get(namespace).copied().unwrap_or_default();
        if own >= PERMITS_MAX_PER_NAMESPACE || taken.values().sum::<usize>() >= all_max {
            return None;
        }
        taken.insert(namespace.to_owned(), own.saturating_add(1));
        Some(RequestPermit { permits: self.clone(), namespace: namespace.to_owned() })
    }
}

impl Drop for RequestPermit {
    fn drop(&mut self) {
        let mut taken = self.permits.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(own) = taken.get_mut(&self.namespace) else { return };
        *own = own.saturating_sub(1);
        if *own == 0 {
            taken.remove(&self.namespace);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_namespace_has_a_share_and_short_requests_a_rest() {
        use Lasting::{Long, Short};
        let permits = Arc::<RequestPermits>::default();
        let fill = |namespace: &str, lasting| -> Vec<RequestPermit> {
            std::iter::from_fn(|| permits.take(namespace, lasting)).collect()
        };
        let first = fill("a", Long);
        assert_eq!(first.len(), PERMITS_MAX_PER_NAMESPACE);
        assert!(permits.take("a", Short).is_none(), "its share is taken");
        let others = ["b", "c", "d"].map(|namespace| fill(namespace, Long));
        let long: usize = others.iter().map(Vec::len).sum();
        assert_eq!(first.len() + long, PERMITS_MAX - KEPT_FOR_SHORT);
        assert!(permits.take("e", Long).is_none());
        assert_eq!(fill("", Short).len(), KEPT_FOR_SHORT);
        drop((first, others));
        assert!(permits.taken.lock().unwrap().is_empty(), "nothing is kept of those that left");
    }
}
