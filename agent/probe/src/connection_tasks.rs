//! Tasks of an HTTP/2 connection. hyper hands the connection itself to an executor, and its task goes on for as long as the server
//! likes: a server that sends without end and reads nothing would keep it and its socket for ever.

use std::sync::{Arc, Mutex, PoisonError};

use proto_daemon::panics::isolate;
use tokio::task::JoinSet;

/// What hyper spawns for one call. Clones spawn into the same set.
#[derive(Clone, Debug, Default)]
pub(crate) struct ConnectionTasks(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    running: JoinSet<()>,
    /// Whether the connection has ended: what is spawned now is dropped.
    ended: bool,
}

impl ConnectionTasks {
    /// Aborts all tasks when the guard is dropped, even if clones are left.
    pub(crate) fn abort_on_drop(&self) -> AbortGuard {
        AbortGuard(self.clone())
    }
}

impl<F> hyper::rt::Executor<F> for ConnectionTasks
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    fn execute(&self, work: F) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !state.ended {
            state.running.spawn(async move {
                // A panic is logged; the call then fails as with a broken connection.
                let _ = isolate(work).await;
            });
        }
    }
}

/// Ends the tasks of a connection.
pub(crate) struct AbortGuard(ConnectionTasks);

impl Drop for AbortGuard {
    fn drop(&mut self) {
        let tasks = {
            let mut state = self.0.0.lock().unwrap_or_else(PoisonError::into_inner);
            state.ended = true;
            std::mem::take(&mut state.running)
        };
        drop(tasks);
    }
}
