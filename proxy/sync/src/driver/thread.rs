//! The driver's own thread.
//!
//! A commit blocks in `sendto` until the kernel has applied it, and while another program's transaction holds nf_tables' commit
//! mutex; reading a large table back and compiling many Services take long as well. The program's main thread, which serves the
//! health and metrics pages and reads the watches, must not wait for any of them.

use std::io;

use proto_daemon::drain::DrainWatch;
use proxy_kernel::Transport;
use tokio::runtime;
use tokio::sync::oneshot;

use super::Driver;

/// The driver does not run.
#[derive(Debug, thiserror::Error)]
pub enum ThreadError {
    /// The thread or its runtime could not be created.
    #[error("cannot start the nftables thread")]
    Start(#[source] io::Error),
    /// It panicked, where a panic does not abort the process.
    #[error("the nftables thread ended unexpectedly")]
    Ended,
}

impl<T: Transport + Send + 'static> Driver<T> {
    /// Runs on a thread of its own, which owns the netlink sockets, until drained and the commit under way is done.
    pub async fn run_on_thread(self, drain: DrainWatch) -> Result<(), ThreadError> {
        let runtime = runtime::Builder::new_current_thread().enable_io().enable_time().build();
        let runtime = runtime.map_err(ThreadError::Start)?;
        let (done, ended) = oneshot::channel();
        let body = move || {
            runtime.block_on(self.run(drain));
            // The receiver is gone if the program has reached its deadline.
            let _ = done.send(());
        };
        let thread = std::thread::Builder::new().name("nftables".into()).spawn(body);
        thread.map_err(ThreadError::Start)?;
        ended.await.map_err(|_| ThreadError::Ended)
    }
}
