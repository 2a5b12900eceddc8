//! Pods that fit nowhere, and when to try them again: when something has changed that could help, but not more
//! often than their back-off allows, and now and then without any reason.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use proto_client::ObjectKey;
use proto_daemon::backoff::Backoff;

/// Shortest time between a failure and the next attempt after a change.
const RETRY: Backoff = Backoff { first: Duration::from_secs(1), longest: Duration::from_secs(10) };
/// A pod is tried this often even if nothing has changed.
const UNASKED: Duration = Duration::from_secs(60);

/// The pods that wait.
#[derive(Debug, Default)]
pub struct BackoffQueue {
    pods: BTreeMap<ObjectKey, Wait>,
    /// Counts changes that could help a pod.
    changes: u64,
    /// Counts pods that came to a node: they help only who wants to be near others.
    arrivals: u64,
}

#[derive(Debug)]
struct Wait {
    uid: String,
    failures: u32,
    since: Instant,
    why: Failure,
    /// What `changes` and `arrivals` were when it failed.
    seen: (u64, u64),
}

/// Why a pod has no node yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// It fits nowhere.
    Unschedulable,
    /// It fits nowhere, and where other pods are has a say in it.
    PodAffinity,
    /// It could not be bound.
    Error,
    /// Its node is chosen; its volumes are not bound yet.
    Volumes,
}

impl BackoffQueue {
    /// A node or a pod has changed so that a pod that did not fit may fit now.
    pub fn note_cluster_change(&mut self) {
        self.changes = self.changes.wrapping_add(1);
    }

    /// A pod has come to a node.
    pub fn note_assigned_pod(&mut self) {
        self.arrivals = self.arrivals.wrapping_add(1);
    }

    /// How many pods may be helped by others that come.
    pub fn count_affinity_waits(&self) -> usize {
        self.pods.values().filter(|wait| wait.why == Failure::PodAffinity).count()
    }

    /// A pod has failed.
    pub fn note_failure(&mut self, key: &ObjectKey, uid: &str, failure: Failure, now: Instant) {
        let failures = match self.pods.get(key) {
            Some(wait) if wait.uid == uid => wait.failures.saturating_add(1),
            _ => 1,
        };
        let seen = (self.changes, self.arrivals);
        let wait = Wait { uid: uid.to_owned(), failures, since: now, why: failure, seen };
        self.pods.insert(key.clone(), wait);
    }

    /// A pod has a node.
    pub fn remove(&mut self, key: &ObjectKey) {
        self.pods.remove(key);
    }

    /// How many pods wait.
    pub fn len(&self) -> usize {
        self.pods.len()
    }

    /// Forgets pods that are not there any more.
    pub fn retain(&mut self, there: impl Fn(&ObjectKey, &str) -> bool) {
        self.pods.retain(|key, wait| there(key, &wait.uid));
    }

    /// When the pod may be tried: now, or not before a time.
    pub fn due(&self, key: &ObjectKey, uid: &str, now: Instant) -> Due {
        let Some(wait) = self.pods.get(key).filter(|wait| wait.uid == uid) else { return Due::Now };
        let changed = wait.seen.0 != self.changes;
        let came = wait.seen.1 != self.arrivals;
        let pause = match wait.why {
            Failure::Error => RETRY.delay(wait.failures, 1.0),
            Failure::Unschedulable if changed => RETRY.delay(wait.failures, 1.0),
            Failure::PodAffinity if changed || came => RETRY.delay(wait.failures, 1.0),
            // What it waits for is not in its own hands: nothing is gained by waiting longer.
            Failure::Volumes if changed => Duration::ZERO,
            Failure::Unschedulable | Failure::PodAffinity | Failure::Volumes => UNASKED,
        };
        // At most a minute.
        let at = wait.since.checked_add(pause).unwrap_or(wait.since);
        if at <= now { Due::Now } else { Due::At(at) }
    }
}

/// When a pod may be tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    /// Now.
    Now,
    /// Then, if nothing changes before.
    At(Instant),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_shortens_the_wait_to_the_backoff() {
        let start = Instant::now();
        let at = |secs| start + Duration::from_secs(secs);
        let key = ObjectKey::new("ns", "a");
        let mut backoff = BackoffQueue::default();
        assert_eq!(backoff.due(&key, "u", at(0)), Due::Now);
        backoff.note_failure(&key, "u", Failure::Unschedulable, at(0));
        assert_eq!(backoff.due(&key, "u", at(5)), Due::At(at(60)));
        assert_eq!(backoff.due(&key, "u", at(60)), Due::Now);
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
        let mut backoff = BackoffQueue::default();
        backoff.note_failure(&one, "u", Failure::PodAffinity, start);
        backoff.note_failure(&other, "u", Failure::Unschedulable, start);
        assert_eq!(backoff.count_affinity_waits(), 1);
        assert_eq!(backoff.due(&one, "u", start), Due::At(start + UNASKED));
        backoff.note_assigned_pod();
        assert_eq!(backoff.due(&one, "u", start), Due::At(start + RETRY.first));
        assert_eq!(backoff.due(&other, "u", start), Due::At(start + UNASKED));
        backoff.note_cluster_change();
        assert_eq!(backoff.due(&other, "u", start), Due::At(start + RETRY.first));
    }

    #[test]
    fn volumes_that_are_bound_are_seen_at_once() {
        let (start, key) = (Instant::now(), ObjectKey::new("ns", "a"));
        let mut backoff = BackoffQueue::default();
        for _ in 0..5 {
            backoff.note_failure(&key, "u", Failure::Volumes, start);
        }
        assert_eq!(backoff.due(&key, "u", start), Due::At(start + UNASKED));
        backoff.note_cluster_change();
        assert_eq!(backoff.due(&key, "u", start), Due::Now);
    }

    #[test]
    fn an_error_needs_no_change() {
        let start = Instant::now();
        let key = ObjectKey::new("ns", "a");
        let mut backoff = BackoffQueue::default();
        backoff.note_failure(&key, "u", Failure::Error, start);
        assert_eq!(backoff.due(&key, "u", start), Due::At(start + RETRY.first));
        backoff.retain(|_, uid| uid != "u");
        assert_eq!(backoff.due(&key, "u", start), Due::Now);
    }
}
