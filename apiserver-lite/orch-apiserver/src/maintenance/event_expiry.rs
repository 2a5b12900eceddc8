//! Deletes events whose last activity is older than `--event-ttl`.
//!
//! Events have times of the wall clock, which may be set to a wrong time and back. So the monotonic clock says when events are read next. After the wall
//! clock was set no event is deleted for `--event-ttl`: the events from before have lived as long by then, whatever their times say.

use std::time::{Duration, Instant};

use apiserver_core::key;
use apiserver_core::server::Server;
use apiserver_core::times::{now, time_of};
use apiserver_schema::Object;
use apiserver_store::{Range, Write, WriteCondition};
use time::OffsetDateTime;

/// Largest accepted clock difference between the server and writers of events, and largest deviation of the wall clock from the monotonic one between two
/// readings.
const CLOCK_SKEW_MAX: time::Duration = time::Duration::minutes(5);

/// Both clocks at one moment.
#[derive(Clone, Copy, Debug)]
pub struct ExpiryClocks {
    /// Can be set.
    wall: OffsetDateTime,
    /// Only goes on.
    monotonic: Instant,
}

impl ExpiryClocks {
    pub fn read() -> Self {
        Self { wall: now(), monotonic: Instant::now() }
    }

    /// How far the wall clock was set since `before`, in either direction.
    fn deviation_since(self, before: Self) -> time::Duration {
        let passed = self.monotonic.saturating_duration_since(before.monotonic);
        let passed = time::Duration::try_from(passed).unwrap_or(time::Duration::MAX);
        (self.wall - before.wall).saturating_sub(passed).abs()
    }
}

/// When events are read next, and which of them have expired.
pub struct EventExpiry {
    ttl: Duration,
    last: ExpiryClocks,
    /// Since when this process knows that the wall clock was not set.
    set_at: Instant,
    /// When events are read next; `None` for a time that no clock shows.
    due: Option<Instant>,
    /// Whether that was put off because the wall clock was set.
    put_off: bool,
}

impl EventExpiry {
    pub fn new(ttl: Duration, clocks: ExpiryClocks) -> Self {
        let at = clocks.monotonic;
        Self { ttl, last: clocks, set_at: at, due: Some(at), put_off: false }
    }

    /// Whether events may have expired. Notes the clocks.
    fn is_due(&mut self, clocks: ExpiryClocks) -> bool {
        let deviation = clocks.deviation_since(self.last);
        self.last = clocks;
        if deviation > CLOCK_SKEW_MAX {
            self.set_at = clocks.monotonic;
            // Put off once: a clock that is set again and again does not keep events for ever.
            if !self.put_off {
                tracing::warn!(%deviation, "the clock was set; no event is deleted for the time of --event-ttl");
                self.put_off = true;
                self.due = clocks.monotonic.checked_add(self.ttl);
            }
        }
        self.due.is_some_and(|due| due <= clocks.monotonic)
    }

    /// Last activity of an event that is kept; `None` for one that has expired.
    fn kept_since(&self, event: &Object, clocks: ExpiryClocks) -> Option<OffsetDateTime> {
        let Some(at) = last_activity(event, clocks.wall) else {
            // It was made while the clock was wrong, before it was set.
            let known = clocks.monotonic.saturating_duration_since(self.set_at);
            return (known < self.ttl).then_some(clocks.wall);
        };
        let ttl = time::Duration::try_from(self.ttl).unwrap_or(time::Duration::MAX);
        let expired = clocks.wall.checked_sub(ttl).is_some_and(|oldest| at < oldest);
        (!expired).then_some(at)
    }

    /// Plans the next reading. New events are younger than those that are kept, so nothing expires before the `oldest` of these does.
    fn plan_next(&mut self, oldest: OffsetDateTime, clocks: ExpiryClocks) {
        let age = Duration::try_from(clocks.wall - oldest).unwrap_or_default();
        self.due = clocks.monotonic.checked_add(self.ttl.saturating_sub(age));
        self.put_off = false;
    }
}

/// Deletes the events that have expired, if any may have.
pub async fn delete_old_events(server: &Server, expiry: &mut EventExpiry, clocks: ExpiryClocks) {
    if !expiry.is_due(clocks) {
        return;
    }
    let Some(kind) = server.kind("", "events") else { return };
    let prefix = key::prefix(kind, "");
    let page = server.store.current_range(Range { prefix: &prefix, after: None, limit: None });
    let mut oldest = clocks.wall;
    for entry in page.entries {
        tokio::task::coop::consume_budget().await;
        if let Some(at) = expiry.kept_since(&entry.record.object_once(), clocks) {
            oldest = oldest.min(at);
            continue;
        }
        let expect = WriteCondition::At(entry.stamp.modified);
        let write = Write::Delete { key: entry.key.to_string(), expect };
        if let Err(error) = server.store.write(write).await {
            tracing::debug!(key = %entry.key, %error, "cannot delete an expired event; retried at the next expiry pass");
        }
    }
    expiry.plan_next(oldest, clocks);
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

    /// An event of a group that was created at a time.
    fn event(group: &str, created: &str, mut body: Value) -> Object {
        let engine = Engine::new(Names::new(Profile::Kubernetes));
        let kind = engine.kind(group, "v1", "Event").expect("kind");
        body["metadata"] = json!({"creationTimestamp": created});
        let body = body.to_string();
        let event = engine.decode(kind, Format::Json, body.as_bytes(), Strictness::Ignore);
        event.expect("event").object
    }

    #[test]
    fn the_last_of_a_series_counts() {
        let now = datetime!(2026-01-02 12:00:00 UTC);
        let check = |group: &str, body: Value, expected: &str| {
            let event = event(group, "2026-01-02T10:00:00Z", body.clone());
            assert_eq!(last_activity(&event, now), time_of(expected), "{body}");
        };
        let series = json!({"count": 2, "lastObservedTime": "2026-01-02T11:30:00.000000Z"});
        check("", json!({}), "2026-01-02T10:00:00Z");
        check("", json!({"lastTimestamp": "2026-01-02T11:00:00Z"}), "2026-01-02T11:00:00Z");
        check("", json!({"series": series}), "2026-01-02T11:30:00Z");
        check("events.k8s.io", json!({"series": series}), "2026-01-02T11:30:00Z");
        check("", json!({"lastTimestamp": "9999-01-02T11:00:00Z"}), "2026-01-02T10:00:00Z");
    }

    const START: OffsetDateTime = datetime!(2026-01-02 12:00:00 UTC);

    /// Clocks that a test sets.
    struct TestClocks {
        start: Instant,
        passed: Duration,
        set: time::Duration,
    }

    impl TestClocks {
        fn new() -> Self {
            let (passed, set) = Default::default();
            Self { start: Instant::now(), passed, set }
        }

        fn read(&self) -> ExpiryClocks {
            ExpiryClocks {
                wall: START + self.passed + self.set,
                monotonic: self.start + self.passed,
            }
        }

        fn after(&mut self, minutes: u64) -> ExpiryClocks {
            self.passed += Duration::from_secs(60 * minutes);
            self.read()
        }
    }

    const TTL: Duration = Duration::from_secs(3600);

    #[test]
    fn events_are_read_when_the_oldest_can_have_expired() {
        let mut clocks = TestClocks::new();
        let mut expiry = EventExpiry::new(TTL, clocks.read());
        let now = clocks.after(1);
        assert!(expiry.is_due(now));
        expiry.plan_next(START - time::Duration::minutes(30), now);
        assert!(!expiry.is_due(clocks.after(28)));
        assert!(expiry.is_due(clocks.after(1)));
        let now = clocks.read();
        // There is no event.
        expiry.plan_next(now.wall, now);
        assert!(!expiry.is_due(clocks.after(59)));
        assert!(expiry.is_due(clocks.after(1)));
    }

    #[test]
    fn a_clock_that_is_set_forward_and_back_puts_removal_off_for_one_lifetime() {
        let mut clocks = TestClocks::new();
        let mut expiry = EventExpiry::new(TTL, clocks.read());
        let before = event("", "2026-01-02T11:59:00Z", json!({}));
        clocks.set = time::Duration::days(400);
        let wrong = clocks.after(1);
        assert!(!expiry.is_due(wrong), "the events would be deleted");
        clocks.set = time::Duration::ZERO;
        assert!(!expiry.is_due(clocks.after(10)));
        assert!(!expiry.is_due(clocks.after(49)));
        // 61 minutes after the start.
        let right = clocks.after(1);
        assert!(expiry.is_due(right));
        assert_eq!(expiry.kept_since(&before, right), None);
        expiry.plan_next(right.wall, right);
        assert!(expiry.is_due(clocks.after(60)), "it goes on");
    }

    #[test]
    fn a_reading_by_a_wrong_clock_does_not_stop_the_next_one() {
        let mut clocks = TestClocks::new();
        clocks.set = time::Duration::days(400);
        let mut expiry = EventExpiry::new(TTL, clocks.read());
        let wrong = clocks.after(1);
        assert!(expiry.is_due(wrong));
        expiry.plan_next(wrong.wall, wrong);
        clocks.set = time::Duration::ZERO;
        // Set at the second minute, and read within a lifetime, though not before its end.
        assert!(!expiry.is_due(clocks.after(1)));
        assert!(!expiry.is_due(clocks.after(59)));
        assert!(expiry.is_due(clocks.after(1)));
    }

    #[test]
    fn a_clock_that_is_set_all_the_time_does_not_keep_events_for_ever() {
        let mut clocks = TestClocks::new();
        let mut expiry = EventExpiry::new(TTL, clocks.read());
        let reads = (0..600).filter(|_| {
            clocks.set += time::Duration::hours(1);
            let now = clocks.after(1);
            let is_due = expiry.is_due(now);
            if is_due {
                expiry.plan_next(now.wall, now);
            }
            is_due
        });
        assert_eq!(reads.count(), 9);
    }

    #[test]
    fn events_of_a_wrong_clock_are_kept_for_one_lifetime_after_it_was_set() {
        let mut clocks = TestClocks::new();
        let mut expiry = EventExpiry::new(TTL, clocks.read());
        let of_the_future = event("", "2027-02-06T12:00:00Z", json!({}));
        assert!(expiry.is_due(clocks.after(30)));
        assert_eq!(expiry.kept_since(&of_the_future, clocks.read()), Some(clocks.read().wall));
        clocks.set = -time::Duration::hours(2);
        expiry.is_due(clocks.after(1));
        let kept = clocks.after(59);
        assert_eq!(expiry.kept_since(&of_the_future, kept), Some(kept.wall));
        assert_eq!(expiry.kept_since(&of_the_future, clocks.after(1)), None);
    }

    #[test]
    fn a_lifetime_that_no_clock_shows_keeps_all() {
        let clocks = TestClocks::new();
        let expiry = EventExpiry::new(Duration::MAX, clocks.read());
        let old = event("", "1970-01-01T00:00:00Z", json!({}));
        assert!(expiry.kept_since(&old, clocks.read()).is_some());
    }
}
