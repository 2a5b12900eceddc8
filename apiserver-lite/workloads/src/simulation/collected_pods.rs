//! Random histories of the pod garbage collector: pods that end, are deleted, held by finalizers or left by their nodes, nodes that go and return, caches of
//! pods and nodes that lag behind each other, a server that refuses deletions, and a controller that is lost between two writes and forgets which nodes it
//! has missed. It deletes what Kubernetes 1.25 deletes and nothing else.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use apiserver_controllers::Plan;
use apiserver_controllers::addresses::{has_ended, is_terminating};
use apiserver_controllers::api_writes::{ApiWrite, ObjectKind};
use apiserver_controllers::disruption_target::{self, Disruption};
use apiserver_controllers::pod_gc::{self, OutOfServiceTaint, PodNode};
use proptest::prelude::*;
use proto_api::core::v1::{Node, NodeCondition, Pod, Taint};
use proto_api::names::{Names, Profile};

use super::World;

const NODES: u8 = 3;
/// Seconds for which Kubernetes waits for a node to return.
const QUARANTINE: i64 = 40;

#[derive(Clone, Copy, Debug)]
enum Step {
    /// The cache of pods or of nodes catches up.
    CatchUp(usize),
    /// The nth pod is looked at.
    Collect(usize),
    CollectAll,
    /// The pods that have ended are counted.
    CollectEnded,
    /// The nth pod is looked at, or those that have ended. The controller is lost after this many writes, and restarts with fresh caches.
    Crash(Option<usize>, usize),
    /// A user makes a pod; one may name its node, and the node need not be there.
    Make(Option<u8>),
    Bind(usize, u8),
    End(usize),
    /// A user deletes a pod, and its kubelet ends one later.
    Delete(usize),
    Kubelet(usize),
    /// A finalizer of another controller comes or goes.
    Hold(usize, bool),
    /// The server refuses to delete the nth pod, or does no longer.
    Refuse(usize, bool),
    AddNode(u8),
    RemoveNode(u8),
    /// A node is marked as out of service, and its kubelet is ready.
    Mark(u8, bool, bool),
    Later(u8),
}

fn step() -> impl Strategy<Value = Step> {
    let at = || 0..12usize;
    prop_oneof![
        4 => (0..2usize).prop_map(Step::CatchUp),
        6 => at().prop_map(Step::Collect),
        3 => Just(Step::CollectAll),
        4 => Just(Step::CollectEnded),
        2 => (proptest::option::of(at()), 0..3usize).prop_map(|(at, limit)| Step::Crash(at, limit)),
        6 => proptest::option::weighted(0.3, 0..NODES + 1).prop_map(Step::Make),
        6 => (at(), 0..NODES).prop_map(|(at, node)| Step::Bind(at, node)),
        4 => at().prop_map(Step::End),
        3 => at().prop_map(Step::Delete),
        1 => at().prop_map(Step::Kubelet),
        1 => (at(), any::<bool>()).prop_map(|(at, on)| Step::Hold(at, on)),
        1 => (at(), any::<bool>()).prop_map(|(at, on)| Step::Refuse(at, on)),
        2 => (0..NODES).prop_map(Step::AddNode),
        2 => (0..NODES).prop_map(Step::RemoveNode),
        1 => (0..NODES, any::<bool>(), any::<bool>()).prop_map(|(n, on, up)| Step::Mark(n, on, up)),
        4 => (0..30u8).prop_map(Step::Later),
    ]
}

/// Flags of the controller manager.
#[derive(Clone, Copy, Debug)]
struct Flags {
    /// How many pods that have ended are kept; 0 keeps all.
    threshold: usize,
    out_of_service: OutOfServiceTaint,
    /// Pods say before their deletion why they go.
    marks: bool,
}

fn flags() -> impl Strategy<Value = Flags> {
    let taint = prop_oneof![Just(OutOfServiceTaint::NodeIsOff), Just(OutOfServiceTaint::Ignored)];
    (0..4usize, taint, any::<bool>()).prop_map(|(threshold, out_of_service, marks)| Flags {
        threshold,
        out_of_service,
        marks,
    })
}

fn node_name(nth: u8) -> String {
    format!("n{nth}")
}

/// Nodes have no namespace: the world stores them in that of the pods, which no rule looks at.
fn node(nth: u8) -> Node {
    let mut node = Node::default();
    node.metadata.name = node_name(nth);
    node.metadata.namespace = "ns".into();
    mark(&mut node, false, true);
    node
}

fn mark(node: &mut Node, is_marked: bool, is_ready: bool) {
    let names = Names::new(Profile::Kubernetes);
    let key = names.sub_label("node", "out-of-service");
    let taint = Taint { key, effect: "NoExecute".into(), ..Taint::default() };
    node.spec.taints = if is_marked { vec![taint] } else { Vec::new() };
    let (type_, status) = ("Ready".to_owned(), if is_ready { "True" } else { "Unknown" }.into());
    node.status.conditions = vec![NodeCondition { type_, status, ..NodeCondition::default() }];
}

/// Whether a user says that the node is shut down, and it does not run.
fn is_off(node: &Node) -> bool {
    let is_ready = node.status.conditions.iter().any(|condition| condition.status == "True");
    !node.spec.taints.is_empty() && !is_ready
}

struct History {
    world: World,
    /// What the caches of pods and nodes show. Each only moves forward.
    caches: [World; 2],
    flags: Flags,
    /// What the controller remembers: since when it has missed nodes.
    missed: BTreeMap<String, i64>,
    /// When the cache last showed each node, or the cache of pods first a pod of it.
    last_known: BTreeMap<String, i64>,
    refused: BTreeSet<String>,
    made: u32,
}

impl History {
    fn new(flags: Flags) -> Self {
        let mut world = World::at(1000);
        (0..NODES).for_each(|nth| world.put(node(nth)));
        let (caches, (missed, last_known)) = ([world.clone(), world.clone()], Default::default());
        let mut history =
            Self { world, caches, flags, missed, last_known, refused: BTreeSet::new(), made: 0 };
        history.note_nodes();
        history
    }

    fn apply_step(&mut self, step: Step) {
        let pods = self.world.pods();
        let nth = |at: usize| pods.get(at % pods.len().max(1)).map(|pod| &**pod);
        let name = |at: usize| nth(at).map(|pod| pod.metadata.name.clone());
        match step {
            Step::CatchUp(cache) => self.catch_up(cache),
            Step::Collect(at) => self.collect_nth(at, usize::MAX),
            Step::CollectAll => self.collect_all(),
            Step::CollectEnded => self.collect_ended(usize::MAX),
            Step::Crash(at, limit) => {
                match at {
                    Some(at) => self.collect_nth(at, limit),
                    None => self.collect_ended(limit),
                }
                self.missed.clear();
                (0..2).for_each(|cache| self.catch_up(cache));
            }
            Step::Make(on) => self.make(on),
            // The server binds no pod that is being deleted.
            Step::Bind(at, to) => {
                let unbound = |pod: &&Pod| pod.spec.node_name.is_empty() && !is_terminating(pod);
                if let Some(pod) = nth(at).filter(unbound) {
                    self.edit(&pod.metadata.name, |pod| pod.spec.node_name = node_name(to));
                }
            }
            Step::End(at) => {
                let phase = if at % 2 == 0 { "Succeeded" } else { "Failed" };
                name(at).into_iter().for_each(|name| self.world.set_state(&name, phase, false));
            }
            Step::Delete(at) => match nth(at) {
                // As servers may leave one without a node.
                Some(pod) if pod.spec.node_name.is_empty() => {
                    let now = self.world.time();
                    self.edit(&pod.metadata.name, |pod| {
                        pod.metadata.deletion_timestamp = Some(now);
                    });
                }
                Some(pod) => self.world.delete_pod(&pod.metadata.name),
                None => {}
            },
            Step::Kubelet(at) => {
                let runs = |pod: &&Pod| !pod.spec.node_name.is_empty();
                if let Some(pod) = nth(at).filter(runs) {
                    self.world.end_pod(&pod.metadata.name);
                }
            }
            Step::Hold(at, on) => self.hold(name(at), on),
            Step::Refuse(at, on) => match (name(at), on) {
                (Some(name), true) => drop(self.refused.insert(name)),
                (Some(name), false) => drop(self.refused.remove(&name)),
                (None, _) => {}
            },
            Step::AddNode(nth) => {
                if self.world.get::<Node>(ObjectKind::Node, &node_name(nth)).is_none() {
                    self.world.put(node(nth));
                }
            }
            Step::RemoveNode(nth) => self.world.remove(ObjectKind::Node, &node_name(nth)),
            Step::Mark(nth, is_marked, is_ready) => {
                let edit = |node: &mut Node| mark(node, is_marked, is_ready);
                self.world.edit::<Node>(ObjectKind::Node, &node_name(nth), edit);
            }
            Step::Later(seconds) => self.pass(i64::from(seconds)),
        }
    }

    fn edit(&mut self, name: &str, edit: impl FnOnce(&mut Pod)) {
        self.world.edit::<Pod>(ObjectKind::Pod, name, edit);
    }

    fn make(&mut self, on: Option<u8>) {
        self.made += 1;
        let mut pod = Pod::default();
        pod.metadata.name = format!("p{}", self.made);
        pod.metadata.namespace = "ns".into();
        pod.status.phase = "Pending".into();
        pod.spec.node_name = on.map(node_name).unwrap_or_default();
        self.world.put(pod);
    }

    fn hold(&mut self, name: Option<String>, on: bool) {
        let Some(name) = name else { return };
        self.edit(&name, |pod| {
            // One that is being deleted gets no more finalizers.
            if !on || !is_terminating(pod) {
                pod.metadata.finalizers =
                    on.then(|| "example.com/hold".to_owned()).into_iter().collect();
            }
        });
        self.world.end_pod(&name);
    }

    fn pass(&mut self, seconds: i64) {
        self.note_nodes();
        self.world.now += seconds;
        self.note_nodes();
    }

    fn note_nodes(&mut self) {
        for node in self.caches[1].list::<Node>(ObjectKind::Node) {
            self.last_known.insert(node.metadata.name.clone(), self.world.now);
        }
        for pod in self.caches[0].pods() {
            self.last_known.entry(pod.spec.node_name.clone()).or_insert(self.world.now);
        }
    }

    /// Changes that a cache shows are looked at.
    fn catch_up(&mut self, cache: usize) {
        let before = std::mem::replace(&mut self.caches[cache], self.world.clone());
        self.note_nodes();
        let version = |world: &World, kind, name: &str| match kind {
            ObjectKind::Pod => {
                world.get::<Pod>(kind, name).map(|pod| pod.metadata.resource_version)
            }
            _ => world.get::<Node>(kind, name).map(|node| node.metadata.resource_version),
        };
        let kind = [ObjectKind::Pod, ObjectKind::Node][cache];
        for pod in self.caches[0].pods() {
            let name = [&pod.metadata.name, &pod.spec.node_name][cache];
            if version(&before, kind, name) != version(&self.world, kind, name) {
                self.collect(&pod, usize::MAX);
            }
        }
    }

    fn collect_all(&mut self) {
        self.caches[0].pods().iter().for_each(|pod| self.collect(pod, usize::MAX));
    }

    fn collect_nth(&mut self, at: usize, limit: usize) {
        let pods = self.caches[0].pods();
        pods.get(at % pods.len().max(1)).into_iter().for_each(|pod| self.collect(pod, limit));
    }

    /// As the controller manager does.
    fn collect(&mut self, pod: &Arc<Pod>, limit: usize) {
        let (name, now) = (&pod.spec.node_name, self.world.now);
        let found = self.caches[1].get::<Node>(ObjectKind::Node, name);
        let node = match &found {
            _ if name.is_empty() => PodNode::Unscheduled,
            Some(node) => {
                self.missed.remove(name);
                PodNode::Found(node)
            }
            None => {
                let since = *self.missed.entry(name.clone()).or_insert(now);
                let missing = u64::try_from(now - since).expect("it runs forward");
                let is_there = || self.world.get::<Node>(ObjectKind::Node, name).is_some();
                match Duration::from_secs(missing) {
                    missing if missing < pod_gc::QUARANTINE => PodNode::Missing(missing),
                    _ if is_there() => {
                        self.missed.remove(name);
                        PodNode::Missing(Duration::ZERO)
                    }
                    _ => PodNode::Absent,
                }
            }
        };
        let plan = pod_gc::plan(pod, node, self.flags.out_of_service);
        let why = pod_gc::disruption(node);
        assert!(plan.writes.is_empty() || self.may_collect(pod), "{} goes", pod.metadata.name);
        let waits = matches!(node, PodNode::Missing(_));
        assert_eq!(plan.requeue_after.is_some(), waits, "it is looked at once more");
        self.execute(plan, std::slice::from_ref(pod), why, limit);
    }

    /// Whether Kubernetes deletes the pod, whose end does not count.
    fn may_collect(&self, pod: &Pod) -> bool {
        let node = &pod.spec.node_name;
        if node.is_empty() {
            return is_terminating(pod);
        }
        if let Some(node) = self.caches[1].get::<Node>(ObjectKind::Node, node) {
            let counts = self.flags.out_of_service == OutOfServiceTaint::NodeIsOff;
            return counts && is_terminating(pod) && is_off(&node);
        }
        let missing = self.world.now - self.last_known[node];
        missing >= QUARANTINE && self.world.get::<Node>(ObjectKind::Node, node).is_none()
    }

    fn collect_ended(&mut self, limit: usize) {
        let seen = self.caches[0].pods();
        let plan = pod_gc::plan_ended(&seen, self.flags.threshold);
        self.check_ended(&seen, &plan);
        self.execute(plan, &seen, Disruption::Cleanup, limit);
    }

    /// Those that Kubernetes deletes: the oldest of all that have ended. Here those that go already do not count.
    fn check_ended(&self, seen: &[Arc<Pod>], plan: &Plan) {
        let mut ended: Vec<&Arc<Pod>> = seen.iter().filter(|pod| has_ended(pod)).collect();
        ended.sort_by_key(|pod| (pod.metadata.creation_timestamp.unix(), &pod.metadata.name));
        let kept = if self.flags.threshold == 0 { usize::MAX } else { self.flags.threshold };
        ended.truncate(ended.len().saturating_sub(kept));
        let oldest: Vec<&str> = ended.iter().map(|pod| pod.metadata.name.as_str()).collect();
        let deleted: Vec<&str> = plan.writes.iter().map(deleted_name).collect();
        let all_stay = !seen.iter().any(|pod| has_ended(pod) && is_terminating(pod));
        assert!(deleted.iter().all(|name| oldest.contains(name)), "{deleted:?} of {oldest:?}");
        assert!(!all_stay || deleted == oldest, "{deleted:?}, not {oldest:?}");
    }

    fn execute(&mut self, plan: Plan, pods: &[Arc<Pod>], why: Disruption, limit: usize) {
        let plan = match self.flags.marks {
            true => disruption_target::add_to_deletions(plan, pods, why, self.world.time()),
            false => plan,
        };
        let refused = &self.refused;
        self.world.run_refused(&plan, limit, |write| match write {
            ApiWrite::Delete { key, .. } => refused.contains(&key.name),
            _ => false,
        });
    }

    /// Half of the pods end, and the server does not delete the one that is to go first.
    fn end_many_and_refuse_the_first(&mut self) {
        (0..12).step_by(2).for_each(|_| self.apply_step(Step::Make(None)));
        (0..self.world.pods().len()).step_by(2).for_each(|at| self.apply_step(Step::End(at)));
        let mut ended = self.world.pods();
        ended.retain(|pod| has_ended(pod) && !is_terminating(pod));
        let age =
            |pod: &&Arc<Pod>| (pod.metadata.creation_timestamp.unix(), pod.metadata.name.clone());
        let first = ended.iter().min_by_key(age).expect("a pod has ended");
        self.refused.insert(first.metadata.name.clone());
    }

    /// Everything is looked at until nothing happens for longer than a node is waited for.
    fn settle(&mut self) {
        let mut quiet = 0;
        for _ in 0..200 {
            let before = self.world.version;
            (0..2).for_each(|cache| self.catch_up(cache));
            self.collect_all();
            self.collect_ended(usize::MAX);
            self.pass(10);
            quiet = if self.world.version == before { quiet + 1 } else { 0 };
            if quiet == 6 {
                return;
            }
        }
        panic!("the plans do not end");
    }

    /// Nothing is left that Kubernetes deletes, but what is held or what the server does not delete.
    fn check_end(&self) {
        let mut left = self.world.pods();
        left.retain(|pod| pod.metadata.finalizers.is_empty() || !is_terminating(pod));
        let is_refused = |pod: &Arc<Pod>| self.refused.contains(&pod.metadata.name);
        let late = left.iter().find(|pod| self.may_collect(pod) && !is_refused(pod));
        assert_eq!(late, None, "it is left");
        let ended = left.iter().filter(|pod| has_ended(pod) && !is_terminating(pod)).count();
        let most = self.flags.threshold + self.refused.len();
        assert!(self.flags.threshold == 0 || ended <= most, "{ended} pods have ended");
    }
}

/// The name of the pod that is deleted, which nothing may delay.
fn deleted_name(write: &ApiWrite) -> &str {
    match write {
        ApiWrite::Delete { kind: ObjectKind::Pod, key, grace_secs: Some(0), .. } => &key.name,
        other => panic!("no deletion without a grace period: {other:?}"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    #[test]
    fn pods_that_no_kubelet_ends_go_and_no_others(
        flags in flags(),
        steps in proptest::collection::vec(step(), 1..100),
    ) {
        let mut history = History::new(flags);
        for step in steps {
            history.apply_step(step);
        }
        // What the server does not delete keeps nothing else.
        history.end_many_and_refuse_the_first();
        history.settle();
        history.check_end();
        history.refused.clear();
        history.settle();
        history.check_end();
    }
}
