//! Random histories of nodes of two zones that fall silent and return, with the loops that mark them, taint them and evict their pods: caches that lag
//! behind, zones that fail as a whole, nodes that change their zone, and controllers that lose what they remember.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use apiserver_controllers::api_writes::{ApiWrite, ObjectKind};
use apiserver_controllers::node_lifecycle::{
    self, ClusterHealth, EvictionRates, NodeClocks, NodeHealth, ZoneEvictions,
};
use apiserver_controllers::taint_manager::{self, Eviction, TaintAge};
use proptest::prelude::*;
use proto_api::coordination::v1::Lease;
use proto_api::core::v1::{Node, NodeCondition, Pod, Taint, Toleration};
use proto_api::names::{Names, Profile};
use proto_api::{MicroTime, Time};

use super::World;

const NODES: u8 = 7;
/// The zone of each node at first: three failed nodes of four stop the evictions of a zone, three of three are all of it.
const ZONES: [&str; NODES as usize] = ["a", "a", "a", "a", "b", "b", "b"];
const GRACE: u64 = 40;
/// How long the pods of each node tolerate that it fails: not at all, for a while, for ever.
const TOLERATED: [Option<Option<i64>>; 3] = [None, Some(Some(25)), Some(None)];
/// Between the evictions of two nodes of a zone.
const BETWEEN_NODES: i64 = 10;

#[derive(Clone, Copy, Debug)]
enum Step {
    /// The cache of nodes or of pods catches up.
    CatchUp(u8),
    /// A kubelet renews its lease; it reports its node as ready if it is not.
    Renew(u8),
    /// A kubelet reports that its node is not ready.
    NotReady(u8),
    /// All kubelets of a zone report so, but that of one node.
    ZoneNotReady(&'static str, u8),
    /// A user moves a node to a zone, and says whether it counts when nodes fail together.
    Label(u8, &'static str, bool),
    /// A plan of the nth node.
    Node(u8),
    /// A plan of the nth pod's eviction.
    Pod(usize),
    /// All nodes and pods are planned.
    All,
    /// The controllers restart, and remember nothing.
    Restart,
    Later(u8),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (0..2u8).prop_map(Step::CatchUp),
        6 => (0..NODES).prop_map(Step::Renew),
        1 => (0..NODES).prop_map(Step::NotReady),
        1 => (zone(), 0..=NODES).prop_map(|(zone, spared)| Step::ZoneNotReady(zone, spared)),
        1 => (0..NODES, zone(), proptest::bool::weighted(0.8))
            .prop_map(|(nth, zone, counts)| Step::Label(nth, zone, counts)),
        6 => (0..NODES).prop_map(Step::Node),
        4 => (0..21usize).prop_map(Step::Pod),
        4 => Just(Step::All),
        1 => Just(Step::Restart),
        5 => (0..25u8).prop_map(Step::Later),
    ]
}

fn zone() -> impl Strategy<Value = &'static str> {
    prop_oneof![Just("a"), Just("b")]
}

fn names() -> &'static Names {
    static NAMES: OnceLock<&Names> = OnceLock::new();
    NAMES.get_or_init(|| Names::new(Profile::Kubernetes))
}

fn name(node: u8) -> String {
    format!("n{node}")
}

/// Nodes have no namespace: the world stores them in that of the pods, which no rule looks at.
fn node(nth: u8) -> Node {
    let mut node = Node::default();
    node.metadata.name = name(nth);
    node.metadata.namespace = "ns".into();
    label(&mut node, ZONES[usize::from(nth)], true);
    node
}

fn label(node: &mut Node, zone: &str, counts: bool) {
    let labels = &mut node.metadata.labels;
    labels.insert(names().sub_label("topology", "zone"), zone.into());
    match counts {
        true => labels.remove(&excluded()),
        false => labels.insert(excluded(), String::new()),
    };
}

fn excluded() -> String {
    names().sub_label("node", "exclude-disruption")
}

fn zone_of(node: &Node) -> &str {
    &node.metadata.labels[&names().sub_label("topology", "zone")]
}

/// Whether Kubernetes evicts nodes of a zone while these nodes of all zones are there. At least three and 55 % of a zone's nodes that count have to fail
/// to stop it, but not all: that is a zone that has gone, as long as another one has not.
fn may_evict(zone: &str, all: &[Arc<Node>]) -> bool {
    let excluded = excluded();
    let counted = all.iter().filter(|node| !node.metadata.labels.contains_key(&excluded));
    let (ready, failed): (Vec<&Arc<Node>>, Vec<_>) = counted.partition(|n| ready(n) == "True");
    let of_zone = |nodes: &[&Arc<Node>]| nodes.iter().filter(|node| zone_of(node) == zone).count();
    let (up, down) = (of_zone(&ready), of_zone(&failed));
    let has_anywhere_to_go = !ready.is_empty() || failed.is_empty();
    has_anywhere_to_go && (up == 0 || down < 3 || down * 100 < (up + down) * 55)
}

fn pod(node: u8, kind: usize) -> Pod {
    let mut pod = Pod::default();
    pod.metadata.name = format!("{}-{kind}", name(node));
    pod.metadata.namespace = "ns".into();
    pod.spec.node_name = name(node);
    pod.status.phase = "Running".into();
    let toleration = |toleration_seconds| Toleration {
        operator: "Exists".into(),
        effect: "NoExecute".into(),
        toleration_seconds,
        ..Toleration::default()
    };
    pod.spec.tolerations = TOLERATED[kind].map(toleration).into_iter().collect();
    pod
}

fn ready(node: &Node) -> &str {
    let condition = node.status.conditions.iter().find(|c| c.type_ == "Ready");
    condition.map_or("", |condition| &condition.status)
}

fn report(world: &mut World, of: u8, status: &str) {
    let now = world.time();
    world.edit::<Node>(ObjectKind::Node, &name(of), |node| {
        node.status.conditions = vec![NodeCondition {
            type_: "Ready".into(),
            status: status.into(),
            last_heartbeat_time: now,
            ..NodeCondition::default()
        }];
    });
}

fn evicting(node: &Node) -> impl Iterator<Item = &Taint> {
    node.spec.taints.iter().filter(|taint| taint.effect == "NoExecute")
}

/// When the taint manager saw a pod with the taints of its node first.
struct FirstSeen {
    uid: String,
    taints: Vec<Taint>,
    wall: Time,
    at: Instant,
}

struct History {
    world: World,
    /// What the caches of nodes and pods show. Each only moves forward.
    caches: [World; 2],
    /// The version that the cache has to show before the next plan of a node, that of its own last write.
    own: BTreeMap<u8, u64>,
    start: Instant,
    start_wall: i64,
    /// When each kubelet renewed its lease.
    renewed: BTreeMap<u8, i64>,
    health: BTreeMap<u8, NodeHealth>,
    cluster: Option<ClusterHealth>,
    evicted: ZoneEvictions,
    /// When each node got a taint by which its pods are evicted, and in which zone it was.
    evicted_at: BTreeMap<u8, (i64, String)>,
    tainted: BTreeMap<String, FirstSeen>,
}

impl History {
    fn new() -> Self {
        let mut world = World::at(100_000);
        for nth in 0..NODES {
            world.put(node(nth));
            report(&mut world, nth, "True");
            (0..TOLERATED.len()).for_each(|kind| world.put(pod(nth, kind)));
        }
        let (caches, start_wall) = ([world.clone(), world.clone()], world.now);
        Self {
            world,
            caches,
            own: BTreeMap::new(),
            start: Instant::now(),
            start_wall,
            renewed: (0..NODES).map(|nth| (nth, start_wall)).collect(),
            health: BTreeMap::new(),
            cluster: None,
            evicted: ZoneEvictions::default(),
            evicted_at: BTreeMap::new(),
            tainted: BTreeMap::new(),
        }
    }

    /// The clock that is not set; here both run alike.
    fn steady(&self) -> Instant {
        let seconds = u64::try_from(self.world.now - self.start_wall).expect("it runs forward");
        self.start + Duration::from_secs(seconds)
    }

    fn apply_step(&mut self, step: Step) {
        match step {
            Step::CatchUp(cache) => self.caches[usize::from(cache)] = self.world.clone(),
            Step::Renew(nth) => self.renew(nth),
            Step::NotReady(nth) => self.report_not_ready(nth),
            Step::ZoneNotReady(zone, spared) => {
                for nth in (0..NODES).filter(|nth| *nth != spared) {
                    if zone_of(&self.node(nth)) == zone {
                        self.report_not_ready(nth);
                    }
                }
            }
            Step::Label(nth, zone, counts) => {
                let edit = |node: &mut Node| label(node, zone, counts);
                self.world.edit(ObjectKind::Node, &name(nth), edit);
            }
            Step::Node(nth) => self.plan_node(nth),
            Step::Pod(at) => {
                let pods = self.world.pods();
                if let Some(pod) = pods.get(at % pods.len().max(1)) {
                    self.plan_pod(&pod.metadata.name);
                }
            }
            Step::All => self.plan_all(),
            Step::Restart => self.restart(),
            Step::Later(seconds) => self.world.now += i64::from(seconds),
        }
    }

    fn node(&self, nth: u8) -> Node {
        self.world.get(ObjectKind::Node, &name(nth)).expect("a node")
    }

    fn report_not_ready(&mut self, nth: u8) {
        self.renewed.insert(nth, self.world.now);
        report(&mut self.world, nth, "False");
    }

    fn restart(&mut self) {
        self.health.clear();
        self.tainted.clear();
        self.own.clear();
        self.cluster = None;
        self.evicted = ZoneEvictions::default();
        // As in kube-controller-manager, a new process knows no eviction whose taint is gone again.
        self.evicted_at.clear();
        self.caches = [self.world.clone(), self.world.clone()];
    }

    fn renew(&mut self, nth: u8) {
        self.renewed.insert(nth, self.world.now);
        if ready(&self.node(nth)) != "True" {
            report(&mut self.world, nth, "True");
        }
    }

    fn plan_all(&mut self) {
        (0..NODES).for_each(|nth| self.plan_node(nth));
        for pod in self.world.pods() {
            self.plan_pod(&pod.metadata.name);
        }
    }

    /// As the controller manager does.
    fn plan_node(&mut self, nth: u8) {
        if self.caches[0].version < self.own.get(&nth).copied().unwrap_or(0) {
            self.caches[0] = self.world.clone();
        }
        let all = self.caches[0].list::<Node>(ObjectKind::Node);
        let node = all.iter().find(|node| node.metadata.name == name(nth)).expect("a node");
        let wall = self.world.time();
        let nodes = all.iter().map(|node| &**node);
        let cluster = match node_lifecycle::is_ready(node) {
            true => ClusterHealth::SomeReady,
            false => ClusterHealth::assess(
                names(),
                &EvictionRates::default(),
                Some(node),
                nodes,
                &self.evicted,
                wall,
            ),
        };
        let steady = self.steady();
        let before = self.cluster.replace(cluster);
        if before == Some(ClusterHealth::NoneReady) && cluster != ClusterHealth::NoneReady {
            self.health.values_mut().for_each(|node| node.restart_grace(steady));
        }
        let mut lease = Lease::default();
        let renewed = self.renewed[&nth];
        lease.spec.renew_time = Some(MicroTime::from_unix_micros(renewed * 1_000_000));
        let health = NodeHealth::update(self.health.get(&nth), node, Some(&lease), steady);
        self.health.insert(nth, health.clone());
        let grace = Duration::from_secs(GRACE);
        let plan = node_lifecycle::plan(
            names(),
            node,
            &health,
            grace,
            NodeClocks { steady, wall },
            cluster,
        );
        self.evicted.note(names(), &EvictionRates::default(), node, &plan, wall);
        let before = self.world.list::<Node>(ObjectKind::Node);
        if self.world.run(&plan, usize::MAX) > 0 {
            self.own.insert(nth, self.world.version);
            self.check_node(nth, &before, &all);
        }
    }

    /// What no write of a node may do. `seen` is what the cache showed.
    fn check_node(&mut self, nth: u8, before: &[Arc<Node>], seen: &[Arc<Node>]) {
        let node = self.node(nth);
        let old = before.iter().find(|old| old.metadata.name == name(nth)).expect("a node");
        if ready(&node) == "Unknown" && ready(old) != "Unknown" {
            let silent = self.world.now - self.renewed[&nth];
            assert!(silent >= i64::try_from(GRACE).expect("a number"), "silent for {silent} s");
        }
        if evicting(&node).next().is_none() || evicting(old).next().is_some() {
            return;
        }
        assert_ne!(ready(old), "True", "pods of a ready node are evicted");
        let shown = seen.iter().find(|shown| shown.metadata.name == name(nth)).expect("a node");
        let zone = zone_of(shown);
        assert!(may_evict(zone, seen), "most of zone {zone} fails, or all of every zone");
        let others = self.evicted_at.iter().filter(|(other, _)| **other != nth);
        for (other, (last, _)) in others.filter(|(_, (_, of))| of == zone) {
            let pause = self.world.now - last;
            assert!(pause >= BETWEEN_NODES, "{pause} s after n{other} of the same zone");
        }
        self.evicted_at.insert(nth, (self.world.now, zone.to_owned()));
    }

    /// As the controller manager does.
    fn plan_pod(&mut self, name: &str) {
        let before = self.tainted.remove(name);
        let Some(pod) = self.caches[1].get::<Pod>(ObjectKind::Pod, name) else { return };
        let node = self.caches[0].get::<Node>(ObjectKind::Node, &pod.spec.node_name);
        let node = node.expect("a node");
        let taints: Vec<Taint> = evicting(&node).cloned().collect();
        let (uid, wall, at) = (pod.metadata.uid.clone(), self.world.time(), self.steady());
        let before = before.filter(|before| before.uid == uid);
        let last = if before.is_some() { Eviction::Scheduled } else { Eviction::None };
        let before = before.filter(|before| before.taints == taints);
        let seen = before.unwrap_or(FirstSeen { uid, taints, wall, at });
        let age = TaintAge { first: seen.wall, elapsed: at.saturating_duration_since(seen.at) };
        let plan = taint_manager::plan(&pod, &node, age, last);
        for write in &plan.writes {
            assert!(matches!(write, ApiWrite::Delete { kind: ObjectKind::Pod, .. }), "{write:?}");
            self.check_eviction(&pod, &node);
        }
        if plan.requeue_after.is_some() {
            self.tainted.insert(name.to_owned(), seen);
        }
        self.world.run(&plan, usize::MAX);
        // Its kubelet is not needed to see what is deleted.
        if !plan.writes.is_empty() {
            self.world.remove(ObjectKind::Pod, name);
        }
    }

    /// A pod goes only when it has tolerated a taint for as long as it does.
    fn check_eviction(&self, pod: &Pod, node: &Node) {
        let taint = evicting(node).next().expect("a taint");
        let since = taint.time_added.and_then(Time::unix).expect("a time");
        let Some(toleration) = pod.spec.tolerations.first() else { return };
        let limit = toleration.toleration_seconds.expect("it tolerates every taint");
        let since = evicting(node).filter_map(|t| t.time_added?.unix()).fold(since, i64::min);
        assert!(self.world.now - since >= limit, "{} goes too early", pod.metadata.name);
    }

    /// Everything is planned for this long, while the kubelets of all other nodes renew their leases.
    fn run(&mut self, seconds: i64, silent: &[u8]) {
        for _ in 0..seconds / 5 {
            self.world.now += 5;
            (0..NODES).filter(|nth| !silent.contains(nth)).for_each(|nth| self.renew(nth));
            self.caches = [self.world.clone(), self.world.clone()];
            self.plan_all();
        }
    }

    fn kinds_on(&self, nth: u8) -> Vec<String> {
        let pods = self.world.pods().into_iter();
        let pods = pods.filter(|pod| pod.spec.node_name == name(nth));
        pods.map(|pod| pod.metadata.name.clone()).collect()
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]

    #[test]
    fn pods_are_evicted_from_silent_nodes_only_and_in_time(
        steps in proptest::collection::vec(step(), 1..80),
    ) {
        let mut history = History::new();
        for step in steps {
            history.apply_step(step);
        }
        // So that the first node can fail alone.
        (0..NODES).for_each(|nth| history.apply_step(Step::Label(nth, ZONES[usize::from(nth)], true)));
        history.run(60, &[]);
        for node in history.world.list::<Node>(ObjectKind::Node) {
            prop_assert_eq!((ready(&node), &node.spec.taints[..]), ("True", &[][..]));
        }
        // New pods in place of those that are gone.
        for (nth, kind) in (0..NODES).flat_map(|nth| (0..3).map(move |kind| (nth, kind))) {
            let pod = pod(nth, kind);
            if history.world.get::<Pod>(ObjectKind::Pod, &pod.metadata.name).is_none() {
                history.world.put(pod);
            }
        }
        history.run(100, &[0]);
        let node = history.node(0);
        prop_assert_eq!(ready(&node), "Unknown");
        let unreachable = names().sub_label("node", "unreachable");
        prop_assert!(evicting(&node).all(|taint| taint.key == unreachable));
        prop_assert_eq!(history.kinds_on(0), ["n0-2"]);
        for nth in 1..NODES {
            prop_assert_eq!(history.kinds_on(nth).len(), 3);
        }
    }
}

#[test]
fn a_zone_of_which_most_fails_is_spared_until_all_of_it_has_gone() {
    let mut history = History::new();
    let left = |history: &History| -> Vec<usize> {
        (0..NODES).map(|nth| history.kinds_on(nth).len()).collect()
    };
    history.run(200, &[0, 1, 2]);
    assert_eq!(left(&history), [3; 7], "one node of zone a is ready");
    history.run(200, &[0, 1, 2, 3]);
    assert_eq!(left(&history), [1, 1, 1, 1, 3, 3, 3], "zone b is ready");
    history.run(200, &[0, 1, 2, 3, 4, 5, 6]);
    assert_eq!(left(&history), [1, 1, 1, 1, 3, 3, 3], "no zone is");
}
