//! Tests of a failing medium: all waiting callers get the error, nothing becomes visible, and no write follows one that may be on
//! the medium.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use super::*;
use crate::{
    Medium, Range, Retention, Store, StoreConfig, StoreIdentity,
    disk::{Disk, DiskConfig},
    log::{self, LogFile, Segment, SegmentHeader, SegmentItem, SegmentReader},
    state::{LoadedRecords, StoreState},
};

/// A file that fails on demand and counts.
#[derive(Default)]
struct Fault {
    no_space: AtomicBool,
    no_sync: AtomicBool,
    no_cut: AtomicBool,
    len: AtomicU64,
    writes: AtomicUsize,
}

struct FaultyFile(Arc<Fault>);

impl LogFile for FaultyFile {
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.0.writes.fetch_add(1, Ordering::Relaxed);
        let end = offset + bytes.len() as u64;
        // Allocated bytes can be overwritten.
        if end > self.0.len.load(Ordering::Relaxed) && self.0.no_space.load(Ordering::Relaxed) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.0.len.fetch_max(end, Ordering::Relaxed);
        Ok(())
    }

    fn truncate(&self, len: u64) -> io::Result<()> {
        if self.0.no_cut.load(Ordering::Relaxed) {
            return Err(io::Error::other("cut refused"));
        }
        self.0.len.store(len, Ordering::Relaxed);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        if self.0.no_sync.load(Ordering::Relaxed) {
            return Err(io::Error::other("sync refused"));
        }
        Ok(())
    }
}

fn store(fault: &Arc<Fault>) -> Store<Bytes> {
    let header = SegmentHeader::new(Revision(1));
    let file = Box::new(FaultyFile(fault.clone()));
    let segment = Segment::from_parts("log".into(), file, header, header.len..header.len);
    let state = StoreState::new(
        LoadedRecords { revision: Revision(0), entries: vec![] },
        Retention::default(),
        |_| "",
    );
    let disk = Disk::with_segment(segment);
    let identity = StoreIdentity { profile: "orch".into(), domain: "orch.io".into() };
    let config = StoreConfig::new(Medium::Memory, identity);
    Store::start(disk, state, Arc::default(), config).unwrap()
}

/// More than there is room for ahead of the writes.
fn long() -> Bytes {
    vec![1; 300 << 10].into()
}

fn keys(store: &Store<Bytes>) -> Vec<String> {
    let page = store.snapshot().range(Range::default()).unwrap();
    page.entries.iter().map(|entry| entry.key.to_string()).collect()
}

async fn fails_closed(break_it: impl Fn(&Fault)) {
    let fault = Arc::new(Fault::default());
    let store = store(&fault);
    store.write(Write::create("a", Bytes::from_static(b"1"))).await.unwrap();
    let mut watch = store.watch("", Revision(1)).unwrap();
    break_it(&fault);

    let waiting: Vec<_> = (0..8)
        .map(|nth| {
            let store = store.clone();
            tokio::spawn(async move { store.write(Write::create(format!("b{nth}"), long())).await })
        })
        .collect();
    for write in waiting {
        let error = write.await.unwrap().unwrap_err();
        assert!(
            matches!(error, WriteError::NotDurable { .. } | WriteError::ReadOnly { .. }),
            "{error}"
        );
    }
    assert!(matches!(&*store.health().borrow(), Health::ReadOnly { .. }));
    assert_eq!((keys(&store), store.revision()), (vec!["a".to_owned()], Revision(1)));
    let mut events = Vec::new();
    watch.try_batch(&mut events).unwrap();
    assert!(events.is_empty());

    // The medium recovers, but its content is unknown, so nothing is written before the store is opened again.
    fault.no_space.store(false, Ordering::Relaxed);
    fault.no_sync.store(false, Ordering::Relaxed);
    let writes = fault.writes.load(Ordering::Relaxed);
    let error = store.write(Write::delete("a", Revision(1))).await.unwrap_err();
    assert!(matches!(error, WriteError::ReadOnly { .. }), "{error}");
    assert_eq!(fault.writes.load(Ordering::Relaxed), writes);
}

#[tokio::test]
async fn a_failed_write_that_cannot_be_undone_closes_the_store() {
    fails_closed(|fault| {
        fault.no_space.store(true, Ordering::Relaxed);
        fault.no_cut.store(true, Ordering::Relaxed);
    })
    .await;
}

#[tokio::test]
async fn a_full_disk_refuses_until_there_is_room() {
    let fault = Arc::new(Fault::default());
    let store = store(&fault);
    let write = |key: &'static str, value| store.write(Write::create(key, value));
    write("a", Bytes::new()).await.unwrap();
    let len = fault.len.load(Ordering::Relaxed);
    fault.no_space.store(true, Ordering::Relaxed);
    for _ in 0..2 {
        let error = write("b", long()).await.unwrap_err();
        assert!(matches!(error, WriteError::NotWritten { .. }), "{error}");
        assert!(matches!(&*store.health().borrow(), Health::Refusing { .. }));
    }
    assert_eq!((keys(&store), store.revision()), (vec!["a".to_owned()], Revision(1)));
    assert_eq!(fault.len.load(Ordering::Relaxed), len);
    // There is still room for a short frame, and later for the long one.
    assert_eq!(write("c", Bytes::new()).await.unwrap().revision, Revision(2));
    assert_eq!(*store.health().borrow(), Health::Serving);
    assert!(write("b", long()).await.is_err());
    fault.no_space.store(false, Ordering::Relaxed);
    assert_eq!(write("b", long()).await.unwrap().revision, Revision(3));
    assert_eq!(*store.health().borrow(), Health::Serving);
}

#[tokio::test]
async fn failed_sync() {
    fails_closed(|fault| fault.no_sync.store(true, Ordering::Relaxed)).await;
}

/// The writes of a batch are decided in order, each on top of the previous ones.
#[test]
fn batch_decides_in_order() {
    let state = StoreState::new(
        LoadedRecords { revision: Revision(9), entries: vec![] },
        Retention::default(),
        |_| "",
    );
    let shared = SharedState::<Bytes>::new(state);
    let forms = StoredForms::default();
    let mut batch = Batch::new(&shared, &forms, Bounds::default());
    let value = || Bytes::from_static(b"v");
    assert!(batch.decide(Write::create("a", value())).is_ok());
    assert!(matches!(batch.decide(Write::create("a", value())), Err(WriteError::Exists { .. })));
    assert!(batch.decide(Write::update("a", Revision(10), value())).is_ok());
    assert!(matches!(
        batch.decide(Write::update("a", Revision(10), value())),
        Err(WriteError::Conflict { revision: Revision(11), .. })
    ));
    assert!(batch.decide(Write::delete("a", Revision(11))).is_ok());
    assert!(matches!(
        batch.decide(Write::delete("a", Revision(12))),
        Err(WriteError::NotFound { .. })
    ));
    assert!(batch.decide(Write::create("a", value())).is_ok());
    let history: Vec<_> = batch
        .changes
        .iter()
        .map(|change| (change.stamp.created.0, change.stamp.modified.0, change.value.is_some()))
        .collect();
    assert_eq!(history, [(10, 10, true), (10, 11, true), (10, 12, false), (13, 13, true)]);
}

#[test]
fn bounds_are_kept() {
    let state = StoreState::new(
        LoadedRecords { revision: Revision(0), entries: vec![] },
        Retention::default(),
        |_| "",
    );
    let shared = SharedState::<Bytes>::new(state);
    let forms = StoredForms::default();
    let bounds = Bounds { key_len_max: 4, value_len_max: 2, ..Bounds::default() };
    let mut batch = Batch::new(&shared, &forms, bounds);
    for (key, value, refused) in [
        ("", "", Some("key")),
        ("abcde", "", Some("key")),
        ("abcd", "123", Some("value")),
        ("abcd", "12", None),
    ] {
        let decided = batch.decide(Write::create(key, Bytes::from_static(value.as_bytes())));
        let what = match decided {
            Err(WriteError::Size { what, .. }) => Some(what),
            Err(error) => unreachable!("{error}"),
            Ok(()) => None,
        };
        assert_eq!(what, refused, "{key:?} {value:?}");
    }
}

/// Of writes that belong together all are done or none, and a refused one leaves no trace for those after it.
#[test]
fn writes_that_belong_together_are_decided_together() {
    let state = StoreState::new(
        LoadedRecords { revision: Revision(9), entries: vec![] },
        Retention::default(),
        |_| "",
    );
    let shared = SharedState::<Bytes>::new(state);
    let forms = StoredForms::default();
    let mut batch = Batch::new(&shared, &forms, Bounds::default());
    let value = || Bytes::from_static(b"v");
    batch.decide(Write::create("a", value())).expect("accepted");
    let refused = batch.decide_all(vec![
        Write::update("a", Revision(10), value()),
        Write::create("b", value()),
        Write::delete("a", Revision(11)),
        Write::update("c", Revision(1), value()),
    ]);
    assert!(matches!(refused, Err(WriteError::NotFound { key }) if key == "c"));
    assert_eq!((batch.revision, batch.events.len(), batch.changes.len()), (Revision(10), 1, 1));
    let all = vec![Write::update("a", Revision(10), value()), Write::create("b", value())];
    batch.decide_all(all).expect("both are as before the refused ones");
    let revisions: Vec<u64> = batch.events.iter().map(|event| event.stamp.modified.0).collect();
    assert_eq!(revisions, [10, 11, 12]);
}

#[tokio::test]
async fn results_are_those_of_the_request() {
    let store = store(&Arc::new(Fault::default()));
    let value = || Bytes::from_static(b"v");
    let pair = |nth: usize| {
        vec![Write::create(format!("a{nth}"), value()), Write::create(format!("b{nth}"), value())]
    };
    let waiting: Vec<_> = (0..32)
        .map(|nth| {
            let store = store.clone();
            let writes = if nth % 4 == 3 { pair(0) } else { pair(nth) };
            tokio::spawn(async move { store.write_all(writes).await })
        })
        .collect();
    let (mut done, mut refused) = (Vec::new(), 0);
    for write in waiting {
        match write.await.expect("no panic") {
            Ok(all) => done.push(all.iter().map(|one| one.revision.0).collect::<Vec<_>>()),
            Err(error) => {
                assert!(matches!(error, WriteError::Exists { .. }), "{error}");
                refused += 1;
            }
        }
    }
    assert_eq!((done.len(), refused), (24, 8));
    assert!(done.iter().all(|pair| pair.len() == 2 && pair[1] == pair[0] + 1), "{done:?}");
    assert_eq!(keys(&store).len(), 48);
}

/// The sizes of the frames in the only segment of a log.
fn frames(directory: &std::path::Path) -> Vec<Vec<usize>> {
    let segments = log::segments(directory).unwrap();
    let [(first, path)] = segments.as_slice() else { panic!("{segments:?}") };
    let mut reader = SegmentReader::open(path, *first).unwrap();
    let mut frames = Vec::new();
    while let SegmentItem::Frame(changes) = reader.next_item().unwrap() {
        frames.push(changes.iter().map(Change::len_in_frame).collect());
    }
    frames
}

/// What waits is one batch up to its bound in bytes. The rest follows in order, and all of it is read back.
#[tokio::test]
async fn a_batch_ends_at_its_bytes_and_the_rest_follows_in_order() {
    let dir = tempfile::tempdir().unwrap();
    let config = || {
        let identity = StoreIdentity { profile: "orch".into(), domain: "orch.io".into() };
        let medium = Medium::Directory(dir.path().to_owned());
        let bounds = Bounds { batch_bytes_max: 100, ..Bounds::default() };
        StoreConfig { bounds, ..StoreConfig::new(medium, identity) }
    };
    // 56 bytes in a frame each, but for one that is longer than a batch.
    let value = |nth: u8| Bytes::from(vec![nth; if nth == 10 { 300 } else { 30 }]);
    let (disk, _) = Disk::open(DiskConfig::from_config(&config())).unwrap();
    let state = StoreState::new(
        LoadedRecords { revision: Revision(0), entries: vec![] },
        Retention::default(),
        |_| "",
    );
    // All requests wait before the thread starts.
    let (queue, requests) = mpsc::channel(32);
    let mut answers = Vec::new();
    for nth in 0..20 {
        let (answer, answered) = oneshot::channel();
        let write = Write::create(format!("{nth:02}"), value(nth));
        queue.try_send(WriterRequest::Write(write, answer)).ok().unwrap();
        answers.push(answered);
    }
    let (answer, closed) = oneshot::channel();
    queue.try_send(WriterRequest::Close(answer)).ok().unwrap();
    let (committed, health) = (watch::channel(Revision(0)).0, watch::channel(Health::Serving).0);
    let shared = Arc::new(SharedState::<Bytes>::new(state));
    Writer::new(disk, shared, Arc::default(), config().bounds, committed, health)
        .spawn(requests)
        .unwrap();
    for (answer, revision) in answers.into_iter().zip(1..) {
        assert_eq!(answer.await.unwrap().unwrap().revision, Revision(revision));
    }
    closed.await.unwrap();

    let pair = || vec![56, 56];
    let mut expected: Vec<Vec<usize>> = (0..5).map(|_| pair()).collect();
    expected.extend([vec![326], pair(), pair(), pair(), pair(), vec![56]]);
    assert_eq!(frames(dir.path()), expected);
    let store = Store::<Bytes>::open(config()).unwrap();
    let page = store.current_range(Range::default());
    let read: Vec<_> = page.entries.iter().map(|entry| (*entry.record).clone()).collect();
    assert_eq!(read, (0..20).map(value).collect::<Vec<_>>());
    store.close().await;
}

/// The bound of a batch and that of what is committed together make one frame that can be read.
#[test]
fn writes_that_belong_together_are_refused_where_no_frame_has_room() {
    let state = StoreState::new(
        LoadedRecords { revision: Revision(0), entries: vec![] },
        Retention::default(),
        |_| "",
    );
    let shared = SharedState::<Bytes>::new(state);
    let forms = StoredForms::default();
    // The writes share one value, so that they take no memory.
    let value = Bytes::from(vec![1; VALUE_LEN_MAX]);
    let all = |of: &str, count: usize| {
        (0..count).map(|nth| Write::create(format!("{of}{nth}"), value.clone())).collect::<Vec<_>>()
    };
    let bounds = Bounds { batch_bytes_max: usize::MAX, ..Bounds::default() };
    let mut batch = Batch::new(&shared, &forms, bounds);
    let most = REQUEST_BYTES_MAX / VALUE_LEN_MAX - 1;
    batch.decide_all(all("a", most)).unwrap();
    assert!(!batch.is_full());
    let before = (batch.revision, batch.changes.len(), batch.bytes);
    let refused = batch.decide_all(all("b", most + 1));
    assert!(matches!(refused, Err(WriteError::NotWritten { .. })));
    assert_eq!((batch.revision, batch.changes.len(), batch.bytes), before);
    batch.decide_all(all("b", most)).unwrap();
    assert!(batch.is_full());
    let bytes: usize = batch.changes.iter().map(Change::len_in_frame).sum();
    assert_eq!(batch.bytes, bytes);
    assert!(bytes <= FRAME_LEN_MAX);
}
