//! The process that keeps a cluster's programs running: starts them in order, restarts what ends, adopts what it finds.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};
use apiserver_bootstrap::supervise::{
    DesiredState, RunningProgram, STOP_GRACE, StartError, StartProgram, detach, ended_at_once, keep,
};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use crate::files::{self, make_dir, write_file};
use crate::processes::{ProcessHandle, ProcessIdentity};
use crate::programs::{Program, ReadinessCheck, programs};
use crate::spec::Spec;
use crate::{namespaces, sys};

/// How long the programs after it wait for one to be ready; then they start all the same.
const READY_WAIT: Duration = Duration::from_secs(20);

/// Runs until SIGTERM (stops every program, last started first) or SIGHUP (leaves them to the next supervisor).
pub async fn run(spec: &Spec) -> Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut hang_up = signal(SignalKind::hangup())?;
    let mut tasks: Vec<(watch::Sender<DesiredState>, JoinHandle<()>)> = Vec::new();
    let start_all = async {
        for program in programs(spec) {
            let ready = program.ready.clone();
            let (wish, wishes) = watch::channel(DesiredState::Run);
            let program = OfCluster { spec: spec.clone(), program };
            let task =
                tokio::spawn(async move { keep(&program.program.name, &program, wishes).await });
            tasks.push((wish, task));
            wait_ready(&ready).await;
        }
        std::future::pending::<()>().await;
    };
    // Cancel-safe: start_all is dropped only when everything is to end, and each started task is in `tasks`.
    let last_wish = tokio::select! {
        () = start_all => DesiredState::Stop,
        _ = terminate.recv() => DesiredState::Stop,
        _ = hang_up.recv() => DesiredState::Detach,
    };
    for (wish, task) in tasks.into_iter().rev() {
        wish.send_replace(last_wish);
        task.await.context("a program's task failed")?;
    }
    Ok(())
}

/// A program of the cluster, for its task.
struct OfCluster {
    spec: Spec,
    program: Program,
}

impl StartProgram for OfCluster {
    async fn adopt_or_start(&self) -> Result<RunningProgram, StartError> {
        if let Some(handle) = find(&self.spec, &self.program.name) {
            return Ok(RunningProgram { handle, child: None });
        }
        let (handle, child) = start(&self.spec, &self.program).await?;
        Ok(RunningProgram { handle, child: Some(child) })
    }
}

/// Starts one program and records it, so that a supervisor adopts it. Who starts it without one reaps it.
pub async fn start(spec: &Spec, program: &Program) -> Result<(ProcessHandle, Child)> {
    let mut command = Command::new(&program.argv[0]);
    command.args(&program.argv[1..]).stdin(Stdio::null());
    let log = files::open_log(&spec.log(&program.name))?;
    command.stdout(log.try_clone()?).stderr(log);
    detach(&mut command);
    let node = spec.node_list().into_iter().find(|node| node.name == program.node);
    let node = node.with_context(|| format!("{} is not a node of this cluster", program.node))?;
    let holder = namespaces::ensure(spec, &node).await?;
    sys::run_in_namespaces_of(&mut command, holder.try_clone_fd()?);
    let mut child = command.spawn().with_context(|| format!("cannot start {}", program.argv[0]))?;
    let identity = ProcessIdentity::from_pid(i32::try_from(child.id())?)?;
    record_identity(spec, &program.name, &identity)?;
    match identity.open() {
        Some(handle) => Ok((handle, child)),
        None => Err(ended_at_once(&mut child).into()),
    }
}

/// The running process of a program, if there is one.
pub fn find(spec: &Spec, program: &str) -> Option<ProcessHandle> {
    recorded(spec, program)?.open()
}

/// The process that a program had at its last start.
pub fn recorded(spec: &Spec, program: &str) -> Option<ProcessIdentity> {
    serde_json::from_slice(&std::fs::read(record(spec, program)).ok()?).ok()
}

/// Records the process of a program.
pub fn record_identity(spec: &Spec, program: &str, identity: &ProcessIdentity) -> Result<()> {
    write_file(&record(spec, program), &serde_json::to_vec(identity)?)
}

fn record(spec: &Spec, program: &str) -> PathBuf {
    spec.dir.join("processes").join(format!("{program}.json"))
}

async fn wait_ready(ready: &ReadinessCheck) {
    let poll = async {
        loop {
            let is_ready = match ready {
                ReadinessCheck::Started => true,
                ReadinessCheck::Socket(path) => path.exists(),
                ReadinessCheck::Port(address) => {
                    tokio::net::TcpStream::connect(address).await.is_ok()
                }
            };
            if is_ready {
                return;
            }
            sleep(Duration::from_millis(5)).await;
        }
    };
    // Not ready in time is for the programs that need it to report: they retry on their own.
    let _late = timeout(READY_WAIT, poll).await;
}

/// The cluster's supervisor, if it runs.
pub fn find_supervisor(spec: &Spec) -> Option<ProcessHandle> {
    find(spec, "supervisor")
}

/// Starts a supervisor in the background and returns once it is recorded.
pub fn start_supervisor(spec: &Spec) -> Result<()> {
    for dir in ["logs", "processes"] {
        make_dir(&spec.dir.join(dir))?;
    }
    let log = files::open_log(&spec.log("supervisor"))?;
    let mut command = Command::new(spec.bin_dir.join("cluster"));
    command.arg("supervise").arg("--dir").arg(&spec.dir);
    command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
    detach(&mut command);
    let child = command.spawn().context("cannot start the supervisor")?;
    let identity = ProcessIdentity::from_pid(i32::try_from(child.id())?)?;
    record_identity(spec, "supervisor", &identity)
}

/// Ends the supervisor: `stop_programs` says whether the programs end with it or go on unattended.
pub async fn end_supervisor(spec: &Spec, programs: Programs) -> Result<()> {
    use nix::sys::signal::Signal;
    let Some(supervisor) = find_supervisor(spec) else { return Ok(()) };
    let signal = match programs {
        Programs::Stop => Signal::SIGTERM,
        Programs::Leave => Signal::SIGHUP,
    };
    supervisor.signal(signal)?;
    let patience = STOP_GRACE * 4;
    if timeout(patience, supervisor.ended()).await.is_err() {
        supervisor.signal(Signal::SIGKILL)?;
        supervisor.ended().await?;
    }
    Ok(())
}

/// What happens to the programs when their supervisor ends.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Programs {
    /// They are stopped, last started first.
    Stop,
    /// They run on until another supervisor adopts them.
    Leave,
}
