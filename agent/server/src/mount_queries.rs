//! Queries mounts that may hang: each query runs in a separate thread with a short timeout, and is
//! not repeated while it hangs. A hanging server only affects figures of its own mounts.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::{Duration, Instant};

/// Most concurrent queries; further ones fail.
const LOOKS_MAX: usize = 128;
/// Stack of a thread that opens a directory and asks for its size.
const STACK_LEN: usize = 256 << 10;

/// Queries in flight, by path with their start.
#[derive(Clone, Debug, Default)]
pub struct MountQueries(Arc<Mutex<Vec<(PathBuf, Instant)>>>);

/// Removes the query when it ends.
struct UnderWay {
    looks: MountQueries,
    what: (PathBuf, Instant),
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        let mut under_way = self.looks.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = under_way.iter().position(|what| *what == self.what) {
            under_way.swap_remove(at);
        }
    }
}

impl MountQueries {
    /// The result of `look` at a path; `None` if it does not end within `patience`, or an earlier
    /// query of that path still hangs.
    pub fn at<T: Send + 'static>(
        &self,
        at: &Path,
        patience: Duration,
        look: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        let mine = self.begin(at, patience)?;
        let (send, found) = mpsc::sync_channel(1);
        let work = move || {
            let seen = look();
            drop(mine);
            // The caller may have timed out.
            let _ = send.send(seen);
        };
        let thread = std::thread::Builder::new().name("look".to_owned()).stack_size(STACK_LEN);
        thread.spawn(work).ok()?;
        found.recv_timeout(patience).ok()
    }

    fn begin(&self, at: &Path, patience: Duration) -> Option<UnderWay> {
        let mut under_way = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let hangs =
            |(place, began): &(PathBuf, Instant)| place == at && began.elapsed() >= patience;
        if under_way.len() >= LOOKS_MAX || under_way.iter().any(hangs) {
            return None;
        }
        let what = (at.to_owned(), Instant::now());
        under_way.push(what.clone());
        Some(UnderWay { looks: self.clone(), what })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hanging_mount_is_waited_for_once_and_does_not_block_others() {
        let looks = MountQueries::default();
        let (silent, other) = (Path::new("/silent"), Path::new("/other"));
        let (short, long) = (Duration::from_millis(10), Duration::from_secs(60));
        let (answer, asked) = mpsc::channel::<()>();
        let hang = move || {
            let _ = asked.recv();
        };
        assert_eq!(looks.at(silent, short, hang), None);
        // Not started: it would hang as well.
        let begun = Arc::new(Mutex::new(false));
        let begins = begun.clone();
        assert_eq!(looks.at(silent, short, move || *begins.lock().expect("lock") = true), None);
        assert!(!*begun.lock().expect("lock"));
        assert_eq!(looks.at(other, long, || 2), Some(2));
        // Two concurrent queries of one path both succeed.
        assert_eq!(looks.at(silent, long, || 3), Some(3));
        drop(answer);
        while looks.at(silent, short, || 4).is_none() {
            std::thread::yield_now();
        }
        // Those that were not waited for to their end are over soon.
        for _ in 0..60_000 {
            if looks.0.lock().expect("lock").is_empty() {
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        panic!("{:?} are under way", looks.0.lock().expect("lock"));
    }
}
