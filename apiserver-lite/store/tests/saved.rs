//! Records that are saved and put back: all at once, at a revision of their own, and every reader of an earlier one is told.

#![allow(clippy::unwrap_used, reason = "a test")]

use apiserver_store::{
    Medium, OnDisk, Range, ReplaceError, Revision, SnapshotError, Store, StoreConfig,
    StoreIdentity, WatchEnd, Write, WriteError,
};
use bytes::Bytes;

fn identity() -> StoreIdentity {
    StoreIdentity { profile: "kubernetes".to_owned(), domain: "k8s.io".to_owned() }
}

fn in_memory() -> Store<Bytes> {
    Store::open(StoreConfig::new(Medium::Memory, identity())).unwrap()
}

async fn create(store: &Store<Bytes>, key: &str) -> Revision {
    store.write(Write::create(key, Bytes::from(key.to_owned()))).await.unwrap().revision
}

fn content(store: &Store<Bytes>) -> Vec<(String, u64)> {
    let saved = store.save();
    let entries = saved.entries().iter();
    entries.map(|entry| (entry.key.to_string(), entry.stamp.modified.0)).collect()
}

#[tokio::test]
async fn a_saved_state_is_restored_exactly() {
    let store = in_memory();
    let (a, b) = (create(&store, "a").await, create(&store, "b").await);
    let saved = store.save();
    let before = content(&store);
    store.write(Write::delete("a", a)).await.unwrap();
    let updated = store.write(Write::update("b", b, Bytes::from("new"))).await.unwrap().revision;
    create(&store, "c").await;
    let last = store.revision();
    for nth in 1..=3 {
        let replaced = store.replace(&saved).await.unwrap();
        assert_eq!((content(&store), replaced), (before.clone(), Revision(last.0 + nth)));
    }
    let entry = store.snapshot().get("b").unwrap().unwrap();
    assert_eq!((entry.record.as_ref(), entry.stamp.modified), (&Bytes::from("b"), b));
    // A writer that saw the version from before the replacement is told so; one that saw this version is not.
    let late = store.write(Write::update("b", updated, Bytes::from("late"))).await;
    assert!(matches!(late, Err(WriteError::Conflict { revision, .. }) if revision == b));
    let next = store.write(Write::update("b", b, Bytes::from("next"))).await.unwrap();
    assert_eq!(next.revision, Revision(last.0 + 4));
}

#[tokio::test]
async fn watches_and_snapshots_from_before_a_restore_end() {
    let store = in_memory();
    let first = create(&store, "a").await;
    let mut idle = store.watch("a", first).unwrap();
    let mut other = store.watch("elsewhere", first).unwrap();
    let snapshot = store.snapshot();
    let saved = store.save();
    create(&store, "ab").await;
    let replaced = store.replace(&saved).await.unwrap();
    for watch in [&mut idle, &mut other] {
        let ended = watch.next_batch(&mut Vec::new()).await.unwrap_err();
        assert!(matches!(ended, WatchEnd::Lagged(lag) if lag.oldest == replaced));
    }
    assert!(snapshot.get("a").is_err());
    // A read of now is one step: it does not see a revision go.
    assert_eq!(store.current("a").unwrap().record.as_ref(), &Bytes::from("a"));
    assert!(store.current("ab").is_none());
    let keys = |limit| {
        let page = store.current_range(Range { prefix: "", after: None, limit });
        (page.entries.iter().map(|entry| entry.key.to_string()).collect::<Vec<_>>(), page.more)
    };
    assert_eq!((keys(None), keys(Some(0))), ((vec!["a".to_owned()], false), (Vec::new(), true)));
    assert!(matches!(store.watch("", first), Err(SnapshotError::Compacted(_))));
    let mut after = store.watch("", replaced).unwrap();
    create(&store, "d").await;
    let mut events = Vec::new();
    after.next_batch(&mut events).await.unwrap();
    assert_eq!(events.len(), 1);
}

#[tokio::test]
async fn records_on_disk_are_not_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let medium = Medium::Directory(dir.path().join("store"));
    let store: Store<Bytes> = Store::open(StoreConfig::new(medium, identity())).unwrap();
    create(&store, "a").await;
    let saved = store.save();
    create(&store, "b").await;
    let refused = store.replace(&saved).await.map(drop);
    assert_eq!(refused, Err(ReplaceError::OnDisk(OnDisk)));
    assert_eq!(content(&store).len(), 2);
    store.close().await;
    assert_eq!(store.replace(&saved).await.map(drop), Err(ReplaceError::Closed));
}
