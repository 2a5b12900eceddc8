//! Memory and CPU of each program of a cluster, beside the budgets of an idle node.

use std::collections::BTreeMap;
use std::fmt;
use std::iter::Sum;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use cluster::spec::Spec;
use cluster::{programs, supervisor};

use crate::report::Report;

/// How long an idle cluster is observed.
const IDLE: Duration = Duration::from_secs(30);
/// Between two samples of it.
const SAMPLE_INTERVAL: Duration = Duration::from_secs(1);

/// Largest mean memory of an idle orchlet.
const ORCHLET_BUDGET: Memory = Memory { pss_kb: 15_000, private_dirty_kb: 4_000 };
/// Largest mean memory of all programs of an idle node together.
const ALL_BUDGET: Memory = Memory { pss_kb: 60_000, private_dirty_kb: 20_000 };

/// The programs of a cluster with their process ids, without containerd.
pub fn ours(spec: &Spec) -> Vec<(String, i32)> {
    programs::programs(spec)
        .into_iter()
        .filter(|program| !program.name.starts_with("containerd"))
        .filter_map(|p| Some((p.name.clone(), supervisor::find(spec, &p.name)?.identity.pid)))
        .collect()
}

/// One row a program, and their sum. For an idle node without pods: rows are compared with the budgets.
pub async fn measure(programs: &[(String, i32)], report: &mut Report) -> Result<()> {
    let budget = |name: &str| name.starts_with("orchlet").then_some(ORCHLET_BUDGET);
    let (used, share) = rows(programs, budget, report).await?;
    report.text("idle: all on one node", row(&used, share, Some(ALL_BUDGET)));
    Ok(())
}

/// One row a program.
pub async fn each(programs: &[(String, i32)], report: &mut Report) -> Result<()> {
    rows(programs, |_| None, report).await.map(drop)
}

async fn rows(
    programs: &[(String, i32)],
    budget: impl Fn(&str) -> Option<Memory>,
    report: &mut Report,
) -> Result<(Vec<Memory>, f64)> {
    let began = Instant::now();
    let before: Vec<Duration> = programs.iter().map(|(_, pid)| cpu(*pid)).collect::<Result<_>>()?;
    let mut samples: Vec<Vec<Memory>> = Vec::new();
    while began.elapsed() < IDLE {
        tokio::time::sleep(SAMPLE_INTERVAL).await;
        samples.push(programs.iter().map(|(_, pid)| Memory::of(*pid)).collect::<Result<_>>()?);
    }
    let took = began.elapsed();
    let mut all_cpu = 0.0;
    for (at, ((name, pid), before)) in programs.iter().zip(before).enumerate() {
        let used: Vec<Memory> = samples.iter().map(|sample| sample[at]).collect();
        let share = cpu(*pid)?.saturating_sub(before).as_secs_f64() / took.as_secs_f64() * 100.0;
        all_cpu += share;
        report.text(&format!("idle: {name}"), row(&used, share, budget(name)));
    }
    let all = samples.iter().map(|sample| sample.iter().copied().sum()).collect();
    Ok((all, all_cpu))
}

/// The mean over all samples, its budget, and the largest proportional set size in one of them.
fn row(samples: &[Memory], share: f64, budget: Option<Memory>) -> String {
    let all: Memory = samples.iter().copied().sum();
    let count = u64::try_from(samples.len().max(1)).unwrap_or(1);
    let mean =
        Memory { pss_kb: all.pss_kb / count, private_dirty_kb: all.private_dirty_kb / count };
    let most = samples.iter().map(|sample| sample.pss_kb).max().unwrap_or_default();
    let budget = match budget {
        Some(budget) if mean.exceeds(budget) => format!("   OVER BUDGET of {budget}"),
        Some(budget) => format!("   budget {budget}"),
        None => String::new(),
    };
    format!("{mean}, at most {:.1} MB   CPU {share:5.2} % of a core{budget}", mb(most))
}

fn mb(kb: u64) -> f64 {
    kb as f64 / 1000.0
}

/// Memory of a process, see proc_pid_smaps(5).
#[derive(Clone, Copy, Debug, Default)]
pub struct Memory {
    /// Proportional set size: a page that n processes share counts as an n-th of a page.
    pss_kb: u64,
    /// Pages that only this process has and that no file holds.
    private_dirty_kb: u64,
}

impl Memory {
    /// Of a process.
    pub fn of(pid: i32) -> Result<Memory> {
        let rollup = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?;
        let field = |name: &str| -> Result<u64> {
            let line = rollup.lines().find_map(|line| line.strip_prefix(name));
            let value = line.and_then(|rest| rest.split_whitespace().next());
            value.with_context(|| format!("no {name}"))?.parse().context("a number")
        };
        Ok(Memory { pss_kb: field("Pss:")?, private_dirty_kb: field("Private_Dirty:")? })
    }

    fn exceeds(self, budget: Memory) -> bool {
        self.pss_kb > budget.pss_kb || self.private_dirty_kb > budget.private_dirty_kb
    }
}

impl Sum for Memory {
    fn sum<I: Iterator<Item = Memory>>(all: I) -> Memory {
        all.fold(Memory::default(), |a, b| Memory {
            pss_kb: a.pss_kb + b.pss_kb,
            private_dirty_kb: a.private_dirty_kb + b.private_dirty_kb,
        })
    }
}

impl fmt::Display for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (pss, dirty) = (mb(self.pss_kb), mb(self.private_dirty_kb));
        write!(f, "PSS {pss:.1} MB, private dirty {dirty:.1} MB")
    }
}

/// CPU time of each program of the cluster, of this program, and of the whole machine.
#[derive(Clone, Debug, Default)]
pub struct Spent {
    machine: Duration,
    programs: BTreeMap<String, Duration>,
}

impl Spent {
    /// Since their start.
    pub fn now(spec: &Spec) -> Result<Spent> {
        let own = i32::try_from(std::process::id())?;
        let running = ours(spec).into_iter().chain([("this program".to_owned(), own)]);
        let programs = running.map(|(name, pid)| Ok((name, cpu(pid)?))).collect::<Result<_>>()?;
        Ok(Spent { machine: busy()?, programs })
    }

    /// From then until now.
    pub fn until_now(&self, spec: &Spec) -> Result<Spent> {
        let now = Self::now(spec)?;
        let since = |(name, spent): (String, Duration)| {
            let before = self.programs.get(&name).copied().unwrap_or_default();
            (name, spent.saturating_sub(before))
        };
        Ok(Spent {
            machine: now.machine.saturating_sub(self.machine),
            programs: now.programs.into_iter().map(since).collect(),
        })
    }

    /// Adds what was spent at another time.
    pub fn add(&mut self, other: &Spent) {
        self.machine += other.machine;
        for (name, spent) in &other.programs {
            *self.programs.entry(name.clone()).or_default() += *spent;
        }
    }

    /// Milliseconds of the whole machine for each of `count`.
    pub fn machine_ms(&self, count: usize) -> f64 {
        self.machine.as_secs_f64() * 1e3 / count as f64
    }

    /// For each of `count`, in one line.
    pub fn row(&self, count: usize) -> String {
        let ms = |spent: &Duration| spent.as_secs_f64() * 1e3 / count as f64;
        let programs = self.programs.iter().map(|(name, spent)| format!("{name} {:.2}", ms(spent)));
        let programs: Vec<String> = programs.collect();
        format!("{:.1} ms: {}", self.machine_ms(count), programs.join(", "))
    }
}

/// Time that the machine's CPUs were not idle: the first line of proc_stat(5), in ticks.
fn busy() -> Result<Duration> {
    let stat = std::fs::read_to_string("/proc/stat")?;
    let line = stat.lines().next().context("an empty /proc/stat")?;
    let ticks: Vec<u64> =
        line.split_whitespace().skip(1).map(str::parse).collect::<Result<_, _>>()?;
    // Of user, nice, system, idle, iowait, irq, softirq, steal; what follows is counted in these already.
    let busy: u64 = [0, 1, 2, 5, 6, 7].iter().filter_map(|&field: &usize| ticks.get(field)).sum();
    let second = nix::unistd::sysconf(nix::unistd::SysconfVar::CLK_TCK)?.context("no ticks")?;
    Ok(Duration::from_secs_f64(busy as f64 / second as f64))
}

/// Time on a CPU that a process has had.
pub fn cpu(pid: i32) -> Result<Duration> {
    // Nanoseconds on a CPU, from the scheduler: finer than the ticks of stat. The time of ended threads is lost.
    let mut nanos = 0;
    for task in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        let text = std::fs::read_to_string(task?.path().join("schedstat"))?;
        nanos += text.split(' ').next().context("no value")?.parse::<u64>()?;
    }
    Ok(Duration::from_nanos(nanos))
}
