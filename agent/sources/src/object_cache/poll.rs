//! Objects that are read again and again, because the API server lets a node get them, but neither
//! list nor watch.

use std::sync::Arc;
use std::time::Duration;

use proto_api::Resource;
use proto_client::{Api, ListParams};
use tokio::sync::OnceCell;

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
    needed: OnceCell<bool>,
}

impl<T: Resource> Polling<T> {
    pub(super) fn new(is_settled: fn(&T) -> bool) -> Self {
        Self { is_settled, needed: OnceCell::new() }
    }

    /// Whether the server has forbidden to list the kind. It is asked once; without an answer the
    /// object is watched, which repeats the question.
    pub(super) async fn is_needed(&self, api: &Api<T>, params: &ListParams) -> bool {
        let ask = || async {
            match api.list(params).await {
                Ok(_) => Ok(false),
                Err(error) if error.is_forbidden() => Ok(true),
                Err(error) => Err(error),
            }
        };
        self.needed.get_or_try_init(ask).await.copied().unwrap_or(false)
    }

    /// Reads the object forever, and hands over what has changed.
    pub(super) async fn run(&self, api: &Api<T>, name: &str, set: impl Fn(Option<Arc<T>>)) {
        let (mut shown, mut interval) = (None, INTERVAL_FIRST);
        loop {
            let mut next = interval.mul_f64(1.5).min(INTERVAL_MAX);
            match api.find(name).await {
                Ok(object) => {
                    if object.as_ref().is_some_and(self.is_settled) {
                        (interval, next) = (INTERVAL_SETTLED, INTERVAL_SETTLED);
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
            tokio::time::sleep(interval).await;
            interval = next;
        }
    }
}

fn version_of<T: Resource>(object: &T) -> String {
    object.metadata().resource_version.clone()
}
