//! What waits for the task of one pod. There are several a pod, nearly always empty, so an empty one holds no room: a channel of the
//! async runtime keeps that of 32 messages.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// Messages of any number of senders to one receiver, in the order in which they came.
#[derive(Debug)]
pub struct Inbox<T> {
    waiting: Mutex<VecDeque<T>>,
    came: Notify,
}

impl<T> Default for Inbox<T> {
    fn default() -> Self {
        Self { waiting: Mutex::default(), came: Notify::new() }
    }
}

impl<T> Inbox<T> {
    /// Adds a message. If `max` wait already they and it give way to `instead`; whether that was so.
    pub fn add(&self, message: T, max: usize, instead: impl FnOnce() -> T) -> Full {
        let mut waiting = self.waiting();
        let full = if waiting.len() < max { Full::No } else { Full::Yes };
        match full {
            Full::No => waiting.push_back(message),
            Full::Yes => *waiting = VecDeque::from([instead()]),
        }
        self.came.notify_one();
        full
    }

    /// Adds a message, in the place of the one that is about the `same`: as many wait as there are things to tell of.
    pub fn renew(&self, message: T, same: impl Fn(&T) -> bool) {
        let mut waiting = self.waiting();
        waiting.retain(|older| !same(older));
        waiting.push_back(message);
        self.came.notify_one();
    }

    /// The next message. Cancel safe; for one receiver at a time.
    pub async fn next(&self) -> T {
        loop {
            if let Some(message) = self.take() {
                return message;
            }
            // Remembers a message that came since the look.
            self.came.notified().await;
        }
    }

    fn take(&self) -> Option<T> {
        let mut waiting = self.waiting();
        let message = waiting.pop_front();
        if waiting.is_empty() {
            *waiting = VecDeque::new();
        }
        message
    }

    fn waiting(&self) -> MutexGuard<'_, VecDeque<T>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether an inbox had no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Full {
    /// It had: what waited is gone.
    Yes,
    /// It had not.
    No,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn messages_come_in_order_and_too_many_become_one() {
        let inbox = Inbox::default();
        let add = |n: u8| inbox.add(n, 3, || 99);
        assert_eq!([1, 2, 3].map(add), [Full::No; 3]);
        assert_eq!(inbox.next().await, 1);
        assert_eq!([4, 5].map(add), [Full::No, Full::Yes]);
        assert_eq!(add(6), Full::No);
        assert_eq!((inbox.next().await, inbox.next().await), (99, 6));
        assert_eq!(inbox.waiting().capacity(), 0);
    }

    #[tokio::test]
    async fn a_newer_word_on_the_same_is_the_only_one() {
        let inbox = Inbox::default();
        for (about, word) in [("a", 1), ("b", 2), ("a", 3)] {
            inbox.renew((about, word), |(older, _)| *older == about);
        }
        assert_eq!((inbox.next().await, inbox.next().await), (("b", 2), ("a", 3)));
    }

    #[tokio::test]
    async fn who_waits_hears_of_what_comes() {
        let inbox = std::sync::Arc::new(Inbox::default());
        let waits = tokio::spawn({
            let inbox = inbox.clone();
            async move { (inbox.next().await, inbox.next().await) }
        });
        tokio::task::yield_now().await;
        inbox.add(1, 3, || 0);
        inbox.add(2, 3, || 0);
        assert_eq!(waits.await.expect("joined"), (1, 2));
    }
}
