//! Usage and end of this process.

use std::fs::File;
use std::io;

use crate::sys;

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

/// From now on an abort of this process (a panic that cannot unwind, a full stack, a failed allocation, a watchdog's SIGABRT) writes `1` in the
/// place of the first byte of `file`.
///
/// # Errors
/// The kernel refuses the handler.
pub fn mark_aborts(file: File) -> io::Result<()> {
    Ok(sys::mark_aborts(file)?)
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use nix::sys::signal::{Signal, kill};
    use nix::unistd::Pid;

    const ROLE: &str = "AGENT_HOST_ENDS_BY";
    const MARKED: &str = "AGENT_HOST_MARKED";

    #[inline(never)]
    fn recurse(depth: u64) -> u64 {
        if depth == u64::MAX {
            return 0;
        }
        let kept = std::hint::black_box([depth; 512]);
        recurse(depth + 1) + kept[0]
    }

    /// Ends this process as the variable says; nothing without it.
    #[test]
    fn role() {
        let Ok(end) = std::env::var(ROLE) else { return };
        let path = std::env::var(MARKED).expect("a path");
        let file = std::fs::File::options().write(true).open(path).expect("a file");
        super::mark_aborts(file).expect("a handler");
        match &*end {
            "abort" => std::process::abort(),
            "stack" => drop(std::hint::black_box(recurse(0))),
            "SIGABRT" => kill(Pid::this(), Signal::SIGABRT).expect("sent"),
            "SIGKILL" => kill(Pid::this(), Signal::SIGKILL).expect("sent"),
            _ => std::process::exit(1),
        }
        std::thread::park();
    }

    #[test]
    fn aborts_are_marked_and_kills_are_not() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("run");
        for (end, mark) in
            [("abort", "1"), ("stack", "1"), ("SIGABRT", "1"), ("SIGKILL", "0"), ("exit", "0")]
        {
            std::fs::write(&path, "0").expect("a file");
            let status = Command::new(std::env::current_exe().expect("this program"))
                .args(["--exact", "process::tests::role", "--nocapture"])
                .env(ROLE, end)
                .env(MARKED, &path)
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .status()
                .expect("it ran");
            assert!(!status.success(), "{end}: {status}");
            assert_eq!(std::fs::read_to_string(&path).expect("a file"), mark, "{end}");
        }
    }

    #[test]
    fn this_process_uses_memory() {
        assert!(super::own_usage().is_some_and(|usage| usage.rss_bytes > 0));
    }
}
