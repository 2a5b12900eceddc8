//! Whether etcd still has the history that memory is of. A snapshot of etcd that is restored under running servers takes writes away which they have
//! seen; then other writes get the same revisions, with other marks.

use apiserver_store::{Record, Revision};

use crate::{
    client::CallError,
    marks::{Mark, last_write},
    shared::Shared,
};

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
