//! Memory and CPU time of the programs of a cluster of hollow nodes.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use tokio::process::Child;

use super::NODES;
use crate::figures::{Figure, Group, Unit};
use crate::footprint::{Memory, cpu};

const SAMPLE_INTERVAL: Duration = Duration::from_secs(1);

/// A program in one or several processes.
pub struct Program {
    name: String,
    pids: Vec<i32>,
}

impl Program {
    /// Of running processes.
    pub fn from_processes<'a>(name: &str, processes: impl IntoIterator<Item = &'a Child>) -> Self {
        let pid = |child: &Child| child.id().and_then(|id| i32::try_from(id).ok());
        Self { name: name.to_owned(), pids: processes.into_iter().filter_map(pid).collect() }
    }

    fn memory(&self) -> Result<Memory> {
        let each = self.pids.iter().map(|pid| Memory::read(*pid));
        each.sum::<Result<Memory>>().with_context(|| format!("{} has ended", self.name))
    }

    fn cpu(&self) -> Result<Duration> {
        let each = self.pids.iter().map(|pid| cpu(*pid));
        each.sum::<Result<Duration>>().with_context(|| format!("{} has ended", self.name))
    }
}

/// CPU time of programs since their start.
pub type Spent = Vec<Duration>;

/// What programs cost while they were observed.
pub struct Costs(Vec<Observed>);

/// What one of them cost.
struct Observed {
    name: String,
    /// PSS and private dirty memory at each look, in MB.
    memory: Vec<(f64, f64)>,
    /// Percent of a core.
    share: f64,
}

impl Costs {
    /// CPU time until now.
    pub fn spent(programs: &[Program]) -> Result<Spent> {
        programs.iter().map(Program::cpu).collect()
    }

    /// Observes programs for a while.
    pub async fn observe(programs: &[Program], secs: u64) -> Result<Self> {
        let (began, before) = (Instant::now(), Self::spent(programs)?);
        let mut samples = vec![Vec::new(); programs.len()];
        while began.elapsed() < Duration::from_secs(secs.max(1)) {
            tokio::time::sleep(SAMPLE_INTERVAL).await;
            for (samples, program) in samples.iter_mut().zip(programs) {
                samples.push(program.memory()?.megabytes());
            }
        }
        let took = began.elapsed();
        let mut costs = Vec::new();
        for ((program, memory), before) in programs.iter().zip(samples).zip(before) {
            let share = program.cpu()?.saturating_sub(before).div_duration_f64(took) * 100.0;
            costs.push(Observed { name: program.name.clone(), memory, share });
        }
        Ok(Self(costs))
    }

    /// Three figures of each program.
    pub fn tell(&self, when: &str, nodes: usize) -> Result<()> {
        for Observed { name, memory, share } in &self.0 {
            let of = |what: &str, value: fn(&(f64, f64)) -> f64| {
                let samples = memory.iter().map(value).collect();
                Figure::from_samples(
                    Group::Scale,
                    format!("{name}: {what}, {when}"),
                    Unit::Megabytes,
                    samples,
                )
            };
            of("PSS", |(pss, _)| *pss).at(nodes, NODES).tell()?;
            of("private dirty", |(_, dirty)| *dirty).at(nodes, NODES).tell()?;
            let cpu = format!("{name}: CPU, {when}");
            Figure::new(Group::Scale, cpu, Unit::Core, *share).at(nodes, NODES).tell()?;
        }
        Ok(())
    }
}

/// CPU time of each program since `before`.
pub fn tell_spent(before: &Spent, programs: &[Program], when: &str, nodes: usize) -> Result<()> {
    for (program, before) in programs.iter().zip(before) {
        let spent = program.cpu()?.saturating_sub(*before);
        let what = format!("{}: CPU time, {when}", program.name);
        Figure::of_times(Group::Scale, what, Unit::Millis, [spent]).at(nodes, NODES).tell()?;
    }
    Ok(())
}
