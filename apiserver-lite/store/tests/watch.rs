//! Which watches a write wakes, and the effect of compaction on the others.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use apiserver_store::{
    Lagged, Medium, Revision, Store, StoreConfig, StoreIdentity, WatchEnd, Write, WriteCondition,
};
use bytes::Bytes;

#[derive(Default)]
struct Wakes(AtomicUsize);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

fn open() -> (tempfile::TempDir, Store<Bytes>) {
    let directory = tempfile::tempdir().unwrap();
    let medium = Medium::Directory(directory.path().to_owned());
    let identity = StoreIdentity { profile: "p".into(), domain: "d".into() };
    let store = Store::open(StoreConfig::new(medium, identity)).unwrap();
    (directory, store)
}

async fn put(store: &Store<Bytes>, key: &str) -> Revision {
    let write = Write::Put { key: key.into(), expect: WriteCondition::Anything, draft: "v".into() };
    store.write(write).await.unwrap().revision
}

#[tokio::test]
async fn a_watch_is_woken_up_by_what_it_follows_alone() {
    let (_directory, store) = open();
    let wakes = Arc::new(Wakes::default());
    let waker = Waker::from(wakes.clone());
    let mut context = Context::from_waker(&waker);
    let mut watch = store.watch("b/", store.revision()).unwrap();
    {
        let mut events = Vec::new();
        let mut next = pin!(watch.next_batch(&mut events));
        assert!(next.as_mut().poll(&mut context).is_pending());
        put(&store, "a/1").await;
        assert_eq!(wakes.0.load(Ordering::SeqCst), 0);
        put(&store, "b/1").await;
        assert_eq!(wakes.0.load(Ordering::SeqCst), 1);
        assert_eq!(next.as_mut().poll(&mut context), Poll::Ready(Ok(())));
    }
    let last = put(&store, "a/2").await;
    assert_eq!(watch.delivered_revision(), last, "nothing that it follows is older");
}

#[tokio::test]
async fn forgetting_concerns_only_what_is_followed() {
    let (_directory, store) = open();
    let after = store.revision();
    let watches = ["a/", "b/"].map(|prefix| store.watch(prefix, after).unwrap());
    let [mut busy, mut quiet] = watches;
    let mut events = Vec::new();
    // Both have read once and wait from here on.
    for watch in [&mut busy, &mut quiet] {
        watch.try_batch(&mut events).unwrap();
    }
    let mut last = after;
    for _ in 0..3 {
        last = put(&store, "a/1").await;
    }
    store.compact(last);
    put(&store, "b/1").await;
    quiet.next_batch(&mut events).await.unwrap();
    let keys: Vec<&str> = events.iter().map(|event| &*event.key).collect();
    assert_eq!(keys, ["b/1"]);
    let late = busy.next_batch(&mut events).await;
    assert_eq!(late, Err(WatchEnd::Lagged(Lagged { seen: after, oldest: last })));
}

#[tokio::test]
async fn the_end_comes_after_what_was_written() {
    let (_directory, store) = open();
    let mut watch = store.watch("", store.revision()).unwrap();
    put(&store, "a/1").await;
    store.close().await;
    let mut events = Vec::new();
    assert_eq!(watch.next_batch(&mut events).await, Ok(()));
    assert_eq!(watch.next_batch(&mut events).await, Err(WatchEnd::Closed));
    assert_eq!(events.len(), 1);
}

#[tokio::test]
async fn a_watch_that_is_rewound_delivers_the_same_events_again() {
    let (_directory, store) = open();
    let mut watch = store.watch("a/", store.revision()).unwrap();
    for key in ["a/1", "b/1", "a/2"] {
        put(&store, key).await;
    }
    let position = watch.position();
    let mut events = Vec::new();
    watch.next_batch(&mut events).await.unwrap();
    assert!(!watch.is_pending());
    watch.rewind(position);
    watch.next_batch(&mut events).await.unwrap();
    put(&store, "a/3").await;
    watch.next_batch(&mut events).await.unwrap();
    let keys: Vec<&str> = events.iter().map(|event| &*event.key).collect();
    assert_eq!(keys, ["a/1", "a/2", "a/1", "a/2", "a/3"]);
}
