//! What has to happen from time to time: old history is forgotten, old events are deleted, the server's own objects are put
//! back when somebody has deleted them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use apiserver_store::{Expect, Range, Write};

use crate::bootstrap;
use crate::key;
use crate::server::{Server, now, time_of};

/// Time between two rounds.
const EVERY: Duration = Duration::from_secs(10);
/// Rounds between two looks at events.
const EVENT_ROUNDS: u32 = 6;

/// Runs until the server stops.
pub async fn run(server: Arc<Server>) {
    let status = server.pages.status.task("upkeep");
    let mut rounds = 0u32;
    loop {
        // Cancel safe: sleeping holds no state.
        tokio::select! {
            () = server.stopping.cancelled() => return,
            () = tokio::time::sleep(EVERY) => {}
        }
        status.started("time has passed");
        server.store.age_history(Instant::now());
        rounds = rounds.wrapping_add(1);
        if rounds.is_multiple_of(EVENT_ROUNDS) {
            delete_old_events(&server).await;
        }
        if let Err(error) = bootstrap::run(&server).await {
            tracing::warn!(error = %proto_daemon::exit::chain(&error), "own objects not restored");
        }
        let (now, oldest) = (server.store.revision(), server.store.oldest());
        status.done(format!("revision {now}, history since {oldest}"));
    }
}

/// Deletes events that nobody has touched for the configured time.
async fn delete_old_events(server: &Server) {
    let Some(kind) = server.kind("", "events") else { return };
    let prefix = key::prefix(kind, "");
    let Ok(page) = server.snapshot().range(Range { prefix: &prefix, after: None, limit: None })
    else {
        return;
    };
    let oldest = now() - server.config.event_ttl;
    for entry in page.entries {
        let event = entry.record.object();
        let touched = [event.fields.str("lastTimestamp"), event.meta_str("creationTimestamp")];
        let touched = touched.iter().filter_map(|text| time_of(text)).max();
        if touched.is_some_and(|at| at < oldest) {
            let expect = Expect::At(entry.stamp.modified);
            let write = Write::Delete { key: entry.key.to_string(), expect };
            if let Err(error) = server.store.write(write).await {
                tracing::debug!(key = %entry.key, %error, "event not deleted");
            }
        }
    }
}
