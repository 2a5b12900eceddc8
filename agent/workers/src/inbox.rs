//! Message queue of a pod's task. Each pod has several, nearly always empty, so an empty one
//! allocates nothing; a tokio channel reserves room for 32 messages.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// A queue with many senders and one receiver, in order of arrival.
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
    /// Adds a message. If `max` messages are queued, all of them are replaced by `instead`. Returns
    /// whether that happened.
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

    /// Adds a message and removes queued ones about the `same` subject, which bounds the queue by
    /// the number of subjects.
    pub fn renew(&self, message: T, same: impl Fn(&T) -> bool) {
        let mut waiting = self.waiting();
        waiting.retain(|older| !same(older));
        waiting.push_back(message);
        self.came.notify_one();
    }

    /// The next message. Cancel safe; for a single receiver.
    pub async fn next(&self) -> T {
        loop {
            if let Some(message) = self.take() {
                return message;
            }
            // `Notify` keeps the permit of a message added since `take`.
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

/// Whether an inbox was full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Full {
    /// It was: the queued messages were replaced.
    Yes,
    /// It was not.
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
    async fn a_newer_item_replaces_an_older_one_about_the_same_subject() {
        let inbox = Inbox::default();
        for (about, word) in [("a", 1), ("b", 2), ("a", 3)] {
            inbox.renew((about, word), |(older, _)| *older == about);
        }
        assert_eq!((inbox.next().await, inbox.next().await), (("b", 2), ("a", 3)));
    }

    #[tokio::test]
    async fn a_waiting_receiver_gets_new_items() {
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
