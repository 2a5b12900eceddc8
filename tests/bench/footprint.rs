//! Memory and idle CPU of each of our programs.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use cluster::spec::Spec;
use cluster::{programs, supervisor};

use crate::report::Report;

/// How long the cluster is left alone.
const IDLE: Duration = Duration::from_secs(30);

/// The programs of a cluster of ours with their process ids; containerd is not ours.
pub fn ours(spec: &Spec) -> Vec<(String, i32)> {
    programs::programs(spec)
        .into_iter()
        .filter(|program| !program.name.starts_with("containerd"))
        .filter_map(|p| Some((p.name.clone(), supervisor::find(spec, &p.name)?.identity.pid)))
        .collect()
}

/// One row a program, and their sum.
pub async fn measure(programs: &[(String, i32)], report: &mut Report) -> Result<()> {
    let (kb, share) = rows(programs, report).await?;
    report.text("idle: all on one node", row(kb, share));
    Ok(())
}

/// One row a program.
pub async fn each(programs: &[(String, i32)], report: &mut Report) -> Result<()> {
    rows(programs, report).await.map(drop)
}

async fn rows(programs: &[(String, i32)], report: &mut Report) -> Result<(u64, f64)> {
    let began = Instant::now();
    let before: Vec<Duration> = programs.iter().map(|(_, pid)| cpu(*pid)).collect::<Result<_>>()?;
    tokio::time::sleep(IDLE).await;
    let took = began.elapsed();
    let (mut all_kb, mut all_cpu) = (0, 0.0);
    for ((name, pid), before) in programs.iter().zip(before) {
        let kb = resident_kb(*pid)?;
        let share = cpu(*pid)?.saturating_sub(before).as_secs_f64() / took.as_secs_f64() * 100.0;
        all_kb += kb;
        all_cpu += share;
        report.text(&format!("idle: {name}"), row(kb, share));
    }
    Ok((all_kb, all_cpu))
}

fn row(kb: u64, share: f64) -> String {
    format!("RSS {:6.1} MB   CPU {share:5.2} % of a core", kb as f64 / 1000.0)
}

/// Resident memory of a process.
pub fn resident_kb(pid: i32) -> Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).context("no VmRSS")?;
    line.split_whitespace().nth(1).context("no value")?.parse().context("a number")
}

/// Time on a CPU that a process has had.
pub fn cpu(pid: i32) -> Result<Duration> {
    // Nanoseconds on a CPU, from the scheduler: finer than the ticks of stat. Threads that end take theirs along.
    let mut nanos = 0;
    for task in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        let text = std::fs::read_to_string(task?.path().join("schedstat"))?;
        nanos += text.split(' ').next().context("no value")?.parse::<u64>()?;
    }
    Ok(Duration::from_nanos(nanos))
}
