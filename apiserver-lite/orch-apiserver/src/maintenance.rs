//! Periodic work of the server: compacts old history, shrinks records that are not read, deletes expired events, restores the bootstrap objects that a
//! client has deleted, and reads the nodes' resource metrics.

mod event_expiry;

use std::sync::Arc;
use std::time::{Duration, Instant};

use apiserver_core::idle_records::shrink_idle_records;
use apiserver_http::{HttpServer, run_resource_metrics};

use crate::bootstrap;
use event_expiry::{EventExpiry, ExpiryClocks, delete_old_events};

/// Time between two rounds.
const INTERVAL: Duration = Duration::from_secs(10);
/// Rounds between two expiry passes over events.
const EVENT_ROUNDS: u32 = 6;

/// Runs until `server.stopping` is cancelled.
pub async fn run(server: Arc<HttpServer>) {
    tokio::join!(run_rounds(server.clone()), run_resource_metrics(server));
}

/// Runs a round every [`INTERVAL`].
async fn run_rounds(server: Arc<HttpServer>) {
    let status = server.pages.status.task("maintenance");
    let mut rounds = 0u32;
    let mut expiry = EventExpiry::new(server.core.config.event_ttl, ExpiryClocks::read());
    loop {
        // Cancel safe: sleeping holds no state.
        tokio::select! {
            () = server.stopping.cancelled() => return,
            () = tokio::time::sleep(INTERVAL) => {}
        }
        status.started("time has passed");
        server.core.store.compact_expired(Instant::now());
        rounds = rounds.wrapping_add(1);
        shrink_idle_records(&server.core, rounds).await;
        if rounds.is_multiple_of(EVENT_ROUNDS) {
            delete_old_events(&server.core, &mut expiry, ExpiryClocks::read()).await;
        }
        if let Err(error) = bootstrap::restore(&server.core).await {
            tracing::warn!(error = %proto_daemon::exit::chain(&error), "cannot restore bootstrap objects; retried at the next maintenance round");
        }
        let (now, oldest) = (server.core.store.revision(), server.core.store.oldest());
        status.done(format!("revision {now}, history since {oldest}"));
    }
}
