//! What each write leaves in the key that all of them put: a text that no other write has. It shows up to where memory must be, and whether etcd's history is
//! still the one that memory is of.

use std::fmt;

use apiserver_store::Revision;
use etcd_client::{GetOptions, KeyValue, TxnOp};

use crate::{
    client::{CallError, Etcd},
    keys::Keys,
    revisions::{of_etcd, revision},
};

/// The mark of the last write of any server: its revision, and the text that it put.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mark {
    pub revision: Revision,
    text: Vec<u8>,
}

impl Mark {
    pub fn from_key_value(kv: &KeyValue) -> Self {
        Self { revision: revision(kv.mod_revision()), text: kv.value().to_vec() }
    }
}

impl fmt::Display for Mark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.revision, String::from_utf8_lossy(&self.text))
    }
}

/// What each write puts beside its records.
pub fn put_mark(keys: &Keys) -> TxnOp {
    TxnOp::put(keys.last(), format!("{:016x}", rand::random::<u64>()), None)
}

/// The state of etcd that is asked for.
pub struct LastWrite {
    /// Of the last write of any server.
    pub mark: Mark,
    /// The revision of etcd, which has other keys too.
    pub current: Revision,
}

/// A linearizable read of the last write until a revision; 0 for now.
pub async fn last_write(etcd: &Etcd, keys: &Keys, until: Revision) -> Result<LastWrite, CallError> {
    let options = GetOptions::new().with_revision(of_etcd(until));
    let found = etcd.get(&keys.last(), options).await?;
    let mark = found.kvs().first().map(Mark::from_key_value).unwrap_or_default();
    let current = found.header().map_or(0, etcd_client::ResponseHeader::revision);
    Ok(LastWrite { mark, current: revision(current) })
}
