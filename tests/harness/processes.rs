//! Programs that run beside a test or measurement, and what they cost.

use std::fs::File;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, Result};
use tokio::process::{Child, Command};

/// Starts a program, which is killed when its handle is dropped.
pub fn spawn(argv: &[String], log: &Path) -> Result<Child> {
    let (program, arguments) = argv.split_first().context("no program")?;
    let log = File::options().create(true).append(true).open(log)?;
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
    command.kill_on_drop(true).spawn().with_context(|| format!("starting {program}"))
}

/// CPU time of a process until now.
pub fn cpu(pid: i32) -> Result<Duration> {
    // Nanoseconds on a CPU, from the scheduler: finer than the ticks of stat. The time of ended threads is lost.
    let mut nanos = 0;
    for task in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        let text = std::fs::read_to_string(task?.path().join("schedstat"))?;
        nanos += text.split(' ').next().context("no value")?.parse::<u64>()?;
    }
    Ok(Duration::from_nanos(nanos))
}

/// The most memory that a process has had, in MB.
pub fn memory_peak(pid: i32) -> Result<f64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let value = line.and_then(|rest| rest.split_whitespace().next()).context("no VmHWM")?;
    Ok(value.parse::<f64>()? * 1024.0 / 1e6)
}
