//! The programs of a host without systemd: this process starts them, restarts what ends, and stops them when it is told to end. Who runs is recorded, so that
//! another orchadm finds it, and a new supervisor adopts what one that was killed has left.

use std::fs::{File, OpenOptions};
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, Result, bail};
use apiserver_bootstrap::arguments::Program;
use apiserver_bootstrap::layout::Layout;
use apiserver_bootstrap::processes::{Handle, Identity, command_line, find_unrecorded};
use apiserver_bootstrap::supervise::{
    DesiredState, RunningProgram, STOP_GRACE, StartError, StartProgram, detach, ended_at_once, keep,
};
use proto_daemon::private_files;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use apiserver_bootstrap::record::Record;

/// The record of the supervisor among those of programs.
const SUPERVISOR: &str = "supervisor";
/// A log that is longer than this when it is opened is set aside.
const LOG_BYTES_MAX: u64 = 32 << 20;

/// The programs that this process keeps running.
pub struct Supervisor {
    layout: Layout,
    kept: Vec<(String, watch::Sender<DesiredState>, JoinHandle<()>)>,
}

impl Supervisor {
    /// Becomes the supervisor of this host.
    ///
    /// # Errors
    /// There is one.
    pub fn begin(layout: &Layout) -> Result<Self> {
        if let Some(other) = find(layout, SUPERVISOR) {
            bail!(
                "process {} of orchadm keeps this host's programs running: end it first, with SIGTERM",
                other.identity.pid
            );
        }
        let own = i32::try_from(std::process::id())?;
        record(layout, SUPERVISOR, Identity::of(own)?)?;
        Ok(Self { layout: layout.clone(), kept: Vec::new() })
    }

    /// Keeps a program of the record running.
    pub fn keep(&mut self, name: &str) {
        if self.kept.iter().any(|(kept, ..)| kept == name) {
            return;
        }
        let (wish, wishes) = watch::channel(DesiredState::Run);
        let program = HostProgram { layout: self.layout.clone(), name: name.to_owned() };
        let task = tokio::spawn(async move { keep(&program.name, &program, wishes).await });
        self.kept.push((name.to_owned(), wish, task));
    }

    /// Stops the programs, last started first.
    ///
    /// # Errors
    /// A task failed.
    pub async fn stop(self) -> Result<()> {
        for (name, wish, task) in self.kept.into_iter().rev() {
            wish.send_replace(DesiredState::Stop);
            task.await.with_context(|| format!("stopping {name}"))?;
            private_files::remove_private(&self.layout.process(&name))?;
        }
        Ok(private_files::remove_private(&self.layout.process(SUPERVISOR))?)
    }
}

/// A program of the record, for its task: a changed record counts from the next start on.
struct HostProgram {
    layout: Layout,
    name: String,
}

impl StartProgram for HostProgram {
    async fn adopt_or_start(&self) -> Result<RunningProgram, StartError> {
        let known = Record::load(&self.layout.root)?.context("the record is gone")?;
        let program = known.program(&self.name).context("the record does not have it")?;
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

fn start(layout: &Layout, program: &Program) -> Result<(Handle, Child)> {
    let (executable, arguments) = program.argv.split_first().context("an empty command line")?;
    let mut command = Command::new(executable);
    let log = open_log(layout, &program.name)?;
    command.args(arguments).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
    detach(&mut command);
    let mut child = command.spawn().with_context(|| format!("starting {executable}"))?;
    let identity = Identity::of(i32::try_from(child.id())?)?;
    record(layout, &program.name, identity)?;
    match identity.open() {
        Some(handle) => Ok((handle, child)),
        None => Err(ended_at_once(&mut child).into()),
    }
}

fn open_log(layout: &Layout, program: &str) -> Result<File> {
    let path = layout.log(program);
    private_files::create_private_dir(&layout.logs)?;
    if std::fs::metadata(&path).is_ok_and(|meta| meta.len() > LOG_BYTES_MAX) {
        std::fs::rename(&path, path.with_extension("log.1"))?;
    }
    match private_files::create_private(&path) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
            return Err(error).with_context(|| path.display().to_string());
        }
        _ => {}
    }
    private_files::open_private(&path, OpenOptions::new().append(true))
        .with_context(|| path.display().to_string())
}

fn record(layout: &Layout, name: &str, identity: Identity) -> Result<()> {
    private_files::create_private_dir(&layout.run)?;
    let path = layout.process(name);
    private_files::write_private_atomically(&path, &serde_json::to_vec(&identity)?)
        .with_context(|| path.display().to_string())
}

/// The running process of a program of this host.
pub fn find(layout: &Layout, name: &str) -> Option<Handle> {
    let bytes = std::fs::read(layout.process(name)).ok()?;
    serde_json::from_slice::<Identity>(&bytes).ok()?.open()
}

/// The supervisor of this host, if it runs.
pub fn find_supervisor(layout: &Layout) -> Option<Handle> {
    find(layout, SUPERVISOR)
}

/// Resolves when this process is to end.
///
/// # Errors
/// Signals cannot be received.
pub fn stop_signal() -> Result<impl Future<Output = ()>> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    Ok(async move {
        // Cancel-safe: what is not received stays.
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
}

/// `orchadm run`: keeps the programs of this host running until it is told to end.
///
/// # Errors
/// There is nothing to run, or it runs.
pub async fn run(host: &crate::host::Host) -> Result<()> {
    let stop = stop_signal()?;
    let known = host.known()?;
    if crate::host::has_systemd(&host.layout) {
        bail!("systemd runs the programs of this host: `systemctl status orchlet`");
    }
    let mut supervisor = Supervisor::begin(&host.layout)?;
    for program in &known.programs {
        supervisor.keep(&program.name);
        host.output.say("run", &format!("{} is kept running", program.name));
    }
    stop.await;
    host.output.say("run", "stopping the programs");
    supervisor.stop().await
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use apiserver_bootstrap::preflight::Role;
    use proto_api::names::{Names, Profile};

    use super::*;

    async fn until(what: &str, mut holds: impl FnMut() -> bool) {
        for _ in 0..1000 {
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
        let mut record = Record::new(names, Role::Node, "n", "");
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
    async fn what_a_killed_supervisor_left_is_adopted() {
        let root = tempfile::tempdir().unwrap();
        let names = Names::new(Profile::Kubernetes);
        let layout = Layout::new(names, root.path());
        let mut record = Record::new(names, Role::Node, "n", "");
        let argv = vec!["/bin/sleep".to_owned(), format!("3{}", std::process::id())];
        record.put(&Program { name: "sleeper".into(), argv });
        record.store(&layout).unwrap();
        let (left, mut child) = start(&layout, record.program("sleeper").unwrap()).unwrap();
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
