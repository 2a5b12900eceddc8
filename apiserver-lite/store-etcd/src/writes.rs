//! Writes as transactions: each compares the mod revisions that memory has of its keys, and puts what follows from them.

#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

use std::sync::Arc;

use apiserver_store::{
    CommittedWrite, Entry, Health, PlannedWrite, Record, Revision, Stamp, Write, WriteAllResult,
    WriteError, WriteResult,
};
use etcd_client::{
    Compare, CompareOp, GetOptions, KeyValue, Txn, TxnOp, TxnOpResponse, TxnResponse,
};

use crate::{
    client::CallError,
    keys::Keys,
    marks::put_mark,
    revisions::{of_etcd, revision},
    shared::Shared,
};

/// Times that a write without a condition on a revision is planned, because other servers change its key meanwhile.
const TRIES: usize = 16;

/// What became of a transaction.
enum Committed {
    /// All of it is done, at this revision.
    At(Revision),
    /// Nothing is: a comparison failed.
    Not {
        /// Memory must have this revision before the next plan.
        written: Revision,
        /// A claim that another record has.
        claimed: Option<String>,
    },
}

impl<T: Record> Shared<T> {
    pub async fn write(&self, write: Write<T>) -> WriteResult<T> {
        let mut committed = self.write_all(vec![write]).await?;
        committed.pop().ok_or(WriteError::Closed)
    }

    /// Commits all of the writes, or none.
    pub async fn write_all(&self, writes: Vec<Write<T>>) -> WriteAllResult<T> {
        if writes.is_empty() {
            return Ok(Vec::new());
        }
        let restores = self.restores();
        let mut up_to_date = false;
        let mut refused: Option<(Vec<Revision>, String)> = None;
        for _ in 0..TRIES {
            if let Health::Refusing { reason } | Health::ReadOnly { reason } =
                self.follower.health()
            {
                return Err(WriteError::NotWritten { reason });
            }
            let planned = match self.follower.plan(&writes) {
                Ok(planned) => planned,
                // Another server may have written what memory lacks.
                Err(error) if up_to_date || !depends_on_memory(&error) => return Err(error),
                Err(_) => {
                    self.sync(Revision(0)).await.map_err(|error| not_written(&error))?;
                    up_to_date = true;
                    continue;
                }
            };
            let compared: Vec<Revision> = planned.iter().map(compared).collect();
            if let Some((_, claim)) = refused.take_if(|(before, _)| *before == compared) {
                let key = planned.first().map(|write| write.key.clone()).unwrap_or_default();
                return Err(WriteError::Claimed { key, claim });
            }
            match self.commit(&planned).await? {
                Committed::At(revision) => {
                    return self.finish(writes, planned, revision, restores).await;
                }
                Committed::Not { written, claimed } => {
                    self.catch_up(written).await.map_err(|error| not_written(&error))?;
                    up_to_date = true;
                    refused = claimed.map(|claim| (compared, claim));
                }
            }
        }
        let key = writes.first().map(|write| write.key().to_owned()).unwrap_or_default();
        let reason = format!("other servers have changed {key} at each of {TRIES} tries");
        Err(WriteError::NotWritten { reason: reason.into() })
    }

    async fn commit(&self, planned: &[PlannedWrite<T>]) -> Result<Committed, WriteError<T>> {
        let txn = transaction(&self.keys, planned)?;
        let answer = self.etcd.txn(txn).await.map_err(|error| self.failed(planned, &error))?;
        if answer.succeeded() {
            let at = answer.header().map_or(0, etcd_client::ResponseHeader::revision);
            return Ok(Committed::At(revision(at)));
        }
        let found = read_values(&answer);
        let last = self.keys.last();
        let written = found.iter().find(|kv| kv.key() == last.as_bytes());
        let written = revision(written.map_or(0, KeyValue::mod_revision));
        let mut claims = planned.iter().flat_map(|write| &write.claims);
        let is_taken = |claim: &&String| {
            let key = self.keys.claim(claim);
            found.iter().any(|kv| kv.key() == key.as_bytes())
        };
        Ok(Committed::Not { written, claimed: claims.find(is_taken).cloned() })
    }

    /// The error of a transaction to which etcd gave no result.
    fn failed(&self, planned: &[PlannedWrite<T>], error: &CallError) -> WriteError<T> {
        let reason: Arc<str> = error.to_string().into();
        if matches!(error, CallError::Unknown(_) | CallError::Unsent(_)) {
            self.doubt();
        }
        if let CallError::Unknown(_) = error {
            let key = planned.first().map(|write| write.key.clone()).unwrap_or_default();
            let reason = format!("{reason}. Whether it was written is not known");
            return WriteError::NotDurable { key, reason: reason.into() };
        }
        WriteError::NotWritten { reason }
    }

    /// The results of what was written at `revision`, once memory has it.
    async fn finish(
        &self,
        writes: Vec<Write<T>>,
        planned: Vec<PlannedWrite<T>>,
        revision: Revision,
        restores: u64,
    ) -> WriteAllResult<T> {
        let caught_up = self.catch_up(revision).await.map_err(|error| error.0);
        // The revision may be another write's then.
        let is_restored = self.restores() != restores;
        let missed = caught_up.err().or(is_restored.then(|| "etcd was restored then".into()));
        if let Some(missed) = missed {
            let key = planned.first().map(|write| write.key.clone()).unwrap_or_default();
            let reason = format!("it was written at revision {revision}, but {missed}");
            return Err(WriteError::NotDurable { key, reason: reason.into() });
        }
        let both = writes.into_iter().zip(planned);
        both.map(|(write, planned)| self.committed(write, planned.current, revision)).collect()
    }

    fn committed(
        &self,
        write: Write<T>,
        current: Option<Entry<T>>,
        revision: Revision,
    ) -> WriteResult<T> {
        let created = current.as_ref().map_or(revision, |current| current.stamp.created);
        let stamp = Stamp { created, modified: revision };
        let previous = current.map(|current| current.record);
        let record = match write {
            Write::Put { key, draft, .. } => match self.follower.version(&key, revision) {
                Some(version) => version.record,
                None => Arc::new(T::stamp(draft, stamp)),
            },
            // A deletion is planned of a key that exists.
            Write::Delete { key, .. } => match &previous {
                Some(last) => Arc::new(T::tombstone(last, stamp)),
                None => return Err(WriteError::NotFound { key }),
            },
        };
        Ok(CommittedWrite { revision, record, previous })
    }
}

/// The mod revision that a write compares; 0 for a key that is absent.
fn compared<T>(planned: &PlannedWrite<T>) -> Revision {
    planned.current.as_ref().map_or(Revision(0), |current| current.stamp.modified)
}

/// Whether an error may be due to what memory lacks.
fn depends_on_memory<T>(error: &WriteError<T>) -> bool {
    use WriteError as E;
    matches!(
        error,
        E::Exists { .. } | E::Conflict { .. } | E::NotFound { .. } | E::Unreadable { .. }
    )
}

fn not_written<T>(error: &apiserver_store::NotSynced) -> WriteError<T> {
    WriteError::NotWritten { reason: error.0.clone() }
}

fn transaction<T: Record>(keys: &Keys, planned: &[PlannedWrite<T>]) -> Result<Txn, WriteError<T>> {
    let (mut when, mut then, mut otherwise) = (Vec::new(), Vec::new(), Vec::new());
    for write in planned {
        let key = keys.of_record(&write.key).ok_or_else(|| WriteError::NotWritten {
            reason: format!("{:?} is not the key of a record", write.key).into(),
        })?;
        when.push(Compare::mod_revision(key.as_str(), CompareOp::Equal, of_etcd(compared(write))));
        then.push(match &write.value {
            Some(value) => TxnOp::put(key.as_str(), value.as_ref(), None),
            None => TxnOp::delete(key.as_str(), None),
        });
        for claim in &write.claims {
            let claim = keys.claim(claim);
            when.push(Compare::mod_revision(claim.as_str(), CompareOp::Equal, 0));
            then.push(TxnOp::put(claim.as_str(), write.key.as_str(), None));
            otherwise.push(TxnOp::get(claim, None));
        }
        then.extend(write.released.iter().map(|claim| TxnOp::delete(keys.claim(claim), None)));
    }
    then.push(put_mark(keys));
    otherwise.push(TxnOp::get(keys.last(), Some(GetOptions::new().with_keys_only())));
    Ok(Txn::new().when(when).and_then(then).or_else(otherwise))
}

/// What a transaction read whose comparisons failed.
fn read_values(answer: &TxnResponse) -> Vec<KeyValue> {
    let gets = answer.op_responses().into_iter().filter_map(|op| match op {
        TxnOpResponse::Get(mut found) => Some(found.take_kvs()),
        _ => None,
    });
    gets.flatten().collect()
}
