//! Programs of the node that mount, make file systems and attach disks. They are started by their absolute paths: no search, no shell,
//! no environment. Of each name some may run, and some may be left over after their deadlines; the pods of one namespace have a share of
//! both, so that they do not take them from others.

mod slots;

use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use agent_volume::disk::{PROGRAM_DIRS, ProgramOutput, ProgramRun};
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::process::{Child, Command};
use tokio::sync::oneshot;

use self::slots::{Slot, Slots};

/// Characters of a program's message that go into an error.
const MESSAGE_LEN_MAX: usize = 512;
/// Bytes of a program's output that are kept; the rest is read and dropped.
const OUTPUT_LEN_MAX: u64 = 64 << 10;
/// Most programs of one name that may be left over after their deadlines, each waiting in the kernel for a device or server.
const OVERDUE_MAX: usize = 128;
/// Of these, programs for the pods of one namespace. No more are started then; those that run already may be left over as well.
const OVERDUE_OF_NAMESPACE_MAX: usize = 16;

/// Runs programs of the node.
pub trait Helpers: Send + Sync {
    /// Runs a program to its end.
    ///
    /// # Errors
    /// See [`HelperError`].
    fn run<'a>(&'a self, run: &'a ProgramRun) -> BoxFuture<'a, Result<ProgramOutput, HelperError>>;
}

/// Why a program did not do its work.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HelperError {
    /// There is no such program: what needs it cannot exist either.
    #[error("{0} is not on this node")]
    Missing(String),
    /// It cannot be started.
    #[error("cannot start {program}: {error}")]
    Start {
        /// Name of the program.
        program: String,
        /// Why.
        error: String,
    },
    /// It did not end in time and was killed. It may wait in the kernel and be there still.
    #[error("{program} did not end within {secs} s")]
    Timeout {
        /// Name of the program.
        program: String,
        /// Its deadline in seconds.
        secs: u64,
    },
    /// The same command was given before, was killed at its deadline and still waits in the kernel. It was not started again.
    #[error("an earlier {0} with the same arguments was killed and has not ended")]
    StillRunning(String),
    /// Too many commands of this program wait in the kernel. It was not started.
    #[error("{OVERDUE_MAX} commands of {0} were killed and have not ended")]
    TooManyOverdue(String),
    /// Too many commands of this program for pods of one namespace wait in the kernel. It was not started.
    #[error(
        "{OVERDUE_OF_NAMESPACE_MAX} commands of {program} for pods in namespace {namespace} were killed and have not ended"
    )]
    TooManyOverdueOfNamespace {
        /// Name of the program.
        program: String,
        /// Where the pods are whose commands wait.
        namespace: String,
    },
    /// It ended with a status that stands for a failure.
    #[error("{program}: {status}: {message}")]
    Exit {
        /// Name of the program.
        program: String,
        /// Its exit code; `None` when a signal ended it.
        code: Option<i32>,
        /// The status in words.
        status: String,
        /// What it printed.
        message: String,
    },
}

/// The programs of this node.
#[derive(Clone, Debug)]
pub struct NodeHelpers {
    dirs: Arc<[PathBuf]>,
    overdue: Arc<Mutex<Vec<ProgramRun>>>,
    slots: Arc<Slots>,
}

impl Default for NodeHelpers {
    fn default() -> Self {
        Self::in_dirs(PROGRAM_DIRS.map(PathBuf::from).to_vec())
    }
}

impl Helpers for NodeHelpers {
    fn run<'a>(&'a self, run: &'a ProgramRun) -> BoxFuture<'a, Result<ProgramOutput, HelperError>> {
        self.start(run).boxed()
    }
}

impl NodeHelpers {
    /// Programs that lie in these directories.
    pub fn in_dirs(dirs: Vec<PathBuf>) -> Self {
        Self { dirs: dirs.into(), overdue: Arc::default(), slots: Arc::default() }
    }

    async fn start(&self, run: &ProgramRun) -> Result<ProgramOutput, HelperError> {
        let program = &run.program;
        self.check_overdue(run)?;
        let path = self.find(program).ok_or_else(|| HelperError::Missing(program.clone()))?;
        let slot = self.slots.take(run).await;
        // Those that ran meanwhile may be overdue by now.
        self.check_overdue(run)?;
        let mut command = Command::new(path);
        command.args(&run.args).env_clear().kill_on_drop(true);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let failed = |error: std::io::Error| HelperError::Start {
            program: program.clone(),
            error: error.to_string(),
        };
        let child = command.spawn().map_err(failed)?;
        let (send, outcome) = oneshot::channel();
        // In a task of its own, which outlives the caller if the program cannot be killed.
        tokio::spawn(wait(child, run.clone(), slot, self.overdue.clone(), send));
        let Ok(ended) = outcome.await else {
            return Err(failed(std::io::Error::other("the wait for it was cancelled")));
        };
        let Some(ended) = ended else {
            return Err(HelperError::Timeout {
                program: program.clone(),
                secs: run.timeout.as_secs(),
            });
        };
        let Output { status, out, err } = ended.map_err(failed)?;
        let code = status.code();
        if status.success() || code.is_some_and(|code| run.accepted.contains(&code)) {
            return Ok(ProgramOutput { exit: code, stdout: out });
        }
        let message = if err.trim().is_empty() { out } else { err };
        let message = message.trim().chars().take(MESSAGE_LEN_MAX).collect();
        let status = status.to_string();
        Err(HelperError::Exit { program: program.clone(), code, status, message })
    }

    fn check_overdue(&self, run: &ProgramRun) -> Result<(), HelperError> {
        let overdue = lock(&self.overdue);
        let same: Vec<_> = overdue.iter().filter(|other| other.program == run.program).collect();
        if same.iter().any(|other| other.args == run.args) {
            return Err(HelperError::StillRunning(run.program.clone()));
        }
        let counted = same.into_iter().filter(|other| other.forced == run.forced);
        let of_namespace = counted.clone().filter(|other| other.namespace == run.namespace);
        if !run.namespace.is_empty() && of_namespace.count() >= OVERDUE_OF_NAMESPACE_MAX {
            return Err(HelperError::TooManyOverdueOfNamespace {
                program: run.program.clone(),
                namespace: run.namespace.clone(),
            });
        }
        if counted.count() >= OVERDUE_MAX {
            return Err(HelperError::TooManyOverdue(run.program.clone()));
        }
        Ok(())
    }

    fn find(&self, program: &str) -> Option<PathBuf> {
        self.dirs.iter().map(|dir| dir.join(program)).find(|path| path.exists())
    }
}

/// How a program ended, and what it printed.
struct Output {
    status: ExitStatus,
    out: String,
    err: String,
}

/// Waits for a program and sends how it ended, or `None` at its deadline. At the deadline, or when the receiver is dropped, the program is
/// killed and listed as overdue until it has ended; others may run in its place.
async fn wait(
    mut child: Child,
    run: ProgramRun,
    slot: Slot,
    overdue: Arc<Mutex<Vec<ProgramRun>>>,
    mut send: oneshot::Sender<Option<std::io::Result<Output>>>,
) {
    let (out, err) = (read(child.stdout.take()), read(child.stderr.take()));
    // Cancel safe: after the other arms only the end of the program matters.
    let ended = tokio::select! {
        (status, out, err) = async { tokio::join!(child.wait(), out, err) } => {
            Some(status.map(|status| Output { status, out, err }))
        }
        () = tokio::time::sleep(run.timeout) => None,
        () = send.closed() => None,
    };
    if ended.is_some() {
        // The receiver may have been dropped meanwhile.
        let _ = send.send(ended);
        return;
    }
    lock(&overdue).push(run.clone());
    drop(slot);
    // It may have ended just now.
    let _ = child.start_kill();
    let _ = send.send(None);
    if let Err(error) = child.wait().await {
        tracing::error!(program = run.program, %error, "a killed program cannot be waited for");
    }
    let mut overdue = lock(&overdue);
    if let Some(at) = overdue.iter().position(|other| *other == run) {
        overdue.swap_remove(at);
    }
}

/// Reads what a program prints to its end, and returns the first [`OUTPUT_LEN_MAX`] bytes.
async fn read(pipe: Option<impl AsyncRead + Unpin>) -> String {
    let mut text = Vec::new();
    if let Some(mut pipe) = pipe {
        // What was printed before an error is kept.
        let _ = (&mut pipe).take(OUTPUT_LEN_MAX).read_to_end(&mut text).await;
        let _ = tokio::io::copy(&mut pipe, &mut tokio::io::sink()).await;
    }
    String::from_utf8_lossy(&text).into_owned()
}

fn lock(overdue: &Mutex<Vec<ProgramRun>>) -> MutexGuard<'_, Vec<ProgramRun>> {
    overdue.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use futures_util::future::join_all;

    use super::super::tests::count_processes;
    use super::*;

    /// Helpers whose program `name` is this one of the node's.
    fn helpers(dir: &tempfile::TempDir, name: &str, is: &str) -> NodeHelpers {
        std::os::unix::fs::symlink(is, dir.path().join(name)).expect("linked");
        NodeHelpers::in_dirs(vec![dir.path().to_owned()])
    }

    #[tokio::test]
    async fn output_is_read_to_its_end_and_kept_up_to_a_bound() {
        let dir = tempfile::tempdir().expect("tempdir");
        let helpers = helpers(&dir, "cat", "/usr/bin/cat");
        let file = dir.path().join("output");
        // More than a pipe holds.
        std::fs::write(&file, vec![b'x'; 1 << 20]).expect("written");
        let run = ProgramRun::new("cat", &[&file.to_string_lossy()]);
        let output = helpers.run(&run).await.expect("it ends");
        assert_eq!(output.stdout.len() as u64, OUTPUT_LEN_MAX);
    }

    #[tokio::test]
    async fn commands_of_one_namespace_wait_for_each_other_and_others_run() {
        let dir = tempfile::tempdir().expect("tempdir");
        let helpers = helpers(&dir, "tail", "/usr/bin/tail");
        // They never end.
        let of = |namespace: &str| {
            let file = dir.path().join(namespace);
            std::fs::write(&file, "").expect("written");
            ProgramRun::new("tail", &["-f", &file.to_string_lossy()]).for_namespace(namespace)
        };
        let (own, other) = (of("a"), of("b"));
        let mut all = Box::pin(join_all((0..40).map(|_| helpers.run(&own))));
        assert!((&mut all).now_or_never().is_none());
        let most = slots::RUNNING_OF_NAMESPACE_MAX;
        assert_eq!(count_processes(&dir.path().join("a"), most), most);
        let mut one = helpers.run(&other);
        assert!((&mut one).now_or_never().is_none());
        assert_eq!(count_processes(&dir.path().join("b"), 1), 1);
    }

    /// As many commands as a dead server makes that a user names.
    #[tokio::test]
    async fn commands_of_one_namespace_that_do_not_end_leave_room_for_others() {
        let dir = tempfile::tempdir().expect("tempdir");
        let helpers = helpers(&dir, "umount", "/usr/bin/true");
        let of = |namespace: &str, number: usize| {
            ProgramRun::new("umount", &[&format!("/{namespace}/{number}")]).for_namespace(namespace)
        };
        let leave_over = |run: ProgramRun| {
            let may_start = helpers.check_overdue(&run);
            if may_start.is_ok() {
                lock(&helpers.overdue).push(run);
            }
            may_start
        };
        let refused = (0..2 * OVERDUE_MAX).filter_map(|number| leave_over(of("a", number)).err());
        let refused: Vec<_> = refused.collect();
        helpers.run(&of("b", 0)).await.expect("another namespace has its share");
        helpers.run(&of("", 0)).await.expect("and the node");
        let force = ProgramRun { forced: true, ..of("a", 1000) };
        helpers.run(&force).await.expect("what ends the others is counted apart");
        assert_eq!(refused.len(), 2 * OVERDUE_MAX - OVERDUE_OF_NAMESPACE_MAX);
        let too_many = HelperError::TooManyOverdueOfNamespace {
            program: "umount".to_owned(),
            namespace: "a".to_owned(),
        };
        assert!(refused.iter().all(|error| *error == too_many), "{refused:?}");
        assert_eq!(helpers.run(&of("a", 1000)).await, Err(too_many));
        let still = HelperError::StillRunning("umount".to_owned());
        assert_eq!(helpers.run(&of("a", 0)).await, Err(still));
        // The bound of the node.
        let left = (0..OVERDUE_MAX).filter(|n| leave_over(of(&format!("c{n}"), 0)).is_ok()).count();
        assert_eq!(left, OVERDUE_MAX - OVERDUE_OF_NAMESPACE_MAX);
        let error = helpers.run(&of("b", 0)).await.expect_err("the node has too many");
        assert_eq!(error, HelperError::TooManyOverdue("umount".to_owned()));
    }
}
