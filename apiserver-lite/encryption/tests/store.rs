//! A store on disk with encrypted values.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::fs;
use std::path::Path;
use std::sync::Arc;

use apiserver_encryption::{Encryption, StoredResource};
use apiserver_store::{
    BackupValue, Medium, Store, StoreConfig, StoreIdentity, Transform, Write, WriteCondition,
    restore,
};
use bytes::Bytes;
use proto_daemon::config::FileType;

const SECRET: &str = "the known bytes of a secret";
const KEY: &str = "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=";

fn identity() -> StoreIdentity {
    StoreIdentity { profile: "kubernetes".into(), domain: "k8s.io".into() }
}

fn open(directory: &Path, encryption: &Arc<Encryption>) -> Store<Bytes> {
    let config = StoreConfig::new(Medium::Directory(directory.to_owned()), identity());
    let transform: Arc<dyn Transform> = encryption.clone();
    // Short segments, so that the checkpoint gets most writes.
    Store::open(StoreConfig { segment_len_max: 600, transform: Some(transform), ..config }).unwrap()
}

fn encryption(directory: &Path) -> Arc<Encryption> {
    let file = directory.join("encryption.yaml");
    let text = format!(
        "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources: [{{resources: [secrets], providers: [{{aesgcm: {{keys: [{{name: key1, secret: {KEY}}}]}}}}, {{identity: {{}}}}]}}]\n"
    );
    fs::write(&file, text).unwrap();
    let accepted = FileType {
        api_version: "apiserver.config.k8s.io/v1".into(),
        kind: "EncryptionConfiguration".into(),
    };
    let secrets = StoredResource { name: "secrets".into(), prefix: "/core/secrets/".into() };
    Arc::new(Encryption::load(&file, accepted, vec![secrets]).unwrap())
}

/// How often `what` stands in the files under `directory`, and in how many files.
fn count(directory: &Path, what: &[u8]) -> (usize, usize) {
    let (mut all, mut files) = (0, 0);
    for entry in fs::read_dir(directory).unwrap() {
        let bytes = fs::read(entry.unwrap().path()).unwrap();
        let found = bytes.windows(what.len()).filter(|part| *part == what).count();
        (all, files) = (all + found, files + usize::from(found > 0));
    }
    (all, files)
}

#[tokio::test]
async fn no_file_has_a_secret_in_clear_text() {
    let dir = tempfile::tempdir().unwrap();
    let directory = dir.path().join("store");
    let encryption = encryption(dir.path());
    for _ in 0..3 {
        let store = open(&directory, &encryption);
        for nth in 0..12 {
            for prefix in ["/core/secrets/a", "/core/configmaps/a"] {
                let value = if prefix.contains("secrets") { SECRET } else { "a setting" };
                let draft = Bytes::from(format!("k8s\0{value} {nth}"));
                let key = format!("{prefix}/{nth}");
                let write = Write::Put { key, expect: WriteCondition::Anything, draft };
                store.write(write).await.unwrap();
            }
        }
        store.close().await;
        assert_eq!(count(&directory, SECRET.as_bytes()), (0, 0));
    }
    assert!(count(&directory, b"k8s:enc:aesgcm:v1:key1:").1 >= 2, "log and checkpoint");
    assert!(count(&directory, b"a setting").1 >= 2, "the search finds what is in clear text");
    let store = open(&directory, &encryption);
    let found = store.snapshot().get("/core/secrets/a/7").unwrap().unwrap();
    assert_eq!(*found.record, Bytes::from(format!("k8s\0{SECRET} 7")));
    let backup = directory.join("backup");
    let made = store.backup(&backup, |value| BackupValue::Value(value.clone())).unwrap();
    assert_eq!((made.records, made.transformed), (24, 12));
    store.close().await;
    assert_eq!(count(&directory, SECRET.as_bytes()), (0, 0), "of a backup neither");
    let restored = dir.path().join("restored");
    restore(&backup, &restored, &identity(), std::time::Duration::from_secs(1)).unwrap();
    assert_eq!(count(&restored, SECRET.as_bytes()), (0, 0));
    let store = open(&restored, &encryption);
    let found = store.snapshot().get("/core/secrets/a/7").unwrap().unwrap();
    assert_eq!(*found.record, Bytes::from(format!("k8s\0{SECRET} 7")));
    store.close().await;
}
