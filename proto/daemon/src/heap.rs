//! Free memory of the heap goes back to the kernel: after a start, after bursts, and once much of it has become free.

use std::time::Duration;

use procfs::FromRead as _;
use procfs::process::StatM;

use crate::sys;

/// Interval at which the size of the heap is checked.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);
/// A trim is due once this many bytes and a sixteenth of the heap more are resident than after the last one, or as many less are in use: it visits
/// all free blocks, so that a large heap must not be trimmed for each MB.
const CHANGE_MAX: u64 = 1 << 20;
/// Resident bytes from which on a heap is not examined on a thread of the runtime.
const LARGE: u64 = 64 << 20;

/// Returns free pages of the heap to the kernel. Call after an initial list, never on a hot path.
pub fn trim() {
    sys::trim_heap();
}

/// Trims the heap when it is due, for as long as the program runs.
pub(crate) async fn trim_when_due() {
    let mut trimmed = HeapSize::default();
    loop {
        tokio::time::sleep(CHECK_INTERVAL).await;
        if trimmed.is_trim_due(HeapSize::read().await) {
            let _ = tokio::task::spawn_blocking(trim).await;
            trimmed = HeapSize::read().await;
        }
    }
}

/// Bytes that the heap takes: those after a trim, and since then the fewest resident and the most in use.
#[derive(Clone, Copy, Default)]
struct HeapSize {
    resident: u64,
    in_use: u64,
}

impl HeapSize {
    /// The present size.
    async fn read() -> Self {
        let resident = private_bytes();
        // It is computed from all free blocks, which takes milliseconds where there are many.
        let in_use = match resident < LARGE {
            true => sys::heap_in_use(),
            false => tokio::task::spawn_blocking(sys::heap_in_use).await.unwrap_or_default(),
        };
        Self { resident, in_use }
    }

    /// Whether the heap has grown since the last trim, or what was in use has become free without it, as old revisions do that are compacted after
    /// a burst.
    fn is_trim_due(&mut self, now: Self) -> bool {
        self.resident = self.resident.min(now.resident);
        self.in_use = self.in_use.max(now.in_use);
        let change_max = CHANGE_MAX.saturating_add(self.in_use / 16);
        now.resident.saturating_sub(self.resident) > change_max
            || self.in_use.saturating_sub(now.in_use) > change_max
    }
}

/// Resident bytes of this process that no file backs, see proc_pid_statm(5); 0 without `/proc`.
fn private_bytes() -> u64 {
    let Ok(pages) = StatM::from_file("/proc/self/statm") else { return 0 };
    pages.resident.saturating_sub(pages.shared).saturating_mul(procfs::page_size())
}

#[cfg(test)]
mod tests {
    use super::*;

    const MB: u64 = 1 << 20;

    #[test]
    fn a_trim_is_due_after_growth_and_once_much_is_free() {
        // Resident and in use after a trim, then at each check; whether a trim is due at the last one.
        for (sizes, is_due) in [
            (vec![(10, 8), (11, 9)], false),
            (vec![(10, 8), (12, 9)], true),
            // A heap that shrank and grew again.
            (vec![(10, 8), (5, 8), (7, 8)], true),
            // A burst that fits what is resident leaves nothing in use.
            (vec![(10, 8), (10, 6)], true),
            (vec![(10, 6), (10, 8), (10, 6)], true),
            (vec![(10, 8), (10, 7)], false),
            (vec![(10, 8), (11, 6)], true),
            // A large heap whose use varies by less than a sixteenth.
            (vec![(400, 320), (400, 300)], false),
            (vec![(400, 320), (400, 290)], true),
            (vec![(400, 320), (420, 320)], false),
            (vec![(400, 320), (422, 320)], true),
        ] {
            let mut sizes = sizes.into_iter().map(|(resident, in_use)| HeapSize {
                resident: resident * MB,
                in_use: in_use * MB,
            });
            let mut trimmed = sizes.next().unwrap_or_default();
            let due: Vec<bool> = sizes.map(|now| trimmed.is_trim_due(now)).collect();
            assert_eq!(due.last(), Some(&is_due), "{due:?}");
        }
    }

    #[test]
    fn memory_of_this_process_is_counted() {
        let size = || (private_bytes(), sys::heap_in_use());
        let is_counted = |_| {
            let before = size();
            // Small ones: a large block has a mapping of its own.
            let blocks = std::hint::black_box(vec![vec![1_u8; 1 << 10]; 8 << 10]);
            let now = size();
            drop(blocks);
            now.0 > before.0 + 4 * MB && now.1 > before.1 + 4 * MB
        };
        // Other tests free memory meanwhile, though not each time.
        assert!((0..100).any(is_counted));
    }
}
