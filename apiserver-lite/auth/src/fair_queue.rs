//! A bounded queue of questions in which no client takes more than a share: the others' questions find room and their turn.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout_at};

use crate::expiring_cache::{CacheKey, key};

/// Most questions on their way at a time, and most of one client.
const TURNS_MAX: usize = 64;
const TURNS_MAX_PER_CLIENT: usize = 16;
/// Most questions that are on their way or wait, and most of one client.
const PLACES_MAX: usize = 512;
const PLACES_MAX_PER_CLIENT: usize = 128;

/// What has no room for a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Full {
    /// The share of its client.
    Share,
    /// The queue of all clients.
    Queue,
}

/// Turns that are given to those who wait, in the order of who has fewest.
pub struct FairQueue {
    turns: Arc<Semaphore>,
    clients: Mutex<Clients>,
}

#[derive(Default)]
struct Clients {
    shares: HashMap<CacheKey, Share>,
    places: usize,
}

/// What a client has in the queue.
struct Share {
    places: usize,
    turns: Arc<Semaphore>,
}

/// A place in the queue until it is dropped.
pub struct QueueEntry {
    queue: Arc<FairQueue>,
    client: CacheKey,
    turns: Arc<Semaphore>,
}

/// A question's turn until it is dropped.
pub struct Turn {
    _permits: [OwnedSemaphorePermit; 2],
    _place: QueueEntry,
}

impl FairQueue {
    /// An empty one.
    pub fn new() -> Arc<Self> {
        let turns = Arc::new(Semaphore::new(TURNS_MAX));
        Arc::new(Self { turns, clients: Mutex::default() })
    }

    /// A place for a question of `client`.
    ///
    /// # Errors
    /// What is full.
    pub fn enter(self: &Arc<Self>, client: &str) -> Result<QueueEntry, Full> {
        let client = key(client.as_bytes());
        let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        let new = || Share { places: 0, turns: Arc::new(Semaphore::new(TURNS_MAX_PER_CLIENT)) };
        if clients.shares.get(&client).is_some_and(|share| share.places >= PLACES_MAX_PER_CLIENT) {
            return Err(Full::Share);
        }
        if clients.places >= PLACES_MAX {
            return Err(Full::Queue);
        }
        let share = clients.shares.entry(client).or_insert_with(new);
        share.places = share.places.saturating_add(1);
        let turns = share.turns.clone();
        clients.places = clients.places.saturating_add(1);
        Ok(QueueEntry { queue: self.clone(), client, turns })
    }
}

impl QueueEntry {
    /// Waits for this question's turn, which lasts until the permits are dropped.
    pub async fn wait(&self) -> Option<[OwnedSemaphorePermit; 2]> {
        // The semaphores are never closed.
        let own = self.turns.clone().acquire_owned().await.ok()?;
        let all = self.queue.turns.clone().acquire_owned().await.ok()?;
        Some([own, all])
    }

    /// [`QueueEntry::wait`] until `deadline`; the turn keeps the place.
    ///
    /// # Errors
    /// What has had no turn until then.
    pub async fn wait_until(self, deadline: Instant) -> Result<Turn, Full> {
        let own = timeout_at(deadline, self.turns.clone().acquire_owned()).await;
        let Ok(Ok(own)) = own else { return Err(Full::Share) };
        let all = timeout_at(deadline, self.queue.turns.clone().acquire_owned()).await;
        let Ok(Ok(all)) = all else { return Err(Full::Queue) };
        Ok(Turn { _permits: [own, all], _place: self })
    }
}

impl Drop for QueueEntry {
    fn drop(&mut self) {
        let mut clients = self.queue.clients.lock().unwrap_or_else(PoisonError::into_inner);
        clients.places = clients.places.saturating_sub(1);
        if let Some(share) = clients.shares.get_mut(&self.client) {
            share.places = share.places.saturating_sub(1);
            if share.places == 0 {
                clients.shares.remove(&self.client);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    async fn has_turn(place: &QueueEntry) -> Option<[OwnedSemaphorePermit; 2]> {
        tokio::time::timeout(Duration::from_millis(1), place.wait()).await.ok().flatten()
    }

    #[tokio::test(start_paused = true)]
    async fn one_client_leaves_room_and_turns_to_others() {
        let queue = FairQueue::new();
        let mut flood: Vec<QueueEntry> = std::iter::from_fn(|| queue.enter("flood").ok()).collect();
        assert_eq!(flood.len(), PLACES_MAX_PER_CLIENT);
        let mut turns = Vec::new();
        for place in &flood {
            turns.extend(has_turn(place).await);
        }
        assert_eq!(turns.len(), TURNS_MAX_PER_CLIENT);
        assert_eq!(queue.enter("flood").map(drop), Err(Full::Share));
        let soon = Instant::now() + Duration::from_millis(1);
        let refused = flood.pop().expect("a place").wait_until(soon).await;
        assert_eq!(refused.map(drop), Err(Full::Share));
        let other = queue.enter("other").expect("room");
        assert!(has_turn(&other).await.is_some());
        turns.pop();
        assert!(has_turn(&flood[TURNS_MAX_PER_CLIENT]).await.is_some(), "a turn that has ended");
    }

    #[test]
    fn all_clients_together_are_bounded_and_nothing_is_kept_of_those_that_left() {
        let queue = FairQueue::new();
        let places: Vec<QueueEntry> =
            (0..10_000).filter_map(|nth| queue.enter(&format!("client-{nth}")).ok()).collect();
        assert_eq!(places.len(), PLACES_MAX);
        assert!(queue.enter("late").is_err());
        drop(places);
        assert!(queue.clients.lock().unwrap().shares.is_empty());
        assert!(queue.enter("late").is_ok());
    }
}
