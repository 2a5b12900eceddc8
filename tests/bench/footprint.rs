//! Memory and CPU of each program of a cluster, beside the budgets of an idle node.

use std::collections::BTreeMap;
use std::iter::Sum;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use cluster::spec::Spec;
use cluster::{programs, supervisor};
pub use orch_tests::processes::cpu;

use crate::figures::{Figure, Group, KUBERNETES, Unit};

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

/// What an idle cluster of that side costs, by program and in all. Ours has budgets.
pub async fn measure(programs: &[(String, i32)], side: &str) -> Result<()> {
    let used = Used::measure(programs).await?;
    for used in used.iter().chain([&Used::sum(&used)]) {
        let budget = match used.name.as_str() {
            AGENT => Some(ORCHLET_BUDGET),
            ALL => Some(ALL_BUDGET),
            _ => None,
        };
        used.tell(Group::Idle, budget, |figure| figure.side(side).beside(KUBERNETES))?;
    }
    Ok(())
}

/// What the agent costs that has so many pods.
pub async fn of_agent(pid: i32, pods: usize) -> Result<()> {
    for used in Used::measure(&[(AGENT.to_owned(), pid)]).await? {
        used.tell(Group::Load, None, |figure| figure.at(pods, "pods"))?;
    }
    Ok(())
}

/// The sum of all programs.
const ALL: &str = "all programs";
/// The program that runs pods, ours or another.
const AGENT: &str = "node agent";

/// What a program does in a cluster of this project or of Kubernetes.
fn role(program: &str) -> &str {
    const ROLES: [(&str, &[&str]); 5] = [
        (AGENT, &["orchlet", "kubelet"]),
        ("Service proxy", &["orch-proxy", "kube-proxy"]),
        ("API server", &["orch-apiserver", "kube-apiserver"]),
        ("controller manager", &["orch-controller-manager", "kube-controller-manager"]),
        ("scheduler", &["orch-scheduler", "kube-scheduler"]),
    ];
    let of = |(_, programs): &&(&str, &[&str])| programs.iter().any(|p| program.starts_with(p));
    ROLES.iter().find(of).map_or(program, |(role, _)| role)
}

/// What a program cost while it was observed.
struct Used {
    name: String,
    /// At each look.
    samples: Vec<Memory>,
    /// Percent of a core.
    share: f64,
}

impl Used {
    /// Observes programs for a while.
    async fn measure(programs: &[(String, i32)]) -> Result<Vec<Used>> {
        let began = Instant::now();
        let before: Vec<Duration> =
            programs.iter().map(|(_, pid)| cpu(*pid)).collect::<Result<_>>()?;
        let new = |(name, _): &(String, i32)| Used {
            name: role(name).to_owned(),
            samples: Vec::new(),
            share: 0.0,
        };
        let mut all: Vec<Used> = programs.iter().map(new).collect();
        while began.elapsed() < IDLE {
            tokio::time::sleep(SAMPLE_INTERVAL).await;
            for (used, (_, pid)) in all.iter_mut().zip(programs) {
                used.samples.push(Memory::read(*pid)?);
            }
        }
        let took = began.elapsed();
        for ((used, (_, pid)), before) in all.iter_mut().zip(programs).zip(before) {
            used.share = cpu(*pid)?.saturating_sub(before).div_duration_f64(took) * 100.0;
        }
        Ok(all)
    }

    fn sum(all: &[Used]) -> Used {
        let looks = all.iter().map(|used| used.samples.len()).min().unwrap_or_default();
        let at = |look: usize| all.iter().filter_map(|used| used.samples.get(look).copied()).sum();
        Used {
            name: ALL.to_owned(),
            samples: (0..looks).map(at).collect(),
            share: all.iter().map(|used| used.share).sum(),
        }
    }

    /// Three figures, each completed by `with`.
    fn tell(
        &self,
        group: Group,
        budget: Option<Memory>,
        with: impl Fn(Figure) -> Figure,
    ) -> Result<()> {
        let of = |what: &str, kb: fn(&Memory) -> u64| {
            let samples = self.samples.iter().map(|sample| mb(kb(sample))).collect();
            let figure = Figure::from_samples(
                group,
                format!("{}: {what}", self.name),
                Unit::Megabytes,
                samples,
            );
            let figure = with(figure);
            budget.map_or(figure.clone(), |budget| figure.budget(mb(kb(&budget))))
        };
        of("PSS", |memory| memory.pss_kb).tell()?;
        of("private dirty", |memory| memory.private_dirty_kb).tell()?;
        let cpu = Figure::new(group, format!("{}: CPU", self.name), Unit::Core, self.share);
        Ok(with(cpu).tell()?)
    }
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
    pub fn read(pid: i32) -> Result<Memory> {
        let rollup = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?;
        let field = |name: &str| -> Result<u64> {
            let line = rollup.lines().find_map(|line| line.strip_prefix(name));
            let value = line.and_then(|rest| rest.split_whitespace().next());
            value.with_context(|| format!("no {name}"))?.parse().context("a number")
        };
        Ok(Memory { pss_kb: field("Pss:")?, private_dirty_kb: field("Private_Dirty:")? })
    }

    /// Proportional set size and private dirty memory, in millions of bytes.
    pub fn megabytes(self) -> (f64, f64) {
        (mb(self.pss_kb), mb(self.private_dirty_kb))
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

/// CPU time of each program of the cluster, and of the whole machine.
#[derive(Clone, Debug, Default)]
pub struct Spent {
    machine: Duration,
    programs: BTreeMap<String, Duration>,
}

impl Spent {
    /// Since their start.
    pub fn now(spec: &Spec) -> Result<Spent> {
        let running = ours(spec).into_iter();
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

    /// Milliseconds of the programs whose name begins so, for each of `count`.
    pub fn programs_ms(&self, prefix: &str, count: usize) -> f64 {
        let of = self.programs.iter().filter(|(name, _)| name.starts_with(prefix));
        of.map(|(_, spent)| spent.as_secs_f64()).sum::<f64>() * 1e3 / count as f64
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
