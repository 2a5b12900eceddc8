//! The async runtime of a small daemon.

use std::future::Future;
use std::time::Duration;

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tokio::runtime::{Builder, Runtime};

use crate::exit::Failure;
use crate::{blocking_shares, heap, sys, systemd};

/// How many threads a program may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Threads {
    /// Everything on the calling thread: the least memory, for daemons that mostly wait.
    One,
    /// That many workers, for servers.
    Workers(usize),
}

/// Threads for the program's own blocking calls: file IO in short bursts. An idle one ends after a second, which frees its stack.
const BLOCKING_THREADS_MAX: usize = 8;

/// Runs a program to its end.
pub fn run<F>(threads: Threads, program: F) -> Result<(), Failure>
where
    F: Future<Output = Result<(), Failure>>,
{
    run_on(threads, BLOCKING_THREADS_MAX, program)
}

/// The same for a program that makes calls in [`blocking_shares`]: they have threads in addition to those of the program's own calls.
pub fn run_with_shares<F>(threads: Threads, program: F) -> Result<(), Failure>
where
    F: Future<Output = Result<(), Failure>>,
{
    run_on(threads, BLOCKING_THREADS_MAX + blocking_shares::CALLS_MAX, program)
}

fn run_on<F>(threads: Threads, blocking_max: usize, program: F) -> Result<(), Failure>
where
    F: Future<Output = Result<(), Failure>>,
{
    sys::limit_malloc_arenas(match threads {
        Threads::One => 1,
        Threads::Workers(_) => 2,
    });
    allow_open_files();
    let runtime = build(threads, blocking_max).map_err(Failure::run)?;
    runtime.spawn(heap::trim_when_due());
    runtime.spawn(systemd::report_life());
    let end = runtime.block_on(program);
    // A blocking call that hangs (a dead mount) must not keep the process from ending.
    runtime.shutdown_timeout(Duration::from_secs(1));
    end
}

/// Raises the limit of file descriptors to the hard limit: the usual soft limit of 1024 is less than a server's connections.
/// Best effort: with fewer, connections are closed earlier.
fn allow_open_files() {
    if let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE)
        && soft < hard
    {
        let _ = setrlimit(Resource::RLIMIT_NOFILE, hard, hard);
    }
}

fn build(threads: Threads, blocking_max: usize) -> std::io::Result<Runtime> {
    let mut builder = match threads {
        Threads::One => Builder::new_current_thread(),
        Threads::Workers(count) => {
            let mut builder = Builder::new_multi_thread();
            builder.worker_threads(count.max(1));
            builder
        }
    };
    builder
        .max_blocking_threads(blocking_max)
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
            heap::trim();
            Ok(())
        })
        .expect("runs");
    }

    #[test]
    fn calls_in_shares_leave_all_threads_of_the_programs_own_calls() {
        run_with_shares(Threads::One, async {
            let hang = || {
                let (release, wait) = std::sync::mpsc::channel::<()>();
                tokio::task::spawn_blocking(move || {
                    let _ = wait.recv();
                });
                release
            };
            // As many as the shares allow, and all but one of the program's own.
            let hung: Vec<_> =
                (1..BLOCKING_THREADS_MAX + blocking_shares::CALLS_MAX).map(|_| hang()).collect();
            let own = tokio::task::spawn_blocking(|| 7);
            let done = tokio::time::timeout(Duration::from_secs(60), own).await;
            drop(hung);
            assert_eq!(done.map_err(Failure::run)?.map_err(Failure::run)?, 7);
            Ok(())
        })
        .expect("runs");
    }
}
