//! Random histories of a daemon set: users, kubelets, nodes that come and go, a cache that lags behind, a server that refuses writes, and a
//! controller that is lost between two writes.

use apiserver_controllers::api_writes::WrittenObject;
use proptest::prelude::*;
use proto_api::core::v1::Taint;

use super::tests::{add_node, names, node, planned, run_kubelets, set, settle, world};
use super::*;
use crate::pods::is_available;
use crate::simulation::World;

#[derive(Clone, Copy, Debug)]
enum Step {
    /// The cache catches up.
    CatchUp,
    /// A plan, of which this many writes are executed.
    Reconcile(usize),
    /// The kubelet of the nth pod starts or ends it.
    Kubelet(usize),
    Unready(usize),
    Fail(usize),
    DeletePod(usize),
    ChangeTemplate(u8),
    AddNode(u8),
    RemoveNode(u8),
    Taint(u8, bool),
    Later(u8),
    /// A plan at a server that refuses some of its writes.
    Refused(Refusal),
}

/// What a server refuses: by a quota, a webhook, or missing rights.
#[derive(Clone, Copy, Debug)]
enum Refusal {
    NewPods,
    /// Those of one node.
    NewPodsOn(u8),
    DeletionsOfPods,
    DeletionsOfRevisions,
}

impl Refusal {
    fn concerns(self, write: &ApiWrite) -> bool {
        match write {
            ApiWrite::Create(WrittenObject::Pod(pod)) => match self {
                Self::NewPods => true,
                Self::NewPodsOn(nth) => template::node_of(pod) == Some(&node(nth).metadata.name),
                _ => false,
            },
            ApiWrite::Delete { kind: ObjectKind::Pod, .. } => {
                matches!(self, Self::DeletionsOfPods)
            }
            ApiWrite::Delete { kind: ObjectKind::ControllerRevision, .. } => {
                matches!(self, Self::DeletionsOfRevisions)
            }
            _ => false,
        }
    }
}

fn refusal() -> impl Strategy<Value = Refusal> {
    prop_oneof![
        Just(Refusal::NewPods),
        (0..5u8).prop_map(Refusal::NewPodsOn),
        Just(Refusal::DeletionsOfPods),
        Just(Refusal::DeletionsOfRevisions),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        2 => Just(Step::CatchUp),
        6 => (0..6usize).prop_map(Step::Reconcile),
        4 => Just(Step::Reconcile(usize::MAX)),
        8 => (0..8usize).prop_map(Step::Kubelet),
        1 => (0..8usize).prop_map(Step::Unready),
        1 => (0..8usize).prop_map(Step::Fail),
        1 => (0..8usize).prop_map(Step::DeletePod),
        2 => (0..3u8).prop_map(Step::ChangeTemplate),
        1 => (0..5u8).prop_map(Step::AddNode),
        1 => (0..5u8).prop_map(Step::RemoveNode),
        1 => (0..5u8, any::<bool>()).prop_map(|(node, on)| Step::Taint(node, on)),
        2 => (0..20u8).prop_map(Step::Later),
        3 => refusal().prop_map(Step::Refused),
    ]
}

struct History {
    world: World,
    cache: World,
    failed: FailedPods,
    /// The version that the cache has to show before the next plan: that of the controller's own last write.
    own: u64,
}

impl History {
    fn take(&mut self, step: Step) {
        let mut pods = self.world.pods();
        pods.retain(|pod| pod.metadata.name != "foreign");
        let nth = |at: usize| pods.get(at % pods.len().max(1)).map(|pod| &pod.metadata.name);
        match step {
            Step::CatchUp => self.cache = self.world.clone(),
            Step::Reconcile(limit) => self.reconcile(limit, None),
            Step::Refused(refusal) => self.reconcile(usize::MAX, Some(refusal)),
            Step::Kubelet(at) => {
                let Some(pod) = pods.get(at % pods.len().max(1)) else { return };
                let name = &pod.metadata.name;
                if pod.metadata.deletion_timestamp.is_some() {
                    return self.world.remove(ObjectKind::Pod, name);
                }
                let node = template::node_of(pod).unwrap_or_default().to_owned();
                if self.world.get::<Node>(ObjectKind::Node, &node).is_some() {
                    self.world.edit::<Pod>(ObjectKind::Pod, name, |pod| pod.spec.node_name = node);
                    self.world.set_state(name, "Running", true);
                }
            }
            Step::Unready(at) => {
                if let Some(name) = nth(at) {
                    self.world.set_state(name, "Running", false);
                }
            }
            Step::Fail(at) => {
                if let Some(name) = nth(at) {
                    self.world.set_state(name, "Failed", false);
                }
            }
            Step::DeletePod(at) => {
                if let Some(name) = nth(at) {
                    self.world.delete_pod(name);
                }
            }
            Step::ChangeTemplate(to) => {
                self.world.edit::<DaemonSet>(ObjectKind::DaemonSet, "web", |set| {
                    set.spec.template.spec.hostname = format!("h{to}");
                    set.metadata.generation += 1;
                });
            }
            Step::AddNode(nth) => {
                let node = node(nth);
                if self.world.get::<Node>(ObjectKind::Node, &node.metadata.name).is_none() {
                    add_node(&mut self.world, node);
                }
            }
            Step::RemoveNode(nth) => {
                let name = node(nth).metadata.name;
                self.world.remove(ObjectKind::Node, &name);
                // As the pod garbage collector does.
                for pod in pods.iter().filter(|pod| pod.spec.node_name == name) {
                    self.world.remove(ObjectKind::Pod, &pod.metadata.name);
                }
            }
            Step::Taint(nth, on) => {
                let name = node(nth).metadata.name;
                self.world.edit::<Node>(ObjectKind::Node, &name, |node| {
                    let taint = Taint {
                        key: "mine".into(),
                        effect: "NoSchedule".into(),
                        ..Taint::default()
                    };
                    node.spec.taints = if on { vec![taint] } else { Vec::new() };
                });
            }
            Step::Later(seconds) => self.world.now += i64::from(seconds),
        }
    }

    fn reconcile(&mut self, limit: usize, refusal: Option<Refusal>) {
        if self.cache.version < self.own {
            self.cache = self.world.clone();
        }
        self.cache.now = self.world.now;
        let plan = planned(&self.cache, &mut self.failed);
        check(&self.cache, &plan);
        let refuses = |write: &ApiWrite| refusal.is_some_and(|refusal| refusal.concerns(write));
        self.world.run_refused(&plan, limit, refuses);
        self.own = self.world.version;
        check_bound(&self.world);
    }
}

/// However often pods fail or are deleted, a node has three of them at most: the old one, the new one, and one that is terminating.
fn check_bound(world: &World) {
    let mut on_node: BTreeMap<String, usize> = BTreeMap::new();
    for pod in world.pods().iter().filter(|pod| pod.metadata.name != "foreign") {
        let node = template::node_of(pod).unwrap_or_default().to_owned();
        *on_node.entry(node).or_default() += 1;
    }
    assert!(on_node.values().all(|pods| *pods <= 3), "{on_node:?}");
}

/// The pods of the set by node, without terminating and failed ones.
fn by_node(pods: &[Arc<Pod>]) -> BTreeMap<&str, Vec<&Pod>> {
    let mut by_node: BTreeMap<&str, Vec<&Pod>> = BTreeMap::new();
    let counts =
        |pod: &&Arc<Pod>| pod.metadata.deletion_timestamp.is_none() && pod.status.phase != "Failed";
    for pod in pods.iter().filter(counts) {
        by_node.entry(template::node_of(pod).unwrap_or_default()).or_default().push(pod);
    }
    by_node
}

/// What no plan may do, whatever it is made from.
fn check(seen: &World, plan: &Plan) {
    let set: DaemonSet = seen.get(ObjectKind::DaemonSet, "web").expect("the set");
    let rolling = set.spec.update_strategy.rolling_update.clone().unwrap_or_default();
    let limit = |value: Option<proto_api::IntOrString>| {
        usize::try_from(value.and_then(|v| v.as_int()).unwrap_or(0)).expect("a number")
    };
    let (surge, unavailable) = (limit(rolling.max_surge), limit(rolling.max_unavailable));
    let (mut all, nodes) = (seen.pods(), seen.list::<Node>(ObjectKind::Node));
    let foreign: Vec<_> = all.extract_if(.., |pod| pod.metadata.name == "foreign").collect();
    let before = by_node(&all);
    let deleted: BTreeSet<&str> = plan
        .writes
        .iter()
        .filter_map(|write| match write {
            ApiWrite::Delete { kind: ObjectKind::Pod, uid, .. } => Some(uid.as_str()),
            _ => None,
        })
        .collect();
    assert!(foreign.iter().all(|pod| !deleted.contains(pod.metadata.uid.as_str())));
    for pod in all.iter().filter(|pod| deleted.contains(pod.metadata.uid.as_str())) {
        let owner = pod.metadata.owner_references.first().map(|owner| &owner.uid);
        assert_eq!(owner, Some(&set.metadata.uid), "{} is not the set's", pod.metadata.name);
        assert_eq!(pod.metadata.deletion_timestamp, None, "it goes already");
    }
    // Availability.
    let available = |node: &&Arc<Node>, without: &BTreeSet<&str>| {
        before.get(node.metadata.name.as_str()).into_iter().flatten().any(|pod| {
            is_available(pod, set.spec.min_ready_seconds, seen.time())
                && !without.contains(pod.metadata.uid.as_str())
        })
    };
    let wanted = nodes.iter().filter(|node| runs_on(names(), &set, node) == Fit::Runs);
    let wanted: Vec<_> = wanted.collect();
    let lacking =
        |without: &BTreeSet<&str>| wanted.iter().filter(|node| !available(node, without)).count();
    let (now, then) = (lacking(&BTreeSet::new()), lacking(&deleted));
    assert!(then <= now.max(unavailable), "{then} nodes without a pod, {now} before: {plan:?}");
    // Surge.
    let created: Vec<&Pod> = plan
        .writes
        .iter()
        .filter_map(|write| match write {
            ApiWrite::Create(WrittenObject::Pod(pod)) => Some(&**pod),
            _ => None,
        })
        .collect();
    let mut extra = 0;
    for pod in &created {
        let node = template::node_of(pod).expect("a node");
        assert!(wanted.iter().any(|wanted| wanted.metadata.name == node), "{node} wants none");
        let there = before.get(node).map_or(&[][..], Vec::as_slice);
        assert!(there.len() <= 1, "two pods are enough");
        let is_leaving = |pod: &&Arc<Pod>| pod.metadata.deletion_timestamp.is_some();
        let others = all.iter().filter(|pod| template::node_of(pod) == Some(node));
        let (leaving, staying): (Vec<_>, Vec<_>) = others.partition(is_leaving);
        assert!(leaving.len() <= 1, "pods without end: {leaving:?}");
        let is_new = |pod: &Pod| pod.spec.hostname == set.spec.template.spec.hostname;
        let failed = staying.iter().find(|pod| is_new(pod) && pod.status.phase == "Failed");
        assert_eq!(failed, None, "it is in its back-off");
        if surge == 0 {
            let terminating = all.iter().any(|pod| template::node_of(pod) == Some(node));
            assert!(!terminating, "its predecessor is not gone");
        }
        let replaces =
            there.iter().any(|pod| is_available(pod, set.spec.min_ready_seconds, seen.time()));
        extra += usize::from(replaces);
    }
    if extra > 0 {
        let surging = before.values().filter(|pods| pods.len() > 1).count();
        assert!(extra + surging <= surge, "{extra} and {surging} pods beyond one a node");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn no_history_breaks_a_limit_and_each_ends_with_one_new_pod_a_node(
        limits in prop_oneof![Just((0, 1)), Just((0, 2)), Just((1, 0)), Just((2, 0))],
        min_ready in prop_oneof![Just(0), Just(10)],
        refusal in refusal(),
        steps in proptest::collection::vec(step(), 1..60),
    ) {
        let mut set = set(limits.0, limits.1);
        set.spec.min_ready_seconds = min_ready;
        set.spec.revision_history_limit = Some(1);
        let mut world = world(set, 3);
        let mut foreign = Pod::default();
        foreign.metadata.name = "foreign".into();
        foreign.spec.node_name = "node-0".into();
        foreign.metadata.namespace = "ns".into();
        foreign.metadata.labels.insert("app".into(), "web".into());
        let owner = proto_api::meta::v1::ObjectMeta { uid: "other".into(), ..Default::default() };
        foreign.metadata.owner_references =
            vec![apiserver_controllers::owners::controlled_by("v1".into(), "Other", &owner)];
        world.put(foreign);
        let (cache, failed) = (world.clone(), FailedPods::default());
        let mut history = History { world, cache, failed, own: 0 };
        for step in steps {
            history.take(step);
        }
        let History { mut world, mut failed, .. } = history;
        check_refusal(world.clone(), refusal);
        for _ in 0..15 {
            world.now += 1000;
            let plan = planned(&world, &mut failed);
            check(&world, &plan);
            world.run(&plan, usize::MAX);
            settle(&mut world, &mut failed);
            run_kubelets(&mut world);
        }
        world.now += 1000;
        settle(&mut world, &mut failed);
        prop_assert!(world.get::<Pod>(ObjectKind::Pod, "foreign").is_some());
        world.remove(ObjectKind::Pod, "foreign");
        check_end(&world, &mut failed);
    }
}

/// At a server that goes on to refuse, the status says all the same what there is, and nodes whose pods it takes have them.
fn check_refusal(mut world: World, refusal: Refusal) {
    let (mut failed, refuses) = (FailedPods::default(), |write: &ApiWrite| refusal.concerns(write));
    // Something of each kind is to be refused.
    for nth in 0..5 {
        if world.get::<Node>(ObjectKind::Node, &node(nth).metadata.name).is_none() {
            add_node(&mut world, node(nth));
        }
    }
    world.edit::<DaemonSet>(ObjectKind::DaemonSet, "web", |set| {
        set.spec.template.spec.hostname = "h3".into();
        set.metadata.generation += 1;
    });
    for _ in 0..10 {
        world.now += 997;
        let plan = planned(&world, &mut failed);
        check(&world, &plan);
        world.run_refused(&plan, usize::MAX, refuses);
        check_bound(&world);
        run_kubelets(&mut world);
    }
    for _ in 0..10 {
        let before = world.version;
        let plan = planned(&world, &mut failed);
        world.run_refused(&plan, usize::MAX, refuses);
        if world.version == before {
            check_counts(&world);
            return check_others(&world, refusal);
        }
    }
    panic!("the writes do not end");
}

/// A refused pod is no other's.
fn check_others(world: &World, refusal: Refusal) {
    let Refusal::NewPodsOn(refused) = refusal else { return };
    let set: DaemonSet = world.get(ObjectKind::DaemonSet, "web").expect("the set");
    let pods = world.pods();
    let by_node = by_node(&pods);
    for found in world.list::<Node>(ObjectKind::Node) {
        let name = &found.metadata.name;
        let wants = runs_on(names(), &set, &found) == Fit::Runs;
        let has = by_node.contains_key(name.as_str());
        assert!(has || !wants || *name == node(refused).metadata.name, "{name} has no pod");
    }
}

/// The status says what there is. Of several pods of a node it counts any.
fn check_counts(world: &World) {
    let set: DaemonSet = world.get(ObjectKind::DaemonSet, "web").expect("the set");
    let mut pods = world.pods();
    pods.retain(|pod| pod.metadata.name != "foreign");
    let on = |node: &Arc<Node>| {
        let is_on = |pod: &&Arc<Pod>| template::node_of(pod) == Some(&node.metadata.name);
        pods.iter().filter(is_on).collect::<Vec<_>>()
    };
    let nodes = world.list::<Node>(ObjectKind::Node);
    let (wanted, others): (Vec<_>, Vec<_>) =
        nodes.iter().partition(|node| runs_on(names(), &set, node) == Fit::Runs);
    let count = |nodes: &[&Arc<Node>], is: &dyn Fn(&[&Arc<Pod>]) -> bool| {
        i32::try_from(nodes.iter().filter(|node| is(&on(node))).count()).expect("a number")
    };
    let bounds = |is: &dyn Fn(&Pod) -> bool| {
        let all = count(&wanted, &|pods| !pods.is_empty() && pods.iter().all(|pod| is(pod)));
        all..=count(&wanted, &|pods| pods.iter().any(|pod| is(pod)))
    };
    let (status, now) = (&set.status, world.time());
    let desired = i32::try_from(wanted.len()).expect("a number");
    assert_eq!(status.observed_generation, set.metadata.generation);
    assert_eq!(status.desired_number_scheduled, desired);
    let current = count(&wanted, &|pods| !pods.is_empty());
    assert_eq!(status.current_number_scheduled, current);
    assert_eq!(status.number_misscheduled, count(&others, &|pods| !pods.is_empty()));
    let is_new = |pod: &Pod| pod.spec.hostname == set.spec.template.spec.hostname;
    let is_ready = |pod: &Pod| is_available(pod, set.spec.min_ready_seconds, now);
    assert!(bounds(&is_new).contains(&status.updated_number_scheduled), "{status:?}");
    assert!(bounds(&is_ready).contains(&status.number_available), "{status:?}");
    assert_eq!(status.number_unavailable, desired - status.number_available);
}

/// Each node that fits has one pod of the newest template, and nothing is left to do.
fn check_end(world: &World, failed: &mut FailedPods) {
    let set: DaemonSet = world.get(ObjectKind::DaemonSet, "web").expect("the set");
    let (pods, nodes) = (world.pods(), world.list::<Node>(ObjectKind::Node));
    let by_node = by_node(&pods);
    let mut wanted = 0;
    for node in &nodes {
        let there = by_node.get(node.metadata.name.as_str()).map_or(&[][..], Vec::as_slice);
        match runs_on(names(), &set, node) {
            Fit::Runs => {
                wanted += 1;
                let [pod] = there else { panic!("not one pod on a node: {there:?}") };
                assert_eq!(pod.spec.hostname, set.spec.template.spec.hostname);
            }
            Fit::Stays => assert!(there.len() <= 1),
            Fit::No => assert!(there.is_empty()),
        }
    }
    let status = &set.status;
    assert_eq!((status.desired_number_scheduled, status.number_available), (wanted, wanted));
    assert_eq!((status.updated_number_scheduled, status.number_unavailable), (wanted, 0));
    assert_eq!(status.observed_generation, set.metadata.generation);
    assert_eq!(planned(world, failed).writes, []);
}
