//! Usage of this process.

/// CPU time and memory of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessUsage {
    /// CPU time in nanoseconds.
    pub cpu_nanos: u64,
    /// Resident memory in bytes.
    pub rss_bytes: u64,
}

/// Current usage of this process; `None` if /proc is not readable.
#[must_use]
pub fn own_usage() -> Option<ProcessUsage> {
    let stat = procfs::process::Process::myself().ok()?.stat().ok()?;
    let ticks = stat.utime.saturating_add(stat.stime);
    Some(ProcessUsage {
        cpu_nanos: ticks.saturating_mul(1_000_000_000) / procfs::ticks_per_second().max(1),
        rss_bytes: stat.rss.saturating_mul(procfs::page_size()),
    })
}

#[cfg(test)]
mod tests {
    #[test]
    fn this_process_uses_memory() {
        assert!(super::own_usage().is_some_and(|usage| usage.rss_bytes > 0));
    }
}
