//! What keeps the programs of this host running: systemd, this process, or nothing yet (phases that are run alone). How a program is started, restarted and
//! waited for, whichever it is.

use std::time::Duration;

use tokio::time::Instant;

use crate::arguments::Program;
use crate::error::BootstrapError;
use crate::layout::Layout;
use crate::poll_until::{self, NotYet};
use crate::processes::{FileId, ProcessIdentity, command_line};
use crate::program_log;
use crate::record::HostRecord;
use crate::supervise::STOP_GRACE;
use crate::supervisor::{self, Supervisor};
use crate::systemd;

/// Between two looks.
const POLL: Duration = Duration::from_millis(250);
/// Between two looks for a process that is started again.
const PROCESS_POLL: Duration = Duration::from_millis(50);
/// How often a program may end while it is waited for: one that lacks something for a moment is started again.
const ENDS_MAX: u32 = 4;
/// Between two counts of its ends.
const COUNT_EVERY: Duration = Duration::from_secs(1);
/// Lines of its log in an error.
const LINES_SHOWN: usize = 10;
/// How long a program has to run as one process to be well, where nothing else says so.
const SETTLED: Duration = Duration::from_secs(3);
/// How often a program is given that time.
const SETTLE_ROUNDS: usize = 8;

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
    pub fn begin(layout: &Layout) -> Result<Self, BootstrapError> {
        if systemd::runs_host(layout) {
            return Ok(Self::Systemd);
        }
        Ok(Self::Supervised(Box::new(Supervisor::begin(layout)?)))
    }

    /// For a command that ends.
    pub fn for_phase(layout: &Layout) -> Self {
        if systemd::runs_host(layout) { Self::Systemd } else { Self::Recorded }
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
    ) -> Result<(), BootstrapError> {
        program.check()?;
        let changed = record.put(program);
        record.store(layout)?;
        match self {
            Self::Systemd => systemd::ensure(layout, program).await.map(drop),
            Self::Recorded => Ok(()),
            Self::Supervised(supervisor) => {
                if changed && let Some(running) = supervisor::find(layout, &program.name) {
                    // It is started again as the record says now.
                    let what = format!("cannot stop {}", program.name);
                    running.stop(STOP_GRACE).await.map_err(BootstrapError::system(what))?;
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
    ) -> Result<T, BootstrapError> {
        let before = self.starts(program).await;
        let mut counted = Instant::now();
        let waited = poll_until::until(what, patience, POLL, async || {
            let state = match look().await {
                Ok(seen) => return Ok(Ok(seen)),
                Err(state) => state,
            };
            if counted.elapsed() < COUNT_EVERY {
                return Err(state);
            }
            counted = Instant::now();
            match self.starts(program).await.saturating_sub(before) {
                ends if ends > ENDS_MAX => Ok(Err(format!(
                    "{program} keeps exiting: {ends} times while waiting until {what}; last state: {state}"
                ))),
                _ => Err(state),
            }
        })
        .await;
        let problem = match waited {
            Ok(Ok(seen)) => return Ok(seen),
            Ok(Err(problem)) => problem,
            Err(late) => late.to_string(),
        };
        let said = last_lines(layout, program).await;
        Err(BootstrapError::Program(format!("{problem}{said}")))
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
    pub async fn stop(self) -> Result<(), BootstrapError> {
        match self {
            Self::Supervised(supervisor) => supervisor.stop().await,
            Self::Systemd | Self::Recorded => Ok(()),
        }
    }
}

/// What a program said last, for the end of an error.
pub async fn last_lines(layout: &Layout, program: &str) -> String {
    let log = layout.log(program);
    let (lines, place) = match systemd::runs_host(layout) {
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

/// Restarts a program of this host and waits until it has a new process. Returns whether systemd or a supervisor runs it.
///
/// # Errors
/// It does not come back.
pub async fn restart(layout: &Layout, program: &Program) -> Result<bool, BootstrapError> {
    if systemd::runs_host(layout) {
        // A changed unit is restarted by that.
        if !systemd::ensure(layout, program).await? {
            systemd::restart(&program.name).await?;
        }
        return Ok(true);
    }
    let running = supervisor::find(layout, &program.name);
    if supervisor::find_supervisor(layout).is_none() {
        return match running {
            Some(_) => Err(BootstrapError::Program(format!(
                "{} runs without a supervisor: start `orchadm run`",
                program.name
            ))),
            None => Ok(false),
        };
    }
    let before = running.as_ref().map(|running| running.identity);
    // One that does not run is on its way: the supervisor pauses before it starts it again.
    if let Some(running) = running {
        let what = format!("cannot stop {}", program.name);
        running.stop(STOP_GRACE).await.map_err(BootstrapError::system(what))?;
    }
    let what = format!("{} is started again", program.name);
    let again = poll_until::until(&what, STOP_GRACE * 3, PROCESS_POLL, async || {
        match supervisor::find(layout, &program.name) {
            Some(new) if Some(new.identity) != before => Ok(()),
            _ => Err(NotYet("it has no new process".to_owned())),
        }
    });
    again.await.map_err(|late| BootstrapError::Program(late.to_string()))?;
    Ok(true)
}

/// The process of a program, if it runs.
async fn process_of(layout: &Layout, program: &str) -> Option<ProcessIdentity> {
    match systemd::runs_host(layout) {
        true => systemd::main_process(program).await,
        false => supervisor::find(layout, program).map(|found| found.identity),
    }
}

/// What a program that runs executes: the file, and the path under which it was started.
pub async fn running_file(layout: &Layout, program: &str) -> Option<(FileId, Option<String>)> {
    let pid = process_of(layout, program).await?.pid;
    let file = FileId::of_process(pid).ok()?;
    Some((file, command_line(pid).into_iter().next()))
}

/// Waits until a program has run for a while as one process.
///
/// # Errors
/// It does not stay.
pub async fn wait_until_stable(layout: &Layout, program: &str) -> Result<(), BootstrapError> {
    for _ in 0..SETTLE_ROUNDS {
        let before = process_of(layout, program).await;
        tokio::time::sleep(SETTLED).await;
        let now = process_of(layout, program).await;
        if now.is_some() && now == before {
            return Ok(());
        }
    }
    Err(BootstrapError::Program("it keeps exiting".to_owned()))
}

#[cfg(test)]
mod tests {
    use proto_api::names::{Names, Profile};

    use super::*;
    use crate::preflight::Role;

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
        let text = ended.unwrap_err().to_string();
        for what in ["p keeps exiting", "last state: nothing", "p.log:\n\tthe reason"] {
            assert!(text.contains(what), "{what}: {text}");
        }
        services.stop().await.unwrap();
    }
}
