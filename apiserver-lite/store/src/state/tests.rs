//! Tests beyond the model test: events in pages.

use super::*;

fn created(key: &str, revision: u64) -> Event<u64> {
    let stamp = Stamp { created: Revision(revision), modified: Revision(revision) };
    let record = Arc::new(revision);
    Event { key: key.into(), kind: EventKind::Created, stamp, record, previous: None }
}

fn empty(revision: u64, events_max: usize) -> StoreState<u64> {
    let retention = Retention { events_max, bytes_max: 1000 };
    StoreState::new(LoadedRecords { revision: Revision(revision), entries: vec![] }, retention)
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
        assert!(versions <= 5 && state.ring.len() <= 4);
    }
    state.compact(state.revision());
    assert!(state.keys.is_empty() && state.ring.is_empty());
}

/// A few large records displace as much history as many small ones.
#[test]
fn history_is_bounded_in_bytes() {
    let mut state = empty(0, 100);
    for revision in 1..=20 {
        state.publish([(created(&revision.to_string(), revision), 300)], |_| None);
        assert_eq!(state.ring_bytes, 300 * state.ring.len());
        assert!(state.ring_bytes <= 1000);
    }
    assert_eq!((state.oldest(), state.keys.len()), (Revision(17), 20));
}
