//! Records that are not read for a while are kept as bytes ([`StoredObject::shrunk`](crate::record::StoredObject::shrunk)).

use std::sync::Arc;

use proto_daemon::panics;

use crate::server::Server;

/// Rounds of the server's maintenance, of 10 s, from one pass over the records to the next.
const ROUNDS: u32 = 3;

/// In every third round drops trees and encodings of the Events and old versions that were not read since the last pass. A failure is logged.
pub async fn shrink_idle_records(server: &Arc<Server>, round: u32) {
    if !round.is_multiple_of(ROUNDS) {
        return;
    }
    let server = server.clone();
    let shrink = move || {
        let Server { store, engine, .. } = &*server;
        store.shrink_records(|record, is_current| record.shrunk(engine, is_current));
    };
    if let Err(error) = panics::spawn_blocking(shrink).await {
        tracing::error!(%error, "shrinking idle records failed; the next round tries again");
    }
}
