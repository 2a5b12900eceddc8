//! Reads all records below the prefix at one revision, in pages.

use std::sync::Arc;

use apiserver_store::{Change, Revision, Stamp};
use bytes::Bytes;
use etcd_client::{GetOptions, KeyValue};

use crate::{
    client::{CallError, Etcd},
    keys::Keys,
};

/// Records a page.
const PAGE_LEN: i64 = 500;
/// Times that reading begins anew because its revision was compacted in the middle.
const TRIES: usize = 5;

/// All records at a revision.
pub struct Loaded {
    pub revision: Revision,
    /// In ascending order of key.
    pub records: Vec<Change>,
    /// Which etcd they are from.
    pub cluster: u64,
}

/// Why the records cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// etcd does not answer.
    #[error(transparent)]
    Call(#[from] CallError),
    /// A key is no record's.
    #[error("etcd has the key {0:?}, which no record has: remove it")]
    Key(String),
}

pub async fn load(etcd: &Etcd, keys: &Keys) -> Result<Loaded, LoadError> {
    let mut tried = 1;
    loop {
        match read_pages(etcd, keys).await {
            Err(LoadError::Call(CallError::Compacted)) if tried < TRIES => tried += 1,
            outcome => return outcome,
        }
    }
}

async fn read_pages(etcd: &Etcd, keys: &Keys) -> Result<Loaded, LoadError> {
    let root = keys.root();
    // After all keys that start with `<prefix>/`.
    let end = format!("{}0", root.trim_end_matches('/'));
    let (mut from, mut at, mut cluster) = (root.into_bytes(), 0, 0);
    let mut records = Vec::new();
    loop {
        let options = GetOptions::new().with_range(end.as_str()).with_limit(PAGE_LEN);
        let start = String::from_utf8(from).map_err(|error| {
            LoadError::Key(String::from_utf8_lossy(error.as_bytes()).into_owned())
        })?;
        let mut page = etcd.get(&start, options.with_revision(at)).await?;
        if let Some(header) = page.header().filter(|_| at == 0) {
            (at, cluster) = (header.revision(), header.cluster_id());
        }
        let more = page.more();
        let kvs = page.take_kvs();
        let last = kvs.last().map(|kv| kv.key().to_vec());
        for kv in kvs {
            let record = record(keys, kv).map_err(LoadError::Key)?;
            records.extend(record);
        }
        match last {
            Some(mut last) if more => {
                last.push(0);
                from = last;
            }
            _ => return Ok(Loaded { revision: revision(at), records, cluster }),
        }
    }
}

/// The version of a record that a key and its value are; `None` for what the servers keep beside records.
///
/// # Errors
/// The key is no record's.
pub fn record(keys: &Keys, kv: KeyValue) -> Result<Option<Change>, String> {
    let Some(key) = keys.record_of(kv.key())? else { return Ok(None) };
    let key: Arc<str> = key.into();
    let stamp =
        Stamp { created: revision(kv.create_revision()), modified: revision(kv.mod_revision()) };
    let (_, value) = kv.into_key_value();
    Ok(Some(Change { key, stamp, value: Some(Bytes::from(value)) }))
}

/// etcd's revisions are never negative.
pub fn revision(of_etcd: i64) -> Revision {
    Revision(u64::try_from(of_etcd).unwrap_or(0))
}

/// As etcd counts.
pub fn of_etcd(revision: Revision) -> i64 {
    i64::try_from(revision.0).unwrap_or(i64::MAX)
}
