//! Revisions with gaps, several changes of one revision, and replacements.

use super::*;
use crate::{Event, EventKind, Medium, Range, Stamp, StoreIdentity, WatchEnd};

type Parts = (Store<Bytes>, Follower<Bytes>, mpsc::Receiver<WriterRequest<Bytes>>);

fn started(revision: u64, records: &[(&str, u64)]) -> Parts {
    let identity = StoreIdentity { profile: "p".into(), domain: "d".into() };
    let config = StoreConfig::new(Medium::Memory, identity);
    let records = records.iter().map(|(key, at)| change(key, *at, *at, Some("first"))).collect();
    Follower::start(config, Box::new(|_| Ok(())), Revision(revision), records).unwrap()
}

fn change(key: &str, created: u64, modified: u64, value: Option<&'static str>) -> Change {
    let stamp = Stamp { created: Revision(created), modified: Revision(modified) };
    Change { key: key.into(), stamp, value: value.map(|text| Bytes::from_static(text.as_bytes())) }
}

fn keys(store: &Store<Bytes>, at: u64) -> Vec<String> {
    let page = store.range_at(Revision(at), Range::default()).unwrap();
    page.entries.iter().map(|entry| entry.key.to_string()).collect()
}

fn seen(events: &[Event<Bytes>]) -> Vec<(String, u64, EventKind)> {
    let one = |event: &Event<Bytes>| (event.key.to_string(), event.stamp.modified.0, event.kind);
    events.iter().map(one).collect()
}

#[tokio::test]
async fn every_revision_in_a_gap_can_be_read_and_watched_from() {
    let (store, follower, _requests) = started(10, &[("a", 4)]);
    follower.apply(Revision(15), vec![change("b", 15, 15, Some("x"))]).unwrap();
    follower.apply(Revision(17), vec![]).unwrap();
    follower.apply(Revision(40), vec![change("a", 4, 40, None)]).unwrap();
    assert_eq!(store.revision(), Revision(40));
    for (at, expected) in [
        (10, vec!["a"]),
        (14, vec!["a"]),
        (15, vec!["a", "b"]),
        (39, vec!["a", "b"]),
        (40, vec!["b"]),
    ] {
        assert_eq!(keys(&store, at), expected, "at {at}");
    }
    let (created, deleted) =
        (("b".to_owned(), 15, EventKind::Created), ("a".to_owned(), 40, EventKind::Deleted));
    for after in 10..=40 {
        let mut events = Vec::new();
        store.watch("", Revision(after)).unwrap().try_batch(&mut events).unwrap();
        let all = [created.clone(), deleted.clone()];
        let expected: Vec<_> = all.into_iter().filter(|(_, at, _)| *at > after).collect();
        assert_eq!(seen(&events), expected, "after {after}");
    }
    assert!(store.watch("", Revision(9)).is_err() && store.watch("", Revision(41)).is_err());
}

#[tokio::test]
async fn compaction_in_a_gap_drops_no_later_event() {
    let (store, follower, _requests) = started(10, &[]);
    follower.apply(Revision(20), vec![change("a", 20, 20, Some("x"))]).unwrap();
    follower.apply(Revision(30), vec![change("a", 20, 30, Some("y"))]).unwrap();
    store.compact(Revision(25));
    assert_eq!(store.oldest(), Revision(25));
    let mut events = Vec::new();
    store.watch("", Revision(25)).unwrap().try_batch(&mut events).unwrap();
    assert_eq!(seen(&events), [("a".to_owned(), 30, EventKind::Updated)]);
    assert_eq!(keys(&store, 25), ["a"], "the version of revision 20 is still seen");
    assert!(store.watch("", Revision(24)).is_err());
    store.compact(Revision(99));
    assert_eq!(store.oldest(), Revision(30));
}

#[tokio::test]
async fn events_of_one_revision_are_seen_together_by_all() {
    let (store, follower, _requests) = started(1, &[]);
    let mut of_second = store.watch("n/299", Revision(1)).unwrap();
    let mut all = store.watch("n/", Revision(1)).unwrap();
    let many = (0..300).map(|nth| change(&format!("n/{nth:03}"), 5, 5, Some("x"))).collect();
    follower.apply(Revision(5), many).unwrap();
    follower.apply(Revision(6), vec![change("n/000", 5, 6, Some("y"))]).unwrap();
    let mut events = Vec::new();
    of_second.next_batch(&mut events).await.unwrap();
    assert_eq!(seen(&events), [("n/299".to_owned(), 5, EventKind::Created)]);
    events.clear();
    all.next_batch(&mut events).await.unwrap();
    assert_eq!(
        (events.len(), all.delivered_revision()),
        (300, Revision(5)),
        "more than a batch, in one"
    );
    events.clear();
    all.next_batch(&mut events).await.unwrap();
    assert_eq!(seen(&events), [("n/000".to_owned(), 6, EventKind::Updated)]);
    // Who continues after an event of one of many gets all of them again.
    assert_eq!(store.resume_after("n/", Revision(5)), Revision(4));
    assert_eq!(store.resume_after("n/000", Revision(5)), Revision(5));
    assert_eq!(store.resume_after("n/", Revision(6)), Revision(6));
}

#[tokio::test]
async fn replaced_records_end_watches_and_a_waiting_read_goes_on() {
    let (store, follower, _requests) = started(10, &[("a", 4), ("b", 5)]);
    let mut watch = store.watch("", Revision(10)).unwrap();
    follower
        .replace(
            Revision(80),
            vec![change("a", 4, 4, Some("first")), change("c", 60, 60, Some("x"))],
        )
        .unwrap();
    assert!(follower.reached(Revision(80)).await);
    assert_eq!((store.revision(), store.oldest()), (Revision(80), Revision(80)));
    assert_eq!(keys(&store, 80), ["a", "c"]);
    let ended = watch.next_batch(&mut Vec::new()).await.unwrap_err();
    assert!(matches!(ended, WatchEnd::Lagged(_)));
}

#[tokio::test]
async fn plans_compare_what_memory_has() {
    let (_store, follower, _requests) = started(10, &[("a", 4)]);
    let put =
        |key: &str, expect| Write::Put { key: key.into(), expect, draft: Bytes::from_static(b"x") };
    let plan = |write| {
        follower
            .plan(&[write])
            .map(|planned| planned[0].current.as_ref().map(|current| current.stamp.modified))
    };
    assert_eq!(plan(put("a", WriteCondition::Anything)).unwrap(), Some(Revision(4)));
    assert_eq!(plan(put("b", WriteCondition::Absent)).unwrap(), None);
    assert!(matches!(plan(put("a", WriteCondition::Absent)), Err(WriteError::Exists { .. })));
    assert!(matches!(
        plan(put("a", WriteCondition::At(Revision(3)))),
        Err(WriteError::Conflict { .. })
    ));
    let delete = Write::Delete { key: "b".into(), expect: WriteCondition::Anything };
    assert!(matches!(plan(delete), Err(WriteError::NotFound { .. })));
    let twice = [put("a", WriteCondition::Anything), put("a", WriteCondition::Anything)];
    assert!(matches!(follower.plan(&twice), Err(WriteError::NotWritten { .. })));
}
