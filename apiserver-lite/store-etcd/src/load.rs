//! Reads all records below the prefix at one revision, in pages.

#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

use std::sync::Arc;

use apiserver_store::{Change, Revision, Stamp};
use bytes::Bytes;
use etcd_client::{GetOptions, KeyValue};

use crate::{
    client::{CallError, Etcd},
    keys::{ForeignKey, Keys},
    marks::Mark,
    revisions::revision,
};

/// Records of the first page.
const FIRST_PAGE_LEN: usize = 64;
/// Most records of a page.
const PAGE_LEN_MAX: usize = 500;
/// What a page should have, as far as the page before shows: it has to come within the deadline of a call.
const PAGE_BYTES: usize = 4 << 20;
/// Times that reading begins again because its revision was compacted in the middle.
const TRIES: usize = 5;

/// All records at a revision.
pub struct Loaded {
    pub revision: Revision,
    /// In ascending order of key.
    pub records: Vec<Change>,
    /// Of the last write until then.
    pub last: Mark,
}

/// Why the records cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum EtcdLoadError {
    /// etcd does not answer.
    #[error(transparent)]
    Call(#[from] CallError),
    /// A key is no record's.
    #[error(transparent)]
    Key(#[from] ForeignKey),
}

pub async fn load(etcd: &Etcd, keys: &Keys) -> Result<Loaded, EtcdLoadError> {
    let mut tried: usize = 1;
    loop {
        match read_pages(etcd, keys).await {
            Err(EtcdLoadError::Call(CallError::Compacted)) if tried < TRIES => {
                tried = tried.saturating_add(1);
            }
            outcome => return outcome,
        }
    }
}

async fn read_pages(etcd: &Etcd, keys: &Keys) -> Result<Loaded, EtcdLoadError> {
    let root = keys.root();
    // After all keys that start with `<prefix>/`.
    let end = format!("{}0", root.trim_end_matches('/'));
    let (mut from, mut at, mut last_write) = (root.into_bytes(), 0, Mark::default());
    let (mut records, mut page_len) = (Vec::new(), FIRST_PAGE_LEN);
    loop {
        let limit = i64::try_from(page_len).unwrap_or(1);
        let options = GetOptions::new().with_range(end.as_str()).with_limit(limit);
        let start = String::from_utf8(from)
            .map_err(|error| ForeignKey(String::from_utf8_lossy(error.as_bytes()).into_owned()))?;
        let mut page = match etcd.get(&start, options.with_revision(at)).await {
            // The neighbours of small records may be large.
            Err(CallError::Unknown(_)) if page_len > 1 => {
                page_len = (page_len / 8).max(1);
                from = start.into_bytes();
                continue;
            }
            outcome => outcome?,
        };
        if let Some(header) = page.header().filter(|_| at == 0) {
            at = header.revision();
        }
        let more = page.more();
        let kvs = page.take_kvs();
        let last = kvs.last().map(|kv| kv.key().to_vec());
        page_len = next_page_len(kvs.len(), kvs.iter().map(|kv| kv.value().len()).sum());
        for kv in kvs {
            if kv.key() == keys.last().as_bytes() {
                last_write = Mark::from_key_value(&kv);
            }
            records.extend(record(keys, kv)?);
        }
        match last {
            Some(mut last) if more => {
                last.push(0);
                from = last;
            }
            _ => return Ok(Loaded { revision: revision(at), records, last: last_write }),
        }
    }
}

/// Records of the page after one with so many, and this many bytes of values.
fn next_page_len(records: usize, bytes: usize) -> usize {
    let mean = bytes.checked_div(records).unwrap_or(bytes);
    PAGE_BYTES.checked_div(mean).unwrap_or(PAGE_BYTES).clamp(1, PAGE_LEN_MAX)
}

/// The version of a record that a key and its value are; `None` for what the servers keep beside records.
///
/// # Errors
/// The key is no record's.
pub fn record(keys: &Keys, kv: KeyValue) -> Result<Option<Change>, ForeignKey> {
    let Some(key) = keys.record_of(kv.key())? else { return Ok(None) };
    let key: Arc<str> = key.into();
    let stamp =
        Stamp { created: revision(kv.create_revision()), modified: revision(kv.mod_revision()) };
    let (_, value) = kv.into_key_value();
    Ok(Some(Change { key, stamp, value: Some(Bytes::from(value)) }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_has_as_many_records_as_fit() {
        for (records, bytes, next) in [
            (64, 64 * 20_000, PAGE_BYTES / 20_000),
            (64, 64 << 20, PAGE_BYTES >> 20),
            (1, 3 * PAGE_BYTES, 1),
            (64, 0, PAGE_LEN_MAX),
            (0, 0, PAGE_LEN_MAX),
        ] {
            assert_eq!(next_page_len(records, bytes), next, "{records} {bytes}");
        }
    }
}
