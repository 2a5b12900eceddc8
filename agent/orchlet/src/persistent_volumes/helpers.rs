//! Programs of the node that mount, make file systems and attach disks. By their absolute paths: no search, no shell, no environment.

use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use agent_volume::disk::{Answer, PROGRAM_DIRS, Run};
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;

use crate::pods::ports::Line;

/// Deadline of a program.
const DEADLINE: Duration = Duration::from_secs(120);
/// Characters of what a program says that are passed on.
const SAID_MAX: usize = 512;

/// Whoever runs programs of the node.
pub trait Helpers: Send + Sync {
    /// Runs a program to its end.
    ///
    /// # Errors
    /// It is not on the node, cannot be started, does not end, or exits otherwise than it should: what it said.
    fn run<'a>(&'a self, run: &'a Run) -> BoxFuture<'a, Result<Answer, HelperError>>;
}

/// Why a program did not do its work.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HelperError {
    /// There is no such program.
    #[error("{0} is not on this node")]
    Missing(String),
    /// It failed.
    #[error("{0}")]
    Failed(Line),
}

impl From<HelperError> for Line {
    fn from(error: HelperError) -> Self {
        error.to_string()
    }
}

/// This node's.
#[derive(Clone, Copy, Debug, Default)]
pub struct OnNode;

impl Helpers for OnNode {
    fn run<'a>(&'a self, run: &'a Run) -> BoxFuture<'a, Result<Answer, HelperError>> {
        start(run).boxed()
    }
}

async fn start(run: &Run) -> Result<Answer, HelperError> {
    let failed = |line| Err(HelperError::Failed(line));
    let name = run.program.as_str();
    let place = find(name).ok_or_else(|| HelperError::Missing(name.to_owned()))?;
    let mut command = tokio::process::Command::new(place);
    command.args(&run.args).env_clear().stdin(Stdio::null()).kill_on_drop(true);
    let output = match tokio::time::timeout(DEADLINE, command.output()).await {
        Err(_) => return failed(format!("{name} did not end within {} s", DEADLINE.as_secs())),
        Ok(Err(error)) => return failed(format!("start {name}: {error}")),
        Ok(Ok(output)) => output,
    };
    let exit = output.status.code();
    if output.status.success() || exit.is_some_and(|exit| run.fine.contains(&exit)) {
        return Ok(Answer { exit, out: String::from_utf8_lossy(&output.stdout).into_owned() });
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let said = if said.trim().is_empty() { String::from_utf8_lossy(&output.stdout) } else { said };
    let said: String = said.trim().chars().take(SAID_MAX).collect();
    failed(format!("{name}: {}: {said}", output.status))
}

fn find(program: &str) -> Option<PathBuf> {
    let places = PROGRAM_DIRS.iter().map(|directory| PathBuf::from(directory).join(program));
    places.into_iter().find(|place| place.exists())
}
