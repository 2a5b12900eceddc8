//! Static pods that wait for a static namesake, or their own previous instance, to end. They wait
//! without limit, since two instances at a time could corrupt their data; an overlong wait is
//! reported.

#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

use std::collections::BTreeMap;
use std::time::Duration;

use agent_clock as clock;
use tokio::time::Instant;

use crate::worker::PodUpdate;

/// Margin beyond the other pod's grace period before the wait is reported.
const MARGIN: Duration = Duration::from_secs(30);
/// Interval of further reports.
const AGAIN: Duration = Duration::from_secs(300);

/// Waiting pods, by uid.
#[derive(Default)]
pub struct StaticPodQueue(BTreeMap<String, QueuedPod>);

struct QueuedPod {
    asked: std::time::Instant,
    update: PodUpdate,
    /// Uid of the pod that must end first.
    before: String,
    since: Instant,
    tell_at: Instant,
}

/// Whether a uid is one of the API server, which gives a UUID to each object. Those of static pods
/// are hashes: 32 hexadecimal digits.
pub fn is_api_uid(uid: &str) -> bool {
    const DASHES: [usize; 4] = [8, 13, 18, 23];
    let is_of_form = |(at, byte): (usize, u8)| match DASHES.contains(&at) {
        true => byte == b'-',
        false => byte.is_ascii_hexdigit(),
    };
    uid.len() == 36 && uid.bytes().enumerate().all(is_of_form)
}

/// A pod that has waited too long.
#[derive(Clone, Debug, PartialEq)]
pub struct OverduePod {
    /// The waiting pod.
    pub update: PodUpdate,
    pub before: String,
    /// How long it has waited.
    pub waited: Duration,
}

impl StaticPodQueue {
    /// Queues `update` until the pod `before` ends, which should take at most `grace`. A pod that
    /// is already queued keeps its start time.
    pub fn insert(
        &mut self,
        update: PodUpdate,
        asked: std::time::Instant,
        before: String,
        grace: Duration,
    ) {
        let now = Instant::now();
        let known = self.0.remove(&update.pod.metadata.uid);
        let known = known.filter(|waits| waits.before == before);
        let (asked, since, tell_at) = known
            .map_or((asked, now, clock::after(grace.saturating_add(MARGIN))), |waits| {
                (waits.asked, waits.since, waits.tell_at)
            });
        let uid = update.pod.metadata.uid.clone();
        self.0.insert(uid, QueuedPod { asked, update, before, since, tell_at });
    }

    /// Removes a pod from the queue.
    pub fn remove(&mut self, uid: &str) {
        self.0.remove(uid);
    }

    /// Whether a pod is queued.
    pub fn contains(&self, uid: &str) -> bool {
        self.0.contains_key(uid)
    }

    /// Empties the queue; each pod with the time at which it was requested.
    pub fn drain(&mut self) -> impl Iterator<Item = (std::time::Instant, PodUpdate)> + use<> {
        std::mem::take(&mut self.0).into_values().map(|waits| (waits.asked, waits.update))
    }

    /// When the next overlong wait is due for a report.
    pub fn next_overdue(&self) -> Option<Instant> {
        self.0.values().map(|waits| waits.tell_at).min()
    }

    /// Pods whose overlong wait is due for a report; each is due again after an interval.
    pub fn take_overdue(&mut self) -> Vec<OverduePod> {
        let now = Instant::now();
        let due = self.0.values_mut().filter(|waits| waits.tell_at <= now);
        due.map(|waits| {
            waits.tell_at = clock::after(AGAIN);
            let (update, before) = (waits.update.clone(), waits.before.clone());
            OverduePod { update, before, waited: now.saturating_duration_since(waits.since) }
        })
        .collect()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use agent_pod::desired::PodSource;
    use proto_api::core::v1::Pod;

    use super::*;
    use crate::worker::SourcePresence;

    fn update(uid: &str) -> PodUpdate {
        let mut pod = Pod::default();
        pod.metadata.uid = uid.into();
        PodUpdate {
            pod: Arc::new(pod),
            source: PodSource::Static,
            presence: SourcePresence::Present,
        }
    }

    #[test]
    fn the_api_servers_uids_are_no_hashes() {
        assert!(is_api_uid("8d9e2a1c-0b7f-4c55-9a51-3f2e6d7c8b90"));
        for uid in ["", "8d9e2a1c0b7f4c559a513f2e6d7c8b90", "8d9e2a1c-0b7f-4c55-9a51-3f2e6d7c8bx0"]
        {
            assert!(!is_api_uid(uid), "{uid}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn overdue_static_pods_are_reported_repeatedly_and_keep_waiting() {
        let mut waiting = StaticPodQueue::default();
        let asked = std::time::Instant::now();
        let begin = Instant::now();
        let grace = Duration::from_secs(30);
        waiting.insert(update("b"), asked, "a".into(), grace);
        assert_eq!(waiting.next_overdue(), Some(begin + grace + MARGIN));
        tokio::time::sleep(grace).await;
        // The manifest is read again meanwhile.
        waiting.insert(update("b"), std::time::Instant::now(), "a".into(), grace);
        assert_eq!(waiting.take_overdue(), []);
        tokio::time::sleep(MARGIN).await;
        let late = |waited| OverduePod { update: update("b"), before: "a".into(), waited };
        assert_eq!(waiting.take_overdue(), [late(grace + MARGIN)]);
        assert_eq!(waiting.take_overdue(), []);
        tokio::time::sleep(AGAIN).await;
        assert_eq!(waiting.take_overdue(), [late(grace + MARGIN + AGAIN)]);
        // Now for another one: that one has its own time.
        waiting.insert(update("b"), asked, "c".into(), grace);
        assert_eq!(waiting.take_overdue(), []);
        assert!(waiting.contains("b"));
        assert_eq!(waiting.drain().count(), 1);
        assert_eq!(waiting.next_overdue(), None);
    }
}
