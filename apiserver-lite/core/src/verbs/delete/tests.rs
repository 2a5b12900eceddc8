use std::sync::Arc;

use apiserver_schema::{Engine, Format, Strictness};
use proptest::prelude::*;
use proto_api::names::{Names, Profile};
use time::macros::datetime;

use super::*;
use crate::options::Propagation;

const NOW: OffsetDateTime = datetime!(2026-01-02 03:04:05 UTC);

/// Extreme values of a 64-bit field.
const EXTREMES: [i64; 8] =
    [i64::MIN, -1, 0, 1, 1 << 31, (1 << 32) + 1, 9_000_000_000_000_000, i64::MAX];

fn engine() -> Engine {
    Engine::new(Names::new(Profile::Kubernetes))
}

fn object(engine: &Engine, kind: &str, group: &str, body: serde_json::Value) -> Object {
    let kind: &Arc<apiserver_schema::Kind> = engine.kind(group, "v1", kind).unwrap();
    let body = body.to_string();
    engine.decode(kind, Format::Json, body.as_bytes(), Strictness::Ignore).unwrap().object
}

fn options(grace_secs: Option<i64>, propagation: Option<Propagation>) -> DeleteOptions {
    DeleteOptions { grace_secs, propagation, ..DeleteOptions::default() }
}

/// A pod as stored by an older server.
fn stored_pod(engine: &Engine, own: i64, marked: Option<(&str, i64)>) -> Object {
    let mut metadata = serde_json::json!({"name": "p", "namespace": "default"});
    if let Some((at, grace)) = marked {
        metadata["deletionTimestamp"] = at.into();
        metadata["deletionGracePeriodSeconds"] = grace.into();
    }
    let spec = serde_json::json!({"nodeName": "n", "terminationGracePeriodSeconds": own});
    object(engine, "Pod", "", serde_json::json!({"metadata": metadata, "spec": spec}))
}

#[test]
fn any_stored_number_of_seconds_is_survived() {
    let engine = engine();
    let times = ["0001-01-02T00:00:00Z", "2026-01-02T03:04:05Z", "9999-12-31T23:59:59Z"];
    let marks: Vec<Option<(&str, i64)>> = std::iter::once(None)
        .chain(times.into_iter().flat_map(|at| EXTREMES.map(|grace| Some((at, grace)))))
        .collect();
    for own in EXTREMES {
        for marked in &marks {
            let pod = stored_pod(&engine, own, *marked);
            for asked in std::iter::once(None).chain(EXTREMES.map(Some)) {
                let step = next_step(&pod, &options(asked, None), NOW);
                let DeletionStep::Mark(next) = step else { continue };
                let grace = next.metadata().unwrap().int("deletionGracePeriodSeconds").unwrap();
                assert!((0..=GRACE_SECS_MAX).contains(&grace), "{own} {marked:?} {asked:?}");
                assert!(next.deletion_timestamp().and_then(time_of).is_some(), "{next:?}");
            }
        }
    }
}

#[test]
fn a_shorter_period_counts_from_the_first_request() {
    let engine = engine();
    let pod = stored_pod(&engine, 30, Some(("2026-01-02T03:04:35Z", 30)));
    let DeletionStep::Mark(next) = next_step(&pod, &options(Some(10), None), NOW) else {
        unreachable!()
    };
    assert_eq!(next.deletion_timestamp(), Some("2026-01-02T03:04:15Z"));
    assert_eq!(next_step(&pod, &options(Some(40), None), NOW), DeletionStep::Wait);
    assert_eq!(next_step(&pod, &options(None, Some(Propagation::Orphan)), NOW), DeletionStep::Wait);
    assert_eq!(next_step(&pod, &options(Some(0), None), NOW), DeletionStep::Remove);
}

#[test]
fn namespaces_and_definitions_show_no_grace_period() {
    let engine = engine();
    let namespace =
        serde_json::json!({"metadata": {"name": "a"}, "spec": {"finalizers": ["kubernetes"]}});
    let definition = serde_json::json!({"metadata": {"name": "things.example.com"}, "spec": {}});
    let account = serde_json::json!({"metadata": {"name": "a", "namespace": "b", "finalizers": ["example.org/a"]}});
    for (kind, group, body, expected) in [
        ("Namespace", "", namespace, None),
        ("CustomResourceDefinition", "apiextensions.k8s.io", definition, None),
        ("ServiceAccount", "", account, Some(0)),
    ] {
        let object = object(&engine, kind, group, body);
        let DeletionStep::Mark(next) = next_step(&object, &options(None, None), NOW) else {
            panic!("{kind} is not marked")
        };
        assert!(next.deletion_timestamp().is_some(), "{kind}");
        assert_eq!(next.metadata().unwrap().int("deletionGracePeriodSeconds"), expected, "{kind}");
        assert_eq!(next_step(&next, &options(None, None), NOW), DeletionStep::Wait, "{kind}");
    }
}

fn policies() -> impl Strategy<Value = Option<Propagation>> {
    use Propagation::{Background, Foreground, Orphan};
    prop_oneof![Just(None), Just(Some(Background)), Just(Some(Foreground)), Just(Some(Orphan))]
}

proptest! {
    /// For any finalizers: at most one propagation finalizer results, it is the requested one, and the others keep their order.
    #[test]
    fn finalizers_follow_the_policy(
        had in prop::collection::vec(
            prop::sample::select(vec!["orphan", "foregroundDeletion", "example.org/a", "example.org/b"]),
            0..5,
        ),
        policy in policies(),
        kind in prop::sample::select(vec![("ConfigMap", ""), ("ReplicationController", ""), ("Job", "batch"), ("Event", "")]),
    ) {
        let engine = engine();
        let metadata = serde_json::json!({"name": "a", "namespace": "default", "finalizers": had});
        let object = object(&engine, kind.0, kind.1, serde_json::json!({"metadata": metadata}));
        let now = propagate::finalizers(&object, policy);
        let foreign = |list: &[String]| -> Vec<String> {
            list.iter().filter(|f| f.contains('/')).cloned().collect()
        };
        let had: Vec<String> = object.finalizers().map(str::to_owned).collect();
        prop_assert_eq!(foreign(&now), foreign(&had));
        let ours: Vec<&str> = now.iter().map(String::as_str).filter(|f| !f.contains('/')).collect();
        prop_assert!(ours.len() <= 1);
        if kind.0 == "Event" {
            prop_assert!(ours.is_empty());
        } else if let Some(policy) = policy {
            let expected: &[&str] = match policy {
                Propagation::Orphan => &["orphan"],
                Propagation::Foreground => &["foregroundDeletion"],
                Propagation::Background => &[],
            };
            prop_assert_eq!(ours, expected);
        }
        let step = next_step(&object, &options(None, policy), NOW);
        prop_assert_eq!(step == DeletionStep::Remove, now.is_empty());
    }
}
