//! The checkpoint after a fold that failed.

use super::*;

#[test]
fn a_checkpoint_that_failed_is_open_again() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("records.redb");
    let identity = Identity { profile: "orch".into(), domain: "orch.io".into() };
    let open = || Checkpoint::open(&path, &identity);
    let mut kept = KeptOpen {
        path: path.clone(),
        identity: identity.clone(),
        checkpoint: Some(open().unwrap()),
    };
    let no_room = |_: &Checkpoint| Err(io::Error::from(io::ErrorKind::StorageFull).into());
    assert!(kept.with(no_room).is_err());
    assert!(matches!(open(), Err(OpenError::InUse { .. })), "another process may have it");
    kept.with(|checkpoint| Ok(checkpoint.fold(Revision(7), &BTreeMap::new()).map_err(Box::new)?))
        .unwrap();
    // It could not be opened again when it failed.
    kept.checkpoint = None;
    kept.with(|checkpoint| {
        assert_eq!(checkpoint.revision().map_err(Box::new)?, Revision(7));
        Ok(())
    })
    .unwrap();
}
