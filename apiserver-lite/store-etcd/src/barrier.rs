//! Up to where memory must be to have every write that was answered by any server. One question to etcd answers all who wait for it.

use std::{sync::Arc, time::Duration};

use apiserver_store::{Health, NotSynced, Record, Revision, SyncResult};
use etcd_client::Txn;
use tokio::sync::{mpsc, oneshot};

use crate::{
    marks::{last_write, put_mark},
    revisions::revision,
    shared::Shared,
};

/// Requests that may wait for one question.
pub const WAITING_MAX: usize = 8192;
/// How long memory may take to come up to a revision that etcd has.
const CATCH_UP: Duration = Duration::from_secs(5);

/// Who waits, and for which revision at least.
pub type Waiter = (Revision, oneshot::Sender<SyncResult>);

impl<T: Record> Shared<T> {
    /// Waits until memory has every write that was answered before this call, and `at_least` if etcd has come to it.
    ///
    /// # Errors
    /// etcd does not answer, or memory does not come up to it in time.
    pub async fn sync(&self, at_least: Revision) -> SyncResult {
        if let Health::Refusing { reason } = self.follower.health() {
            return Err(NotSynced(reason));
        }
        let seen = self.last_seen();
        let last = last_write(&self.etcd, &self.keys, Revision(0)).await.map_err(|error| {
            // The watch may hang on the same connection.
            self.doubt();
            NotSynced(error.to_string().into())
        })?;
        self.catch_up(last.mark.revision).await?;
        let now = self.last_seen();
        let is_other = last.mark.revision < seen.revision
            || (last.mark.revision == now.revision && last.mark != now);
        if is_other {
            self.doubt();
            let text = format!(
                "etcd says that its last write is {}, and {seen} was written: it may have been restored",
                last.mark
            );
            return Err(NotSynced(text.into()));
        }
        if at_least <= self.follower.revision() || at_least > last.current {
            return Ok(());
        }
        // What brought etcd there is no write of a server: nothing below the prefix shows it. A write that changes nothing does.
        let touch = Txn::new().and_then([put_mark(&self.keys)]);
        let touched =
            self.etcd.txn(touch).await.map_err(|error| NotSynced(error.to_string().into()))?;
        let at = touched.header().map_or(0, etcd_client::ResponseHeader::revision);
        self.catch_up(revision(at)).await
    }

    /// Waits until memory has `revision`.
    ///
    /// # Errors
    /// Not in time.
    pub async fn catch_up(&self, revision: Revision) -> SyncResult {
        let began_at = self.follower.revision();
        let reached = tokio::time::timeout(CATCH_UP, self.follower.reached(revision)).await;
        if matches!(reached, Ok(true)) {
            return Ok(());
        }
        let is_at = self.follower.revision();
        // One that comes nearer is only slow: a new watch would receive all of it again.
        if is_at == began_at {
            self.doubt();
        }
        let text =
            format!("etcd is at revision {revision}, and its events have come up to {is_at} only");
        Err(NotSynced(text.into()))
    }
}

/// Answers those who wait, all that came during one question with the next one.
pub async fn run<T: Record>(shared: Arc<Shared<T>>, mut waiting: mpsc::Receiver<Waiter>) {
    let mut together: Vec<Waiter> = Vec::new();
    while waiting.recv_many(&mut together, WAITING_MAX).await > 0 {
        let most = together.iter().map(|(at_least, _)| *at_least).max().unwrap_or_default();
        let outcome = shared.sync(most).await;
        for (_, waiter) in together.drain(..) {
            // The caller may be gone.
            let _ = waiter.send(outcome.clone());
        }
    }
}
