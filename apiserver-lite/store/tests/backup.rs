//! Backups of a store in use, and stores made of them.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test")]

#[path = "transform/support.rs"]
mod support;

use std::{fs, os::unix::fs::PermissionsExt as _, path::Path, time::Duration};

use apiserver_store::{
    BackupError, BackupSummary, BackupValue, Revision, Store, StoreIdentity, WatchError, Write,
    restore,
};
use bytes::Bytes;

use support::{Shift, Text, identity, open, text};

const NOW: Duration = Duration::from_secs(1_780_000_000);

fn back_up(store: &Store<Text>, path: &Path) -> Result<BackupSummary, BackupError> {
    store.backup(path, |record| match record {
        Text::Read(text) => BackupValue::Value(text.clone()),
        Text::Unreadable(stored, _) => BackupValue::AsOnDisk(stored.clone()),
    })
}

async fn create(store: &Store<Text>, key: &str) -> Revision {
    let value = Bytes::from(format!("value of {key}"));
    store.write(Write::create(key, value)).await.unwrap().revision
}

/// A backup of a store with an unreadable record among others, and its directory.
async fn sample() -> (tempfile::TempDir, BackupSummary) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("old/store");
    let store = open(&path, Some(&Shift::new(&[9])));
    create(&store, "secrets/lost").await;
    store.close().await;
    let store = open(&path, Some(&Shift::new(&[1])));
    for nth in 0..20 {
        create(&store, &format!("secrets/{nth:02}")).await;
        create(&store, &format!("configmaps/{nth:02}")).await;
    }
    let last = store.revision();
    store.write(Write::delete("configmaps/07", last)).await.unwrap_err();
    let made = back_up(&store, &dir.path().join("backup")).unwrap();
    assert_eq!((made.records, made.transformed, made.revision), (41, 21, last));
    create(&store, "secrets/after").await;
    store.close().await;
    (dir, made)
}

#[tokio::test]
async fn a_backup_has_every_record_and_becomes_a_store() {
    let (dir, made) = sample().await;
    assert_eq!(fs::metadata(&made.path).unwrap().permissions().mode() & 0o777, 0o600);
    let directory = dir.path().join("new/store");
    let restored = restore(&made.path, &directory, &identity(), NOW).unwrap();
    assert_eq!((restored.records, restored.backup), (41, made.revision));
    assert!(restored.revision > made.revision);
    let shift = Shift::new(&[1, 9]);
    let store = open(&directory, Some(&shift));
    assert_eq!(text(&store, "secrets/13").as_deref(), Some("value of secrets/13"));
    assert_eq!(text(&store, "configmaps/13").as_deref(), Some("value of configmaps/13"));
    assert_eq!(text(&store, "secrets/lost").as_deref(), Some("value of secrets/lost"));
    assert_eq!(text(&store, "secrets/after"), None);
    // Clients of the old store list again, also those that saw what came after the backup.
    for seen in [made.revision, made.revision.next()] {
        assert!(matches!(store.watch("", seen), Err(WatchError::Compacted(_))), "{seen}");
    }
    assert_eq!(create(&store, "new").await, restored.revision.next());
    let entry = store.snapshot().get("secrets/13").unwrap().unwrap();
    assert!(entry.stamp.modified <= made.revision, "objects keep their revisions");
    store.close().await;
    let store = open(&directory, Some(&shift));
    assert_eq!(text(&store, "new").as_deref(), Some("value of new"));
    store.close().await;
}

#[tokio::test]
async fn a_backup_is_restored_into_an_empty_directory_only() {
    let (dir, made) = sample().await;
    let error = restore(&made.path, &dir.path().join("old/store"), &identity(), NOW).unwrap_err();
    assert!(matches!(error, BackupError::NotEmpty { .. }), "{error}");
    // What an interrupted restore left is no obstacle, an empty directory neither.
    let directory = dir.path().join("new/store");
    fs::create_dir_all(&directory).unwrap();
    fs::create_dir_all(dir.path().join("new/store.restoring")).unwrap();
    fs::write(dir.path().join("new/store.restoring/records.redb"), "half").unwrap();
    restore(&made.path, &directory, &identity(), NOW).unwrap();
    assert!(!dir.path().join("new/store.restoring").exists());
    let error = restore(&made.path, &directory, &identity(), NOW).unwrap_err();
    assert!(matches!(error, BackupError::NotEmpty { .. }), "{error}");
    // An existing file is never overwritten.
    let store = open(&dir.path().join("third"), None);
    let error = back_up(&store, &made.path).unwrap_err();
    assert!(matches!(error, BackupError::File { .. }), "{error}");
    store.close().await;
    let other = StoreIdentity { domain: "example.com".into(), ..identity() };
    let error = restore(&made.path, &dir.path().join("fourth"), &other, NOW).unwrap_err();
    assert!(matches!(error, BackupError::Identity { what: "domain", .. }), "{error}");
}

/// No damage of the file goes unnoticed, and none leaves a store behind.
#[tokio::test]
async fn a_damaged_backup_is_refused() {
    let (dir, made) = sample().await;
    let whole = fs::read(&made.path).unwrap();
    let (damaged, directory) = (dir.path().join("damaged"), dir.path().join("new"));
    let refused = |bytes: &[u8], what: &str| {
        fs::write(&damaged, bytes).unwrap();
        let refused = restore(&damaged, &directory, &identity(), NOW);
        assert!(refused.is_err(), "{what}");
        assert!(!directory.exists(), "{what}");
    };
    for at in 0..whole.len() {
        let mut bytes = whole.clone();
        bytes[at] ^= 1 << (at % 8);
        refused(&bytes, &format!("bit of byte {at}"));
    }
    for len in (0..whole.len()).step_by(7).chain([whole.len() - 1]) {
        refused(&whole[..len], &format!("cut at {len}"));
    }
    refused(&[whole.as_slice(), b"x"].concat(), "a byte behind the end");
    let mut newer = whole.clone();
    newer[8] = 2;
    fs::write(&damaged, &newer).unwrap();
    let error = restore(&damaged, &directory, &identity(), NOW).unwrap_err();
    assert!(error.to_string().contains("has version 2, this program reads 1"), "{error}");
}

/// A backup is one revision, however many writes go on meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backup_under_load_is_consistent() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir.path().join("store"), None);
    let writer = store.clone();
    let writing = tokio::spawn(async move {
        // Both keys of a pair are written in one commit.
        for nth in 0..400 {
            let both = ["left", "right"].map(|side| {
                Write::create(format!("{side}/{nth:03}"), Bytes::from(nth.to_string()))
            });
            writer.write_all(both.into()).await.unwrap();
        }
    });
    for nth in 0..10 {
        let path = dir.path().join(format!("backup-{nth}"));
        let (from, to) = (store.clone(), path.clone());
        let made = tokio::task::spawn_blocking(move || back_up(&from, &to)).await.unwrap().unwrap();
        let directory = dir.path().join(format!("restored-{nth}"));
        restore(&path, &directory, &identity(), NOW).unwrap();
        let restored = open(&directory, None);
        let count = |prefix| {
            let range = apiserver_store::Range { prefix, ..Default::default() };
            restored.snapshot().count(range).unwrap()
        };
        assert_eq!(count("left/"), count("right/"));
        assert_eq!(count("") as u64, made.revision.0, "all writes up to its revision");
        restored.close().await;
    }
    writing.await.unwrap();
    store.close().await;
}
