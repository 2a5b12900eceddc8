//! Programs that end again and again while `up` waits: their records change at every start. `up` names the program, its flags and the end of its log.

use std::time::Duration;

use anyhow::{Error, Result, anyhow};
use apiserver_bootstrap::program_log;
use tokio::time::{Instant, sleep};

use crate::processes::ProcessIdentity;
use crate::programs::{Program, programs};
use crate::spec::Spec;
use crate::supervisor;

/// A program that was started this often and has ended does not stay.
const STARTS_MAX: usize = 3;
/// A program that has run this long has accepted its flags.
const SETTLED: Duration = Duration::from_millis(500);
/// As [`ProgramWatch::wait_max`].
const WAIT_MAX: Duration = Duration::from_secs(60);
/// Between two looks.
const POLL: Duration = Duration::from_millis(20);
/// Lines of a log that are shown.
const LINES: usize = 4;

/// The programs of a cluster, seen from before its supervisor starts.
pub struct ProgramWatch<'a> {
    spec: &'a Spec,
    programs: Vec<(Program, Starts)>,
    /// Longest wait for a program to be started and to settle.
    wait_max: Duration,
}

/// The starts of one program since the watch began.
struct Starts {
    /// The process of the last record.
    last: Option<ProcessIdentity>,
    count: usize,
    /// When the last one was seen first; `None` for one that ran before the watch.
    since: Option<Instant>,
}

/// What the starts of a program say of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outlook {
    /// Too early to say.
    Open,
    /// It has run for some time.
    Settled,
    /// It ends each time.
    Failing,
}

impl Starts {
    /// `last` is the process of the record that is there before the first start.
    const fn after(last: Option<ProcessIdentity>) -> Self {
        Self { last, count: 0, since: None }
    }

    fn look(
        &mut self,
        recorded: Option<ProcessIdentity>,
        is_running: bool,
        now: Instant,
    ) -> Outlook {
        if recorded != self.last {
            self.last = recorded;
            self.count += 1;
            self.since = Some(now);
        }
        match self.since {
            _ if !is_running && self.count >= STARTS_MAX => Outlook::Failing,
            _ if !is_running => Outlook::Open,
            Some(since) if now.duration_since(since) < SETTLED => Outlook::Open,
            _ => Outlook::Settled,
        }
    }
}

impl<'a> ProgramWatch<'a> {
    /// Begins before programs are started: those that run by now have settled.
    pub fn begin(spec: &'a Spec) -> Self {
        let watched = |program: Program| {
            let starts = Starts::after(supervisor::recorded(spec, &program.name));
            (program, starts)
        };
        let programs = programs(spec).into_iter().map(watched).collect();
        Self { spec, programs, wait_max: WAIT_MAX }
    }

    /// Work that waits for programs.
    ///
    /// # Errors
    /// Those of the work. Or a program ends again and again meanwhile.
    pub async fn during<T>(&mut self, work: impl Future<Output = Result<T>>) -> Result<T> {
        // What is cut off here is begun again by the next `up`.
        tokio::select! {
            done = work => done,
            failing = self.failing() => Err(failing),
        }
    }

    async fn failing(&mut self) -> Error {
        loop {
            if let Err(failing) = self.look() {
                return failing;
            }
            sleep(POLL).await;
        }
    }

    /// Waits until the programs with flags of the user's have run for some time: nothing else waits for each of them.
    ///
    /// # Errors
    /// A program ends again and again, or does not run in time.
    pub async fn settled(&mut self) -> Result<()> {
        let began = Instant::now();
        loop {
            let open = self.look()?;
            let Some(name) = open else { return Ok(()) };
            if began.elapsed() > self.wait_max {
                return Err(self.described(&name, "does not run", &[]));
            }
            sleep(POLL).await;
        }
    }

    /// A program with flags of the user's that has not settled.
    fn look(&mut self) -> Result<Option<String>> {
        let now = Instant::now();
        let (mut open, mut failing) = (None, None);
        for (program, starts) in &mut self.programs {
            let recorded = supervisor::recorded(self.spec, &program.name);
            let is_running = recorded.is_some_and(|identity| identity.is_running());
            match starts.look(recorded, is_running, now) {
                Outlook::Open if !program.own_flags.is_empty() => open = Some(program.name.clone()),
                Outlook::Failing => failing = Some(program.clone()),
                _ => {}
            }
        }
        match failing {
            Some(program) => {
                Err(self.described(&program.name, "ends again and again", &program.own_flags))
            }
            None => Ok(open),
        }
    }

    fn described(&self, name: &str, problem: &str, own_flags: &[String]) -> Error {
        let flags = match own_flags {
            [] => String::new(),
            flags => format!("; it was given {}", flags.join(" ")),
        };
        let log = self.spec.log(name);
        let lines = program_log::last_lines(&log, LINES);
        let lines: String = lines.iter().map(|line| format!("\n     {line}")).collect();
        anyhow!("{name} {problem}{flags}\nlast lines of {}:{lines}", log.display())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A cluster whose proxy gets a flag of the user's.
    fn spec(dir: &std::path::Path) -> Spec {
        for sub in ["processes", "logs"] {
            std::fs::create_dir(dir.join(sub)).unwrap();
        }
        Spec {
            dir: dir.into(),
            bin_dir: "/opt/bin".into(),
            naming: "kubernetes".into(),
            nodes: 1,
            subnet: 1,
            agent_flags: Vec::new(),
            server_flags: Vec::new(),
            manager_flags: Vec::new(),
            scheduler_flags: Vec::new(),
            proxy_flags: vec!["--no-such-flag".into()],
        }
    }

    const PROXY: &str = "orch-proxy-node-1";
    /// Of no process: it would have begun before the machine did.
    const ENDED: ProcessIdentity = ProcessIdentity { pid: 1, started_ticks: u64::MAX };

    #[tokio::test]
    async fn a_program_that_is_started_again_and_again_ends_what_waits() {
        let dir = tempfile::tempdir().unwrap();
        let spec = spec(dir.path());
        supervisor::record_identity(&spec, PROXY, &ENDED).unwrap();
        let mut watch = ProgramWatch::begin(&spec);
        std::fs::write(spec.log(PROXY), "starting\nerror: unexpected argument\n").unwrap();
        let restarts = async {
            for pid in 2..10 {
                sleep(POLL * 3).await;
                let next = ProcessIdentity { pid, ..ENDED };
                supervisor::record_identity(&spec, PROXY, &next).unwrap();
            }
            Ok(())
        };
        let failed = watch.during(restarts).await.unwrap_err().to_string();
        for part in [PROXY, "--no-such-flag", "error: unexpected argument", "again and again"] {
            assert!(failed.contains(part), "{part}: {failed}");
        }
        assert!(watch.settled().await.is_err(), "it has not settled");
    }

    #[tokio::test]
    async fn a_program_that_never_starts_is_named_in_the_end() {
        let dir = tempfile::tempdir().unwrap();
        let spec = spec(dir.path());
        let mut watch = ProgramWatch { wait_max: POLL, ..ProgramWatch::begin(&spec) };
        let failed = watch.settled().await.unwrap_err().to_string();
        assert!(failed.contains(&format!("{PROXY} does not run")), "{failed}");
    }

    #[tokio::test]
    async fn what_runs_has_settled_and_work_is_not_held_up() {
        let dir = tempfile::tempdir().unwrap();
        let spec = spec(dir.path());
        let own = ProcessIdentity::from_pid(std::process::id() as i32).unwrap();
        let mut watch = ProgramWatch::begin(&spec);
        supervisor::record_identity(&spec, PROXY, &own).unwrap();
        assert_eq!(watch.during(async { Ok(7) }).await.unwrap(), 7);
        watch.settled().await.unwrap();
    }

    #[test]
    fn starts_settle_after_a_time_and_fail_after_the_third_end() {
        let identity = |pid| Some(ProcessIdentity { pid, started_ticks: 0 });
        let mut starts = Starts::after(identity(1));
        let now = Instant::now();
        assert_eq!(starts.look(identity(1), true, now), Outlook::Settled, "it ran before");
        assert_eq!(starts.look(identity(1), false, now), Outlook::Open);
        assert_eq!(starts.look(identity(2), true, now), Outlook::Open);
        assert_eq!(starts.look(identity(2), true, now + SETTLED), Outlook::Settled);
        assert_eq!(starts.look(identity(3), false, now), Outlook::Open);
        assert_eq!(starts.look(identity(4), true, now), Outlook::Open);
        assert_eq!(starts.look(identity(4), false, now), Outlook::Failing);
    }
}
