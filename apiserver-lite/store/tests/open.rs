//! Opening, closing, waiting and compaction by age.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::{
    error::Error,
    fs,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use apiserver_store::{
    Damage, Medium, OpenError, Revision, Store, StoreConfig, StoreIdentity, WatchEnd, Write,
    WriteError,
};
use bytes::Bytes;

fn config(path: &Path, profile: &str, domain: &str) -> StoreConfig {
    let identity = StoreIdentity { profile: profile.into(), domain: domain.into() };
    StoreConfig::new(Medium::Directory(path.to_owned()), identity)
}

fn open(path: &Path) -> Result<Store<Bytes>, OpenError> {
    Store::open(StoreConfig { segment_len_max: 100, ..config(path, "orch", "orch.io") })
}

async fn put(store: &Store<Bytes>, key: &str) -> Revision {
    store.write(Write::create(key, Bytes::from_static(b"value"))).await.unwrap().revision
}

#[tokio::test]
async fn identity_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("made/on/demand");
    open(&path).unwrap().close().await;
    for (profile, domain, what) in
        [("kubernetes", "orch.io", "profile"), ("orch", "example.com", "domain")]
    {
        let error = Store::<Bytes>::open(config(&path, profile, domain)).err().unwrap();
        assert!(matches!(error, OpenError::Identity { what: found, .. } if found == what));
        assert!(error.to_string().contains(&format!("store has {what} \"orch")), "{error}");
    }
    open(&path).unwrap();
}

#[tokio::test]
async fn one_store_at_a_time() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).unwrap();
    assert!(matches!(open(dir.path()).err(), Some(OpenError::InUse { .. })));
    store.close().await;
    open(dir.path()).unwrap();
}

#[tokio::test]
async fn closed_store_reads_but_does_not_write() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).unwrap();
    let mut watch = store.watch("", Revision(0)).unwrap();
    put(&store, "a").await;
    store.close().await;
    store.close().await;
    let refused = store.write(Write::create("b", Bytes::new())).await;
    assert!(matches!(refused, Err(WriteError::Closed)));
    assert!(store.snapshot().get("a").unwrap().is_some());
    let mut events = Vec::new();
    watch.next_batch(&mut events).await.unwrap();
    assert_eq!(events.len(), 1);
    assert_eq!(watch.next_batch(&mut events).await, Err(WatchEnd::Closed));
}

/// Every segment but the last must be complete: a store that lost acknowledged writes does not open.
#[tokio::test]
async fn damaged_log_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::<Bytes>::open(config(dir.path(), "orch", "orch.io")).unwrap();
    for nth in 0..3 {
        put(&store, &format!("a{nth}")).await;
    }
    store.close().await;
    let log: PathBuf = dir.path().join("log.00000000000000000001");
    let whole = fs::read(&log).unwrap();
    // A log that begins later: the writes before are missing.
    let later = b"orchlog1\x03\0\0\0\0\0\0\0";
    fs::remove_file(&log).unwrap();
    fs::write(dir.path().join("log.00000000000000000003"), later).unwrap();
    let error = open(dir.path()).err().unwrap();
    assert!(
        matches!(
            error,
            OpenError::Damaged(Damage { first: Revision(1), last: Some(Revision(2)), .. })
        ),
        "{error}"
    );
    // A segment that ends before the next one starts.
    fs::write(&log, &whole[..68]).unwrap();
    let error = open(dir.path()).err().unwrap();
    assert!(
        matches!(
            error,
            OpenError::Damaged(Damage { first: Revision(2), last: Some(Revision(2)), .. })
        ),
        "{error}"
    );
    fs::remove_file(dir.path().join("log.00000000000000000003")).unwrap();
    fs::write(&log, &whole).unwrap();
    assert_eq!(open(dir.path()).unwrap().revision(), Revision(3));
}

#[tokio::test]
async fn watch_goes_on_after_reopening() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::<Bytes>::open(config(dir.path(), "orch", "orch.io")).unwrap();
    put(&store, "a").await;
    let seen = store.revision();
    store.write(Write::delete("a", seen)).await.unwrap();
    put(&store, "b").await;
    store.close().await;
    let store = open(dir.path()).unwrap();
    let mut events = Vec::new();
    store.watch("", seen).unwrap().try_batch(&mut events).unwrap();
    let seen: Vec<_> = events.iter().map(|event| (&*event.key, event.stamp.modified.0)).collect();
    assert_eq!(seen, [("a", 2), ("b", 3)]);
}

#[tokio::test]
async fn garbage_is_no_store() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("records.redb"), "not a database, but long enough".repeat(1000))
        .unwrap();
    let error = open(dir.path()).err().unwrap();
    assert!(matches!(error, OpenError::File { .. }), "{error}");
    assert!(error.source().is_some());
}

#[tokio::test]
async fn a_making_that_broke_off_is_in_nobodys_way() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("records.new"), "half a database").unwrap();
    let store = open(dir.path()).unwrap();
    put(&store, "key").await;
    store.close().await;
    assert!(!dir.path().join("records.new").exists());
}

#[tokio::test]
async fn waiting_for_a_revision() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).unwrap();
    let early = store.wait_for(Revision(2), Duration::ZERO).await.unwrap_err();
    assert_eq!((early.requested, early.current), (Revision(2), Revision(0)));
    let waiting = store.clone();
    let waiting =
        tokio::spawn(async move { waiting.wait_for(Revision(2), Duration::from_secs(3600)).await });
    put(&store, "a").await;
    put(&store, "b").await;
    waiting.await.unwrap().unwrap();
}

#[tokio::test]
async fn history_ages() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).unwrap();
    let start = Instant::now();
    let at = |secs| start + Duration::from_secs(secs);
    put(&store, "a").await;
    store.compact_expired(at(0)); // revision 1 was current
    put(&store, "b").await;
    store.compact_expired(at(100)); // 2
    put(&store, "c").await;
    store.compact_expired(at(299));
    assert_eq!(store.oldest(), Revision(0));
    store.compact_expired(at(301));
    assert_eq!(store.oldest(), Revision(1));
    store.compact_expired(at(401));
    assert_eq!(store.oldest(), Revision(2));
    assert!(
        store.snapshot_at("", Revision(1)).is_err() && store.snapshot_at("", Revision(2)).is_ok()
    );
    assert!(store.watch("", Revision(4)).is_err(), "the future cannot be watched from");
}
