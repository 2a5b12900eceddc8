//! Versions of the format on disk: stored bytes of each one are read.

#![allow(clippy::unwrap_used, reason = "a test")]

#[path = "transform/support.rs"]
mod support;

use std::{fs, io::Read as _, path::Path};

use apiserver_store::{Bounds, Medium, OpenError, Revision, Store, StoreConfig, Write};
use bytes::Bytes;
use redb::{Database, ReadableDatabase as _, TableDefinition};

use support::{Shift, Text, identity, open, text};

const META: TableDefinition<'_, &str, &str> = TableDefinition::new("meta");

/// A copy of a store that the first version of the format wrote: nine writes of four keys, one of them a deletion, in a checkpoint and a segment.
fn format_1() -> tempfile::TempDir {
    let copy = tempfile::tempdir().unwrap();
    let stored = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/format-1");
    for entry in fs::read_dir(stored).unwrap() {
        let path = entry.unwrap().path();
        let mut bytes = Vec::new();
        let packed = fs::File::open(&path).unwrap();
        flate2::read::GzDecoder::new(packed).read_to_end(&mut bytes).unwrap();
        fs::write(copy.path().join(path.file_stem().unwrap()), bytes).unwrap();
    }
    copy
}

fn format(directory: &Path) -> String {
    let database = Database::open(directory.join("records.redb")).unwrap();
    let table = database.begin_read().unwrap().open_table(META).unwrap();
    table.get("format").unwrap().unwrap().value().to_owned()
}

fn set_format(directory: &Path, format: &str) {
    let database = Database::open(directory.join("records.redb")).unwrap();
    let write = database.begin_write().unwrap();
    write.open_table(META).unwrap().insert("format", format).unwrap();
    write.commit().unwrap();
}

fn check_content(store: &Store<Text>) {
    assert_eq!(store.revision(), Revision(9));
    let expected = [Some("value 8"), Some("value 5"), Some("value 6"), None];
    for (nth, value) in expected.into_iter().enumerate() {
        let key = format!("/core/secrets/default/s{nth}");
        assert_eq!(text(store, &key).as_deref(), value, "{key}");
    }
}

#[tokio::test]
async fn stored_bytes_of_format_1_are_read_and_raised_for_good() {
    for transform in [None, Some(Shift::new(&[3]))] {
        let dir = format_1();
        let store = open(dir.path(), transform.as_ref());
        check_content(&store);
        let write = Write::create("secrets/new", Bytes::from_static(b"new"));
        assert_eq!(store.write(write).await.unwrap().revision, Revision(10));
        store.close().await;
        assert_eq!(format(dir.path()), "3", "older programs do not know seeds");
        let store = open(dir.path(), transform.as_ref());
        assert_eq!(text(&store, "secrets/new").as_deref(), Some("new"));
        store.close().await;
    }
}

#[tokio::test]
async fn a_newer_format_is_refused_and_left_alone() {
    for newer in ["4", "10", "", "2 ", "x"] {
        let dir = format_1();
        set_format(dir.path(), newer);
        let before = fs::read(dir.path().join("log.00000000000000000007")).unwrap();
        let config = StoreConfig::new(Medium::Directory(dir.path().to_owned()), identity());
        let config = StoreConfig { bounds: Bounds::default(), ..config };
        let error = Store::<Text>::open(config).err().unwrap();
        assert!(matches!(error, OpenError::Format { .. }), "{error}");
        let told = error.to_string();
        let expected = format!("has format {newer:?}, this program reads formats 1 to 3");
        assert!(told.contains(&expected), "{told}");
        assert_eq!(format(dir.path()), newer);
        assert_eq!(fs::read(dir.path().join("log.00000000000000000007")).unwrap(), before);
    }
}
