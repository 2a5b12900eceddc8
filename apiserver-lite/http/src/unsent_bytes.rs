//! Bytes of responses that their clients have not taken yet. Each user has a share of the server's memory for them: who does not read waits, and no other
//! user does.

#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// What one user may leave unread. A response that is larger is the only one of its user.
const SHARE_LEN: usize = 256 << 20;
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
    by_user: HashMap<String, Weak<Semaphore>>,
    /// Entries at which those of users without unread bytes are removed.
    clean_at: usize,
}

/// The share of one user.
pub struct UserShare {
    free: Arc<Semaphore>,
}

/// A part of a user's share, free again when it is dropped.
pub struct Reservation {
    /// `None` for few bytes, which are not counted.
    permit: Option<OwnedSemaphorePermit>,
}

impl UnsentBytes {
    /// The share of `user`.
    #[must_use]
    pub fn share(&self, user: &str) -> UserShare {
        let mut shares = self.shares.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(free) = shares.by_user.get(user).and_then(Weak::upgrade) {
            return UserShare { free };
        }
        if shares.by_user.len() >= shares.clean_at {
            shares.by_user.retain(|_, share| share.strong_count() > 0);
            shares.clean_at = shares.by_user.len().saturating_mul(2).max(64);
        }
        let free = Arc::new(Semaphore::new(SHARE_LEN / UNIT_LEN));
        shares.by_user.insert(user.to_owned(), Arc::downgrade(&free));
        UserShare { free }
    }
}

impl UserShare {
    /// Reserves so many bytes, once they are free.
    pub async fn reserve(&self, len: usize) -> Reservation {
        let Some(units) = units(len) else { return Reservation { permit: None } };
        // The semaphore is never closed.
        let permit = self.free.clone().acquire_many_owned(units).await.ok();
        Reservation { permit }
    }

    /// Reserves so many bytes, if they are free.
    #[must_use]
    pub fn try_reserve(&self, len: usize) -> Option<Reservation> {
        let Some(units) = units(len) else { return Some(Reservation { permit: None }) };
        let permit = self.free.clone().try_acquire_many_owned(units).ok()?;
        Some(Reservation { permit: Some(permit) })
    }

    /// The reservation with another length, unless more is not free: then all of it is.
    #[must_use]
    pub fn resize(&self, reservation: Reservation, len: usize) -> Option<Reservation> {
        let Some(units) = units(len) else { return Some(Reservation { permit: None }) };
        let mut held = reservation.permit;
        let of_held = held.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
        let units = usize::try_from(units).unwrap_or(usize::MAX);
        if let Some(surplus) = of_held.checked_sub(units) {
            drop(held.as_mut().and_then(|held| held.split(surplus)));
            return Some(Reservation { permit: held });
        }
        let missing = u32::try_from(units.saturating_sub(of_held)).unwrap_or(u32::MAX);
        let more = self.free.clone().try_acquire_many_owned(missing).ok()?;
        match &mut held {
            Some(held) => held.merge(more),
            None => held = Some(more),
        }
        Some(Reservation { permit: held })
    }
}

impl Reservation {
    /// The frames, which hold the reservation until the last of them is written.
    #[must_use]
    pub fn attach_to(self, frames: Vec<Bytes>) -> VecDeque<Bytes> {
        let Some(permit) = self.permit else { return frames.into() };
        let permit = Arc::new(permit);
        let unsent = |bytes| Bytes::from_owner(Unsent { bytes, _permit: permit.clone() });
        frames.into_iter().map(unsent).collect()
    }
}

/// Bytes that are counted until they are written.
struct Unsent {
    bytes: Bytes,
    _permit: Arc<OwnedSemaphorePermit>,
}

impl AsRef<[u8]> for Unsent {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// Units of so many bytes, at most a whole share; `None` for bytes that are not counted.
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
        let free = || share.free.available_permits() * UNIT_LEN;
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

    #[test]
    fn users_without_unread_bytes_take_no_memory() {
        let unsent = UnsentBytes::default();
        let held = unsent.share("held");
        for n in 0..10_000 {
            let _ = unsent.share(&n.to_string());
        }
        assert!(unsent.shares.lock().unwrap().by_user.len() <= 200);
        assert!(Arc::ptr_eq(&held.free, &unsent.share("held").free));
    }
}
