//! Values that are transformed on disk.

#![allow(clippy::unwrap_used, reason = "a test")]

#[path = "transform/support.rs"]
mod support;

use std::{collections::BTreeMap, fs, path::Path};

use apiserver_store::{BackupValue, Store, Write, WriteCondition, WriteError};
use bytes::Bytes;
use proptest::prelude::*;

use support::{Shift, Text, open, text};

async fn put(store: &Store<Text>, key: &str, value: &str) -> u64 {
    let draft = Bytes::from(value.to_owned());
    let write = Write::Put { key: key.to_owned(), expect: WriteCondition::Anything, draft };
    store.write(write).await.unwrap().revision.0
}

/// The files under `directory` that have `what` somewhere in their bytes.
fn files_with(directory: &Path, what: &str) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let bytes = fs::read(&path).unwrap();
        if bytes.windows(what.len()).any(|part| part == what.as_bytes()) {
            found.push(path.file_name().unwrap().to_string_lossy().into_owned());
        }
    }
    found
}

#[tokio::test]
async fn transformed_values_are_nowhere_on_disk_in_clear_text() {
    let dir = tempfile::tempdir().unwrap();
    let shift = Shift::new(&[7]);
    let store = open(dir.path(), Some(&shift));
    for nth in 0..30 {
        put(&store, &format!("secrets/{}", nth % 5), "the known secret").await;
        put(&store, &format!("configmaps/{}", nth % 5), "the known setting").await;
    }
    let backup = dir.path().join("backup");
    let done = store.backup(&backup, support_value).unwrap();
    assert_eq!((done.records, done.transformed), (10, 5));
    store.close().await;
    assert!(dir.path().join("records.redb").metadata().unwrap().len() > 0);
    assert_eq!(files_with(dir.path(), "the known secret"), [""; 0]);
    let clear = files_with(dir.path(), "the known setting");
    assert!(clear.iter().any(|file| file == "records.redb"), "{clear:?}");
    assert!(clear.iter().any(|file| file.starts_with("log.")), "{clear:?}");
    assert!(clear.iter().any(|file| file == "backup"), "{clear:?}");
    // The whole log passes through the checkpoint.
    let store = open(dir.path(), Some(&shift));
    assert_eq!(text(&store, "secrets/3").as_deref(), Some("the known secret"));
    store.close().await;
    assert_eq!(files_with(dir.path(), "the known secret"), [""; 0]);
}

fn support_value(record: &Text) -> BackupValue {
    match record {
        Text::Read(text) => BackupValue::Value(text.clone()),
        Text::Unreadable(stored, _) => BackupValue::AsOnDisk(stored.clone()),
    }
}

#[tokio::test]
async fn a_store_goes_over_to_a_transform_and_back() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path(), None);
    put(&store, "secrets/a", "plain").await;
    assert!(!store.is_stale("secrets/a"), "nothing is stale without a transform");
    store.close().await;

    let shift = Shift::new(&[1]);
    let store = open(dir.path(), Some(&shift));
    assert!(store.is_stale("secrets/a") && !store.is_stale("configmaps/a"));
    assert_eq!(text(&store, "secrets/a").as_deref(), Some("plain"));
    put(&store, "secrets/a", "plain").await;
    assert!(!store.is_stale("secrets/a"));
    assert_eq!(store.forms().values().sum::<usize>(), 1);
    shift.set(&[2, 1]);
    assert!(store.is_stale("secrets/a"), "another number writes");
    put(&store, "secrets/a", "plain").await;
    assert!(!store.is_stale("secrets/a"));
    store.close().await;

    // Nothing writes and two read: the identity.
    let store = open(dir.path(), Some(&Shift::new(&[2])));
    assert_eq!(text(&store, "secrets/a").as_deref(), Some("plain"));
    let revision = store.snapshot().get("secrets/a").unwrap().unwrap().stamp.modified;
    store.write(Write::delete("secrets/a", revision)).await.unwrap();
    assert_eq!(store.forms().len(), 0, "a deleted key has no form");
    store.close().await;
    let store = open(dir.path(), None);
    assert_eq!(text(&store, "secrets/a"), None);
    store.close().await;
}

#[tokio::test]
async fn values_that_cannot_be_decrypted_are_kept() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path(), Some(&Shift::new(&[1])));
    put(&store, "secrets/old", "written with 1").await;
    store.close().await;
    let lost = Shift::new(&[2]);
    for round in 0..3 {
        let store = open(dir.path(), Some(&lost));
        assert_eq!(
            text(&store, "secrets/old").as_deref(),
            Some("unreadable: the number 1 is gone")
        );
        assert!(store.is_stale("secrets/old"));
        let draft = Bytes::from_static(b"over it");
        let write =
            Write::Put { key: "secrets/old".into(), expect: WriteCondition::Anything, draft };
        let refused = store.write(write).await.unwrap_err();
        assert!(matches!(refused, WriteError::Unreadable { .. }), "{refused}");
        // Pushes everything through the checkpoint.
        for nth in 0..20 {
            put(&store, &format!("secrets/new/{nth}"), &format!("{round}")).await;
        }
        assert_eq!(text(&store, "secrets/new/7"), Some(round.to_string()));
        store.close().await;
    }
    let store = open(dir.path(), Some(&Shift::new(&[2, 1])));
    assert_eq!(text(&store, "secrets/old").as_deref(), Some("written with 1"));
    assert_eq!(text(&store, "secrets/new/7").as_deref(), Some("2"));
    store.close().await;
}

/// A step of a history of rotations.
#[derive(Clone, Debug)]
enum Step {
    Put {
        key: u8,
        value: u8,
    },
    Delete {
        key: u8,
    },
    /// The numbers from now on; the first one writes.
    Rotate(Vec<u8>),
    Reopen,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0..4u8, any::<u8>()).prop_map(|(key, value)| Step::Put { key, value }),
        1 => (0..4u8).prop_map(|key| Step::Delete { key }),
        2 => proptest::collection::vec(1..5u8, 0..4).prop_map(Step::Rotate),
        2 => Just(Step::Reopen),
    ]
}

/// What the model knows of a key: its value, and the number that it was written with.
type Model = BTreeMap<String, (String, Option<u8>)>;

fn check(store: &Store<Text>, model: &Model, numbers: &[u8], reopened: bool) {
    for (key, (value, number)) in model {
        let readable = number.is_none_or(|number| numbers.contains(&number));
        let writes = numbers.first().copied().filter(|_| key.starts_with("secrets/"));
        if readable || !reopened {
            // What was read once stays in memory.
            let found = text(store, key).unwrap();
            assert!(found == *value || found.starts_with("unreadable"), "{key}: {found}");
        }
        if reopened {
            let found = text(store, key).unwrap();
            assert_eq!(found == *value, readable, "{key}: {found}");
            assert_eq!(store.is_stale(key), *number != writes || !readable, "{key}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Whatever keys come and go, a value is read if and only if the number that wrote it is there, and none is ever lost.
    #[test]
    fn histories_of_rotations(steps in proptest::collection::vec(step(), 1..40)) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let dir = tempfile::tempdir().unwrap();
            let (shift, mut numbers, mut model) = (Shift::default(), Vec::new(), Model::new());
            let mut store = open(dir.path(), Some(&shift));
            for step in steps {
                match step {
                    Step::Put { key, value } => {
                        let key = format!("{}/{key}", ["secrets", "pods"][usize::from(key % 2)]);
                        let draft = Bytes::from(format!("value {value}"));
                        let write = Write::Put { key: key.clone(), expect: WriteCondition::Anything, draft };
                        // Refused where the current value cannot be read.
                        if store.write(write).await.is_ok() {
                            let number =
                                numbers.first().copied().filter(|_| key.starts_with("secrets/"));
                            model.insert(key, (format!("value {value}"), number));
                        }
                    }
                    Step::Delete { key } => {
                        let key = format!("{}/{key}", ["secrets", "pods"][usize::from(key % 2)]);
                        let expect = WriteCondition::Anything;
                        let done = store.write(Write::Delete { key: key.clone(), expect }).await;
                        assert_eq!(done.is_ok(), model.remove(&key).is_some());
                    }
                    Step::Rotate(to) => {
                        shift.set(&to);
                        numbers = to;
                    }
                    Step::Reopen => {
                        store.close().await;
                        store = open(dir.path(), Some(&shift));
                        check(&store, &model, &numbers, true);
                    }
                }
            }
            check(&store, &model, &numbers, false);
            store.close().await;
            shift.set(&[1, 2, 3, 4]);
            let store = open(dir.path(), Some(&shift));
            check(&store, &model, &[1, 2, 3, 4], true);
            store.close().await;
        });
    }
}
