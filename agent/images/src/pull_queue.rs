//! Order of pulls: a limited number at a time, those of pods with the highest priority first, and
//! never all from one registry, so that a slow registry does not delay others.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

/// The slots of concurrent pulls.
#[derive(Debug)]
pub struct Slots {
    all: usize,
    of_one_registry: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Running pulls by registry.
    taken: BTreeMap<String, usize>,
    /// Waiting pulls in order of arrival.
    waiting: Vec<Waits>,
}

#[derive(Debug)]
struct Waits {
    registry: String,
    rank: Rank,
    call: oneshot::Sender<()>,
}

/// Highest priority of the pods that wait for a pull. Clones share one value.
#[derive(Clone, Debug)]
pub struct Rank(Arc<AtomicI32>);

impl Rank {
    pub fn new(priority: i32) -> Self {
        Self(Arc::new(AtomicI32::new(priority)))
    }

    /// Adds a pod with this priority.
    pub fn raise(&self, priority: i32) {
        self.0.fetch_max(priority, Ordering::Relaxed);
    }

    fn now(&self) -> i32 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Slots {
    /// A queue with this many slots.
    pub fn new(all: usize) -> Self {
        let all = all.max(1);
        Self { all, of_one_registry: all.saturating_sub(1).max(1), state: Mutex::default() }
    }

    /// Waits for a slot to pull from `registry`. Cancel safe.
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
            // The sender stays in the list until it sends.
            let _called = called.await;
        }
        asks.called = None;
        Slot { slots: self, registry: registry.to_owned() }
    }

    /// Passes free slots to waiting pulls.
    fn hand_out(&self, state: &mut State) {
        while state.taken.values().sum::<usize>() < self.all {
            let fits = |waits: &Waits| {
                state.taken.get(&waits.registry).is_none_or(|n| *n < self.of_one_registry)
            };
            let ranked = state.waiting.iter().enumerate().filter(|(_, waits)| fits(waits));
            // Of equal priority, the first that came.
            let next = ranked.min_by_key(|(at, waits)| (std::cmp::Reverse(waits.rank.now()), *at));
            let Some((at, _)) = next else { return };
            let Waits { registry, call, .. } = state.waiting.remove(at);
            // A cancelled pull takes no slot.
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

/// A permit for one pull; dropping it lets the next pull start.
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

/// A waiting pull.
struct Asks<'a> {
    slots: &'a Slots,
    registry: String,
    called: Option<oneshot::Receiver<()>>,
}

impl Drop for Asks<'_> {
    fn drop(&mut self) {
        // A slot that was sent but not received is passed on.
        if self.called.as_mut().is_some_and(|called| called.try_recv().is_ok()) {
            self.slots.give_back(&self.registry);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    /// Takes a slot, records it and holds it until released.
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
        // A critical pod needs the image with the lowest priority.
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
        // Sent, and cancelled before it was received.
        drop(held);
        drop(gone);
        assert!(slots.take("b", Rank::new(0)).now_or_never().is_some());
        assert!(slots.lock().taken.is_empty() && slots.lock().waiting.is_empty());
    }
}
