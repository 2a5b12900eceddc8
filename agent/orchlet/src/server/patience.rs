//! Looks at what others have mounted, which may never answer: each in a thread of its own that is waited for a little, and no second one
//! while it hangs. Whoever's server is silent keeps his own figures from being shown, and nobody else's.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::{Duration, Instant};

/// Most looks at a time; for more there is no thread.
const LOOKS_MAX: usize = 128;
/// Stack of a thread that opens a directory and asks for its size.
const STACK_LEN: usize = 256 << 10;

/// Looks that have begun and not ended.
#[derive(Clone, Debug, Default)]
pub struct Looks(Arc<Mutex<Vec<(PathBuf, Instant)>>>);

/// Ends with the look.
struct UnderWay {
    looks: Looks,
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

impl Looks {
    /// What `look` at a place finds; `None` when it does not end within `patience`, or an earlier one at that place has not.
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
            // Nobody may wait for it any more.
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
    fn what_hangs_is_waited_for_once_and_alone() {
        let looks = Looks::default();
        let (silent, other) = (Path::new("/silent"), Path::new("/other"));
        let (short, long) = (Duration::from_millis(10), Duration::from_secs(60));
        let (answer, asked) = mpsc::channel::<()>();
        let hang = move || {
            let _ = asked.recv();
        };
        assert_eq!(looks.at(silent, short, hang), None);
        // Not even begun: it would hang as well.
        let begun = Arc::new(Mutex::new(false));
        let begins = begun.clone();
        assert_eq!(looks.at(silent, short, move || *begins.lock().expect("lock") = true), None);
        assert!(!*begun.lock().expect("lock"));
        assert_eq!(looks.at(other, long, || 2), Some(2));
        // Two who look at the same time both see.
        assert_eq!(looks.at(silent, long, || 3), Some(3));
        drop(answer);
        while looks.at(silent, short, || 4).is_none() {
            std::thread::yield_now();
        }
        assert!(looks.0.lock().expect("lock").is_empty());
    }
}
