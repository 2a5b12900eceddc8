//! Calls to the runtime outlive the agent that made them.
//!
//! A runtime cancels the calls of a connection that closes, and a start that is cancelled half way leaves a container that has
//! failed, or has run and was killed. When the agent dies all its connections close. So while calls are under way that change
//! something, a small process, the holder, keeps the connection open beyond the agent's end: they come to theirs, and the next agent
//! finds what they did.
//!
//! ```text
//!   agent ══ connection ══ runtime
//!     │           ║
//!    pipe ──► holder        reads the pipe: a byte, and it ends; the end of the agent, and it reads the connection until that
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

/// First argument of the agent's own program that makes it a holder.
pub const ARGUMENT: &str = "hold-connection";
/// The agent's own program, also when its file was replaced meanwhile.
const OWN_PROGRAM: &str = "/proc/self/exe";
/// How long a connection is held: as long as a call may take.
const LINGER: Duration = Duration::from_secs(120);
/// How long a holder is kept when no call is under way: the next may come soon.
const IDLE: Duration = Duration::from_secs(5);
/// What is read at a time of what nobody waits for any more.
const CHUNK: usize = 4096;

/// The calls of one connection that change something, and their holder while there are any.
#[derive(Debug, Default)]
pub struct Holding(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    connection: Option<OwnedFd>,
    holder: Option<Holder>,
    calls: usize,
    /// Counts calls that have begun, so that a pause is known to have been one.
    begun: u64,
}

/// Whatever ends it, the pipe tells.
#[derive(Debug)]
struct Holder {
    pipe: File,
}

/// A call under way.
#[derive(Debug)]
pub struct Busy {
    holding: Arc<Holding>,
}

impl Holding {
    /// Takes note of a new connection in the place of the last one.
    pub(crate) fn connected(&self, connection: &tokio::net::UnixStream) {
        let mut state = self.lock();
        // A holder of the last connection lets it go.
        if let Some(holder) = state.holder.take() {
            holder.end();
        }
        state.connection = connection.as_fd().try_clone_to_owned().ok();
        if state.calls > 0 {
            state.hold();
        }
    }

    /// A call begins; it ends when what is given back is dropped.
    pub(crate) fn begin(self: &Arc<Self>) -> Busy {
        let mut state = self.lock();
        state.calls = state.calls.saturating_add(1);
        state.begun = state.begun.saturating_add(1);
        state.hold();
        Busy { holding: self.clone() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets the holder go if nothing has begun since.
    fn pause(&self, begun: u64) {
        let mut state = self.lock();
        if state.calls == 0
            && state.begun == begun
            && let Some(holder) = state.holder.take()
        {
            holder.end();
        }
    }
}

impl State {
    /// Sees to it that there is a holder. Without one calls work as well, until the agent dies.
    fn hold(&mut self) {
        if self.holder.is_some() {
            return;
        }
        let Some(connection) = &self.connection else { return };
        match connection.try_clone().and_then(Holder::start) {
            Ok(holder) => self.holder = Some(holder),
            Err(error) => tracing::warn!(%error, "calls to the runtime end with this agent"),
        }
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        let mut state = self.holding.lock();
        state.calls = state.calls.saturating_sub(1);
        if state.calls > 0 {
            return;
        }
        let (holding, begun) = (self.holding.clone(), state.begun);
        drop(state);
        // Outside of the async runtime nobody waits: the holder ends with the process.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move {
                tokio::time::sleep(IDLE).await;
                holding.pause(begun);
            });
        }
    }
}

impl Holder {
    fn start(connection: OwnedFd) -> std::io::Result<Holder> {
        let mut holder = Command::new(OWN_PROGRAM);
        // Nothing is ever written there: it is only a place that every program hands on.
        holder.arg(ARGUMENT).stdin(Stdio::piped()).stdout(connection).stderr(Stdio::null());
        // Not in the way of an unmount, and not told what is typed at a terminal.
        holder.current_dir("/").process_group(0).env_clear();
        // Reaped in the background once it has ended.
        let pipe = holder.spawn()?.stdin.take().ok_or(ErrorKind::BrokenPipe)?;
        Ok(Holder { pipe: File::from(pipe.into_owned_fd()?) })
    }

    /// Nothing is under way: it need not linger.
    fn end(mut self) {
        // One that has ended by itself is as well.
        drop(self.pipe.write(b"."));
    }
}

/// The holder: standard input is the pipe, standard output the connection.
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
