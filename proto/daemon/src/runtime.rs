//! The async runtime and the heap of a small daemon.

use std::future::Future;
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};

use crate::exit::Failure;
use crate::sys;

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

/// Runs a program to its end.
pub fn run<F>(threads: Threads, program: F) -> Result<(), Failure>
where
    F: Future<Output = Result<(), Failure>>,
{
    sys::limit_malloc_arenas(match threads {
        Threads::One => 1,
        Threads::Workers(_) => 2,
    });
    let runtime = build(threads).map_err(Failure::run)?;
    let end = runtime.block_on(program);
    // A blocking call that hangs (a dead mount) must not keep the process from ending.
    runtime.shutdown_timeout(Duration::from_secs(1));
    end
}

/// Gives memory that a burst has left free back to the kernel; call after an initial list, never on
/// a hot path.
pub fn trim_heap() {
    sys::trim_heap();
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
}
