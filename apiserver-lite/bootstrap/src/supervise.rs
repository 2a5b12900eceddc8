//! Keeps a program running where systemd does not: starts it or adopts it, restarts it when it exits, stops it on request.

use std::io;
use std::process::{Child, Command};
use std::time::Duration;

use proto_daemon::backoff::{Backoff, Retries};
use tokio::sync::watch;
use tokio::time::timeout;

use crate::processes::ProcessHandle;
use crate::sys;

/// Pauses before a program that ended is started again.
const RESTART: Backoff =
    Backoff { first: Duration::from_millis(100), longest: Duration::from_secs(5) };
/// A program that ran this long starts with the shortest pause again.
const SETTLED: Duration = Duration::from_secs(10);
/// Time a program gets between SIGTERM and SIGKILL.
pub const STOP_GRACE: Duration = Duration::from_secs(10);

/// What a program's task is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DesiredState {
    /// Keep it running.
    Run,
    /// Stop it and end the task.
    Stop,
    /// Leave the program running and end the task.
    Detach,
}

/// A program that runs.
pub struct RunningProgram {
    /// Its process.
    pub handle: ProcessHandle,
    /// Set when it is our child and has to be reaped.
    pub child: Option<Child>,
}

impl RunningProgram {
    fn reap(&mut self, name: &str) {
        match self.child.as_mut().map(Child::wait) {
            Some(Ok(status)) => eprintln!("{name}: ended, {status}"),
            Some(Err(e)) => eprintln!("{name}: ended, {e}"),
            None => eprintln!("{name}: ended"),
        }
    }
}

/// Why a program could not be started.
pub type StartError = Box<dyn std::error::Error + Send + Sync>;

/// How a program is found when it runs already, and started otherwise.
pub trait StartProgram {
    /// Adopts or starts it. An error is logged and retried after a pause.
    fn adopt_or_start(&self) -> impl Future<Output = Result<RunningProgram, StartError>> + Send;
}

/// Keeps one program running until it is to stop.
pub async fn keep(
    name: &str,
    program: &impl StartProgram,
    mut wishes: watch::Receiver<DesiredState>,
) {
    let mut restarts = Retries::new(RESTART);
    loop {
        let began = tokio::time::Instant::now();
        match program.adopt_or_start().await {
            Ok(mut running) => {
                // Cancel-safe: both futures only observe.
                let wish = tokio::select! {
                    _ = running.handle.ended() => DesiredState::Run,
                    wish = wait_for_stop(&mut wishes) => wish,
                };
                match wish {
                    DesiredState::Run => running.reap(name),
                    DesiredState::Stop => return stop(name, running).await,
                    DesiredState::Detach => return,
                }
            }
            Err(e) => eprintln!("{name}: {}", proto_daemon::exit::chain(e.as_ref())),
        }
        if began.elapsed() > SETTLED {
            restarts.reset();
        }
        // Cancel-safe: a wish that comes during the pause is still there at the next look.
        if timeout(restarts.next_delay(1.0), wait_for_stop(&mut wishes)).await.is_ok() {
            return;
        }
    }
}

async fn stop(name: &str, mut running: RunningProgram) {
    match running.handle.stop(STOP_GRACE).await {
        Ok(()) => {
            if let Some(child) = &mut running.child {
                let _reaped = child.wait();
            }
        }
        Err(e) => eprintln!("{name}: {e}"),
    }
}

/// Resolves with the desired state when the program is no longer to run; a dropped sender means stop.
async fn wait_for_stop(wishes: &mut watch::Receiver<DesiredState>) -> DesiredState {
    wishes
        .wait_for(|wish| *wish != DesiredState::Run)
        .await
        .map_or(DesiredState::Stop, |wish| *wish)
}

/// Makes `command` leave the caller's session and keep none of its descriptors but the standard ones.
pub fn detach(command: &mut Command) {
    sys::run_in_new_session(command);
}

/// A message for a program that ended before it could be held.
pub fn ended_at_once(child: &mut Child) -> io::Error {
    match child.wait() {
        Ok(status) => io::Error::other(format!("ended at once, {status}")),
        Err(error) => error,
    }
}
