//! Event handlers: which changes of pods, nodes and storage start a scheduling cycle, and which pending pods they may help.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use proto_api::ObjectKey;
use proto_api::core::v1::ObjectReference;
use proto_client::Change;
use tokio::sync::Notify;

use apiserver_scheduling::node_info::NodeInfo;
use apiserver_scheduling::pod_info::{PodInfo, PodPhase};

/// While more pods than this are starting, events of type Normal are delayed: the nodes need the API server's capacity.
const MANY_STARTING: usize = 8;
/// Bound of the changed pods that are noted between two cycles, of which a standby has none. With more of them every pod is retried.
const CHANGED_MAX: usize = 10_000;

/// Starts scheduling cycles. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct CycleTrigger(Arc<TriggerState>);

#[derive(Debug, Default)]
struct TriggerState {
    cycle: Notify,
    /// A change may help any unschedulable pod.
    cluster_changed: AtomicBool,
    /// A pod was assigned to a node.
    pod_assigned: AtomicBool,
    /// Pending pods that were changed.
    changed_pods: Mutex<BTreeSet<ObjectKey>>,
    /// Unschedulable pods that an assigned pod may help.
    affinity_waits: AtomicUsize,
    /// Pods that are assigned to a node and not running yet.
    starting: AtomicUsize,
}

impl CycleTrigger {
    /// Waits for the next cycle. Cancel safe: a trigger is kept until it is received.
    pub async fn triggered(&self) {
        self.0.cycle.notified().await;
    }

    /// Whether a change may have helped any unschedulable pod since the last call.
    pub fn take_cluster_change(&self) -> bool {
        self.0.cluster_changed.swap(false, Ordering::Relaxed)
    }

    /// Whether a pod has been assigned to a node since the last call.
    pub fn take_assigned_pod(&self) -> bool {
        self.0.pod_assigned.swap(false, Ordering::SeqCst)
    }

    /// The pending pods whose specification or labels have changed since the last call.
    pub fn take_changed_pods(&self) -> BTreeSet<ObjectKey> {
        std::mem::take(&mut *self.changed_pods())
    }

    fn changed_pods(&self) -> MutexGuard<'_, BTreeSet<ObjectKey>> {
        self.0.changed_pods.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note_changed_pod(&self, key: &ObjectKey) {
        let mut changed = self.changed_pods();
        changed.insert(key.clone());
        if changed.len() > CHANGED_MAX {
            changed.clear();
            self.0.cluster_changed.store(true, Ordering::Relaxed);
        }
    }

    /// Handles a change of a pod.
    pub fn pod_changed(&self, change: &Change<PodInfo>) {
        self.count_starting(change);
        match change {
            Change::Applied { new, old, .. } => {
                if old.as_ref().is_some_and(|old| leaves_nomination(old, Some(new))) {
                    self.retry_pending();
                }
                let frees = new.phase == PodPhase::Ended && !new.node.is_empty();
                let ended_now =
                    frees && old.as_ref().is_none_or(|old| old.phase != PodPhase::Ended);
                let assigned_before = old.as_ref().filter(|old| !old.node.is_empty());
                let is_assigned = new.phase == PodPhase::Active && !new.node.is_empty();
                let relabelled = assigned_before.is_some_and(|old| old.labels != new.labels);
                if ended_now || is_assigned && relabelled {
                    self.retry_pending();
                } else if is_assigned && assigned_before.is_none() {
                    self.pod_assigned();
                } else if new.node.is_empty()
                    && old.as_ref().is_none_or(|old| changed_beyond_status(old, new))
                {
                    if old.is_some() {
                        self.note_changed_pod(&new.key);
                    }
                    self.0.cycle.notify_one();
                }
            }
            Change::Deleted { old, .. } if !old.node.is_empty() || leaves_nomination(old, None) => {
                self.retry_pending();
            }
            // A node may have been reserved for it: the cycle finds out.
            Change::Deleted { old, .. } if old.needs_storage() => self.0.cycle.notify_one(),
            Change::Deleted { .. } => {}
            Change::Synced => self.0.cycle.notify_one(),
        }
    }

    fn count_starting(&self, change: &Change<PodInfo>) {
        let (old, new) = match change {
            Change::Applied { new, old, .. } => (old.as_ref(), Some(new)),
            Change::Deleted { old, .. } => (Some(old), None),
            Change::Synced => return,
        };
        let is_starting = |pod: Option<&Arc<PodInfo>>| pod.is_some_and(|pod| pod.is_starting());
        match (is_starting(old), is_starting(new)) {
            (false, true) => drop(self.0.starting.fetch_add(1, Ordering::Relaxed)),
            (true, false) => drop(self.0.starting.fetch_sub(1, Ordering::Relaxed)),
            _ => {}
        }
    }

    /// Whether many pods are starting on their nodes.
    pub fn many_starting(&self) -> bool {
        self.0.starting.load(Ordering::Relaxed) > MANY_STARTING
    }

    /// Handles a change of a node.
    pub fn node_changed(&self, change: &Change<NodeInfo>) {
        match change {
            // Most changes are heartbeats, which leave the projection as it was.
            Change::Applied { new, old: Some(old), .. } if new == old => {}
            _ => self.retry_pending(),
        }
    }

    /// Most bindings are this scheduler's own: a cycle is only worthwhile if a pod waits for others.
    fn pod_assigned(&self) {
        self.0.pod_assigned.store(true, Ordering::SeqCst);
        if self.0.affinity_waits.load(Ordering::SeqCst) > 0 {
            self.0.cycle.notify_one();
        }
    }

    /// Sets how many unschedulable pods an assigned pod may help.
    pub fn set_affinity_waits(&self, count: usize) {
        self.0.affinity_waits.store(count, Ordering::SeqCst);
        // A pod that was assigned during the cycle did not trigger one.
        if count > 0 && self.0.pod_assigned.load(Ordering::SeqCst) {
            self.0.cycle.notify_one();
        }
    }

    /// Handles a change that may help any unschedulable pod.
    pub fn retry_pending(&self) {
        self.0.cluster_changed.store(true, Ordering::Relaxed);
        self.0.cycle.notify_one();
    }
}

/// Whether a pod does not keep the node any more that was nominated for it: others may fit there.
fn leaves_nomination(old: &PodInfo, new: Option<&Arc<PodInfo>>) -> bool {
    let waits = |new: &PodInfo| {
        new.node.is_empty() && new.phase == PodPhase::Active && new.nominated == old.nominated
    };
    let keeps = |new: &Arc<PodInfo>| new.node == old.nominated || waits(new);
    let waited = old.node.is_empty() && old.phase == PodPhase::Active;
    waited && !old.nominated.is_empty() && !new.is_some_and(keeps)
}

/// Whether a pod has changed in more than the condition that this scheduler writes.
fn changed_beyond_status(old: &PodInfo, new: &PodInfo) -> bool {
    let without_status = |pod: &PodInfo| {
        let mut pod = pod.clone();
        pod.unscheduled = None;
        pod.nominated = String::new();
        pod.reference = ObjectReference::default();
        pod
    };
    without_status(old) != without_status(new)
}

#[cfg(test)]
mod tests {
    use super::*;
    use apiserver_scheduling::claim_use::ClaimUse;
    use apiserver_scheduling::examples::pod;

    #[test]
    fn assigned_pods_trigger_a_cycle_for_pods_with_affinity() {
        let triggers = |trigger: &CycleTrigger| {
            let cycle = trigger.0.cycle.notified();
            tokio::pin!(cycle);
            cycle.enable()
        };
        let apply = |trigger: &CycleTrigger, old: Option<PodInfo>, new: PodInfo| {
            let (key, new) = (new.key.clone(), Arc::new(new));
            trigger.pod_changed(&Change::Applied { key, new, old: old.map(Arc::new) });
        };
        let assigned = || PodInfo { node: "n".into(), ..pod("db", 1, 1) };
        let trigger = CycleTrigger::default();
        apply(&trigger, Some(pod("db", 1, 1)), assigned());
        assert!(!triggers(&trigger), "no pod waits for it");
        trigger.set_affinity_waits(1);
        assert!(triggers(&trigger), "it was assigned during the cycle");
        assert!(trigger.take_assigned_pod());
        apply(&trigger, Some(assigned()), assigned());
        assert!(!triggers(&trigger), "nothing has changed");
        apply(&trigger, None, assigned());
        assert!(triggers(&trigger) && trigger.take_assigned_pod());
        let mut relabelled = assigned();
        relabelled.labels.insert("app".into(), "other".into());
        apply(&trigger, Some(assigned()), relabelled);
        assert!(triggers(&trigger) && trigger.take_cluster_change());
    }

    #[test]
    fn a_pending_pod_that_is_changed_is_noted_and_no_other() {
        let trigger = CycleTrigger::default();
        let apply = |old: Option<PodInfo>, new: PodInfo| {
            let (key, new) = (new.key.clone(), Arc::new(new));
            trigger.pod_changed(&Change::Applied { key, new, old: old.map(Arc::new) });
            trigger.take_changed_pods().into_iter().map(|key| key.name).collect::<Vec<_>>()
        };
        let before = || pod("p", 1, 1);
        let (mut tolerant, mut labelled, mut reported) = (before(), before(), before());
        tolerant.tolerations.push(Default::default());
        labelled.labels.insert("app".into(), "web".into());
        reported.unscheduled = Some(Default::default());
        assert_eq!(apply(None, before()), [""; 0], "it is new");
        assert_eq!(apply(Some(before()), before()), [""; 0]);
        assert_eq!(apply(Some(before()), reported), [""; 0]);
        assert_eq!(apply(Some(before()), tolerant), ["p"]);
        assert_eq!(apply(Some(before()), labelled), ["p"]);
        for nth in 0..=CHANGED_MAX {
            trigger.note_changed_pod(&ObjectKey::new("ns", format!("p{nth}")));
        }
        assert!(trigger.take_changed_pods().is_empty() && trigger.take_cluster_change());
    }

    #[test]
    fn a_nominated_node_that_is_given_up_helps_others() {
        let waiting = || PodInfo { nominated: "n".into(), ..pod("p", 1, 1) };
        let on = |node: &str| Some(PodInfo { node: node.into(), ..waiting() });
        let terminating = PodInfo { phase: PodPhase::Terminating, ..waiting() };
        for (old, new, helps) in [
            (waiting(), None, true),
            (waiting(), Some(terminating), true),
            (waiting(), Some(pod("p", 1, 1)), true),
            (waiting(), Some(PodInfo { nominated: "m".into(), ..pod("p", 1, 1) }), true),
            (waiting(), on("m"), true),
            (waiting(), on("n"), false),
            (waiting(), Some(waiting()), false),
            (pod("p", 1, 1), Some(waiting()), false),
            (pod("p", 1, 1), None, false),
            (PodInfo { phase: PodPhase::Terminating, ..waiting() }, None, false),
        ] {
            let trigger = CycleTrigger::default();
            let (key, text) = (old.key.clone(), format!("{:?} {new:?}", old.nominated));
            let old = Arc::new(old);
            trigger.pod_changed(&match new.map(Arc::new) {
                Some(new) => Change::Applied { key, new, old: Some(old) },
                None => Change::Deleted { key, old },
            });
            assert_eq!(trigger.take_cluster_change(), helps, "{text}");
        }
    }

    /// A node may be reserved for one with claims.
    #[test]
    fn a_pending_pod_with_claims_that_is_deleted_triggers_a_cycle() {
        for has_claims in [true, false] {
            let mut old = pod("p", 1, 1);
            let used = ClaimUse { name: "data".into(), ephemeral: false };
            old.claims.extend(has_claims.then_some(used));
            let trigger = CycleTrigger::default();
            trigger.pod_changed(&Change::Deleted { key: old.key.clone(), old: Arc::new(old) });
            let cycle = trigger.0.cycle.notified();
            tokio::pin!(cycle);
            assert_eq!(cycle.enable(), has_claims);
            assert!(!trigger.take_cluster_change(), "that is for the cycle to say");
        }
    }

    #[test]
    fn pods_with_a_node_that_do_not_run_are_starting() {
        let trigger = CycleTrigger::default();
        let bound = |nth: usize| PodInfo { node: "n".into(), ..pod(&format!("p{nth}"), 1, 1) };
        let key = |pod: &PodInfo| pod.key.clone();
        let apply = |old: Option<PodInfo>, new: PodInfo| {
            trigger.pod_changed(&Change::Applied {
                key: key(&new),
                new: Arc::new(new),
                old: old.map(Arc::new),
            });
        };
        // Pods without a node do not count.
        for nth in 0..=MANY_STARTING {
            apply(None, pod(&format!("p{nth}"), 1, 1));
        }
        assert!(!trigger.many_starting());
        for nth in 0..=MANY_STARTING {
            assert!(!trigger.many_starting(), "{nth}");
            apply(Some(pod(&format!("p{nth}"), 1, 1)), bound(nth));
        }
        assert!(trigger.many_starting());
        // An update without a change; then a pod that runs; then one that is deleted before it runs.
        apply(Some(bound(0)), bound(0));
        assert!(trigger.many_starting());
        let running = PodInfo { has_started: true, ..bound(0) };
        apply(Some(bound(0)), running.clone());
        assert!(!trigger.many_starting());
        trigger.pod_changed(&Change::Deleted { key: key(&running), old: Arc::new(running) });
        apply(None, bound(0));
        assert!(trigger.many_starting());
        trigger.pod_changed(&Change::Deleted { key: key(&bound(1)), old: Arc::new(bound(1)) });
        assert!(!trigger.many_starting());
    }

    #[test]
    fn the_condition_that_the_scheduler_writes_triggers_nothing() {
        let before = pod("p", 1, 1);
        let mut after = before.clone();
        after.unscheduled = Some(Default::default());
        after.reference.resource_version = "9".into();
        assert!(!changed_beyond_status(&before, &after));
        after.tolerations.push(Default::default());
        assert!(changed_beyond_status(&before, &after));
    }
}
