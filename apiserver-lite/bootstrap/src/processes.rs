//! Processes by identity: a pid alone can be reused, a pid with its start time cannot.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::Duration;

use nix::sys::signal::Signal;
use serde::{Deserialize, Serialize};

/// Longest wait for the end of a process that was killed.
const KILL_GRACE: Duration = Duration::from_secs(30);

/// A process that was once seen running.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessIdentity {
    /// Process id.
    pub pid: i32,
    /// Start time in clock ticks since boot (field 22 of proc_pid_stat(5)).
    pub started_ticks: u64,
}

impl ProcessIdentity {
    /// Identity of the running process `pid`.
    pub fn from_pid(pid: i32) -> io::Result<ProcessIdentity> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
        let started_ticks = started_ticks(&stat)
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "unreadable stat"))?;
        Ok(ProcessIdentity { pid, started_ticks })
    }

    /// Whether that very process still runs (a zombie does not).
    pub fn is_running(&self) -> bool {
        let Ok(stat) = std::fs::read_to_string(format!("/proc/{}/stat", self.pid)) else {
            return false;
        };
        started_ticks(&stat) == Some(self.started_ticks) && state(&stat) != Some('Z')
    }

    /// A handle that keeps naming this process; `None` when it is gone.
    pub fn open(&self) -> Option<ProcessHandle> {
        let pid = nix::libc::pid_t::from(self.pid);
        let fd = pidfd_open(pid).ok()?;
        // Opened first, checked after: a reused pid has another start time.
        self.is_running().then_some(ProcessHandle { fd, identity: *self })
    }
}

/// A running process, by pidfd.
#[derive(Debug)]
pub struct ProcessHandle {
    fd: OwnedFd,
    /// Who it is.
    pub identity: ProcessIdentity,
}

impl AsFd for ProcessHandle {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl ProcessHandle {
    /// The pidfd for namespace entry.
    pub fn try_clone_fd(&self) -> io::Result<OwnedFd> {
        self.fd.try_clone()
    }

    /// Sends a signal; a process that has just ended is no error.
    pub fn signal(&self, signal: Signal) -> io::Result<()> {
        let signal = rustix::process::Signal::from_named_raw(signal as i32)
            .ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
        match rustix::process::pidfd_send_signal(&self.fd, signal) {
            Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
            Err(e) => {
                Err(io::Error::other(format!("signalling process {}: {e}", self.identity.pid)))
            }
        }
    }

    /// Resolves when the process has exited; it need not be a child of this one.
    pub async fn ended(&self) -> io::Result<()> {
        crate::sys::readiness(self.fd.try_clone()?)?.readable().await.map(drop)
    }

    /// Sends SIGTERM, waits for `grace`, then sends SIGKILL. A process that still does not exit is an error.
    pub async fn stop(&self, grace: Duration) -> io::Result<()> {
        self.signal(Signal::SIGTERM)?;
        if tokio::time::timeout(grace, self.ended()).await.is_err() {
            self.signal(Signal::SIGKILL)?;
            // One that hangs in the kernel does not end before its call does.
            let ended = tokio::time::timeout(KILL_GRACE, self.ended()).await;
            let pid = self.identity.pid;
            ended.map_err(|_| {
                let text =
                    format!("process {pid} does not end after SIGKILL: see /proc/{pid}/stack");
                io::Error::new(io::ErrorKind::TimedOut, text)
            })??;
        }
        Ok(())
    }
}

/// A file, whatever its names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileId {
    device: u64,
    inode: u64,
}

impl FileId {
    /// Of a path, whose links are followed.
    pub fn from_path(path: &Path) -> io::Result<FileId> {
        let found = std::fs::metadata(path)?;
        Ok(FileId { device: found.dev(), inode: found.ino() })
    }

    /// Of a file that is open.
    pub fn of_file(file: &std::fs::File) -> io::Result<FileId> {
        let found = file.metadata()?;
        Ok(FileId { device: found.dev(), inode: found.ino() })
    }

    /// Of the program that a process executes, also when its file was replaced or removed.
    pub fn of_process(pid: i32) -> io::Result<FileId> {
        Self::from_path(&Path::new("/proc").join(pid.to_string()).join("exe"))
    }
}

impl ProcessHandle {
    /// Whether this process executes a file, as the user of this process. A command line proves nothing: every process chooses its own.
    pub fn executes(&self, file: &Path) -> bool {
        let pid = self.identity.pid;
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let own = nix::unistd::geteuid().as_raw();
        let (Ok(wanted), Ok(found)) = (FileId::from_path(file), FileId::of_process(pid)) else {
            return false;
        };
        // Looked at last: until now it was this process that was read, and no other with its pid.
        wanted == found && users(&status) == Some((own, own)) && self.identity.is_running()
    }
}

/// The real and the effective user of proc_pid_status(5).
fn users(status: &str) -> Option<(u32, u32)> {
    let line = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    let mut users = line.split_whitespace().map(str::parse);
    Some((users.next()?.ok()?, users.next()?.ok()?))
}

fn pidfd_open(pid: nix::libc::pid_t) -> io::Result<OwnedFd> {
    let pid = rustix::process::Pid::from_raw(pid)
        .ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
    Ok(rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::NONBLOCK)?)
}

/// The command in brackets may hold spaces and brackets itself: fields are counted after the last one.
fn fields(stat: &str) -> Option<std::str::SplitWhitespace<'_>> {
    stat.rsplit_once(')').map(|(_, rest)| rest.split_whitespace())
}

fn started_ticks(stat: &str) -> Option<u64> {
    fields(stat)?.nth(19)?.parse().ok()
}

fn state(stat: &str) -> Option<char> {
    fields(stat)?.next()?.chars().next()
}

/// Pids of all processes.
pub fn all_pids() -> io::Result<Vec<i32>> {
    let entries = std::fs::read_dir("/proc")?;
    Ok(entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect())
}

/// A process of this program and command line in this mount namespace: a supervisor that was killed between the start of a program and its record has
/// left it.
pub fn find_unrecorded(argv: &[String]) -> Option<ProcessHandle> {
    let program = Path::new(argv.first()?);
    find_processes(program, |line| line == argv).ok()?.into_iter().next()
}

/// The processes of a program in this mount namespace whose command line is one that is looked for. They are held before they are looked at.
///
/// # Errors
/// /proc cannot be read.
pub fn find_processes(
    program: &Path,
    mut is_one: impl FnMut(&[String]) -> bool,
) -> io::Result<Vec<ProcessHandle>> {
    let namespace = |pid: &str| std::fs::read_link(format!("/proc/{pid}/ns/mnt"));
    let own = namespace("self")?;
    let mut matches = |pid: i32| {
        let handle = ProcessIdentity::from_pid(pid).ok()?.open()?;
        let is_here = namespace(&pid.to_string()).is_ok_and(|found| found == own);
        (is_here && is_one(&command_line(pid)) && handle.executes(program)).then_some(handle)
    };
    Ok(all_pids()?.into_iter().filter_map(&mut matches).collect())
}

/// The command line of a process; empty if it has ended.
pub fn command_line(pid: i32) -> Vec<String> {
    let bytes = std::fs::read(Path::new("/proc").join(pid.to_string()).join("cmdline"));
    let bytes = bytes.unwrap_or_default();
    let words = bytes.strip_suffix(&[0]).unwrap_or(&bytes).split(|byte| *byte == 0);
    words.map(|word| String::from_utf8_lossy(word).into_owned()).collect()
}

/// Pids of the processes whose cgroup path contains all of `parts`, for example a cluster's cgroup and a pod's UID.
pub fn pids_in_cgroup(parts: &[&str]) -> io::Result<Vec<i32>> {
    let inside = |pid: &i32| {
        let groups = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
        parts.iter().all(|part| groups.contains(part))
    };
    Ok(all_pids()?.into_iter().filter(inside).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stat_is_read_behind_the_last_bracket() {
        let fields: Vec<String> = (3..40).map(|n| n.to_string()).collect();
        let line = format!("12 (a) b) S {}", fields[1..].join(" "));
        assert_eq!(state(&line), Some('S'));
        assert_eq!(started_ticks(&line), Some(22));
        assert_eq!(started_ticks("nonsense"), None);
    }

    #[tokio::test]
    async fn a_stopped_process_is_seen_by_its_handle() {
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let identity = ProcessIdentity::from_pid(child.id() as i32).unwrap();
        let handle = identity.open().unwrap();
        assert!(identity.is_running());
        handle.stop(Duration::from_secs(5)).await.unwrap();
        child.wait().unwrap();
        assert!(!identity.is_running());
        assert!(identity.open().is_none());
    }

    #[test]
    fn a_process_is_known_by_its_file_and_not_by_what_it_says() {
        assert_eq!(users("Name:\tx\nUid:\t0\t1\t0\t0\n"), Some((0, 1)));
        assert_eq!(users("Name:\tx\n"), None);
        let dir = tempfile::tempdir().unwrap();
        let (program, other) = (dir.path().join("sleep"), std::env::current_exe().unwrap());
        std::os::unix::fs::symlink("/bin/sleep", &program).unwrap();
        let mut command = std::process::Command::new(&program);
        // The command line of the other.
        std::os::unix::process::CommandExt::arg0(&mut command, &other);
        let mut child = command.arg("1000").spawn().unwrap();
        let handle = ProcessIdentity::from_pid(child.id() as i32).unwrap().open().unwrap();
        assert!(handle.executes(&program));
        assert!(!handle.executes(&other) && !handle.executes(Path::new("/missing")));
        std::fs::remove_file(&program).unwrap();
        std::os::unix::fs::symlink(&other, &program).unwrap();
        assert!(!handle.executes(&program), "it was replaced");
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!handle.executes(&program));
    }

    #[test]
    fn a_process_that_copies_a_command_line_is_not_found() {
        use std::os::unix::process::CommandExt as _;
        let mut child = std::process::Command::new("/bin/sleep");
        // An argument that no process of another run has; it holds none of our pipes.
        let argument = format!("1000.{}", std::process::id());
        child.arg0("/bin/cat").arg(&argument).stdout(std::process::Stdio::null());
        let mut child = child.stderr(std::process::Stdio::null()).spawn().unwrap();
        // It has none for a moment after its start.
        let began = std::time::Instant::now();
        while std::fs::read(format!("/proc/{}/cmdline", child.id())).unwrap().is_empty() {
            assert!(began.elapsed() < Duration::from_secs(60), "it has no command line");
            std::thread::sleep(Duration::from_millis(1));
        }
        let line = ["/bin/cat".to_owned(), argument];
        let pids = |program: &str| -> Vec<i32> {
            let found = find_processes(Path::new(program), |found| found == line).unwrap();
            found.iter().map(|handle| handle.identity.pid).collect()
        };
        let (copied, unrecorded) = (pids("/bin/cat"), find_unrecorded(&line));
        let own = pids("/bin/sleep");
        let pid = child.id() as i32;
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!((copied, own), (Vec::new(), vec![pid]));
        assert!(unrecorded.is_none());
    }
}
