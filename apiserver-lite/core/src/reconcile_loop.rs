//! Keeps objects that every API server makes as they should be: they are reconciled at the start, after each change of their kinds, and again after a failure.

use std::sync::Arc;
use std::time::Duration;

use apiserver_schema::Kind;
use apiserver_store::Watch;
use tokio_util::sync::CancellationToken;

use crate::key;
use crate::record::StoredObject;
use crate::server::Server;
use crate::status::ApiError;

/// Time between two looks for changes.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Writes at one time: concurrent ones share one sync of the log.
pub(crate) const WRITES_MAX: usize = 32;

/// Calls `reconcile` until `stopping` is cancelled: at once, when `watch` has seen a change, and every second after a failure, which is logged once with the
/// name of the objects. `each_second` is called between.
pub(crate) async fn run<Reconciled: Future<Output = Result<(), ApiError>>>(
    objects: &'static str,
    stopping: CancellationToken,
    watch: impl Fn() -> Vec<Watch<StoredObject>>,
    reconcile: impl Fn() -> Reconciled,
    each_second: impl Fn(),
) {
    let mut logged = String::new();
    loop {
        // Watched from before the look, so that no change is missed.
        let changes = watch();
        let outcome = reconcile().await;
        let error = outcome.as_ref().err().map(ToString::to_string).unwrap_or_default();
        if !error.is_empty() && error != logged {
            tracing::warn!(error, "cannot reconcile {objects}; retrying every second");
        }
        logged = error;
        loop {
            // Cancel safe: sleeping holds no state.
            tokio::select! {
                () = stopping.cancelled() => return,
                () = tokio::time::sleep(LOOK_EVERY) => {}
            }
            each_second();
            if outcome.is_err() || changes.is_empty() || changes.iter().any(Watch::is_pending) {
                break;
            }
        }
    }
}

/// Changes of these kinds from now on; empty if they cannot be watched.
pub(crate) fn watch_kinds<'a>(
    server: &Server,
    kinds: impl Iterator<Item = &'a Arc<Kind>>,
) -> Vec<Watch<StoredObject>> {
    let revision = server.store.revision();
    let watches = kinds.map(|kind| server.store.watch(key::prefix(kind, ""), revision));
    watches.collect::<Result<_, _>>().unwrap_or_default()
}
