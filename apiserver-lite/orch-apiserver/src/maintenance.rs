//! Periodic work of the server: compacts old history, deletes expired events, restores the bootstrap objects that a client has deleted, and
//! reads the nodes' resource metrics.

use std::sync::Arc;
use std::time::{Duration, Instant};

use apiserver_core::key;
use apiserver_core::server::Server;
use apiserver_core::times::{now, time_of};
use apiserver_http::{HttpServer, run_resource_metrics};
use apiserver_schema::Object;
use apiserver_store::{Range, Write, WriteCondition};
use time::OffsetDateTime;

use crate::bootstrap;

/// Time between two rounds.
const INTERVAL: Duration = Duration::from_secs(10);
/// Rounds between two expiry passes over events.
const EVENT_ROUNDS: u32 = 6;

/// Largest accepted clock difference between the server and writers of events.
const CLOCK_SKEW_MAX: time::Duration = time::Duration::minutes(5);

/// Runs until `server.stopping` is cancelled.
pub async fn run(server: Arc<HttpServer>) {
    tokio::join!(run_rounds(server.clone()), run_resource_metrics(server));
}

/// Runs a round every [`INTERVAL`].
async fn run_rounds(server: Arc<HttpServer>) {
    let status = server.pages.status.task("maintenance");
    let mut rounds = 0u32;
    let mut events_due = None;
    loop {
        // Cancel safe: sleeping holds no state.
        tokio::select! {
            () = server.stopping.cancelled() => return,
            () = tokio::time::sleep(INTERVAL) => {}
        }
        status.started("time has passed");
        server.core.store.compact_expired(Instant::now());
        rounds = rounds.wrapping_add(1);
        if rounds.is_multiple_of(EVENT_ROUNDS) {
            delete_old_events(&server.core, &mut events_due).await;
        }
        if let Err(error) = bootstrap::run(&server.core).await {
            tracing::warn!(error = %proto_daemon::exit::chain(&error), "cannot restore bootstrap objects; retried at the next maintenance round");
        }
        let (now, oldest) = (server.core.store.revision(), server.core.store.oldest());
        status.done(format!("revision {now}, history since {oldest}"));
    }
}

/// Deletes events whose last activity is older than `--event-ttl`, unless `due` says that none can be expired yet.
async fn delete_old_events(server: &Server, due: &mut Option<OffsetDateTime>) {
    let now = now();
    if due.is_some_and(|due| due > now) {
        return;
    }
    let Some(kind) = server.kind("", "events") else { return };
    let ttl = time::Duration::try_from(server.config.event_ttl).unwrap_or(time::Duration::MAX);
    let Some(oldest) = now.checked_sub(ttl) else { return };
    let prefix = key::prefix(kind, "");
    let page = server.store.current_range(Range { prefix: &prefix, after: None, limit: None });
    // New events are younger than all remaining ones, so nothing expires before the oldest remaining event does.
    let mut next = now;
    for entry in page.entries {
        let Some(at) = last_activity(entry.record.object(), now) else { continue };
        if at >= oldest {
            next = next.min(at);
            continue;
        }
        let expect = WriteCondition::At(entry.stamp.modified);
        let write = Write::Delete { key: entry.key.to_string(), expect };
        if let Err(error) = server.store.write(write).await {
            tracing::debug!(key = %entry.key, %error, "cannot delete an expired event; retried at the next expiry pass");
        }
    }
    *due = next.checked_add(ttl);
}

/// Time of the last occurrence of an event: the latest of its series, timestamps and creation, in either version of the
/// Event API. Times more than [`CLOCK_SKEW_MAX`] ahead of `now` are ignored.
fn last_activity(event: &Object, now: OffsetDateTime) -> Option<OffsetDateTime> {
    let times = [
        event.str_at(&["series", "lastObservedTime"]),
        event.fields.str("lastTimestamp"),
        event.fields.str("deprecatedLastTimestamp"),
        event.fields.str("eventTime"),
        event.meta_str("creationTimestamp"),
    ];
    let latest = now.checked_add(CLOCK_SKEW_MAX).unwrap_or(now);
    times.into_iter().filter_map(time_of).filter(|at| *at <= latest).max()
}

#[cfg(test)]
mod tests {
    use apiserver_schema::{Engine, Format, Strictness};
    use proto_api::names::{Names, Profile};
    use serde_json::{Value, json};
    use time::macros::datetime;

    use super::*;

    #[test]
    fn the_last_of_a_series_counts() {
        let engine = Engine::new(Names::new(Profile::Kubernetes));
        let now = datetime!(2026-01-02 12:00:00 UTC);
        let check = |group: &str, body: Value, expected: &str| {
            let kind = engine.kind(group, "v1", "Event").expect("kind");
            let mut body = body;
            body["metadata"] = json!({"creationTimestamp": "2026-01-02T10:00:00Z"});
            let body = body.to_string();
            let event = engine.decode(kind, Format::Json, body.as_bytes(), Strictness::Ignore);
            let event = event.expect("event").object;
            assert_eq!(last_activity(&event, now), time_of(expected), "{body}");
        };
        let series = json!({"count": 2, "lastObservedTime": "2026-01-02T11:30:00.000000Z"});
        check("", json!({}), "2026-01-02T10:00:00Z");
        check("", json!({"lastTimestamp": "2026-01-02T11:00:00Z"}), "2026-01-02T11:00:00Z");
        check("", json!({"series": series}), "2026-01-02T11:30:00Z");
        check("events.k8s.io", json!({"series": series}), "2026-01-02T11:30:00Z");
        check("", json!({"lastTimestamp": "9999-01-02T11:00:00Z"}), "2026-01-02T10:00:00Z");
    }
}
