//! Runs blocking work on threads that may block.

use std::io;

use proto_daemon::blocking_shares::{self, WorkOwner};
use proto_daemon::panics;

/// Runs `work` on a thread that may block and returns its result.
///
/// # Errors
/// The work panicked or was cancelled.
pub async fn offload<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<T> {
    #[cfg(any(test, feature = "testing"))]
    if let Some(moment) = simulated::moment() {
        return simulated::run(moment, work).await;
    }
    panics::spawn_blocking(work).await.map_err(io::Error::other)
}

/// What a pod's share of the blocking threads is taken for; each has its own, because a teardown may be what ends a hanging set-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PodWork {
    /// Set-up, also of parts of volumes.
    SetUp,
    /// Teardown.
    TearDown,
}

/// Like [`offload`], for work whose duration the pod's users decide, because they made the files or the server of a mount: it takes a share
/// of the pod and its namespace, and waits for nothing but these.
///
/// # Errors
/// As [`offload`]; earlier calls of the pod, or too many of its namespace, hang.
pub async fn offload_for_pod<T: Send + 'static>(
    (namespace, uid): (&str, &str),
    kind: PodWork,
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<T> {
    #[cfg(any(test, feature = "testing"))]
    if let Some(moment) = simulated::moment() {
        return simulated::run(moment, work).await;
    }
    let group = match kind {
        PodWork::SetUp => namespace.to_owned(),
        PodWork::TearDown => format!("{namespace} (teardown)"),
    };
    let owner = WorkOwner { group, name: uid.to_owned() };
    blocking_shares::run(owner, work).await.map_err(io::Error::other)
}

/// For tests: runs the work at once on simulated time, and can fail it or end the process before and after it.
#[cfg(any(test, feature = "testing"))]
pub mod simulated {
    use std::cell::RefCell;
    use std::io;
    use std::sync::Arc;

    use futures_util::future::BoxFuture;

    /// Called before and after the work. An error before means that the work was not started.
    pub type WorkHook = Arc<dyn Fn() -> BoxFuture<'static, io::Result<()>> + Send + Sync>;

    thread_local! {
        static MOMENT: RefCell<Option<WorkHook>> = const { RefCell::new(None) };
    }

    /// Makes tasks of this thread run the work themselves, between two calls of `moment`.
    pub fn set(moment: Option<WorkHook>) {
        MOMENT.with_borrow_mut(|here| *here = moment);
    }

    pub(super) fn moment() -> Option<WorkHook> {
        MOMENT.with_borrow(Clone::clone)
    }

    pub(super) async fn run<T>(moment: WorkHook, work: impl FnOnce() -> T) -> io::Result<T> {
        moment().await?;
        let done = work();
        // The work is done; only the return of its result can still fail.
        moment().await?;
        Ok(done)
    }
}
