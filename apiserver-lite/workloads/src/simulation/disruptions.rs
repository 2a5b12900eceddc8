//! Random histories of a disruption budget over the pods of a replica set: users who evict, as the API server lets them, kubelets, caches that lag behind each
//! other, and an API server that is lost between the grant of an eviction and the deletion. No eviction leaves fewer healthy pods than the budget asks for, and
//! a drain ends.

use std::sync::Arc;

use apiserver_controllers::addresses::{is_ready, is_terminating};
use apiserver_controllers::api_writes::ObjectKind;
use apiserver_controllers::disruption::{self, OwnerScale};
use apiserver_controllers::replica_set;
use proptest::prelude::*;
use proto_api::IntOrString;
use proto_api::apps::v1::ReplicaSet;
use proto_api::core::v1::Pod;
use proto_api::meta::v1::{LabelSelector, OwnerReference};
use proto_api::names::{Names, Profile};
use proto_api::policy::v1::PodDisruptionBudget;

use super::World;

/// Seconds after which a cache of pods has caught up: less than an evicted pod is waited for.
const LAG_MAX: i64 = 60;

/// Whether the API server lives on after it has granted an eviction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ApiServer {
    Lives,
    Dies,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    /// The cache of budgets, of replica sets or of pods catches up.
    CatchUp(u8),
    Budget,
    ReplicaSet,
    /// The replica set's controller is lost after this many writes, and restarts with fresh caches.
    Crash(usize),
    Kubelet(usize),
    Evict(usize, ApiServer),
    Unready(usize),
    Later(u8),
}

fn step() -> impl Strategy<Value = Step> {
    let server = prop_oneof![5 => Just(ApiServer::Lives), 1 => Just(ApiServer::Dies)];
    prop_oneof![
        3 => (0..3u8).prop_map(Step::CatchUp),
        6 => Just(Step::Budget),
        3 => Just(Step::ReplicaSet),
        1 => (0..3usize).prop_map(Step::Crash),
        5 => (0..8usize).prop_map(Step::Kubelet),
        8 => (0..8usize, server).prop_map(|(at, server)| Step::Evict(at, server)),
        1 => (0..8usize).prop_map(Step::Unready),
        2 => (0..50u8).prop_map(Step::Later),
    ]
}

#[derive(Clone, Copy, Debug)]
enum Asks {
    MinAvailable(i32),
    MinPercent(i32),
    MaxUnavailable(i32),
    MaxPercent(i32),
}

fn asks() -> impl Strategy<Value = Asks> {
    prop_oneof![
        (0..6i32).prop_map(Asks::MinAvailable),
        (0..=100i32).prop_map(Asks::MinPercent),
        (0..4i32).prop_map(Asks::MaxUnavailable),
        (0..=100i32).prop_map(Asks::MaxPercent),
    ]
}

impl Asks {
    /// How many pods have to be healthy, of this many.
    fn healthy(self, replicas: i32) -> i32 {
        let share = |percent: i32| (replicas * percent + 99) / 100;
        match self {
            Self::MinAvailable(least) => least,
            Self::MinPercent(percent) => share(percent),
            Self::MaxUnavailable(most) => (replicas - most).max(0),
            Self::MaxPercent(percent) => replicas - share(percent),
        }
    }
}

fn names() -> &'static Names {
    Names::new(Profile::Kubernetes)
}

fn selector() -> LabelSelector {
    let match_labels = [("app".to_owned(), "web".to_owned())].into();
    LabelSelector { match_labels, ..LabelSelector::default() }
}

fn budget(asks: Asks) -> PodDisruptionBudget {
    let mut budget = PodDisruptionBudget::default();
    budget.metadata.name = "budget".into();
    budget.metadata.namespace = "ns".into();
    budget.metadata.generation = 1;
    budget.spec.selector = Some(selector());
    let percent = |share: i32| Some(IntOrString::from(&*format!("{share}%")));
    match asks {
        Asks::MinAvailable(least) => budget.spec.min_available = Some(IntOrString::Int(least)),
        Asks::MinPercent(share) => budget.spec.min_available = percent(share),
        Asks::MaxUnavailable(most) => budget.spec.max_unavailable = Some(IntOrString::Int(most)),
        Asks::MaxPercent(share) => budget.spec.max_unavailable = percent(share),
    }
    budget
}

fn set(replicas: i32) -> ReplicaSet {
    let mut set = ReplicaSet::default();
    set.metadata.name = "web".into();
    set.metadata.namespace = "ns".into();
    set.spec.replicas = Some(replicas);
    set.spec.selector = Some(selector());
    set.spec.template.metadata.labels = selector().match_labels;
    set
}

fn is_healthy(pod: &Pod) -> bool {
    is_ready(pod) && !is_terminating(pod)
}

struct History {
    world: World,
    /// What the caches of budgets, replica sets and pods show. Each only moves forward.
    caches: [World; 3],
    /// The versions that the caches have to show before the next plan of the budget and of the set.
    own: [u64; 2],
    /// When the cache of pods caught up last.
    pods_shown_at: i64,
    /// How many pods have to be healthy.
    least: i32,
}

impl History {
    /// A set whose pods are all ready, and a budget that no controller has seen.
    fn new(replicas: i32, asks: Asks) -> Self {
        let mut world = World::at(1000);
        world.put(budget(asks));
        world.put(set(replicas));
        let caches = [world.clone(), world.clone(), world.clone()];
        let (pods_shown_at, least) = (world.now, asks.healthy(replicas));
        let mut history = Self { world, caches, own: [0; 2], pods_shown_at, least };
        history.reconcile_set(usize::MAX);
        history.run_kubelets();
        history
    }

    fn catch_up(&mut self, cache: usize) {
        self.caches[cache] = self.world.clone();
        if cache == 2 {
            self.pods_shown_at = self.world.now;
        }
    }

    fn catch_up_all(&mut self) {
        (0..3).for_each(|cache| self.catch_up(cache));
    }

    fn apply_step(&mut self, step: Step) {
        let pods = self.world.pods();
        let nth = |at: usize| pods.get(at % pods.len().max(1)).map(|pod| &**pod);
        match step {
            Step::CatchUp(cache) => self.catch_up(usize::from(cache)),
            Step::Budget => self.reconcile_budget(),
            Step::ReplicaSet => self.reconcile_set(usize::MAX),
            Step::Crash(limit) => {
                self.reconcile_set(limit);
                self.catch_up_all();
            }
            Step::Kubelet(at) => nth(at).into_iter().for_each(|pod| self.run_kubelet(pod)),
            Step::Evict(at, server) => nth(at).into_iter().for_each(|pod| self.evict(pod, server)),
            Step::Unready(at) => {
                let Some(pod) = nth(at).filter(|pod| is_healthy(pod)) else { return };
                self.world.set_state(&pod.metadata.name, "Running", false);
                // No budget can know it earlier than its controller.
                self.catch_up_all();
                self.reconcile_budget();
            }
            Step::Later(seconds) => self.advance_clock(i64::from(seconds)),
        }
    }

    fn advance_clock(&mut self, seconds: i64) {
        self.world.now += seconds;
        if self.world.now - self.pods_shown_at > LAG_MAX {
            self.catch_up(2);
        }
    }

    fn observe(&mut self, own: u64, caches: [usize; 2]) {
        for cache in caches {
            if self.caches[cache].version < own {
                self.catch_up(cache);
            }
        }
    }

    fn reconcile_budget(&mut self) {
        self.observe(self.own[0], [0, 0]);
        let [budgets, sets, pods] = &self.caches;
        let seen: Option<PodDisruptionBudget> =
            budgets.get(ObjectKind::PodDisruptionBudget, "budget");
        let seen = seen.expect("the budget");
        let set = sets.get::<ReplicaSet>(ObjectKind::ReplicaSet, "web").expect("the set");
        let scale_of = |owner: &OwnerReference| {
            let replicas = set.spec.replicas.unwrap_or(1);
            let scale = OwnerScale { uid: set.metadata.uid.clone(), replicas };
            (owner.uid == scale.uid).then_some(scale)
        };
        let covered = disruption::covered(&seen, &pods.pods());
        let plan = disruption::plan(names(), &seen, &covered, scale_of, self.world.time());
        if self.world.run(&plan, usize::MAX) > 0 {
            self.own[0] = self.world.version;
        }
    }

    fn reconcile_set(&mut self, limit: usize) {
        self.observe(self.own[1], [1, 2]);
        let [_, sets, pods] = &self.caches;
        let set = sets.get::<ReplicaSet>(ObjectKind::ReplicaSet, "web").expect("the set");
        let plan = replica_set::plan(names(), &set, &pods.pods(), self.world.time());
        if self.world.run(&plan, limit) > 0 {
            self.own[1] = self.world.version;
        }
    }

    fn run_kubelet(&mut self, pod: &Pod) {
        let name = &pod.metadata.name;
        if is_terminating(pod) {
            return self.world.remove(ObjectKind::Pod, name);
        }
        self.world.edit::<Pod>(ObjectKind::Pod, name, |pod| pod.spec.node_name = "node".into());
        self.world.set_state(name, "Running", true);
    }

    fn run_kubelets(&mut self) {
        self.world.pods().iter().for_each(|pod| self.run_kubelet(pod));
    }

    /// The eviction of a pod, as the API server decides on it.
    fn evict(&mut self, pod: &Pod, server: ApiServer) {
        let name = &pod.metadata.name;
        if pod.status.phase != "Running" || is_terminating(pod) {
            return self.world.delete_pod(name);
        }
        let budget: Option<PodDisruptionBudget> =
            self.world.get(ObjectKind::PodDisruptionBudget, "budget");
        let mut budget = budget.expect("the budget");
        let status = &mut budget.status;
        let enough = status.desired_healthy > 0 && status.current_healthy >= status.desired_healthy;
        if !is_ready(pod) && enough {
            return self.world.delete_pod(name);
        }
        if status.observed_generation < budget.metadata.generation
            || status.disruptions_allowed <= 0
        {
            return;
        }
        status.disruptions_allowed -= 1;
        status.disrupted_pods.insert(name.clone(), self.world.time());
        self.world.put(budget);
        if server == ApiServer::Dies {
            return;
        }
        self.world.delete_pod(name);
        if is_healthy(pod) {
            let healthy = self.world.pods().iter().filter(|pod| is_healthy(pod)).count();
            let healthy = i32::try_from(healthy).expect("a number");
            assert!(healthy >= self.least, "{healthy} pods are left, not {}", self.least);
        }
    }

    /// Evicts the pods of a node until none is left; gives whether that came to an end.
    fn drain(&mut self, of: &[Arc<Pod>]) -> bool {
        for _ in 0..40 {
            let all = self.world.pods();
            let left = |pod: &&Arc<Pod>| of.iter().any(|o| o.metadata.uid == pod.metadata.uid);
            let left: Vec<&Arc<Pod>> = all.iter().filter(left).collect();
            if left.is_empty() {
                return true;
            }
            for pod in left {
                self.evict(pod, ApiServer::Lives);
            }
            self.advance_clock(30);
            self.run_kubelets();
            self.catch_up_all();
            self.reconcile_set(usize::MAX);
            self.reconcile_budget();
        }
        false
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn no_eviction_leaves_too_few_healthy_pods_and_a_drain_ends(
        replicas in 1..6i32,
        asks in asks(),
        steps in proptest::collection::vec(step(), 1..80),
    ) {
        let mut history = History::new(replicas, asks);
        for step in steps {
            history.apply_step(step);
        }
        let pods = history.world.pods();
        let ends = history.drain(&pods);
        prop_assert!(ends || history.least >= replicas, "{} of {replicas} hold it up", history.least);
    }
}
