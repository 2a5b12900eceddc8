//! The programs of a host without systemd: a process starts them, restarts what exits, and stops them when it receives a stop signal. The running ones are
//! recorded, so that another orchadm finds it, and a new supervisor adopts what one that was killed has left.

use std::fs::{File, OpenOptions};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use proto_daemon::private_files;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::arguments::Program;
use crate::error::BootstrapError;
use crate::layout::Layout;
use crate::processes::{ProcessHandle, ProcessIdentity, command_line, find_unrecorded};
use crate::record::HostRecord;
use crate::supervise::{
    DesiredState, RunningProgram, STOP_GRACE, StartError, StartProgram, detach, ended_at_once, keep,
};

/// The record of the supervisor among those of programs.
const SUPERVISOR: &str = "supervisor";
/// A log that is longer than this when it is opened is set aside.
const LOG_BYTES_MAX: u64 = 32 << 20;

/// The programs that this process keeps running.
pub struct Supervisor {
    layout: Layout,
    kept: Vec<Kept>,
}

/// A program and the task that keeps it running.
struct Kept {
    name: String,
    wish: watch::Sender<DesiredState>,
    task: JoinHandle<()>,
    starts: Arc<AtomicU32>,
}

impl Supervisor {
    /// Becomes the supervisor of this host.
    ///
    /// # Errors
    /// There is one.
    pub fn begin(layout: &Layout) -> Result<Self, BootstrapError> {
        if let Some(other) = find(layout, SUPERVISOR) {
            return Err(BootstrapError::Program(format!(
                "process {} of orchadm keeps this host's programs running: end it first, with SIGTERM",
                other.identity.pid
            )));
        }
        record(layout, SUPERVISOR, identity_of(std::process::id())?)?;
        Ok(Self { layout: layout.clone(), kept: Vec::new() })
    }

    /// Keeps a program of the record running.
    pub fn keep(&mut self, name: &str) {
        if self.kept.iter().any(|kept| kept.name == name) {
            return;
        }
        let (wish, wishes) = watch::channel(DesiredState::Run);
        let starts = Arc::new(AtomicU32::new(0));
        let (layout, name) = (self.layout.clone(), name.to_owned());
        let program = HostProgram { layout, name: name.clone(), starts: starts.clone() };
        let task = tokio::spawn(async move { keep(&program.name, &program, wishes).await });
        self.kept.push(Kept { name, wish, task, starts });
    }

    /// How often a program was started, or tried to be.
    pub fn starts(&self, name: &str) -> u32 {
        let kept = self.kept.iter().find(|kept| kept.name == name);
        kept.map(|kept| kept.starts.load(Ordering::Relaxed)).unwrap_or_default()
    }

    /// Stops the programs, last started first.
    ///
    /// # Errors
    /// A task failed.
    pub async fn stop(self) -> Result<(), BootstrapError> {
        for Kept { name, wish, task, .. } in self.kept.into_iter().rev() {
            wish.send_replace(DesiredState::Stop);
            task.await.map_err(BootstrapError::system(format!("cannot stop {name}")))?;
            forget(&self.layout, &name)?;
        }
        forget(&self.layout, SUPERVISOR)
    }
}

/// A program of the record, for its task: a changed record counts from the next start on.
struct HostProgram {
    layout: Layout,
    name: String,
    starts: Arc<AtomicU32>,
}

impl StartProgram for HostProgram {
    async fn adopt_or_start(&self) -> Result<RunningProgram, StartError> {
        self.starts.fetch_add(1, Ordering::Relaxed);
        let known =
            HostRecord::load(&self.layout.root)?.ok_or("the record of this host was removed")?;
        let program =
            known.program(&self.name).ok_or("the record of this host has no such program")?;
        if let Some(handle) =
            find(&self.layout, &self.name).or_else(|| find_unrecorded(&program.argv))
        {
            if command_line(handle.identity.pid) == program.argv {
                record(&self.layout, &self.name, handle.identity)?;
                return Ok(RunningProgram { handle, child: None });
            }
            handle.stop(STOP_GRACE).await?;
        }
        let (handle, child) = start(&self.layout, program)?;
        Ok(RunningProgram { handle, child: Some(child) })
    }
}

fn start(layout: &Layout, program: &Program) -> Result<(ProcessHandle, Child), BootstrapError> {
    let starting = || format!("starting {}", program.name);
    let empty = || BootstrapError::Program(format!("{}: its command line is empty", program.name));
    let (executable, arguments) = program.argv.split_first().ok_or_else(empty)?;
    let mut command = Command::new(executable);
    let log = open_log(layout, &program.name)?;
    let errors = log.try_clone().map_err(BootstrapError::system(starting()))?;
    command.args(arguments).stdin(Stdio::null()).stdout(log).stderr(errors);
    detach(&mut command);
    let mut child =
        command.spawn().map_err(BootstrapError::system(format!("cannot start {executable}")))?;
    let identity = identity_of(child.id())?;
    record(layout, &program.name, identity)?;
    match identity.open() {
        Some(handle) => Ok((handle, child)),
        None => Err(BootstrapError::system(starting())(ended_at_once(&mut child))),
    }
}

fn open_log(layout: &Layout, program: &str) -> Result<File, BootstrapError> {
    let path = layout.log(program);
    private_files::create_private_dir(&layout.logs).map_err(BootstrapError::file(&layout.logs))?;
    if std::fs::metadata(&path).is_ok_and(|meta| meta.len() > LOG_BYTES_MAX) {
        std::fs::rename(&path, path.with_extension("log.1"))
            .map_err(BootstrapError::file(&path))?;
    }
    match private_files::create_private(&path) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
            return Err(BootstrapError::file(&path)(error));
        }
        _ => {}
    }
    private_files::open_private(&path, OpenOptions::new().append(true))
        .map_err(BootstrapError::file(&path))
}

fn identity_of(pid: u32) -> Result<ProcessIdentity, BootstrapError> {
    let failed = BootstrapError::system(format!("looking at process {pid}"));
    i32::try_from(pid)
        .map_err(std::io::Error::other)
        .and_then(ProcessIdentity::from_pid)
        .map_err(failed)
}

fn record(layout: &Layout, name: &str, identity: ProcessIdentity) -> Result<(), BootstrapError> {
    let path = layout.process(name);
    private_files::create_private_dir(&layout.run).map_err(BootstrapError::file(&layout.run))?;
    let text = serde_json::to_vec(&identity).map_err(std::io::Error::other);
    text.and_then(|text| private_files::write_private_atomically(&path, &text))
        .map_err(BootstrapError::file(&path))
}

fn forget(layout: &Layout, name: &str) -> Result<(), BootstrapError> {
    let path = layout.process(name);
    private_files::remove_private(&path).map_err(BootstrapError::file(&path))
}

/// The running process of a program of this host.
pub fn find(layout: &Layout, name: &str) -> Option<ProcessHandle> {
    let bytes = std::fs::read(layout.process(name)).ok()?;
    serde_json::from_slice::<ProcessIdentity>(&bytes).ok()?.open()
}

/// The supervisor of this host, if it runs.
pub fn find_supervisor(layout: &Layout) -> Option<ProcessHandle> {
    find(layout, SUPERVISOR)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proto_api::names::{Names, Profile};

    use super::*;
    use crate::preflight::Role;

    async fn until(what: &str, mut holds: impl FnMut() -> bool) {
        for _ in 0..12_000 {
            if holds() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        unreachable!("{what}");
    }

    #[tokio::test]
    async fn a_program_is_restarted_with_what_the_record_says_and_stopped_at_the_end() {
        let root = tempfile::tempdir().unwrap();
        let names = Names::new(Profile::Kubernetes);
        let layout = Layout::new(names, root.path());
        let mut record = HostRecord::new(names, Role::Node, "n", "");
        let program = |seconds: &str| Program {
            name: "sleeper".into(),
            argv: vec!["/bin/sleep".into(), seconds.into()],
        };
        record.put(&program("1000"));
        record.store(&layout).unwrap();
        let mut supervisor = Supervisor::begin(&layout).unwrap();
        assert!(Supervisor::begin(&layout).is_err(), "there is one");
        supervisor.keep("sleeper");
        let line = || find(&layout, "sleeper").map(|p| command_line(p.identity.pid));
        let runs = |seconds: &str| line() == Some(program(seconds).argv);
        until("it runs", || runs("1000")).await;
        record.put(&program("2000"));
        record.store(&layout).unwrap();
        find(&layout, "sleeper").unwrap().signal(nix::sys::signal::Signal::SIGKILL).unwrap();
        until("it runs as the record says now", || runs("2000")).await;
        supervisor.stop().await.unwrap();
        assert!(find(&layout, "sleeper").is_none() && find_supervisor(&layout).is_none());
    }

    #[tokio::test]
    async fn programs_of_a_killed_supervisor_are_adopted() {
        let root = tempfile::tempdir().unwrap();
        let names = Names::new(Profile::Kubernetes);
        let layout = Layout::new(names, root.path());
        let mut record = HostRecord::new(names, Role::Node, "n", "");
        let argv = vec!["/bin/sleep".to_owned(), format!("3{}", std::process::id())];
        record.put(&Program { name: "sleeper".into(), argv });
        record.store(&layout).unwrap();
        let (left, mut child) = start(&layout, record.program("sleeper").unwrap()).unwrap();
        // It has none for a moment after its start.
        let line = &record.program("sleeper").unwrap().argv;
        until("it has a command line", || command_line(left.identity.pid) == *line).await;
        // It was killed before it recorded what it had started.
        private_files::remove_private(&layout.process("sleeper")).unwrap();
        let mut supervisor = Supervisor::begin(&layout).unwrap();
        supervisor.keep("sleeper");
        until("it is recorded", || find(&layout, "sleeper").is_some()).await;
        assert_eq!(find(&layout, "sleeper").unwrap().identity, left.identity);
        supervisor.stop().await.unwrap();
        child.wait().unwrap();
    }
}
