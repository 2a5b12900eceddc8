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
        let mut changes = watch();
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
            if outcome.is_err() || changes.is_empty() || changes.iter_mut().any(has_event) {
                break;
            }
        }
    }
}

/// Whether something was written since the watch began. A new watch is pending before it has been read once.
fn has_event(changes: &mut Watch<StoredObject>) -> bool {
    let mut events = Vec::new();
    while changes.is_pending() {
        // One that fell behind has missed events.
        if changes.try_batch(&mut events).is_err() || !events.is_empty() {
            return true;
        }
    }
    false
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

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use apiserver_schema::{Format, Strictness};
    use apiserver_store::{Write, WriteCondition};
    use proto_api::names::{Names, Profile};

    use super::*;
    use crate::record::Draft;

    #[tokio::test(start_paused = true)]
    async fn objects_are_reconciled_again_after_changes_only() {
        let server = Server::for_tests(Names::new(Profile::Kubernetes));
        let kind = server.engine.resource("", "v1", "configmaps").unwrap();
        let write = async |name: &str| {
            let text = format!(
                r#"{{"apiVersion":"v1","kind":"ConfigMap","metadata":{{"name":"{name}","namespace":"default"}}}}"#
            );
            let decoded =
                server.engine.decode_any(Format::Json, text.as_bytes(), Strictness::Strict);
            let object = decoded.unwrap().object;
            let key = key::object(&object.kind, object.namespace(), object.name());
            let draft = Draft::new(&server.engine, object);
            let expect = WriteCondition::Anything;
            server.store.write(Write::Put { key, expect, draft }).await.unwrap();
        };
        let (rounds, seconds) = (Cell::new(0), Cell::new(0));
        let stopping = CancellationToken::new();
        let reconcile = || {
            rounds.set(rounds.get() + 1);
            std::future::ready(Ok(()))
        };
        let watch = || watch_kinds(&server, [kind].into_iter());
        let each_second = || seconds.set(seconds.get() + 1);
        write("before").await;
        let running = run("config maps", stopping.clone(), watch, reconcile, each_second);
        let steps = async {
            for expected in 1..4 {
                tokio::time::sleep(LOOK_EVERY * 10).await;
                assert_eq!(rounds.get(), expected);
                write(&format!("change-{expected}")).await;
            }
            assert!(seconds.get() >= 27, "{}", seconds.get());
            stopping.cancel();
        };
        tokio::join!(running, steps);
    }
}
