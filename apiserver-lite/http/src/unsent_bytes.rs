//! Bytes of responses that their clients have not taken yet, and large requests that are being served. Each user has a share of the server's memory and
//! threads for them: who does not read, or sends much, waits, and no other user does.

#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

/// What one user may leave unread. A response that is larger is the only one of its user.
const SHARE_LEN: usize = 256 << 20;
/// Most large requests of a user that wait for their turn.
const LARGE_WAITING_MAX: usize = 8;
/// After so long the next large request begins, whatever the one before it waits for: a webhook may itself be of this user.
const LARGE_TURN_MAX: Duration = Duration::from_secs(1);
/// Unit in which bytes are counted.
const UNIT_LEN: usize = 1 << 10;
/// Responses and chunks of streams that are not counted: a user has some thousand of them.
pub const UNCOUNTED_LEN: usize = 4 << 10;

/// The shares of all users that have something unread.
#[derive(Default)]
pub struct UnsentBytes {
    shares: Mutex<Shares>,
}

#[derive(Default)]
struct Shares {
    by_user: HashMap<String, Weak<Share>>,
    /// Entries at which those of users without unread bytes are removed.
    clean_at: usize,
}

/// What one user has.
struct Share {
    /// Units of bytes that may be left unread.
    free: Arc<Semaphore>,
    /// Places of large requests that wait, and which of them is the next.
    waiting: Semaphore,
    next: Semaphore,
    /// The turn of a large request.
    large: Arc<Semaphore>,
}

/// What a user may leave unread, and its turn of large requests.
pub struct UserShare(Arc<Share>);

/// The turn of a large request, until it is dropped.
pub struct LargeTurn {
    _permit: Option<OwnedSemaphorePermit>,
    _share: Arc<Share>,
}

/// A part of a user's share, free again when it is dropped.
pub struct ReservedBytes {
    /// `None` for few bytes, which are not counted.
    permit: Option<OwnedSemaphorePermit>,
    /// It is the user's as long as something is unread.
    _share: Arc<Share>,
}

impl UnsentBytes {
    /// The share of `user`.
    #[must_use]
    pub fn share(&self, user: &str) -> UserShare {
        let mut shares = self.shares.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(share) = shares.by_user.get(user).and_then(Weak::upgrade) {
            return UserShare(share);
        }
        if shares.by_user.len() >= shares.clean_at {
            shares.by_user.retain(|_, share| share.strong_count() > 0);
            shares.clean_at = shares.by_user.len().saturating_mul(2).max(64);
        }
        let free = Arc::new(Semaphore::new(SHARE_LEN / UNIT_LEN));
        let (waiting, next) = (Semaphore::new(LARGE_WAITING_MAX), Semaphore::new(1));
        let share = Arc::new(Share { free, waiting, next, large: Arc::new(Semaphore::new(1)) });
        shares.by_user.insert(user.to_owned(), Arc::downgrade(&share));
        UserShare(share)
    }
}

impl UserShare {
    /// Waits until no other large request of the user is served, or has been for [`LARGE_TURN_MAX`]: such a one may hold a thread for a second, and a
    /// hundred would hold all of them for a minute. `None` if too many wait already.
    pub async fn large_turn(&self) -> Option<LargeTurn> {
        let Share { waiting, next, large, .. } = &*self.0;
        // The semaphores are never closed.
        let _place = waiting.try_acquire().ok()?;
        let _next = next.acquire().await.ok()?;
        let permit = timeout(LARGE_TURN_MAX, large.clone().acquire_owned()).await;
        let permit = permit.ok().and_then(Result::ok);
        Some(LargeTurn { _permit: permit, _share: self.0.clone() })
    }

    /// Reserves this many bytes, once they are free.
    pub async fn reserve(&self, len: usize) -> ReservedBytes {
        let Some(units) = units(len) else { return self.reserved(None) };
        // The semaphore is never closed.
        let permit = self.0.free.clone().acquire_many_owned(units).await.ok();
        self.reserved(permit)
    }

    /// Reserves this many bytes, if they are free.
    #[must_use]
    pub fn try_reserve(&self, len: usize) -> Option<ReservedBytes> {
        let Some(units) = units(len) else { return Some(self.reserved(None)) };
        let permit = self.0.free.clone().try_acquire_many_owned(units).ok()?;
        Some(self.reserved(Some(permit)))
    }

    /// The reservation with another length, unless more is not free: then all of it is.
    #[must_use]
    pub fn resize(&self, reserved: ReservedBytes, len: usize) -> Option<ReservedBytes> {
        let Some(units) = units(len) else { return Some(self.reserved(None)) };
        let mut held = reserved.permit;
        let of_held = held.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
        let units = usize::try_from(units).unwrap_or(usize::MAX);
        if let Some(surplus) = of_held.checked_sub(units) {
            drop(held.as_mut().and_then(|held| held.split(surplus)));
            return Some(self.reserved(held));
        }
        let missing = u32::try_from(units.saturating_sub(of_held)).unwrap_or(u32::MAX);
        let more = self.0.free.clone().try_acquire_many_owned(missing).ok()?;
        match &mut held {
            Some(held) => held.merge(more),
            None => held = Some(more),
        }
        Some(self.reserved(held))
    }

    fn reserved(&self, permit: Option<OwnedSemaphorePermit>) -> ReservedBytes {
        ReservedBytes { permit, _share: self.0.clone() }
    }
}

impl ReservedBytes {
    /// The frames, which hold the reservation until the last of them is written.
    #[must_use]
    pub fn attach_to(self, frames: Vec<Bytes>) -> VecDeque<Bytes> {
        if self.permit.is_none() {
            return frames.into();
        }
        let reserved = Arc::new(self);
        let unsent = |bytes| Bytes::from_owner(Unsent { bytes, _held: reserved.clone() });
        frames.into_iter().map(unsent).collect()
    }
}

/// Bytes that are counted until they are written.
struct Unsent {
    bytes: Bytes,
    _held: Arc<ReservedBytes>,
}

impl AsRef<[u8]> for Unsent {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// Units of this many bytes, at most a whole share; `None` for bytes that are not counted.
fn units(len: usize) -> Option<u32> {
    let units = len.min(SHARE_LEN).div_ceil(UNIT_LEN);
    (len > UNCOUNTED_LEN).then(|| u32::try_from(units).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_user_waits_for_what_is_unread_and_others_do_not() {
        let unsent = UnsentBytes::default();
        let share = unsent.share("a");
        let first = share.reserve(SHARE_LEN).await;
        // Each request looks its share up.
        drop(share);
        let share = unsent.share("a");
        assert!(share.try_reserve(UNCOUNTED_LEN + 1).is_none());
        assert!(unsent.share("a").try_reserve(UNCOUNTED_LEN + 1).is_none(), "the same share");
        assert!(share.try_reserve(UNCOUNTED_LEN).is_some(), "not counted");
        assert!(unsent.share("b").try_reserve(SHARE_LEN).is_some());
        let frames = first.attach_to(vec![Bytes::from("a"), Bytes::from("b")]);
        let [one, two]: [Bytes; 2] = Vec::from(frames).try_into().unwrap();
        drop(one);
        assert!(share.try_reserve(UNCOUNTED_LEN + 1).is_none());
        drop(two.slice(..0));
        drop(two);
        assert!(share.try_reserve(usize::MAX).is_some(), "a whole share at most");
    }

    #[tokio::test]
    async fn a_reservation_takes_the_length_that_it_turns_out_to_have() {
        let unsent = UnsentBytes::default();
        let share = unsent.share("a");
        let free = || share.0.free.available_permits() * UNIT_LEN;
        let reserved = share.reserve(64 << 10).await;
        assert_eq!(free(), SHARE_LEN - (64 << 10));
        let less = share.resize(reserved, 8 << 10).unwrap();
        assert_eq!(free(), SHARE_LEN - (8 << 10));
        let more = share.resize(less, 1 << 20).unwrap();
        assert_eq!(free(), SHARE_LEN - (1 << 20));
        let other = share.reserve(SHARE_LEN - (1 << 20)).await;
        assert!(share.resize(more, 2 << 20).is_none());
        assert_eq!(free(), 1 << 20, "nothing is held while it waits");
        drop(other);
        let few = share.resize(share.reserve(64 << 10).await, 10).unwrap();
        assert_eq!(free(), SHARE_LEN);
        drop(few);
    }

    #[tokio::test(start_paused = true)]
    async fn large_requests_of_a_user_are_served_one_after_the_other() {
        let unsent = UnsentBytes::default();
        // Each request looks its share up, and may outlive it.
        let first = unsent.share("a").large_turn().await;
        let share = unsent.share("a");
        let mut next = std::pin::pin!(share.large_turn());
        assert!(futures_util::poll!(next.as_mut()).is_pending());
        assert!(futures_util::poll!(std::pin::pin!(unsent.share("b").large_turn())).is_ready());
        drop(first);
        assert!(futures_util::poll!(next).is_ready());
    }

    #[tokio::test(start_paused = true)]
    async fn a_large_request_that_takes_long_holds_the_next_ones_up_for_a_second_each() {
        let unsent = UnsentBytes::default();
        let share = unsent.share("a");
        let _stuck = share.large_turn().await;
        let begun = tokio::time::Instant::now();
        let all = (0..=LARGE_WAITING_MAX).map(|_| async {
            let turn = share.large_turn().await;
            turn.map(|turn| (turn, begun.elapsed().as_secs()))
        });
        let all = futures_util::future::join_all(all).await;
        let begins: Vec<_> = all.iter().map(|one| one.as_ref().map(|(_, at)| *at)).collect();
        let expected = (1..=LARGE_WAITING_MAX as u64).map(Some).chain([None]);
        assert_eq!(begins, expected.collect::<Vec<_>>(), "one more than may wait is refused");
    }

    #[test]
    fn users_without_unread_bytes_take_no_memory() {
        let unsent = UnsentBytes::default();
        let held = unsent.share("held");
        for n in 0..10_000 {
            let _ = unsent.share(&n.to_string());
        }
        assert!(unsent.shares.lock().unwrap().by_user.len() <= 200);
        assert!(Arc::ptr_eq(&held.0, &unsent.share("held").0));
    }
}
