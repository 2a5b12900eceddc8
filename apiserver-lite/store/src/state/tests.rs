//! Tests beyond the model test: events in pages.

use super::*;

fn created(key: &str, revision: u64) -> Event<u64> {
    let stamp = Stamp { created: Revision(revision), modified: Revision(revision) };
    let record = Arc::new(revision);
    Event { key: key.into(), kind: EventKind::Created, stamp, record, previous: None }
}

fn empty(revision: u64, events_max: usize) -> StoreState<u64> {
    let retention = Retention { events_max, bytes_max: 1000 };
    StoreState::new(
        LoadedRecords { revision: Revision(revision), entries: vec![] },
        retention,
        |_| "",
    )
}

/// With pages of any size a reader gets each event once, and the revision up to which it has read.
#[test]
fn events_in_pages() {
    let mut state = empty(10, 100);
    let events =
        (11..=30).map(|revision| created(&format!("{}/{revision}", revision % 3), revision));
    state.publish(events.map(|event| (event, 1)), |_| None);
    for page_len in 1..9 {
        for prefix in ["", "0/", "2/", "none"] {
            let (mut seen, mut found) = (Revision(12), Vec::new());
            while seen < state.revision() {
                let before = found.len();
                // Each event takes a byte: either bound ends the page.
                let [events, bytes] =
                    if page_len % 2 == 0 { [page_len, 99] } else { [99, page_len] };
                let bound = BatchBound { events, bytes };
                seen = state.events_after(seen, prefix, bound, &mut found).unwrap();
                assert!(found.len() - before <= page_len);
            }
            let found: Vec<u64> = found.iter().map(|event| *event.record).collect();
            let matches = |nth: &u64| format!("{}/", nth % 3).starts_with(prefix);
            assert_eq!(found, (13..=30).filter(matches).collect::<Vec<_>>(), "{prefix} {page_len}");
        }
    }
}

/// A created and deleted key uses no memory once its history is compacted.
#[test]
fn forgotten_keys_cost_nothing() {
    let mut state = empty(0, 4);
    for round in 0..100 {
        let created = created("a", 2 * round + 1);
        let mut deleted = created.clone();
        deleted.kind = EventKind::Deleted;
        deleted.stamp.modified = created.stamp.modified.next();
        state.publish([(created, 1), (deleted, 0)], |_| None);
        let versions: usize = state.keys.values().map(|versions| versions.older.len() + 1).sum();
        assert!(versions <= 5 && state.events <= 4);
    }
    state.compact(state.revision());
    assert!(state.keys.is_empty() && state.events == 0);
}

/// A few large records displace as much history as many small ones.
#[test]
fn history_is_bounded_in_bytes() {
    let mut state = empty(0, 100);
    for revision in 1..=20 {
        state.publish([(created(&revision.to_string(), revision), 300)], |_| None);
        assert_eq!(state.bytes, 300 * state.events);
        assert!(state.bytes <= 1000);
    }
    assert_eq!((state.oldest(), state.keys.len()), (Revision(17), 20));
}

fn first_segment(key: &str) -> &str {
    key.split_inclusive('/').next().unwrap_or_default()
}

/// Who writes much shortens the history of its own group only.
#[test]
fn a_group_that_takes_most_loses_its_oldest_events() {
    let retention = Retention { events_max: 100, bytes_max: 1000 };
    let loaded = LoadedRecords { revision: Revision(10), entries: vec![] };
    let mut state = StoreState::new(loaded, retention, first_segment);
    state.publish([(created("quiet/1", 11), 10)], |_| None);
    for revision in 12..=60 {
        let mut event = created("loud/1", revision);
        event.kind = EventKind::Updated;
        state.publish([(event, 100)], |_| None);
    }
    state.publish([(created("quiet/2", 61), 10)], |_| None);
    let after = |seen: u64, prefix: &str| {
        let mut found = Vec::new();
        let bound = BatchBound { events: 1000, bytes: 1 << 20 };
        let read = state.events_after(Revision(seen), prefix, bound, &mut found);
        read.map(|_| found.iter().map(|event| event.stamp.modified.0).collect::<Vec<_>>())
    };
    assert_eq!(after(10, "quiet/").unwrap(), [11, 61]);
    assert_eq!(after(10, "quiet/2").unwrap(), [61]);
    assert_eq!(after(51, "loud/").unwrap(), (52..=60).collect::<Vec<_>>());
    for prefix in ["loud/", "loud/1", "", "l"] {
        assert_eq!(after(50, prefix).unwrap_err().oldest, Revision(51), "{prefix}");
    }
    assert_eq!(after(51, "").unwrap(), (52..=61).collect::<Vec<_>>(), "in the order of revisions");
    assert_eq!(state.get("quiet/1", Revision(11)).unwrap().map(|entry| *entry.record), Some(11));
    assert!(state.get("loud/1", Revision(50)).is_err());
    assert!(state.check_readable("quiet/", Revision(10)).is_ok());
    assert!(state.check_readable("loud/", Revision(10)).is_err());
    // A group without events is readable from the beginning.
    assert!(after(10, "other/").unwrap().is_empty());
    state.compact(Revision(30));
    assert!(state.check_readable("quiet/", Revision(29)).is_err());
    assert!(state.check_readable("other/", Revision(29)).is_err());
    assert_eq!(after_of(&state, 30, "quiet/"), [61]);
}

fn after_of(state: &StoreState<u64>, seen: u64, prefix: &str) -> Vec<u64> {
    let mut found = Vec::new();
    let bound = BatchBound { events: 1000, bytes: 1 << 20 };
    state.events_after(Revision(seen), prefix, bound, &mut found).unwrap();
    found.iter().map(|event| event.stamp.modified.0).collect()
}
