//! Order of pulls: a limited number at a time, those of pods with the highest priority first, and
//! never all from one registry or for one namespace, so that a slow registry does not delay others.
//! A pull that takes long ends when others wait for its slot.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;

/// How long a pull keeps its slot although others wait for it.
pub const KEPT_FROM_OTHERS: Duration = Duration::from_secs(900);
/// Between two looks at who waits.
const LOOK_INTERVAL: Duration = Duration::from_secs(10);

/// The slots of concurrent pulls.
#[derive(Debug)]
pub struct PullSlots {
    all: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Number of the last pull.
    begun: u64,
    /// Running pulls by number, which is the order of their start.
    running: BTreeMap<u64, PullOrigin>,
    /// Waiting pulls in order of arrival.
    waiting: Vec<Waits>,
}

/// What shares of the slots are counted by.
#[derive(Clone, Debug)]
pub struct PullOrigin {
    /// Where the image is.
    pub registry: String,
    /// Of the pod that wanted it first.
    pub namespace: String,
}

#[derive(Debug)]
struct Waits {
    origin: PullOrigin,
    rank: Rank,
    call: oneshot::Sender<u64>,
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

impl PullSlots {
    /// A queue with this many slots.
    pub fn new(all: usize) -> Self {
        Self { all: all.max(1), state: Mutex::default() }
    }

    /// Waits for a slot for a pull of `origin`. Cancel safe.
    pub async fn take(&self, origin: PullOrigin, rank: Rank) -> PullSlot<'_> {
        let called = {
            let mut state = self.lock();
            let (call, called) = oneshot::channel();
            state.waiting.push(Waits { origin, rank, call });
            self.hand_out(&mut state);
            called
        };
        let mut asks = Asks { slots: self, called };
        // The sender stays in the list until it sends.
        let number = (&mut asks.called).await.unwrap_or_default();
        PullSlot { slots: self, number }
    }

    /// Passes free slots to waiting pulls.
    fn hand_out(&self, state: &mut State) {
        loop {
            let fits = |waits: &Waits| self.has_room(state, &waits.origin, None);
            let ranked = state.waiting.iter().enumerate().filter(|(_, waits)| fits(waits));
            // Of equal priority, the first that came.
            let next = ranked.min_by_key(|(at, waits)| (std::cmp::Reverse(waits.rank.now()), *at));
            let Some((at, _)) = next else { return };
            let Waits { origin, call, .. } = state.waiting.remove(at);
            state.begun = state.begun.saturating_add(1);
            // A cancelled pull takes no slot.
            if call.send(state.begun).is_ok() {
                state.running.insert(state.begun, origin);
            }
        }
    }

    /// Whether a pull of `origin` may run beside those that run, or would if `less` did not.
    fn has_room(&self, state: &State, origin: &PullOrigin, less: Option<u64>) -> bool {
        let others = || {
            let others = state.running.iter().filter(|(number, _)| Some(**number) != less);
            others.map(|(_, other)| other)
        };
        let of_registry = others().filter(|other| other.registry == origin.registry).count();
        let of_namespace = others().filter(|other| other.namespace == origin.namespace).count();
        others().count() < self.all
            && of_registry < self.all.saturating_sub(1).max(1)
            && of_namespace < self.all.saturating_sub(2).max(1)
    }

    /// The oldest running pull whose end lets a waiting one begin.
    fn oldest_in_the_way(&self) -> Option<u64> {
        let state = self.lock();
        // One that was cancelled stays in the list until it is handed a slot.
        let waiting = || state.waiting.iter().filter(|waits| !waits.call.is_closed());
        let mut running = state.running.keys().copied();
        running.find(|number| {
            waiting().any(|waits| self.has_room(&state, &waits.origin, Some(*number)))
        })
    }

    fn give_back(&self, number: u64) {
        let mut state = self.lock();
        state.running.remove(&number);
        self.hand_out(&mut state);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A permit for one pull; dropping it lets the next pull start.
#[derive(Debug)]
pub struct PullSlot<'a> {
    slots: &'a PullSlots,
    number: u64,
}

impl PullSlot<'_> {
    /// Waits until this pull has had the slot for long and others need it. Called when the pull begins.
    pub async fn is_needed_by_others(&self) {
        tokio::time::sleep(KEPT_FROM_OTHERS).await;
        while self.slots.oldest_in_the_way() != Some(self.number) {
            tokio::time::sleep(LOOK_INTERVAL).await;
        }
    }
}

impl Drop for PullSlot<'_> {
    fn drop(&mut self) {
        self.slots.give_back(self.number);
    }
}

/// A waiting pull.
struct Asks<'a> {
    slots: &'a PullSlots,
    called: oneshot::Receiver<u64>,
}

impl Drop for Asks<'_> {
    fn drop(&mut self) {
        // A slot that was sent but not received is passed on.
        if let Ok(number) = self.called.try_recv() {
            self.slots.give_back(number);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    fn origin(registry: &str, namespace: &str) -> PullOrigin {
        PullOrigin { registry: registry.to_owned(), namespace: namespace.to_owned() }
    }

    /// Takes a slot, records it and holds it until released.
    fn pull(
        slots: &Arc<PullSlots>,
        order: &Arc<Mutex<Vec<&'static str>>>,
        (name, registry, rank): (&'static str, &'static str, Rank),
    ) -> oneshot::Sender<()> {
        // Each pull is for a namespace of its own.
        pull_for(slots, order, (name, origin(registry, name), rank))
    }

    fn pull_for(
        slots: &Arc<PullSlots>,
        order: &Arc<Mutex<Vec<&'static str>>>,
        (name, origin, rank): (&'static str, PullOrigin, Rank),
    ) -> oneshot::Sender<()> {
        let (slots, order) = (slots.clone(), order.clone());
        let (end, ended) = oneshot::channel();
        tokio::spawn(async move {
            let _slot = slots.take(origin, rank).await;
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
        let slots = Arc::new(PullSlots::new(3));
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
    async fn a_cancelled_pull_takes_no_slot() {
        let slots = PullSlots::new(1);
        let held = slots.take(origin("a", "n"), Rank::new(0)).await;
        let mut gone = Box::pin(slots.take(origin("a", "n"), Rank::new(0)));
        assert!(gone.as_mut().now_or_never().is_none());
        // Sent, and cancelled before it was received.
        drop(held);
        drop(gone);
        assert!(slots.take(origin("b", "n"), Rank::new(0)).now_or_never().is_some());
        assert!(slots.lock().running.is_empty() && slots.lock().waiting.is_empty());
    }

    #[tokio::test]
    async fn one_namespace_leaves_slots_to_others() {
        let slots = Arc::new(PullSlots::new(5));
        let order = Arc::new(Mutex::new(Vec::new()));
        let names = ["a1", "a2", "a3", "a4", "a5", "a6"];
        let registries = ["r1", "r2", "r3"].iter().cycle();
        let pull = |name, registry, namespace| {
            pull_for(&slots, &order, (name, origin(registry, namespace), Rank::new(0)))
        };
        let mut ends = Vec::new();
        for (name, registry) in names.into_iter().zip(registries) {
            ends.push(pull(name, registry, "a"));
            settle().await;
        }
        ends.push(pull("b1", "r1", "b"));
        settle().await;
        assert_eq!(*order.lock().unwrap(), ["a1", "a2", "a3", "b1"]);
    }

    #[tokio::test]
    async fn the_oldest_pull_in_the_way_of_others_is_found() {
        let slots = PullSlots::new(3);
        let take = |registry, namespace| slots.take(origin(registry, namespace), Rank::new(0));
        let (oldest, younger, _youngest) =
            (take("r1", "a").await, take("r2", "b").await, take("r3", "c").await);
        assert_eq!(slots.oldest_in_the_way(), None, "no pull waits");
        let mut other = Box::pin(take("r3", "d"));
        assert!(other.as_mut().now_or_never().is_none());
        assert_eq!(slots.oldest_in_the_way(), Some(oldest.number));
        // One that went away does not wait.
        drop(other);
        assert_eq!(slots.oldest_in_the_way(), None);
        let mut own = Box::pin(take("r1", "b"));
        assert!(own.as_mut().now_or_never().is_none());
        assert_eq!(slots.oldest_in_the_way(), Some(younger.number), "its namespace has its share");
        drop(oldest);
        assert!(own.as_mut().now_or_never().is_none());
        drop(younger);
        assert!(own.now_or_never().is_some());
    }
}
