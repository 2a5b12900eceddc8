//! Whose pull is next: so many at a time, those of the most important pods first, and never all of them from one registry, so that
//! one that is slow holds up no other.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

/// Slots for pulls.
#[derive(Debug)]
pub struct Slots {
    all: usize,
    of_one_registry: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Pulls under way by registry.
    taken: BTreeMap<String, usize>,
    /// Those who wait, in the order of asking.
    waiting: Vec<Waits>,
}

#[derive(Debug)]
struct Waits {
    registry: String,
    rank: Rank,
    call: oneshot::Sender<()>,
}

/// Priority of the most important pod that waits for a pull. Cheap to clone; all clones are one.
#[derive(Clone, Debug)]
pub struct Rank(Arc<AtomicI32>);

impl Rank {
    /// Of a pod with this priority.
    pub fn new(priority: i32) -> Self {
        Self(Arc::new(AtomicI32::new(priority)))
    }

    /// A pod with this priority waits as well.
    pub fn raise(&self, priority: i32) {
        self.0.fetch_max(priority, Ordering::Relaxed);
    }

    fn now(&self) -> i32 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Slots {
    /// So many at a time.
    pub fn new(all: usize) -> Self {
        let all = all.max(1);
        Self { all, of_one_registry: all.saturating_sub(1).max(1), state: Mutex::default() }
    }

    /// Waits for a slot for a pull from `registry`. Cancel safe.
    pub async fn take(&self, registry: &str, rank: Rank) -> Slot<'_> {
        let called = {
            let mut state = self.lock();
            let (call, called) = oneshot::channel();
            state.waiting.push(Waits { registry: registry.to_owned(), rank, call });
            self.hand_out(&mut state);
            called
        };
        let mut asks = Asks { slots: self, registry: registry.to_owned(), called: Some(called) };
        if let Some(called) = &mut asks.called {
            // The caller is in the list until it calls.
            let _called = called.await;
        }
        asks.called = None;
        Slot { slots: self, registry: registry.to_owned() }
    }

    /// Gives what is free to those who wait.
    fn hand_out(&self, state: &mut State) {
        while state.taken.values().sum::<usize>() < self.all {
            let fits = |waits: &Waits| {
                state.taken.get(&waits.registry).is_none_or(|n| *n < self.of_one_registry)
            };
            let ranked = state.waiting.iter().enumerate().filter(|(_, waits)| fits(waits));
            // Of equal ones the first that asked.
            let next = ranked.min_by_key(|(at, waits)| (std::cmp::Reverse(waits.rank.now()), *at));
            let Some((at, _)) = next else { return };
            let Waits { registry, call, .. } = state.waiting.remove(at);
            // Who has gone away meanwhile takes none.
            if call.send(()).is_ok() {
                let taken = state.taken.entry(registry).or_default();
                *taken = taken.saturating_add(1);
            }
        }
    }

    fn give_back(&self, registry: &str) {
        let mut state = self.lock();
        if let Some(taken) = state.taken.get_mut(registry) {
            *taken = taken.saturating_sub(1);
        }
        state.taken.retain(|_, taken| *taken > 0);
        self.hand_out(&mut state);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A slot.
#[derive(Debug)]
pub struct Slot<'a> {
    slots: &'a Slots,
    registry: String,
}

impl Drop for Slot<'_> {
    fn drop(&mut self) {
        self.slots.give_back(&self.registry);
    }
}

/// Somebody who waits.
struct Asks<'a> {
    slots: &'a Slots,
    registry: String,
    called: Option<oneshot::Receiver<()>>,
}

impl Drop for Asks<'_> {
    fn drop(&mut self) {
        // Called and gone before it heard: the slot is another's.
        if self.called.as_mut().is_some_and(|called| called.try_recv().is_ok()) {
            self.slots.give_back(&self.registry);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    /// Takes a slot, writes down who has it and keeps it until told to let go.
    fn pull(
        slots: &Arc<Slots>,
        order: &Arc<Mutex<Vec<&'static str>>>,
        (name, registry, rank): (&'static str, &'static str, Rank),
    ) -> oneshot::Sender<()> {
        let (slots, order) = (slots.clone(), order.clone());
        let (end, ended) = oneshot::channel();
        tokio::spawn(async move {
            let _slot = slots.take(registry, rank).await;
            order.lock().unwrap().push(name);
            let _ended = ended.await;
        });
        end
    }

    async fn settle() {
        for _ in 0..20 {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn the_most_important_is_next_and_no_registry_takes_all() {
        let slots = Arc::new(Slots::new(3));
        let order = Arc::new(Mutex::new(Vec::new()));
        let low = || Rank::new(0);
        let mut ends = Vec::new();
        for name in ["a1", "a2", "a3"] {
            ends.push(pull(&slots, &order, (name, "a", low())));
            settle().await;
        }
        assert_eq!(*order.lock().unwrap(), ["a1", "a2"], "one slot is for other registries");
        let _b = pull(&slots, &order, ("b1", "b", low()));
        let raised = low();
        let _a4 = pull(&slots, &order, ("a4", "a", raised.clone()));
        let _a5 = pull(&slots, &order, ("a5", "a", Rank::new(7)));
        settle().await;
        assert_eq!(*order.lock().unwrap(), ["a1", "a2", "b1"]);
        // A critical pod wants what waited with the least.
        raised.raise(2_000_000_000);
        for end in ends.drain(..2) {
            end.send(()).unwrap();
            settle().await;
        }
        assert_eq!(*order.lock().unwrap(), ["a1", "a2", "b1", "a4", "a5"]);
    }

    #[tokio::test]
    async fn who_goes_away_takes_no_slot() {
        let slots = Slots::new(1);
        let held = slots.take("a", Rank::new(0)).await;
        let mut gone = Box::pin(slots.take("a", Rank::new(0)));
        assert!(gone.as_mut().now_or_never().is_none());
        // Called, and gone before it heard.
        drop(held);
        drop(gone);
        assert!(slots.take("b", Rank::new(0)).now_or_never().is_some());
        assert!(slots.lock().taken.is_empty() && slots.lock().waiting.is_empty());
    }
}
