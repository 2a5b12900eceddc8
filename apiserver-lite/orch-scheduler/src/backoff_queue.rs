//! The back-off of pending pods: a pod is retried when a change may help it, no sooner than its back-off allows, and at an interval without
//! a change.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use proto_api::ObjectKey;
use proto_daemon::backoff::Backoff;

use crate::metrics::PendingPods;

/// When a pod is tried again that could not be scheduled.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RetryTimes {
    /// After a change that may help it: the shortest time since its last failure.
    pub after_change: Backoff,
    /// Without a change: the time since its last failure.
    pub without_change: Duration,
}

/// The default times, where neither the configuration file nor a flag sets them.
pub const RETRY: RetryTimes = RetryTimes {
    after_change: Backoff { first: Duration::from_secs(1), longest: Duration::from_secs(10) },
    without_change: Duration::from_mins(5),
};

/// Pods that could not be scheduled.
#[derive(Debug)]
pub struct BackoffQueue {
    retry: RetryTimes,
    pods: BTreeMap<ObjectKey, Wait>,
    /// Number of changes that may help any pod.
    changes: u64,
    /// Number of pods assigned to a node, which help only pods with affinity or spread constraints.
    assigned: u64,
    /// Those, by uid, for which the last cycle had no time.
    left_over: BTreeSet<String>,
}

#[derive(Debug)]
struct Wait {
    uid: String,
    failures: u32,
    /// When the first failed attempt ended.
    first: Instant,
    /// When the last one did.
    since: Instant,
    why: Failure,
    /// `changes` and `assigned` at the failure.
    seen: (u64, u64),
}

/// Why a pod has no node yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// No node is feasible.
    Unschedulable,
    /// No node is feasible, and the pods on the nodes are part of the reason.
    PodAffinity,
    /// The binding failed.
    Error,
    /// A node is selected; the pod's volumes are not bound yet.
    Volumes,
}

impl BackoffQueue {
    /// An empty queue with these times between a failure and the next attempt.
    pub fn new(retry: RetryTimes) -> Self {
        Self { retry, pods: BTreeMap::new(), changes: 0, assigned: 0, left_over: BTreeSet::new() }
    }

    /// Notes a change that may help any pod.
    pub fn note_cluster_change(&mut self) {
        self.changes = self.changes.wrapping_add(1);
    }

    /// Notes a pod that was assigned to a node.
    pub fn note_assigned_pod(&mut self) {
        self.assigned = self.assigned.wrapping_add(1);
    }

    /// Notes that a pending pod was changed, which may help it.
    pub fn note_pod_change(&mut self, key: &ObjectKey) {
        if let Some(wait) = self.pods.get_mut(key) {
            wait.seen.0 = self.changes.wrapping_sub(1);
        }
    }

    /// How many attempts to schedule the pod have failed.
    pub fn count_failures(&self, key: &ObjectKey, uid: &str) -> u32 {
        self.pods.get(key).filter(|wait| wait.uid == uid).map_or(0, |wait| wait.failures)
    }

    /// The number of pods that an assigned pod may help.
    pub fn count_affinity_waits(&self) -> usize {
        self.pods.values().filter(|wait| wait.why == Failure::PodAffinity).count()
    }

    /// Notes the pods, by uid, for which a cycle had no time.
    pub fn set_left_over(&mut self, uids: BTreeSet<String>) {
        self.left_over = uids;
    }

    /// Whether the last cycle had no time for the pod.
    pub fn is_left_over(&self, uid: &str) -> bool {
        self.left_over.contains(uid)
    }

    /// Notes a failed attempt.
    pub fn note_failure(&mut self, key: &ObjectKey, uid: &str, failure: Failure, now: Instant) {
        let (failures, first) = match self.pods.get(key) {
            Some(wait) if wait.uid == uid => (wait.failures.saturating_add(1), wait.first),
            _ => (1, now),
        };
        let seen = (self.changes, self.assigned);
        let wait = Wait { uid: uid.to_owned(), failures, first, since: now, why: failure, seen };
        self.pods.insert(key.clone(), wait);
    }

    /// Removes a pod that was bound; how often it had failed, and since when.
    pub fn remove(&mut self, key: &ObjectKey) -> Option<(u32, Instant)> {
        self.pods.remove(key).map(|wait| (wait.failures, wait.first))
    }

    /// The pods that wait, by what they wait for.
    pub fn count_pending(&self, now: Instant) -> PendingPods {
        let mut count = PendingPods { active: self.left_over.len(), ..PendingPods::default() };
        for (key, wait) in &self.pods {
            if self.left_over.contains(&wait.uid) {
                continue;
            }
            let counted = match self.due(key, &wait.uid, now) {
                Due::Now => &mut count.active,
                Due::At(_) if self.pause(wait) == self.retry.without_change => {
                    &mut count.unschedulable
                }
                Due::At(_) => &mut count.backoff,
            };
            *counted = counted.saturating_add(1);
        }
        count
    }

    /// Keeps the pods for which `is_pending` holds.
    pub fn retain(&mut self, is_pending: impl Fn(&ObjectKey, &str) -> bool) {
        self.pods.retain(|key, wait| is_pending(key, &wait.uid));
    }

    /// When the pod may be scheduled next.
    pub fn due(&self, key: &ObjectKey, uid: &str, now: Instant) -> Due {
        let Some(wait) = self.pods.get(key).filter(|wait| wait.uid == uid) else { return Due::Now };
        let at = wait.since.checked_add(self.pause(wait)).unwrap_or(wait.since);
        if at <= now { Due::Now } else { Due::At(at) }
    }

    /// Time from a failure to the next attempt; [`RetryTimes::without_change`] while nothing has changed that may help.
    fn pause(&self, wait: &Wait) -> Duration {
        let changed = wait.seen.0 != self.changes;
        let pod_assigned = wait.seen.1 != self.assigned;
        let RetryTimes { after_change, without_change } = self.retry;
        match wait.why {
            Failure::Error => after_change.delay(wait.failures, 1.0),
            Failure::Unschedulable if changed => after_change.delay(wait.failures, 1.0),
            Failure::PodAffinity if changed || pod_assigned => {
                after_change.delay(wait.failures, 1.0)
            }
            // The volume controller's progress does not depend on the pod's failures.
            Failure::Volumes if changed => Duration::ZERO,
            Failure::Unschedulable | Failure::PodAffinity | Failure::Volumes => without_change,
        }
    }
}

/// When a pod may be scheduled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    /// At once.
    Now,
    /// At this time, or earlier after a change.
    At(Instant),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_a_change_a_pod_waits_for_its_backoff_only() {
        let start = Instant::now();
        let at = |secs| start + Duration::from_secs(secs);
        let key = ObjectKey::new("ns", "a");
        let mut backoff = BackoffQueue::new(RETRY);
        assert_eq!(backoff.due(&key, "u", at(0)), Due::Now);
        backoff.note_failure(&key, "u", Failure::Unschedulable, at(0));
        assert_eq!(backoff.due(&key, "u", at(5)), Due::At(at(300)));
        assert_eq!(backoff.due(&key, "u", at(300)), Due::Now);
        assert_eq!(backoff.due(&key, "another", at(0)), Due::Now, "a new pod of the same name");
        backoff.note_cluster_change();
        assert_eq!(backoff.due(&key, "u", at(0)), Due::At(at(1)));
        assert_eq!(backoff.due(&key, "u", at(1)), Due::Now);
        for second in 1..5 {
            backoff.note_failure(&key, "u", Failure::Unschedulable, at(second));
        }
        backoff.note_cluster_change();
        assert_eq!(backoff.due(&key, "u", at(4)), Due::At(at(14)), "1, 2, 4, 8, then 10");
    }

    #[test]
    fn pods_with_affinity_are_retried_when_a_pod_is_assigned() {
        let (start, one, other) =
            (Instant::now(), ObjectKey::new("ns", "a"), ObjectKey::new("ns", "b"));
        let mut backoff = BackoffQueue::new(RETRY);
        backoff.note_failure(&one, "u", Failure::PodAffinity, start);
        backoff.note_failure(&other, "u", Failure::Unschedulable, start);
        assert_eq!(backoff.count_affinity_waits(), 1);
        assert_eq!(backoff.due(&one, "u", start), Due::At(start + RETRY.without_change));
        backoff.note_assigned_pod();
        assert_eq!(backoff.due(&one, "u", start), Due::At(start + RETRY.after_change.first));
        assert_eq!(backoff.due(&other, "u", start), Due::At(start + RETRY.without_change));
        backoff.note_cluster_change();
        assert_eq!(backoff.due(&other, "u", start), Due::At(start + RETRY.after_change.first));
    }

    #[test]
    fn a_pod_that_was_changed_is_retried_and_no_other() {
        let start = Instant::now();
        let (one, other) = (ObjectKey::new("ns", "a"), ObjectKey::new("ns", "b"));
        for failure in [Failure::Unschedulable, Failure::PodAffinity] {
            let mut backoff = BackoffQueue::new(RETRY);
            backoff.note_failure(&one, "u", failure, start);
            backoff.note_failure(&other, "u", failure, start);
            backoff.note_pod_change(&one);
            assert_eq!(
                backoff.due(&one, "u", start),
                Due::At(start + RETRY.after_change.first),
                "{failure:?}"
            );
            assert_eq!(backoff.due(&one, "u", start + RETRY.after_change.first), Due::Now);
            assert_eq!(backoff.due(&other, "u", start), Due::At(start + RETRY.without_change));
            backoff.note_failure(&one, "u", failure, start);
            assert_eq!(backoff.due(&one, "u", start), Due::At(start + RETRY.without_change));
            assert_eq!(backoff.count_failures(&one, "u"), 2);
            assert_eq!(backoff.count_failures(&one, "another"), 0);
        }
    }

    #[test]
    fn a_pod_is_retried_at_once_when_its_volumes_are_bound() {
        let (start, key) = (Instant::now(), ObjectKey::new("ns", "a"));
        let mut backoff = BackoffQueue::new(RETRY);
        for _ in 0..5 {
            backoff.note_failure(&key, "u", Failure::Volumes, start);
        }
        assert_eq!(backoff.due(&key, "u", start), Due::At(start + RETRY.without_change));
        backoff.note_cluster_change();
        assert_eq!(backoff.due(&key, "u", start), Due::Now);
    }

    #[test]
    fn pods_that_wait_are_counted_by_what_they_wait_for() {
        let start = Instant::now();
        let keys = ["a", "b", "c", "d"].map(|name| ObjectKey::new("ns", name));
        let mut backoff = BackoffQueue::new(RETRY);
        backoff.note_failure(&keys[0], "a", Failure::Unschedulable, start);
        backoff.note_failure(&keys[1], "b", Failure::Error, start);
        backoff.note_failure(&keys[2], "c", Failure::PodAffinity, start);
        backoff.note_failure(&keys[3], "d", Failure::Volumes, start);
        backoff.set_left_over(BTreeSet::from(["d".to_owned(), "new".to_owned()]));
        let count = |active, backoff, unschedulable| PendingPods { active, backoff, unschedulable };
        assert_eq!(backoff.count_pending(start), count(2, 1, 2));
        assert_eq!(backoff.count_pending(start + RETRY.after_change.first), count(3, 0, 2));
        backoff.note_assigned_pod();
        assert_eq!(backoff.count_pending(start), count(2, 2, 1));
        let later = start + Duration::from_secs(3);
        backoff.note_failure(&keys[0], "a", Failure::Unschedulable, later);
        assert_eq!(backoff.remove(&keys[0]), Some((2, start)));
        assert_eq!(backoff.remove(&keys[0]), None);
    }

    #[test]
    fn an_error_is_retried_without_a_change() {
        let start = Instant::now();
        let key = ObjectKey::new("ns", "a");
        let mut backoff = BackoffQueue::new(RETRY);
        backoff.note_failure(&key, "u", Failure::Error, start);
        assert_eq!(backoff.due(&key, "u", start), Due::At(start + RETRY.after_change.first));
        backoff.retain(|_, uid| uid != "u");
        assert_eq!(backoff.due(&key, "u", start), Due::Now);
    }
}
