//! Compacts etcd's history. Of all servers one does it an interval: that whose write of a key with the count of compactions succeeds, as in Kubernetes.

use std::{sync::Arc, time::Duration};

use apiserver_store::{Record, Revision};
use etcd_client::{Compare, CompareOp, Txn, TxnOp, TxnOpResponse};

use crate::{
    client::CallError,
    revisions::{of_etcd, revision},
    shared::Shared,
};

/// What a server saw at its last turn.
#[derive(Clone, Copy, Debug, Default)]
struct Turn {
    /// How often the key was written.
    count: i64,
    /// The revision of etcd at that time.
    current: Revision,
}

pub async fn run<T: Record>(shared: Arc<Shared<T>>, interval: Duration) {
    if interval.is_zero() {
        return;
    }
    let mut last = Turn::default();
    loop {
        tokio::time::sleep(interval).await;
        match take_turn(&shared, last).await {
            Ok(turn) => last = turn,
            Err(error) => {
                tracing::warn!(%error, "cannot compact the history of etcd; retried after --etcd-compaction-interval");
            }
        }
    }
}

/// Compacts to where etcd was at the turn before, unless another server has compacted since.
async fn take_turn<T: Record>(shared: &Shared<T>, last: Turn) -> Result<Turn, CallError> {
    let key = shared.keys.compaction();
    let unchanged = Compare::version(key.as_str(), CompareOp::Equal, last.count);
    let put = TxnOp::put(key.as_str(), last.current.to_string(), None);
    let get = TxnOp::get(key.as_str(), None);
    let answer =
        shared.etcd.txn(Txn::new().when([unchanged]).and_then([put]).or_else([get])).await?;
    let current = revision(answer.header().map_or(0, etcd_client::ResponseHeader::revision));
    if !answer.succeeded() {
        let count = answer.op_responses().into_iter().find_map(|op| match op {
            TxnOpResponse::Get(found) => found.kvs().first().map(etcd_client::KeyValue::version),
            _ => None,
        });
        return Ok(Turn { count: count.unwrap_or(0), current });
    }
    let turn = Turn { count: last.count.saturating_add(1), current };
    // Never beyond what this server has followed itself.
    let oldest = last.current.min(shared.follower.revision());
    if oldest > Revision(0) {
        match shared.etcd.compact(of_etcd(oldest)).await {
            Ok(()) => tracing::debug!(revision = %oldest, "compacted the history of etcd"),
            Err(CallError::Compacted) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(turn)
}
