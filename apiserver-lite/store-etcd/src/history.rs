//! Whether etcd still has the history that memory is of. A snapshot of etcd that is restored under running servers takes writes away which they have
//! seen; then other writes get the same revisions. Each write therefore leaves a mark in the key that all of them put: a text that no other write has.

use std::fmt;

use apiserver_store::{Record, Revision};
use etcd_client::{GetOptions, KeyValue, TxnOp};

use crate::{
    client::{CallError, Etcd},
    keys::Keys,
    load::{of_etcd, revision},
    shared::Shared,
};

/// The mark of the last write of any server: its revision, and the text that it put.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mark {
    pub revision: Revision,
    text: Vec<u8>,
}

impl Mark {
    pub fn of(kv: &KeyValue) -> Self {
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
    let mark = found.kvs().first().map(Mark::of).unwrap_or_default();
    let current = found.header().map_or(0, etcd_client::ResponseHeader::revision);
    Ok(LastWrite { mark, current: revision(current) })
}

/// What etcd has of the history that memory is of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum History {
    /// All of it.
    Same,
    /// It is compacted, which a watch that begins after it will say.
    Compacted,
    /// It is compacted up to the write after it, so that it cannot be compared.
    Missed,
    /// Another one: what memory has may never have been written.
    Other {
        /// What etcd says was written last until the revision of memory.
        found: Mark,
        /// Where etcd is.
        current: Revision,
    },
}

impl<T: Record> Shared<T> {
    /// Compares what etcd has at the revision of memory. Asked after a watch has begun: an etcd that is restored later ends that watch.
    ///
    /// # Errors
    /// etcd does not answer.
    pub async fn compare_history(&self) -> Result<History, CallError> {
        let (seen, known) = (self.follower.revision(), self.last_seen());
        let other = async |found: Mark| {
            let current = last_write(&self.etcd, &self.keys, Revision(0)).await?.current;
            Ok(History::Other { found, current })
        };
        match last_write(&self.etcd, &self.keys, seen).await {
            Ok(last) if last.mark == known => Ok(History::Same),
            Ok(last) => other(last.mark).await,
            Err(CallError::Future) => {
                let last = last_write(&self.etcd, &self.keys, Revision(0)).await?;
                Ok(History::Other { found: last.mark, current: last.current })
            }
            // A watch begins after `seen`, and is possible where a read of `seen` is not: at the oldest revision that is kept.
            Err(CallError::Compacted) => {
                match last_write(&self.etcd, &self.keys, seen.next()).await {
                    Ok(last) if last.mark == known => Ok(History::Same),
                    Ok(last) if last.mark.revision > seen => Ok(History::Missed),
                    Ok(last) => other(last.mark).await,
                    Err(CallError::Compacted) => Ok(History::Compacted),
                    Err(error) => Err(error),
                }
            }
            Err(error) => Err(error),
        }
    }
}
