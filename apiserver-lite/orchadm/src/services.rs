//! What keeps the programs of this host running: systemd, this process, or nothing yet (phases that are run alone).

use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail};
use apiserver_bootstrap::arguments::Program;
use apiserver_bootstrap::layout::Layout;
use apiserver_bootstrap::poll_until::NotYet;
use apiserver_bootstrap::processes::FileId;
use apiserver_bootstrap::program_log;
use apiserver_bootstrap::supervise::STOP_GRACE;
use tokio::time::Instant;

use crate::cluster;
use crate::host::{self, Host};
use crate::supervisor::{self, Supervisor};
use apiserver_bootstrap::record::HostRecord;
use apiserver_bootstrap::systemd;

/// How often a program may end while it is waited for: one that lacks something for a moment is started again.
const ENDS_MAX: u32 = 4;
/// Between two counts of its ends.
const COUNT_EVERY: Duration = Duration::from_secs(1);
/// Lines of its log in an error.
const LINES_SHOWN: usize = 10;

/// Who runs the programs.
pub enum Services {
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
        record: &mut HostRecord,
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

    /// Waits until `look` gives `Ok`, which a program has to bring about: when that ends again and again there is nothing to wait for.
    ///
    /// # Errors
    /// It does not within `patience`, or the program does not stay; with the last lines of the program's log.
    pub async fn until<T>(
        &self,
        (layout, program): (&Layout, &str),
        what: &str,
        patience: Duration,
        mut look: impl AsyncFnMut() -> Result<T, NotYet>,
    ) -> Result<T> {
        let before = self.starts(program).await;
        let mut counted = Instant::now();
        let waited = cluster::until(what, patience, async || {
            let state = match look().await {
                Ok(seen) => return Ok(Ok(seen)),
                Err(state) => state,
            };
            if counted.elapsed() < COUNT_EVERY {
                return Err(state);
            }
            counted = Instant::now();
            match self.starts(program).await.saturating_sub(before) {
                ends if ends > ENDS_MAX => Ok(Err(anyhow!(
                    "{program} keeps exiting: {ends} times while waiting until {what}; last state: {state}"
                ))),
                _ => Err(state),
            }
        })
        .await;
        match waited.and_then(|seen| seen) {
            Ok(seen) => Ok(seen),
            Err(error) => Err(anyhow!("{error:#}{}", last_lines(layout, program).await)),
        }
    }

    /// How often a program was started.
    async fn starts(&self, program: &str) -> u32 {
        match self {
            Self::Systemd => systemd::restarts(program).await.unwrap_or_default(),
            Self::Supervised(supervisor) => supervisor.starts(program),
            Self::Recorded => 0,
        }
    }

    /// Stops what this process runs.
    ///
    /// # Errors
    /// A program does not stop.
    pub async fn stop(self) -> Result<()> {
        match self {
            Self::Supervised(supervisor) => Ok(supervisor.stop().await?),
            Self::Systemd | Self::Recorded => Ok(()),
        }
    }
}

/// What a program said last, for the end of an error.
pub async fn last_lines(layout: &Layout, program: &str) -> String {
    let log = layout.log(program);
    let (lines, place) = match host::has_systemd(layout) {
        true => {
            (systemd::last_lines(program, LINES_SHOWN).await, format!("`journalctl -u {program}`"))
        }
        false => (program_log::last_lines(&log, LINES_SHOWN), log.display().to_string()),
    };
    match lines.as_slice() {
        [] => format!("\n{program} has said nothing in {place}"),
        lines => format!("\nThe last lines of {place}:\n\t{}", lines.join("\n\t")),
    }
}

/// Waits until a stop signal if this process runs the programs.
///
/// # Errors
/// That of the command, or a program does not stop.
pub async fn run_until_stopped(
    services: Services,
    host: &Host,
    ended: Result<()>,
    stop: impl Future<Output = ()>,
) -> Result<()> {
    if ended.is_ok() && matches!(services, Services::Supervised(_)) {
        host.output.log("run", "systemd does not run this host: the programs run as long as this process; `orchadm run` starts them again later");
        stop.await;
        host.output.log("run", "stopping the programs");
    }
    services.stop().await?;
    ended
}

/// Restarts a program of this host and waits until it has a new process. Returns whether systemd or a supervisor runs it.
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

#[cfg(test)]
mod tests {
    use apiserver_bootstrap::preflight::Role;
    use proto_api::names::{Names, Profile};

    use super::*;

    #[tokio::test]
    async fn a_program_that_ends_again_and_again_is_not_waited_for() {
        let root = tempfile::tempdir().unwrap();
        let names = Names::new(Profile::Kubernetes);
        let layout = Layout::new(names, root.path());
        let mut record = HostRecord::new(names, Role::Node, "n", "");
        let argv = ["/bin/sh", "-c", "echo the reason; exit 1"].map(str::to_owned).to_vec();
        let program = Program { name: "p".into(), argv };
        let mut services = Services::begin(&layout).unwrap();
        services.ensure(&layout, &mut record, &program).await.unwrap();
        let patience = Duration::from_secs(60);
        let look = async || Err::<(), _>(NotYet("nothing".to_owned()));
        let ended = services.until((&layout, "p"), "it is there", patience, look).await;
        let text = format!("{:#}", ended.unwrap_err());
        for what in ["p keeps exiting", "last state: nothing", "p.log:\n\tthe reason"] {
            assert!(text.contains(what), "{what}: {text}");
        }
        services.stop().await.unwrap();
    }
}
