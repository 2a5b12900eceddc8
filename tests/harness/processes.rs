//! What programs that run beside a test or measurement cost.

use std::time::Duration;

use anyhow::{Context as _, Result};

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
