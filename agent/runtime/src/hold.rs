//! Calls to the runtime outlive the agent that made them.
//!
//! A runtime cancels the calls of a connection that closes, and a start that is cancelled half way leaves a container that has
//! failed, or has run and was killed. When the agent dies all its connections close. So beside each connection to the runtime stands a
//! small process, the holder, that keeps it open a while after the agent's end: the calls under way come to theirs, and the next
//! agent finds what they did.
//!
//! ```text
//!   agent ══ connection ══ runtime
//!     │           ║
//!    pipe ──► holder        reads the pipe until the agent is gone, then the connection until it closes or LINGER is over
//! ```

use std::io::{ErrorKind, Read as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{ExitCode, Stdio};
use std::time::{Duration, Instant};

use tokio::process::{ChildStdin, Command};

/// First argument of the agent's own program that makes it a holder.
pub const ARGUMENT: &str = "hold-connection";
/// The agent's own program, also when its file was replaced meanwhile.
const OWN_PROGRAM: &str = "/proc/self/exe";
/// How long a connection is held: as long as a call may take.
const LINGER: Duration = Duration::from_secs(120);
/// What is read at a time of what nobody waits for any more.
const CHUNK: usize = 4096;

/// Keeps the holder of a connection waiting. Dropped, or with the agent's end, its wait is over.
#[derive(Debug)]
pub struct Held {
    _alive: Option<ChildStdin>,
}

/// Starts a holder for `connection`. Without one calls work as well, until the agent dies.
#[must_use]
pub fn hold(connection: &tokio::net::UnixStream) -> Held {
    let started = connection.as_fd().try_clone_to_owned().and_then(start);
    match started {
        Ok(alive) => Held { _alive: alive },
        Err(error) => {
            tracing::warn!(%error, "calls to the runtime end with this agent");
            Held { _alive: None }
        }
    }
}

fn start(connection: OwnedFd) -> std::io::Result<Option<ChildStdin>> {
    let mut holder = Command::new(OWN_PROGRAM);
    // Nothing is ever written there: it is only a place that every program hands on.
    holder.arg(ARGUMENT).stdin(Stdio::piped()).stdout(connection).stderr(Stdio::null());
    // Not in the way of an unmount, and not told what is typed at a terminal.
    holder.current_dir(Path::new("/")).process_group(0).env_clear();
    // Reaped in the background once it has ended.
    Ok(holder.spawn()?.stdin.take())
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
    // Nobody writes: it ends with the agent.
    while std::io::stdin().read(&mut chunk)? > 0 {}
    let mut connection = UnixStream::from(std::io::stdout().as_fd().try_clone_to_owned()?);
    connection.set_nonblocking(false)?;
    let until = Instant::now() + LINGER;
    loop {
        let left = until.saturating_duration_since(Instant::now());
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
