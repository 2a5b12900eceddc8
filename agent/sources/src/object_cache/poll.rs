//! Polling of objects that the API server lets a node get, but neither list nor watch, and of those for which no watch is left.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use proto_api::Resource;
use proto_client::{Api, ListParams};
use proto_daemon::backoff::{Backoff, Retries};
use tokio::sync::Notify;

use super::shares::Reads;

/// First interval; each further one is half as long again.
const INTERVAL_FIRST: Duration = Duration::from_millis(100);
/// Longest interval for an object that a pod waits for.
const INTERVAL_MAX: Duration = Duration::from_secs(2);
/// Interval for a settled object. A claim that has been expanded is noticed after it.
const INTERVAL_SETTLED: Duration = Duration::from_secs(30);

/// How one kind is polled.
pub(super) struct Polling<T> {
    /// Whether nothing waits for a change of the object.
    is_settled: fn(&T) -> bool,
    /// Whether the server has forbidden to list the kind.
    is_forbidden_to_list: AtomicBool,
}

impl<T: Resource> Polling<T> {
    pub(super) fn new(is_settled: fn(&T) -> bool) -> Self {
        Self { is_settled, is_forbidden_to_list: AtomicBool::new(false) }
    }

    /// Whether the server forbids to list the kind. Retried until it responds.
    pub(super) async fn is_needed(&self, reads: &Reads, api: &Api<T>, params: &ListParams) -> bool {
        let mut retries = Retries::new(Backoff::LOOP);
        while !self.is_forbidden_to_list.load(Ordering::Relaxed) {
            match reads.read(api.list(params)).await {
                Ok(_) => return false,
                Err(error) if error.is_forbidden() => {
                    self.is_forbidden_to_list.store(true, Ordering::Relaxed)
                }
                Err(error) => {
                    let wait = retries.next_delay(rand::random());
                    tracing::debug!(%error, ?wait, "cannot list an object that a pod's volumes refer to; retried");
                    tokio::time::sleep(wait).await;
                }
            }
        }
        true
    }

    /// Reads the object at intervals, and early when `reread` asks for it; calls `set` when it has changed. Never returns.
    pub(super) async fn run(
        &self,
        reads: &Reads,
        (api, name): (&Api<T>, &str),
        reread: &Notify,
        set: impl Fn(Option<Arc<T>>),
    ) {
        let (mut shown, mut interval) = (None, INTERVAL_FIRST);
        loop {
            let mut next = interval.mul_f64(1.5).min(INTERVAL_MAX);
            match reads.read(api.find(name)).await {
                Ok(object) => {
                    if object.as_ref().is_some_and(self.is_settled) {
                        (interval, next) = (INTERVAL_SETTLED, INTERVAL_SETTLED);
                    } else if interval == INTERVAL_SETTLED {
                        (interval, next) = (INTERVAL_FIRST, INTERVAL_FIRST);
                    }
                    let version = object.as_ref().map(version_of);
                    if shown.as_ref() != Some(&version) {
                        shown = Some(version);
                        set(object.map(Arc::new));
                    }
                }
                Err(error) => {
                    tracing::debug!(name, %error, "cannot read an object of a pod's volumes, trying again");
                }
            }
            // Cancel safe.
            tokio::select! {
                () = tokio::time::sleep(interval) => {}
                () = reread.notified() => {}
            }
            interval = next;
        }
    }
}

fn version_of<T: Resource>(object: &T) -> String {
    object.metadata().resource_version.clone()
}
