//! The async runtime and the heap of a small daemon.

use std::future::Future;
use std::time::Duration;

use nix::sys::resource::{Resource, UsageWho, getrlimit, getrusage, setrlimit};
use nix::sys::time::{TimeVal, TimeValLike as _};
use tokio::runtime::{Builder, Runtime};

use crate::exit::Failure;
use crate::{resident, sys};

/// How many threads a program may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Threads {
    /// Everything on the calling thread: the smallest resident size, for daemons whose work is
    /// waiting.
    One,
    /// That many workers, for servers.
    Workers(usize),
}

/// Threads for blocking calls: file IO in short bursts. An idle one ends after a second, so that
/// its stack does not stay resident.
const BLOCKING_THREADS_MAX: usize = 8;

/// Between two looks at how much is resident: a beat of an idle agent, every ten seconds, brings most of its code back for half of that
/// time.
const LOOK: Duration = Duration::from_secs(5);
/// More pages than this have to have become resident since something was let go of, of the heap or of code: a megabyte of the usual ones.
const SLACK_PAGES: u64 = 256;
/// Who has had a processor for longer than this between two looks is at work: a hundredth of the time.
const AT_WORK: Duration = Duration::from_millis(50);

/// Runs a program to its end.
pub fn run<F>(threads: Threads, program: F) -> Result<(), Failure>
where
    F: Future<Output = Result<(), Failure>>,
{
    sys::limit_malloc_arenas(match threads {
        Threads::One => 1,
        Threads::Workers(_) => 2,
    });
    allow_open_files();
    let runtime = build(threads).map_err(Failure::run)?;
    runtime.spawn(let_go());
    let end = runtime.block_on(program);
    // A blocking call that hangs (a dead mount) must not keep the process from ending.
    runtime.shutdown_timeout(Duration::from_secs(1));
    end
}

/// Takes as many file descriptors as the process may have: the usual soft limit of 1024 is less than a server's connections.
/// Best effort: with fewer, connections are closed earlier.
fn allow_open_files() {
    if let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE)
        && soft < hard
    {
        let _ = setrlimit(Resource::RLIMIT_NOFILE, hard, hard);
    }
}

/// Gives memory that a burst has left free back to the kernel; call after an initial list, never on
/// a hot path.
pub fn trim_heap() {
    sys::trim_heap();
}

/// Lets go of what only the start of a program needed, and of what work has left, for as long as the program runs. One that is at work
/// keeps its code: it would only bring it back, 16 pages with each fault.
async fn let_go() {
    let mut kept = Resident::default();
    let mut worked = processor_time();
    loop {
        tokio::time::sleep(LOOK).await;
        let now = resident();
        let before = std::mem::replace(&mut worked, processor_time());
        let is_at_work = worked.saturating_sub(before) > AT_WORK;
        let heap = now.heap > kept.heap + SLACK_PAGES;
        let files = now.files > kept.files + SLACK_PAGES && !is_at_work;
        if !heap && !files {
            kept = kept.least(now);
            continue;
        }
        // Reading the table walks what is resident: about a millisecond, and not on the thread that serves.
        let gone = move || {
            if heap {
                sys::trim_heap();
            }
            if files {
                let_go_of_code();
            }
        };
        let _ = tokio::task::spawn_blocking(gone).await;
        let left = resident();
        kept = Resident {
            heap: if heap { left.heap } else { kept.heap.min(left.heap) },
            files: if files { left.files } else { kept.files },
        };
    }
}

/// Time on a processor that this program has had.
fn processor_time() -> Duration {
    let Ok(usage) = getrusage(UsageWho::RUSAGE_SELF) else { return Duration::ZERO };
    let micros = |time: TimeVal| u64::try_from(time.num_microseconds()).unwrap_or(0);
    Duration::from_micros(micros(usage.user_time()) + micros(usage.system_time()))
}

/// What is resident of a process, in pages.
#[derive(Clone, Copy, Debug, Default)]
struct Resident {
    heap: u64,
    files: u64,
}

impl Resident {
    fn least(self, other: Self) -> Self {
        Self { heap: self.heap.min(other.heap), files: self.files.min(other.files) }
    }
}

/// What is resident of this one, see proc_pid_statm(5); nothing without `/proc`.
fn resident() -> Resident {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let mut pages = statm.split_ascii_whitespace().skip(1).map(|pages| pages.parse().unwrap_or(0));
    let (all, files): (u64, u64) = (pages.next().unwrap_or(0), pages.next().unwrap_or(0));
    Resident { heap: all.saturating_sub(files), files }
}

/// Unmaps the code and constants of the program's files; what runs on comes back by itself. Without `/proc` nothing is done.
fn let_go_of_code() {
    let program = std::fs::read_link("/proc/self/exe").unwrap_or_default();
    let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap_or_default();
    resident::droppable(&smaps, &program.to_string_lossy()).iter().for_each(sys::unmap_clean);
}

fn build(threads: Threads) -> std::io::Result<Runtime> {
    let mut builder = match threads {
        Threads::One => Builder::new_current_thread(),
        Threads::Workers(count) => {
            let mut builder = Builder::new_multi_thread();
            builder.worker_threads(count.max(1));
            builder
        }
    };
    builder
        .max_blocking_threads(BLOCKING_THREADS_MAX)
        .thread_keep_alive(Duration::from_secs(1))
        .thread_stack_size(1 << 20)
        .enable_all()
        .build()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_and_returns_the_end() {
        let end = run(Threads::One, async { Err(Failure::usage("x")) });
        assert!(matches!(end, Err(Failure::Usage(_))));
        run(Threads::Workers(2), async {
            tokio::spawn(async {}).await.map_err(Failure::run)?;
            trim_heap();
            Ok(())
        })
        .expect("runs");
    }

    /// What is resident of the program's own code, in kB.
    fn resident_code() -> u64 {
        let program = std::fs::read_link("/proc/self/exe").expect("a program");
        let smaps = std::fs::read_to_string("/proc/self/smaps").expect("smaps");
        let mut lines = smaps.lines().skip_while(|line| {
            !(line.contains(" r-xp ") && line.ends_with(&*program.to_string_lossy()))
        });
        let line = lines.find(|line| line.starts_with("Rss:")).expect("a mapping of code");
        line.split_ascii_whitespace().nth(1).and_then(|kb| kb.parse().ok()).expect("a number")
    }

    #[test]
    fn code_that_is_let_go_of_runs_again() {
        // Something that is in no other test's way: formats, parses, allocates.
        let work =
            || (0..2000).map(|n| format!("{n:?}").parse::<u64>().expect("a number")).sum::<u64>();
        let sum = work();
        // Other tests run meanwhile and bring code of their own: until they have ended, it may be more than what went.
        let smaller = (0..1000).any(|_| {
            let before = resident_code();
            let_go_of_code();
            resident_code() < before
        });
        assert!(smaller, "nothing was let go of");
        assert_eq!(work(), sum);
    }
}
