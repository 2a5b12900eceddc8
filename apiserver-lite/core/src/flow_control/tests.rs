use std::pin::pin;
use std::task::{Context, Poll, Waker};

use apiserver_flow_control::DigestTarget;
use apiserver_schema::{Engine, Format, Object, Strictness};
use proto_api::names::{Names, Profile};
use serde_json::{Value, json};

use super::*;
use crate::auth::ObjectIndex as _;

const LONG: Duration = Duration::from_secs(15);

fn object(kind: &str, name: &str, uid: &str, spec: &Value) -> Object {
    let engine = Engine::new(Names::new(Profile::Kubernetes));
    let kind = engine.kind("flowcontrol.apiserver.k8s.io", "v1beta2", kind).unwrap();
    let text = json!({"metadata": {"name": name, "uid": uid}, "spec": spec}).to_string();
    let decoded = engine.decode(kind, Format::Json, text.as_bytes(), Strictness::Strict);
    let mut object = decoded.unwrap().object;
    engine.default(&mut object);
    object
}

fn level(name: &str, shares: i64, length: Option<i64>) -> Object {
    let queuing = |length| json!({"queues": 1, "handSize": 1, "queueLengthLimit": length});
    let response = match length {
        Some(length) => json!({"type": "Queue", "queuing": queuing(length)}),
        None => json!({"type": "Reject"}),
    };
    let limited = json!({"assuredConcurrencyShares": shares, "limitResponse": response});
    object("PriorityLevelConfiguration", name, "l", &json!({"type": "Limited", "limited": limited}))
}

/// A schema of the requests of one user.
fn schema(name: &str, level: &str, user: &str) -> Object {
    let subjects = json!([{"kind": "User", "user": {"name": user}}]);
    let rules = json!([{"verbs": ["*"], "nonResourceURLs": ["*"]}]);
    let rules = json!([{"subjects": subjects, "nonResourceRules": rules}]);
    let spec = json!({"priorityLevelConfiguration": {"name": level}, "matchingPrecedence": 50, "rules": rules});
    object("FlowSchema", name, "s", &spec)
}

fn registry() -> proto_daemon::metrics::Metrics {
    let build = proto_daemon::metrics::BuildInfo { version: "", commit: "" };
    proto_daemon::metrics::Metrics::new("test", build).unwrap()
}

/// A server with `seats` seats, the level `low` and a schema of it for the user `jane`. The other level has 5 shares.
fn configured(
    seats: u32,
    shares: i64,
    length: Option<i64>,
) -> (FlowControlObjects, proto_daemon::metrics::Metrics) {
    let registry = registry();
    let mut configured = FlowControlObjects::new(
        seats,
        Names::new(Profile::Kubernetes),
        FlowMetrics::new(&registry).unwrap(),
    );
    configured.set(&level("low", shares, length));
    configured.set(&schema("janes", "low", "jane"));
    (configured, registry)
}

fn classify(configured: &FlowControlObjects, user: &str) -> ClassifiedRequest {
    let groups = ["system:authenticated".to_owned()];
    let request = RequestDigest {
        user,
        groups: &groups,
        verb: "get",
        target: DigestTarget::Path("/version"),
    };
    let (schema, flow) = configured.table().find(&request);
    ClassifiedRequest { schema, flow }
}

/// Whether a request of `user` has a seat at once.
async fn is_free(configured: &FlowControlObjects, user: &str) -> bool {
    classify(configured, user).seat(Duration::ZERO).await.is_ok()
}

#[tokio::test(start_paused = true)]
async fn a_seat_goes_to_the_longest_waiting_request_and_is_returned_when_dropped() {
    let (configured, registry) = configured(2, 5, Some(2));
    let jane = classify(&configured, "jane");
    let held = jane.seat(LONG).await.unwrap();
    let (mut first, mut second) = (pin!(jane.seat(LONG)), pin!(jane.seat(LONG)));
    let context = &mut Context::from_waker(Waker::noop());
    assert!(
        first.as_mut().poll(context).is_pending() && second.as_mut().poll(context).is_pending()
    );
    assert_eq!(jane.seat(LONG).await.err(), Some(NotServed::QueueFull));
    assert!(registry.text().contains("apiserver_flowcontrol_current_inqueue_requests{flow_schema=\"janes\",priority_level=\"low\"} 2"));
    assert!(is_free(&configured, "joe").await, "another level has its own seat");
    drop(held);
    let Poll::Ready(Ok(held)) = first.as_mut().poll(context) else { panic!("not served") };
    assert!(second.as_mut().poll(context).is_pending());
    drop(held);
    assert!(second.await.is_ok());
    assert!(is_free(&configured, "jane").await);
    let text = registry.text();
    for line in [
        "apiserver_flowcontrol_dispatched_requests_total{flow_schema=\"janes\",priority_level=\"low\"} 4",
        "apiserver_flowcontrol_rejected_requests_total{flow_schema=\"janes\",priority_level=\"low\",reason=\"queue-full\"} 1",
        "apiserver_flowcontrol_current_inqueue_requests{flow_schema=\"janes\",priority_level=\"low\"} 0",
        "apiserver_flowcontrol_current_executing_requests{flow_schema=\"janes\",priority_level=\"low\"} 0",
        "apiserver_flowcontrol_request_concurrency_limit{priority_level=\"low\"} 1",
        "apiserver_flowcontrol_request_wait_duration_seconds_count{execute=\"true\",flow_schema=\"janes\",priority_level=\"low\"} 4",
    ] {
        assert!(text.contains(line), "{line}\n{text}");
    }
}

#[tokio::test(start_paused = true)]
async fn cancelled_and_timed_out_requests_take_no_seat() {
    let (configured, registry) = configured(2, 5, Some(9));
    let jane = classify(&configured, "jane");
    let held = jane.seat(LONG).await.unwrap();
    assert_eq!(jane.seat(LONG).await.err(), Some(NotServed::TimeOut));
    {
        let mut gone = pin!(jane.seat(LONG));
        assert!(gone.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    }
    drop(held);
    assert!(is_free(&configured, "jane").await);
    {
        // It is dropped after it has been given its seat, and before it knows.
        let held = jane.seat(LONG).await.unwrap();
        let mut given = pin!(jane.seat(LONG));
        assert!(given.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        drop(held);
    }
    assert!(is_free(&configured, "jane").await, "its seat was given back");
    let text = registry.text();
    for reason in ["time-out\"} 1", "cancelled\"} 2"] {
        assert!(text.contains(&format!("reason=\"{reason}")), "{reason} {text}");
    }
}

#[tokio::test(start_paused = true)]
async fn levels_without_queues_reject_and_exempt_ones_do_neither() {
    let (configured, _registry) = configured(2, 5, None);
    let jane = classify(&configured, "jane");
    let _held = jane.seat(LONG).await.unwrap();
    assert_eq!(jane.seat(LONG).await.err(), Some(NotServed::ConcurrencyLimit));
    let groups = ["system:masters".to_owned()];
    let request = RequestDigest {
        user: "root",
        groups: &groups,
        verb: "get",
        target: DigestTarget::Path("/"),
    };
    let (schema, flow) = configured.table().find(&request);
    let root = ClassifiedRequest { schema, flow };
    let mut all = Vec::new();
    for _ in 0..1000 {
        all.push(root.seat(LONG).await.unwrap());
    }
    assert_eq!(root.uids(), [None, None], "what is not stored has no identity");
    assert_eq!(jane.uids().map(Option::unwrap), ["s", "l"]);
}

#[tokio::test(start_paused = true)]
async fn a_change_counts_at_once_and_serves_those_who_wait() {
    let (mut configured, registry) = configured(2, 5, Some(9));
    let jane = classify(&configured, "jane");
    let _held = jane.seat(LONG).await.unwrap();
    let mut waits = pin!(jane.seat(LONG));
    let context = &mut Context::from_waker(Waker::noop());
    assert!(waits.as_mut().poll(context).is_pending());
    configured.set(&schema("janes", "low", "jane"));
    assert!(waits.as_mut().poll(context).is_pending(), "nothing changed");
    configured.set(&level("low", 500, Some(9)));
    configured.table();
    let Poll::Ready(Ok(_second)) = waits.as_mut().poll(context) else { panic!("not served") };
    assert!(registry.text().contains("request_concurrency_limit{priority_level=\"low\"} 2"));
    // A schema that is gone takes no further request, and its metrics go.
    configured.remove(&schema("janes", "low", "jane"));
    assert!(is_free(&configured, "jane").await, "the level of all others takes them");
    assert!(!registry.text().contains("janes"));
}

#[tokio::test(start_paused = true)]
async fn a_deleted_priority_level_drains_its_queue_and_then_releases_its_seats() {
    let (mut configured, registry) = configured(10, 5, Some(9));
    let seats = |level: &str| {
        let text = registry.text();
        let line = format!("request_concurrency_limit{{priority_level=\"{level}\"}} ");
        text.split_once(&line).map(|(_, rest)| rest.lines().next().unwrap().to_owned())
    };
    let jane = classify(&configured, "jane");
    let mut held = Vec::new();
    for _ in 0..5 {
        held.push(jane.seat(LONG).await.unwrap());
    }
    let waits = jane.seat(LONG);
    let mut waits = pin!(waits);
    let context = &mut Context::from_waker(Waker::noop());
    assert!(waits.as_mut().poll(context).is_pending());
    configured.remove(&level("low", 5, Some(9)));
    assert!(is_free(&configured, "jane").await, "new requests go elsewhere");
    assert_eq!((seats("low").as_deref(), seats("catch-all").as_deref()), (Some("5"), Some("5")));
    held.pop();
    let Poll::Ready(Ok(last)) = waits.as_mut().poll(context) else { panic!("not served") };
    held.push(last);
    configured.redistribute_seats();
    assert_eq!(seats("low").as_deref(), Some("5"), "it is not idle yet");
    held.clear();
    configured.redistribute_seats();
    assert_eq!((seats("low"), seats("catch-all").as_deref()), (None, Some("10")));
}

#[test]
fn an_unusable_priority_level_is_treated_as_missing() {
    let (mut configured, _registry) = configured(10, 5, Some(9));
    let exempt = json!({"type": "Exempt"});
    configured.set(&object("PriorityLevelConfiguration", "low", "l", &exempt));
    assert_eq!(classify(&configured, "jane").uids(), [None, None], "its schema takes nothing");
    assert_eq!(configured.table().usage("janes", "low"), FlowSchemaUsage::LevelLeftOut);
}

#[test]
fn of_too_many_levels_the_built_in_ones_and_those_of_schemas_are_used() {
    let (mut configured, registry) = configured(10, 5, Some(9));
    for nth in 0..300 {
        configured.set(&level(&format!("a{nth:03}"), 5, None));
    }
    configured.set(&level("workload-low", 100, None));
    configured.set(&schema("service-accounts", "workload-low", "account"));
    configured.set(&schema("joes", "a299", "joe"));
    let uids = |user| classify(&configured, user).uids().map(Option::unwrap);
    assert_eq!([uids("account"), uids("joe"), uids("jane")], [["s", "l"]; 3]);
    let limits = registry.text().matches("request_concurrency_limit{").count();
    assert_eq!(limits, 255, "and the one without a limit");
    // Each level has a schema now.
    for nth in 0..300 {
        configured.set(&schema(&format!("a{nth:03}"), &format!("a{nth:03}"), &format!("u{nth}")));
    }
    let table = configured.table();
    assert_eq!(table.usage("service-accounts", "workload-low"), FlowSchemaUsage::Used);
    assert_eq!(
        (table.usage("a000", "a000"), table.usage("a299", "a299")),
        (FlowSchemaUsage::Used, FlowSchemaUsage::LevelLeftOut)
    );
    assert_eq!(table.usage("exempt", "exempt"), FlowSchemaUsage::Used);
}

#[test]
fn of_too_many_schemas_the_built_in_ones_are_used() {
    let (mut configured, _registry) = configured(10, 5, Some(9));
    for nth in 0..600 {
        configured.set(&schema(&format!("a{nth:03}"), "low", "jane"));
    }
    configured.set(&schema("service-accounts", "low", "account"));
    let table = configured.table();
    let usage = |name| table.usage(name, "low");
    assert_eq!(
        (usage("service-accounts"), usage("a000")),
        (FlowSchemaUsage::Used, FlowSchemaUsage::Used)
    );
    assert_eq!(
        (usage("a599"), usage("janes")),
        (FlowSchemaUsage::LeftOut, FlowSchemaUsage::LeftOut)
    );
}

#[test]
fn of_mandatory_levels_only_the_identity_counts() {
    let (mut configured, registry) = configured(10, 5, Some(9));
    configured.set(&level("catch-all", 1000, None));
    assert_eq!(classify(&configured, "joe").uids().map(|uid| uid.is_some()), [false, true]);
    assert!(registry.text().contains("request_concurrency_limit{priority_level=\"catch-all\"} 5"));
}

#[tokio::test(start_paused = true)]
async fn time_with_a_seat_counts_against_its_queue() {
    let registry = registry();
    let metrics = FlowMetrics::new(&registry).unwrap();
    let mut configured = FlowControlObjects::new(2, Names::new(Profile::Kubernetes), metrics);
    let queuing = json!({"queues": 2, "handSize": 2, "queueLengthLimit": 9});
    let response = json!({"type": "Queue", "queuing": queuing});
    let limited = json!({"assuredConcurrencyShares": 5, "limitResponse": response});
    let spec = json!({"type": "Limited", "limited": limited});
    configured.set(&object("PriorityLevelConfiguration", "low", "l", &spec));
    configured.set(&schema("janes", "low", "jane"));
    let jane = classify(&configured, "jane");
    let context = &mut Context::from_waker(Waker::noop());
    let held = jane.seat(LONG).await.unwrap();
    // Two wait in the other queue, the next one behind that which has the seat.
    let (mut other, mut last) = (pin!(jane.seat(LONG)), pin!(jane.seat(LONG)));
    assert!(other.as_mut().poll(context).is_pending() && last.as_mut().poll(context).is_pending());
    let mut own = pin!(jane.seat(LONG));
    assert!(own.as_mut().poll(context).is_pending());
    tokio::time::advance(Duration::from_secs(5)).await;
    drop(held);
    let Poll::Ready(Ok(held)) = other.as_mut().poll(context) else { panic!("not served") };
    drop(held);
    assert!(own.as_mut().poll(context).is_pending(), "its queue has used five seconds");
    let Poll::Ready(Ok(held)) = last.as_mut().poll(context) else { panic!("not served") };
    drop(held);
    assert!(own.await.is_ok());
}
