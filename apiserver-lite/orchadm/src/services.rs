//! Who keeps the programs of this host running: systemd, this process, or nobody yet (phases that are run alone).

use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use apiserver_bootstrap::arguments::Program;
use apiserver_bootstrap::layout::Layout;
use apiserver_bootstrap::processes::FileId;
use apiserver_bootstrap::supervise::STOP_GRACE;

use crate::host::{self, Host};
use crate::supervisor::{self, Supervisor};
use apiserver_bootstrap::record::Record;
use apiserver_bootstrap::systemd;

/// Who runs the programs.
pub enum Services {
    /// systemd.
    Systemd,
    /// This process, until it ends.
    Supervised(Box<Supervisor>),
    /// `orchadm run`, later.
    Recorded,
}

impl Services {
    /// For a command that stays if it has to.
    ///
    /// # Errors
    /// Another process supervises.
    pub fn begin(layout: &Layout) -> Result<Self> {
        if host::has_systemd(layout) {
            return Ok(Self::Systemd);
        }
        Ok(Self::Supervised(Box::new(Supervisor::begin(layout)?)))
    }

    /// For a command that ends.
    pub fn for_phase(layout: &Layout) -> Self {
        if host::has_systemd(layout) { Self::Systemd } else { Self::Recorded }
    }

    /// Records a program and has it run so.
    ///
    /// # Errors
    /// It cannot be recorded or started.
    pub async fn ensure(
        &mut self,
        layout: &Layout,
        record: &mut Record,
        program: &Program,
    ) -> Result<()> {
        program.check()?;
        let changed = record.put(program);
        record.store(layout)?;
        match self {
            Self::Systemd => Ok(systemd::ensure(layout, program).await.map(drop)?),
            Self::Recorded => Ok(()),
            Self::Supervised(supervisor) => {
                if changed && let Some(running) = supervisor::find(layout, &program.name) {
                    // It is started again as the record says now.
                    running.stop(STOP_GRACE).await?;
                }
                supervisor.keep(&program.name);
                Ok(())
            }
        }
    }

    /// Stops what this process runs.
    ///
    /// # Errors
    /// A program does not stop.
    pub async fn stop(self) -> Result<()> {
        match self {
            Self::Supervised(supervisor) => supervisor.stop().await,
            Self::Systemd | Self::Recorded => Ok(()),
        }
    }
}

/// Where this process runs the programs it stays until it is told to end.
///
/// # Errors
/// That of the command, or a program does not stop.
pub async fn stay(
    services: Services,
    host: &Host,
    ended: Result<()>,
    stop: impl Future<Output = ()>,
) -> Result<()> {
    if ended.is_ok() && matches!(services, Services::Supervised(_)) {
        host.output.say("run", "systemd does not run this host: the programs run as long as this process; `orchadm run` starts them again later");
        stop.await;
        host.output.say("run", "stopping the programs");
    }
    services.stop().await?;
    ended
}

/// Restarts a program of this host, whoever runs it, and waits until there is another process. Says whether anybody runs it.
///
/// # Errors
/// It does not come back.
pub async fn restart(layout: &Layout, program: &Program) -> Result<bool> {
    if host::has_systemd(layout) {
        // A changed unit is restarted by that.
        if !systemd::ensure(layout, program).await? {
            systemd::restart(&program.name).await?;
        }
        return Ok(true);
    }
    let running = supervisor::find(layout, &program.name);
    if supervisor::find_supervisor(layout).is_none() {
        match running {
            Some(_) => {
                bail!("{} runs without a supervisor: start `orchadm run`", program.name)
            }
            None => return Ok(false),
        }
    }
    let before = running.as_ref().map(|running| running.identity);
    // One that does not run is on its way: the supervisor pauses before it starts it again.
    if let Some(running) = running {
        running.stop(STOP_GRACE).await?;
    }
    let again = async {
        loop {
            match supervisor::find(layout, &program.name) {
                Some(new) if Some(new.identity) != before => return,
                _ => tokio::time::sleep(Duration::from_millis(50)).await,
            }
        }
    };
    tokio::time::timeout(STOP_GRACE * 3, again)
        .await
        .with_context(|| format!("{} is not started again", program.name))?;
    Ok(true)
}

/// The process of a program, if it runs.
pub async fn process_of(layout: &Layout, program: &str) -> Option<String> {
    match host::has_systemd(layout) {
        true => systemd::main_process(program).await,
        false => supervisor::find(layout, program).map(|found| format!("{:?}", found.identity)),
    }
}

/// The file that a program executes, if it runs.
pub async fn running_file(layout: &Layout, program: &str) -> Option<FileId> {
    let pid = match host::has_systemd(layout) {
        true => systemd::pid_of(&systemd::main_process(program).await?)?,
        false => supervisor::find(layout, program)?.identity.pid,
    };
    FileId::of_process(pid).ok()
}
