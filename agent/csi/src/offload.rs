//! Work that blocks, kept off the threads that must not.

use std::io;

/// Runs `work` on a thread that may block; what it returned.
///
/// # Errors
/// It could not be run to its end.
pub async fn offload<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<T> {
    #[cfg(any(test, feature = "testing"))]
    if let Some(moment) = simulated::moment() {
        moment().await?;
        let done = work();
        // What is done is done: only whether anybody learns of it is open now.
        moment().await?;
        return Ok(done);
    }
    tokio::task::spawn_blocking(work).await.map_err(io::Error::other)
}

/// Tests run such work at once, on a clock of their own, and may fail it or end the process on either side of it.
#[cfg(any(test, feature = "testing"))]
pub mod simulated {
    use std::cell::RefCell;
    use std::io;
    use std::sync::Arc;

    use futures_util::future::BoxFuture;

    /// What passes before work begins and after it is done. An error before means that it was never begun.
    pub type Moment = Arc<dyn Fn() -> BoxFuture<'static, io::Result<()>> + Send + Sync>;

    thread_local! {
        static MOMENT: RefCell<Option<Moment>> = const { RefCell::new(None) };
    }

    /// Has all work of this thread's tasks run by the tasks themselves, each between two such moments.
    pub fn set(moment: Option<Moment>) {
        MOMENT.with_borrow_mut(|here| *here = moment);
    }

    pub(super) fn moment() -> Option<Moment> {
        MOMENT.with_borrow(Clone::clone)
    }
}
