//! Runtime calls that survive the agent that made them.
//!
//! A runtime cancels the calls of a connection that closes. A cancelled container start leaves a container that failed, or that
//! ran and was killed. When the agent dies, all its connections close. Therefore, while calls that change something are in
//! flight, a small process, the connection keeper, holds the connection open beyond the agent's death: in-flight calls complete,
//! and the next agent observes their results.
//!
//! ```text
//!   agent ══ connection ══ runtime
//!     │           ║
//!    pipe ──► keeper        reads the pipe: a byte ends it; on end of file (the agent died) it reads the connection until that
//!                           closes or LINGER is over
//! ```

use std::fs::File;
use std::io::{ErrorKind, Read as _, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{ExitCode, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::process::Command;

/// First argument with which the agent's program runs as a connection keeper.
pub const ARGUMENT: &str = "hold-connection";
/// The program of this process, even if its file was replaced.
const OWN_PROGRAM: &str = "/proc/self/exe";
/// How long a connection is kept open after the agent's death: the deadline of the longest call.
const LINGER: Duration = Duration::from_secs(120);
/// How long a keeper lives without calls in flight, because the next call may follow soon.
const IDLE: Duration = Duration::from_secs(5);
/// Size of reads of responses that are discarded.
const CHUNK: usize = 4096;

/// The calls in flight on one connection that change something, and their keeper process.
#[derive(Debug, Default)]
pub struct KeptConnection(Mutex<KeeperState>);

#[derive(Debug, Default)]
struct KeeperState {
    connection: Option<OwnedFd>,
    holder: Option<KeeperProcess>,
    calls: usize,
    /// Number of calls begun, to detect whether any began during a pause.
    begun: u64,
}

/// A keeper process; closing its pipe ends it.
#[derive(Debug)]
struct KeeperProcess {
    pipe: File,
}

/// A call in flight.
#[derive(Debug)]
pub struct CallGuard {
    holding: Arc<KeptConnection>,
}

impl KeptConnection {
    /// Replaces the connection by a new one.
    pub(crate) fn set_connection(&self, connection: &tokio::net::UnixStream) {
        let mut state = self.lock();
        // Ends the keeper of the previous connection.
        if let Some(holder) = state.holder.take() {
            holder.end();
        }
        state.connection = connection.as_fd().try_clone_to_owned().ok();
        if state.calls > 0 {
            state.ensure_keeper();
        }
    }

    /// Begins a call, which ends when the returned guard is dropped.
    pub(crate) fn begin_call(self: &Arc<Self>) -> CallGuard {
        let mut state = self.lock();
        state.calls = state.calls.saturating_add(1);
        state.begun = state.begun.saturating_add(1);
        state.ensure_keeper();
        CallGuard { holding: self.clone() }
    }

    fn lock(&self) -> MutexGuard<'_, KeeperState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the keeper if no call has begun since `begun`.
    fn end_if_idle(&self, begun: u64) {
        let mut state = self.lock();
        if state.calls == 0
            && state.begun == begun
            && let Some(holder) = state.holder.take()
        {
            holder.end();
        }
    }
}

impl KeeperState {
    /// Starts a keeper if there is none. Without one calls still work, but do not survive the agent.
    fn ensure_keeper(&mut self) {
        if self.holder.is_some() {
            return;
        }
        let Some(connection) = &self.connection else { return };
        match connection.try_clone().and_then(KeeperProcess::start) {
            Ok(holder) => self.holder = Some(holder),
            Err(error) => {
                tracing::warn!(%error, "no connection keeper: runtime calls in flight end if this process dies")
            }
        }
    }
}

impl Drop for CallGuard {
    fn drop(&mut self) {
        let mut state = self.holding.lock();
        state.calls = state.calls.saturating_sub(1);
        if state.calls > 0 {
            return;
        }
        let (holding, begun) = (self.holding.clone(), state.begun);
        drop(state);
        // Outside of an async runtime the keeper lives until the process ends.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move {
                tokio::time::sleep(IDLE).await;
                holding.end_if_idle(begun);
            });
        }
    }
}

impl KeeperProcess {
    fn start(connection: OwnedFd) -> std::io::Result<KeeperProcess> {
        let mut holder = Command::new(OWN_PROGRAM);
        // Standard output is never written to; it is the descriptor through which the keeper inherits the connection.
        holder.arg(ARGUMENT).stdin(Stdio::piped()).stdout(connection).stderr(Stdio::null());
        // Does not block unmounts and receives no signals from a terminal.
        holder.current_dir("/").process_group(0).env_clear();
        // Reaped in the background after it exited.
        let pipe = holder.spawn()?.stdin.take().ok_or(ErrorKind::BrokenPipe)?;
        Ok(KeeperProcess { pipe: File::from(pipe.into_owned_fd()?) })
    }

    /// Ends the keeper: no call is in flight.
    fn end(mut self) {
        // The keeper may have exited already.
        drop(self.pipe.write(b"."));
    }
}

/// Runs the keeper: standard input is the pipe, standard output the connection.
#[must_use]
pub fn run() -> ExitCode {
    match wait() {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

fn wait() -> std::io::Result<()> {
    let mut chunk = [0; CHUNK];
    if std::io::stdin().read(&mut chunk)? > 0 {
        return Ok(());
    }
    let mut connection = UnixStream::from(std::io::stdout().as_fd().try_clone_to_owned()?);
    connection.set_nonblocking(false)?;
    let began = Instant::now();
    loop {
        let left = LINGER.saturating_sub(began.elapsed());
        if left.is_zero() {
            return Ok(());
        }
        connection.set_read_timeout(Some(left))?;
        match connection.read(&mut chunk) {
            Ok(0) => return Ok(()),
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                return Ok(());
            }
            Err(error) => return Err(error),
        }
    }
}
