//! Batches watches of one collection when there are many. Sent one by one, a burst of events would wake every watch for every
//! event, and writes would queue behind the watches. In a group of at least [`GROUP_LEN_MIN`] watches each one sends once per
//! window, with all events since its last send. The connections are spread over the window; watches of one connection send at the
//! same time, so that one write carries the frames of all of them. Smaller groups send at once.

#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use tokio::time::Instant;

/// Smallest group whose sends are batched.
const GROUP_LEN_MIN: usize = 64;
/// Time between two sends of a group: slightly more than one send takes.
const SEND_INTERVAL: Duration = Duration::from_micros(30);
/// Longest window, which is the longest delay of an event.
const WINDOW_MAX: Duration = Duration::from_millis(40);

/// The number of a connection among all of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionNumber(pub u64);

/// The groups of watches, by key prefix of the collection.
pub struct WatchBatches {
    by_prefix: Mutex<HashMap<String, Weak<WatcherGroup>>>,
    start: Instant,
}

/// The watches of one collection.
#[derive(Default)]
struct WatcherGroup {
    members: AtomicUsize,
    joined: AtomicUsize,
}

/// Membership of one watch; leaves the group when dropped.
pub struct GroupMember {
    group: Arc<WatcherGroup>,
    /// Place in the window, as a fraction of 2^32.
    place: u64,
    start: Instant,
}

impl Default for WatchBatches {
    fn default() -> Self {
        Self { by_prefix: Mutex::default(), start: Instant::now() }
    }
}

impl WatchBatches {
    /// Adds a watch of the keys below `prefix` to its group. Without a connection it is one by itself.
    pub fn join(&self, prefix: &str, connection: Option<ConnectionNumber>) -> GroupMember {
        let mut by_prefix = self.by_prefix.lock().unwrap_or_else(PoisonError::into_inner);
        let known = by_prefix.get(prefix).and_then(Weak::upgrade);
        let group = known.unwrap_or_else(|| {
            // Groups without members are removed when a new group is added.
            by_prefix.retain(|_, group| group.strong_count() > 0);
            let group = Arc::new(WatcherGroup::default());
            by_prefix.insert(prefix.to_owned(), Arc::downgrade(&group));
            group
        });
        group.members.fetch_add(1, Ordering::Relaxed);
        let joined = group.joined.fetch_add(1, Ordering::Relaxed) as u64;
        let place = place(connection.map_or(joined, |ConnectionNumber(number)| number));
        GroupMember { group, place, start: self.start }
    }
}

impl GroupMember {
    /// The time of this watch's next send; `None` if it sends at once, because the group is small.
    pub fn next_send(&self, now: Instant) -> Option<Instant> {
        let members = self.group.members.load(Ordering::Relaxed);
        if members < GROUP_LEN_MIN {
            return None;
        }
        let window = micros(SEND_INTERVAL).saturating_mul(members as u64).min(micros(WINDOW_MAX));
        let own = self.place.saturating_mul(window) >> 32;
        let elapsed = micros(now.saturating_duration_since(self.start));
        let since_own = elapsed.saturating_add(window.saturating_sub(own)).checked_rem(window)?;
        now.checked_add(Duration::from_micros(window.saturating_sub(since_own)))
    }
}

impl Drop for GroupMember {
    fn drop(&mut self) {
        self.group.members.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Consecutive numbers have places that are far apart: multiples of the golden ratio are spread evenly, however many there are.
fn place(number: u64) -> u64 {
    number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_are_served_at_once_and_many_in_turns() {
        let watch_batches = WatchBatches::default();
        let alone = watch_batches.join("/core/pods/", None);
        assert_eq!(alone.next_send(Instant::now()), None);
        let members: Vec<GroupMember> =
            (0..1000).map(|_| watch_batches.join("/core/configmaps/", None)).collect();
        let now = Instant::now() + Duration::from_millis(7);
        let sends: Vec<Instant> =
            members.iter().map(|member| member.next_send(now).unwrap()).collect();
        assert!(sends.iter().all(|send| *send > now && *send <= now + WINDOW_MAX));
        for tenths in 1..10 {
            let by = now + Duration::from_millis(3) * tenths;
            let early = sends.iter().filter(|send| **send <= by).count();
            let even = 100 * tenths as usize;
            assert!(early.abs_diff(even) <= 10, "{tenths} tenths of the window: {early} sends");
        }
        assert_eq!(members[0].next_send(sends[0]), Some(sends[0] + Duration::from_millis(30)));
        drop(members);
        assert_eq!(watch_batches.join("/core/configmaps/", None).next_send(now), None);
        assert_eq!(alone.next_send(now), None);
    }

    #[test]
    fn watches_of_one_connection_send_at_the_same_time() {
        let watch_batches = WatchBatches::default();
        let members: Vec<GroupMember> = (0..100)
            .map(|n| watch_batches.join("/core/pods/", Some(ConnectionNumber(7 + n % 4))))
            .collect();
        let now = Instant::now() + Duration::from_millis(7);
        let mut sends: Vec<Instant> =
            members.iter().map(|member| member.next_send(now).unwrap()).collect();
        sends.sort();
        sends.dedup();
        assert_eq!(sends.len(), 4);
    }
}
