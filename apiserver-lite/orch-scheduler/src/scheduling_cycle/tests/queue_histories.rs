//! Random histories of pending pods against a model that knows when each is due: pods are added, changed, nominated, replaced, deleted and bound, attempts
//! fail in every way, some cycles have no time for all pods, and the cluster changes at any moment, also between two attempts of a cycle.
//!
//! The loop of the scheduler is that of `Scheduler::run`: a cycle runs when one is triggered or due. Invariants: after each cycle
//! every pending pod is either tried, left over or waiting, and nothing else is; no pod is tried twice in a cycle, before it is due, or out of order; none
//! that a change may have helped, or that has waited for the longest interval, is left without a cycle that tries it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use apiserver_scheduling::examples::{node, pod};
use apiserver_scheduling::nominations::Nominations;
use apiserver_scheduling::pod_info::{PodInfo, PodPhase};
use futures_util::FutureExt;
use proptest::prelude::*;
use proto_api::ObjectKey;
use proto_client::Change;

use super::super::{forget_ended, is_pending, list_pending, order_due, take_changes};
use crate::backoff_queue::{BackoffQueue, Due, Failure, RETRY};
use crate::cycle_trigger::CycleTrigger;

/// Names of pods; few, so that they come again.
const NAMES: u16 = 6;
/// After which time a pod is tried without a change.
const FLUSH: Duration = RETRY.without_change;

/// Within so many cycles the scheduler has nothing more to do at one time.
const CYCLES_MAX: usize = 1_000;

/// What the model knows of a pod that has failed.
struct ModelWait {
    failures: u32,
    since: Instant,
    why: Failure,
    /// Whether something has happened since that may help it.
    helped: bool,
}

impl ModelWait {
    fn due_at(&self) -> Instant {
        let doubled = 1_u64 << (self.failures - 1).min(10);
        let backoff = Duration::from_secs(doubled.min(10));
        self.since
            + match (self.why, self.helped) {
                (Failure::Error, _) => backoff,
                (Failure::Volumes, true) => Duration::ZERO,
                (_, true) => backoff,
                (_, false) => FLUSH,
            }
    }
}

/// What has happened since a cycle began, which it did not see: it may help pods that fail in it.
#[derive(Default)]
struct Unseen {
    helps_all: bool,
    helps_affinity: bool,
    changed: BTreeSet<ObjectKey>,
}

struct Model {
    dice: VecDeque<u16>,
    now: Instant,
    /// What the cache shows.
    pods: BTreeMap<ObjectKey, Arc<PodInfo>>,
    made: i64,
    /// Failed pods, by uid.
    waits: BTreeMap<String, ModelWait>,
    left_over: BTreeSet<String>,
    unseen: Unseen,
    nominated: BTreeMap<String, String>,
    /// Of each pod that was tried, how often.
    tried: BTreeMap<String, u32>,
    trigger: CycleTrigger,
    backoff: BackoffQueue,
    nominations: Nominations,
    next: Option<Instant>,
}

impl Model {
    fn new(dice: Vec<u16>) -> Self {
        Self {
            dice: dice.into(),
            now: Instant::now(),
            pods: BTreeMap::new(),
            made: 0,
            waits: BTreeMap::new(),
            left_over: BTreeSet::new(),
            unseen: Unseen::default(),
            nominated: BTreeMap::new(),
            tried: BTreeMap::new(),
            trigger: CycleTrigger::default(),
            backoff: BackoffQueue::new(RETRY),
            nominations: Nominations::default(),
            next: None,
        }
    }

    fn roll(&mut self, sides: u16) -> u16 {
        self.dice.pop_front().unwrap_or(0) % sides
    }

    /// The cache shows a new version of a pod.
    fn apply(&mut self, new: PodInfo) {
        let (key, new) = (new.key.clone(), Arc::new(new));
        let old = self.pods.insert(key.clone(), new.clone());
        let waited = old.as_ref().filter(|old| is_pending(old) && !old.nominated.is_empty());
        // Its node is another one, or it waits for another one, or for none, or it ends.
        let gives_up = waited.is_some_and(|old| match new.node.as_str() {
            "" => !is_pending(&new) || new.nominated != old.nominated,
            node => node != old.nominated,
        });
        self.trigger.pod_changed(&Change::Applied { key, new, old });
        if gives_up {
            self.help_all();
        }
    }

    /// The cache shows the node that is nominated for a pod.
    fn show_nomination(&mut self) {
        let Some(pod) = self.some_pod().filter(|pod| is_pending(pod)) else { return };
        if let Some(node) = self.nominated.get(&pod.uid) {
            self.apply(PodInfo { nominated: node.clone(), ..(*pod).clone() });
        }
    }

    fn delete(&mut self, key: &ObjectKey) {
        let Some(old) = self.pods.remove(key) else { return };
        let had_node = !old.node.is_empty() || is_pending(&old) && !old.nominated.is_empty();
        self.forget(&old.uid);
        self.trigger.pod_changed(&Change::Deleted { key: key.clone(), old });
        if had_node {
            self.help_all();
        }
    }

    fn forget(&mut self, uid: &str) {
        self.waits.remove(uid);
        self.nominated.remove(uid);
        self.left_over.remove(uid);
    }

    fn help_all(&mut self) {
        self.unseen.helps_all = true;
        self.waits.values_mut().for_each(|wait| wait.helped = true);
    }

    fn help_affinity(&mut self) {
        self.unseen.helps_affinity = true;
        let of_affinity = self.waits.values_mut().filter(|wait| wait.why == Failure::PodAffinity);
        of_affinity.for_each(|wait| wait.helped = true);
    }

    fn some_pod(&mut self) -> Option<Arc<PodInfo>> {
        let name = format!("p{}", self.roll(NAMES));
        self.pods.get(&ObjectKey::new("ns", name)).cloned()
    }

    fn create(&mut self, name: &str) {
        if self.pods.contains_key(&ObjectKey::new("ns", name)) {
            return;
        }
        self.made += 1;
        let priority = i32::from(self.roll(3));
        // Several are made in one second.
        let (uid, created) = (format!("u{}", self.made), self.made / 3);
        self.apply(PodInfo { uid, created, priority, ..pod(name, 1, 1) });
    }

    /// The node of a pod is shown.
    fn assign(&mut self, pod: &PodInfo) {
        self.forget(&pod.uid);
        self.apply(PodInfo { node: "n".into(), ..pod.clone() });
        self.help_affinity();
    }

    fn change(&mut self, pod: &PodInfo) {
        let mut new = pod.clone();
        match self.roll(4) {
            0 => {
                // Only the status: it helps nothing.
                new.unscheduled = Some(Default::default());
                new.reference.resource_version = "9".into();
            }
            1 => {
                new.phase = PodPhase::Terminating;
                self.forget(&pod.uid);
            }
            _ => {
                new.tolerations.push(Default::default());
                self.unseen.changed.insert(pod.key.clone());
                let own = self.waits.get_mut(&pod.uid);
                own.into_iter().for_each(|wait| wait.helped = true);
            }
        }
        self.apply(new);
    }

    /// Something happens in the cluster.
    fn meddle(&mut self) {
        match self.roll(11) {
            0..=2 => {
                let name = format!("p{}", self.roll(NAMES));
                self.create(&name);
            }
            3 => {
                let Some(pod) = self.some_pod() else { return };
                self.delete(&pod.key);
                if self.roll(2) == 0 {
                    // Another pod of that name.
                    self.create(&pod.key.name);
                }
            }
            4 | 5 => match self.some_pod() {
                Some(pod) if is_pending(&pod) => self.change(&pod),
                // It is another scheduler's pod, or it has ended.
                Some(pod) if pod.phase == PodPhase::Active => {
                    self.apply(PodInfo { phase: PodPhase::Ended, ..(*pod).clone() });
                    self.help_all();
                }
                _ => {}
            },
            6 => {
                let node = Arc::new(node("n"));
                let key = ObjectKey::new("", "n");
                self.trigger.node_changed(&Change::Applied { key, new: node, old: None });
                self.help_all();
            }
            7 => {
                // Heartbeats change nothing.
                let (key, node) = (ObjectKey::new("", "n"), Arc::new(node("n")));
                let (new, old) = (node.clone(), Some(node));
                self.trigger.node_changed(&Change::Applied { key, new, old });
            }
            8 => self.show_nomination(),
            _ => {
                let millis = u64::from(self.roll(20_000));
                self.now += Duration::from_millis(millis);
            }
        }
    }

    /// As the scheduler waits: a cycle runs if one is triggered or due.
    fn run_if_due(&mut self) -> bool {
        let is_triggered = self.trigger.triggered().now_or_never().is_some();
        let runs = is_triggered || self.next.is_some_and(|next| next <= self.now);
        if runs {
            take_changes(&self.trigger, &mut self.backoff);
            self.unseen = Unseen::default();
            self.next = self.run_cycle();
            self.trigger.set_affinity_waits(self.backoff.count_affinity_waits());
            self.check_counts();
        }
        runs
    }

    fn run_cycle(&mut self) -> Option<Instant> {
        let pods: Vec<Arc<PodInfo>> = self.pods.values().cloned().collect();
        forget_ended(&mut self.backoff, |key| self.pods.get(key).cloned());
        let pending = list_pending(&pods, |_| true);
        self.check_nominations(&pending);
        let mut next: Option<Instant> = None;
        let mut is_due = |at: Instant| next = Some(next.map_or(at, |earlier| earlier.min(at)));
        let mut due = Vec::new();
        for pod in &pending {
            let expected = self.waits.get(&pod.uid).map(ModelWait::due_at);
            match self.backoff.due(&pod.key, &pod.uid, self.now) {
                Due::Now => {
                    assert!(expected.is_none_or(|at| at <= self.now), "{} is early", pod.uid);
                    due.push(pod.clone());
                }
                Due::At(at) => {
                    assert_eq!(expected, Some(at), "{}", pod.uid);
                    is_due(at);
                }
            }
        }
        order_due(&mut due, |_| false, |pod| self.backoff.is_left_over(&pod.uid));
        self.check_order(&due);
        self.backoff.set_left_over(BTreeSet::new());
        self.left_over.clear();
        let mut due = due.into_iter();
        let mut tried = BTreeSet::new();
        while let Some(pod) = due.next() {
            if self.roll(8) == 1 {
                self.left_over = std::iter::once(pod).chain(due).map(|p| p.uid.clone()).collect();
                self.backoff.set_left_over(self.left_over.clone());
                is_due(self.now);
                break;
            }
            assert!(tried.insert(pod.uid.clone()), "{} is tried twice", pod.uid);
            self.attempt(&pod);
            if let Due::At(at) = self.backoff.due(&pod.key, &pod.uid, self.now) {
                is_due(at);
            }
            if self.roll(4) == 1 {
                self.meddle();
            }
        }
        next
    }

    /// An attempt to schedule a pod. It may have been deleted or changed since the cycle began.
    fn attempt(&mut self, pod: &Arc<PodInfo>) {
        *self.tried.entry(pod.uid.clone()).or_default() += 1;
        let why = match self.roll(6) {
            0 | 1 => {
                self.backoff.remove(&pod.key);
                self.waits.remove(&pod.uid);
                return self.shown(pod).into_iter().for_each(|shown| self.assign(&shown));
            }
            2 => Failure::PodAffinity,
            3 => Failure::Error,
            4 => Failure::Volumes,
            _ => Failure::Unschedulable,
        };
        self.backoff.note_failure(&pod.key, &pod.uid, why, self.now);
        let node = (why == Failure::Unschedulable).then(|| format!("n{}", self.roll(3)));
        node.iter().for_each(|node| self.nominations.set(pod, node));
        if self.shown(pod).is_none() {
            return;
        }
        self.nominated.extend(node.map(|node| (pod.uid.clone(), node)));
        let helped = self.unseen.helps_all
            || self.unseen.changed.contains(&pod.key)
            || self.unseen.helps_affinity && why == Failure::PodAffinity;
        let failures = self.waits.get(&pod.uid).map_or(1, |wait| wait.failures + 1);
        let wait = ModelWait { failures, since: self.now, why, helped };
        self.waits.insert(pod.uid.clone(), wait);
    }

    /// The pod as the cache shows it, if it is still pending.
    fn shown(&self, pod: &PodInfo) -> Option<Arc<PodInfo>> {
        let shown = self.pods.get(&pod.key).cloned();
        shown.filter(|shown| shown.uid == pod.uid && is_pending(shown))
    }

    /// By priority, then those left over, then by age; each once.
    fn check_order(&self, due: &[Arc<PodInfo>]) {
        let rank = |pod: &PodInfo| {
            let is_left = self.left_over.contains(&pod.uid);
            (-pod.priority, !is_left, pod.created, pod.key.name.clone())
        };
        let ranks: Vec<_> = due.iter().map(|pod| rank(pod)).collect();
        assert!(ranks.is_sorted_by(|a, b| a < b), "{ranks:?}");
    }

    /// A nomination is that of a pending pod, and the latest one.
    fn check_nominations(&mut self, pending: &[Arc<PodInfo>]) {
        self.nominations.forget_shown(pending);
        for pod in pending {
            let expected = self.nominated.get(&pod.uid).map_or("", String::as_str);
            assert_eq!(self.nominations.node_of(pod), expected, "{}", pod.uid);
        }
        let uids: BTreeSet<&String> = pending.iter().map(|pod| &pod.uid).collect();
        assert!(self.nominated.keys().all(|uid| uids.contains(uid)), "{:?}", self.nominated);
    }

    /// Nothing is in the queue twice, or in it and gone.
    fn check_counts(&mut self) {
        forget_ended(&mut self.backoff, |key| self.pods.get(key).cloned());
        let counted = self.backoff.count_pending(self.now);
        let all = counted.active + counted.backoff + counted.unschedulable;
        let mut expected: BTreeSet<&String> = self.waits.keys().collect();
        expected.extend(&self.left_over);
        assert_eq!(all, expected.len(), "{counted:?} {expected:?}");
    }

    /// Every pending pod waits for its time: none of them is due while no cycle is.
    fn check_none_is_lost(&mut self) {
        let cycles = (0..CYCLES_MAX).take_while(|_| self.run_if_due()).count();
        assert!(cycles < CYCLES_MAX, "it does not come to rest");
        for pod in self.pods.values().filter(|pod| is_pending(pod)) {
            let wait = self.waits.get(&pod.uid);
            let is_tried = self.tried.contains_key(&pod.uid);
            assert!(is_tried && wait.is_some(), "{} is lost", pod.uid);
            let at = wait.map_or(self.now, ModelWait::due_at);
            assert!(at > self.now, "{} is not tried", pod.uid);
            assert!(self.next.is_some_and(|next| next <= at), "{} is tried late", pod.uid);
        }
    }

    fn run(mut self) {
        while !self.dice.is_empty() {
            self.meddle();
            self.run_if_due();
            if self.roll(2) == 0 {
                self.check_none_is_lost();
            }
        }
        // Without further changes each pod is tried again within the longest interval.
        for _ in 0..3 {
            self.check_none_is_lost();
            let before = self.tried.clone();
            let waiting: Vec<String> = self.waits.keys().cloned().collect();
            self.now += FLUSH;
            self.check_none_is_lost();
            for uid in waiting {
                assert_ne!(self.tried.get(&uid), before.get(&uid), "{uid} waits for ever");
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]
    #[test]
    fn no_pending_pod_is_lost_or_tried_early(dice in prop::collection::vec(any::<u16>(), 50..800)) {
        Model::new(dice).run();
    }
}
