//! The checkpoint after a fold that failed.

use super::*;

#[test]
fn a_checkpoint_that_failed_is_open_again() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("records.redb");
    let identity = StoreIdentity { profile: "orch".into(), domain: "orch.io".into() };
    let open = || Checkpoint::open(&path, &identity);
    let mut kept = ReopeningCheckpoint {
        path: path.clone(),
        identity: identity.clone(),
        checkpoint: Some(open().unwrap()),
    };
    let no_room = |_: &Checkpoint| Err(io::Error::from(io::ErrorKind::StorageFull).into());
    assert!(kept.with(no_room).is_err());
    assert!(matches!(open(), Err(OpenError::InUse { .. })), "another process may have it");
    kept.with(|checkpoint| Ok(checkpoint.fold(Revision(7), &BTreeMap::new()).map_err(Box::new)?))
        .unwrap();
    // Reopening failed too.
    kept.checkpoint = None;
    kept.with(|checkpoint| {
        assert_eq!(checkpoint.revision().map_err(Box::new)?, Revision(7));
        Ok(())
    })
    .unwrap();
}

/// A closed segment of two frames with a bad byte in the second one.
fn damaged_segment(directory: &Path) -> ClosedSegment {
    use std::os::unix::fs::FileExt as _;
    let mut segment = Segment::create(directory, Revision(1)).unwrap();
    for revision in [1, 2] {
        let stamp = crate::Stamp { created: Revision(revision), modified: Revision(revision) };
        let value = Some(bytes::Bytes::from_static(b"value"));
        segment.append(&[Change { key: format!("key {revision}").into(), stamp, value }]).unwrap();
    }
    let file = fs::File::options().write(true).open(&segment.path).unwrap();
    file.write_all_at(b"?", segment.len() - 1).unwrap();
    ClosedSegment { first: Revision(1), last: Revision(2), path: segment.path }
}

#[test]
fn a_segment_that_is_not_read_to_its_last_frame_stays() {
    let dir = tempfile::tempdir().unwrap();
    let identity = StoreIdentity { profile: "orch".into(), domain: "orch.io".into() };
    let checkpoint = Checkpoint::open(&dir.path().join("records.redb"), &identity).unwrap();
    let segment = damaged_segment(dir.path());
    let error = fold(&checkpoint, &segment).unwrap_err();
    let FoldError::Damaged(damage) = error else { panic!("{error}") };
    assert_eq!((damage.first, damage.last), (Revision(2), Some(Revision(2))));
    assert_eq!(checkpoint.revision().unwrap(), Revision(0), "half of it is not folded");
    assert!(segment.path.exists());
    // A segment whose writes are in the checkpoint is not needed.
    checkpoint.fold(Revision(2), &BTreeMap::new()).unwrap();
    fold(&checkpoint, &segment).unwrap();
    assert!(!segment.path.exists());
}
