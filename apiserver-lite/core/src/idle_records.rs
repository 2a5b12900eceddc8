//! Records that are not read for a while are kept as bytes ([`StoredObject::shrunk`](crate::record::StoredObject::shrunk)).

use std::sync::Arc;

use proto_daemon::panics;

use crate::server::Server;

/// Drops trees and encodings of the Events and old versions that were not read since the last call. A failure is logged.
pub async fn shrink_idle_records(server: Arc<Server>) {
    let shrink = move || {
        let Server { store, engine, .. } = &*server;
        store.shrink_records(|record, is_current| record.shrunk(engine, is_current));
    };
    if let Err(error) = panics::spawn_blocking(shrink).await {
        tracing::error!(%error, "shrinking idle records failed; the next round tries again");
    }
}
