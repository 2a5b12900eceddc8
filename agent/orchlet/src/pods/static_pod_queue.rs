//! Static pods that wait for the end of another of their name, or of themselves from before. They wait for however long that takes,
//! since two of them at a time may spoil what they write; when it takes longer than it should, they say so.

#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

use super::worker::Order;
use crate::clock;

/// Beyond the grace of the pod that is waited for, until something is said.
const MARGIN: Duration = Duration::from_secs(30);
/// Until it is said again.
const AGAIN: Duration = Duration::from_secs(300);

/// Those who wait, by uid.
#[derive(Default)]
pub struct Waiting(BTreeMap<String, Waits>);

struct Waits {
    asked: std::time::Instant,
    order: Order,
    /// Uid of the pod that has to end first.
    before: String,
    since: Instant,
    tell_at: Instant,
}

/// One that has waited too long.
#[derive(Clone, Debug, PartialEq)]
pub struct Overdue {
    /// Who waits.
    pub order: Order,
    /// Uid of the pod that should have ended.
    pub before: String,
    /// For how long.
    pub waited: Duration,
}

impl Waiting {
    /// Has `order` wait for the end of the pod `before`, that should come within `grace`. One that waits already waits on.
    pub fn insert(
        &mut self,
        order: Order,
        asked: std::time::Instant,
        before: String,
        grace: Duration,
    ) {
        let now = Instant::now();
        let known = self.0.remove(&order.pod.metadata.uid);
        let known = known.filter(|waits| waits.before == before);
        let (asked, since, tell_at) = known
            .map_or((asked, now, clock::after(grace.saturating_add(MARGIN))), |waits| {
                (waits.asked, waits.since, waits.tell_at)
            });
        let uid = order.pod.metadata.uid.clone();
        self.0.insert(uid, Waits { asked, order, before, since, tell_at });
    }

    /// Has one wait no more.
    pub fn remove(&mut self, uid: &str) {
        self.0.remove(uid);
    }

    /// Whether it waits.
    pub fn contains(&self, uid: &str) -> bool {
        self.0.contains_key(uid)
    }

    /// All of them, with when they were asked for; nobody waits any more.
    pub fn take(&mut self) -> impl Iterator<Item = (std::time::Instant, Order)> + use<> {
        std::mem::take(&mut self.0).into_values().map(|waits| (waits.asked, waits.order))
    }

    /// When the next one has waited too long.
    pub fn next(&self) -> Option<Instant> {
        self.0.values().map(|waits| waits.tell_at).min()
    }

    /// Those who have waited too long now; each of them again after a while.
    pub fn overdue(&mut self) -> Vec<Overdue> {
        let now = Instant::now();
        let due = self.0.values_mut().filter(|waits| waits.tell_at <= now);
        due.map(|waits| {
            waits.tell_at = clock::after(AGAIN);
            let (order, before) = (waits.order.clone(), waits.before.clone());
            Overdue { order, before, waited: now.saturating_duration_since(waits.since) }
        })
        .collect()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use agent_pod::desired::Source;
    use proto_api::core::v1::Pod;

    use super::super::worker::Held;
    use super::*;

    fn order(uid: &str) -> Order {
        let mut pod = Pod::default();
        pod.metadata.uid = uid.into();
        Order { pod: Arc::new(pod), source: Source::Static, held: Held::Yes }
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_too_long_says_so_again_and_again_and_waits_on() {
        let mut waiting = Waiting::default();
        let asked = std::time::Instant::now();
        let begin = Instant::now();
        let grace = Duration::from_secs(30);
        waiting.insert(order("b"), asked, "a".into(), grace);
        assert_eq!(waiting.next(), Some(begin + grace + MARGIN));
        tokio::time::sleep(grace).await;
        // The manifest is read again meanwhile.
        waiting.insert(order("b"), std::time::Instant::now(), "a".into(), grace);
        assert_eq!(waiting.overdue(), []);
        tokio::time::sleep(MARGIN).await;
        let late = |waited| Overdue { order: order("b"), before: "a".into(), waited };
        assert_eq!(waiting.overdue(), [late(grace + MARGIN)]);
        assert_eq!(waiting.overdue(), []);
        tokio::time::sleep(AGAIN).await;
        assert_eq!(waiting.overdue(), [late(grace + MARGIN + AGAIN)]);
        // Now for another one: that one has its own time.
        waiting.insert(order("b"), asked, "c".into(), grace);
        assert_eq!(waiting.overdue(), []);
        assert!(waiting.contains("b"));
        assert_eq!(waiting.take().count(), 1);
        assert_eq!(waiting.next(), None);
    }
}
