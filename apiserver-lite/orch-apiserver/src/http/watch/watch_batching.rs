//! Crowds: many watchers of one collection. Sent one by one, a burst of events would wake every one of them for every
//! event, and the writes would queue behind the watchers. In a crowd each watcher has its turn once in a window and then
//! gets everything that has gathered; turns are spread over the window. Few watchers are served at once.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use tokio::time::Instant;

/// Watchers of one collection from which on they are a crowd.
const CROWD: usize = 64;
/// Part of the window for each watcher: somewhat more than sending it a chunk takes.
const TURN: Duration = Duration::from_micros(30);
/// Longest window: the longest that an event is held back.
const WINDOW_MAX: Duration = Duration::from_millis(40);

/// Everybody who watches, by collection.
pub struct WatchBatches {
    by_prefix: Mutex<HashMap<String, Weak<Crowd>>>,
    start: Instant,
}

/// The watchers of one collection.
#[derive(Default)]
struct Crowd {
    members: AtomicUsize,
    joined: AtomicUsize,
}

/// One watcher; leaves its crowd when dropped.
pub struct Member {
    crowd: Arc<Crowd>,
    /// Which of those who ever joined this is: spreads the turns.
    number: usize,
    start: Instant,
}

impl Default for WatchBatches {
    fn default() -> Self {
        Self { by_prefix: Mutex::default(), start: Instant::now() }
    }
}

impl WatchBatches {
    /// Adds a watcher of what is stored below `prefix`.
    pub fn join(&self, prefix: &str) -> Member {
        let mut by_prefix = self.by_prefix.lock().unwrap_or_else(PoisonError::into_inner);
        let known = by_prefix.get(prefix).and_then(Weak::upgrade);
        let crowd = known.unwrap_or_else(|| {
            // Collections that nobody watches any more go when somebody watches a new one.
            by_prefix.retain(|_, crowd| crowd.strong_count() > 0);
            let crowd = Arc::new(Crowd::default());
            by_prefix.insert(prefix.to_owned(), Arc::downgrade(&crowd));
            crowd
        });
        crowd.members.fetch_add(1, Ordering::Relaxed);
        let number = crowd.joined.fetch_add(1, Ordering::Relaxed);
        Member { crowd, number, start: self.start }
    }
}

impl Member {
    /// When this watcher has its next turn; `None`: at once, as there is no crowd.
    pub fn turn(&self, now: Instant) -> Option<Instant> {
        let members = self.crowd.members.load(Ordering::Relaxed);
        if members < CROWD {
            return None;
        }
        let window = micros(TURN).saturating_mul(members as u64).min(micros(WINDOW_MAX));
        let own = self.number as u64 * micros(TURN) % window;
        let elapsed = micros(now.saturating_duration_since(self.start));
        let into = (elapsed + window - own) % window;
        Some(now + Duration::from_micros(window - into))
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.crowd.members.fetch_sub(1, Ordering::Relaxed);
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_are_served_at_once_and_many_in_turns() {
        let crowds = WatchBatches::default();
        let alone = crowds.join("/core/pods/");
        assert_eq!(alone.turn(Instant::now()), None);
        let members: Vec<Member> = (0..1000).map(|_| crowds.join("/core/configmaps/")).collect();
        let now = Instant::now() + Duration::from_millis(7);
        let turns: Vec<Instant> = members.iter().map(|member| member.turn(now).unwrap()).collect();
        assert!(turns.iter().all(|turn| *turn > now && *turn <= now + WINDOW_MAX));
        let early = turns.iter().filter(|turn| **turn <= now + Duration::from_millis(15)).count();
        assert!((450..=550).contains(&early), "half of them in half of the window, not {early}");
        assert_eq!(members[0].turn(turns[0]), Some(turns[0] + Duration::from_millis(30)));
        drop(members);
        assert_eq!(crowds.join("/core/configmaps/").turn(now), None);
        assert_eq!(alone.turn(now), None);
    }
}
