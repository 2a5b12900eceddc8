//! Random histories of a deployment, its replica sets and their pods: users and kubelets, caches that lag behind each other, a server that refuses writes, and
//! controllers that are lost between two of them. There are never more pods than `maxSurge` allows and never fewer available than `maxUnavailable` allows.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use apiserver_controllers::addresses::{has_ended, is_ready, is_terminating};
use apiserver_controllers::api_writes::{ApiWrite, ObjectKind, WrittenObject};
use apiserver_controllers::{Plan, deployment, owners, replica_set};
use proptest::prelude::*;
use proto_api::IntOrString;
use proto_api::apps::v1::{Deployment, ReplicaSet};
use proto_api::core::v1::Pod;
use proto_api::meta::v1::LabelSelector;
use proto_api::names::{Names, Profile};

use super::World;
use crate::pods::is_available;

const LABEL: &str = "app";

#[derive(Clone, Copy, Debug)]
enum Step {
    /// The cache of deployments, of replica sets or of pods catches up.
    CatchUp(u8),
    /// A plan of the deployment, executed whole.
    Deployment,
    /// A plan of the nth replica set, executed whole.
    ReplicaSet(usize),
    /// A plan of the deployment or of the nth set, of which this many writes are executed; then the controllers restart with fresh caches.
    Crash(Option<usize>, usize),
    /// The kubelet of the nth pod starts or ends it.
    Kubelet(usize),
    Template(u8),
    Later(u8),
    /// From now on the server refuses these writes, or none.
    Refuse(Option<Refusal>),
    Unready(usize),
    Fail(usize),
    DeletePod(usize),
    Scale(i32),
    Pause(bool),
}

/// What a server refuses: by a quota, a webhook, or missing rights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refusal {
    NewPods,
    DeletionsOfPods,
    NewSets,
    Sizes,
    DeletionsOfSets,
}

impl Refusal {
    fn concerns(self, write: &ApiWrite) -> bool {
        let refused = match write {
            ApiWrite::Create(WrittenObject::Pod(_)) => Self::NewPods,
            ApiWrite::Create(WrittenObject::ReplicaSet(_)) => Self::NewSets,
            ApiWrite::Patch { kind: ObjectKind::ReplicaSet, .. } => Self::Sizes,
            ApiWrite::Delete { kind: ObjectKind::Pod, .. } => Self::DeletionsOfPods,
            ApiWrite::Delete { kind: ObjectKind::ReplicaSet, .. } => Self::DeletionsOfSets,
            _ => return false,
        };
        self == refused
    }
}

fn refusal() -> impl Strategy<Value = Refusal> {
    prop_oneof![
        Just(Refusal::NewPods),
        Just(Refusal::DeletionsOfPods),
        Just(Refusal::NewSets),
        Just(Refusal::Sizes),
        Just(Refusal::DeletionsOfSets),
    ]
}

/// What the controllers and the kubelets do, and users who change the template.
fn undisturbed() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (0..3u8).prop_map(Step::CatchUp),
        5 => Just(Step::Deployment),
        6 => (0..4usize).prop_map(Step::ReplicaSet),
        3 => (prop::option::of(0..4usize), 0..4usize).prop_map(|(set, limit)| Step::Crash(set, limit)),
        8 => (0..12usize).prop_map(Step::Kubelet),
        1 => (0..3u8).prop_map(Step::Template),
        2 => (0..20u8).prop_map(Step::Later),
        2 => prop::option::weighted(0.4, refusal()).prop_map(Step::Refuse),
    ]
}

/// The same with pods that fail and users who scale and pause.
fn disturbed() -> impl Strategy<Value = Step> {
    prop_oneof![
        10 => undisturbed(),
        1 => (0..12usize).prop_map(Step::Unready),
        1 => (0..12usize).prop_map(Step::Fail),
        1 => (0..12usize).prop_map(Step::DeletePod),
        1 => (0..6i32).prop_map(Step::Scale),
        1 => any::<bool>().prop_map(Step::Pause),
    ]
}

fn names() -> &'static Names {
    Names::new(Profile::Kubernetes)
}

#[derive(Clone, Copy, Debug)]
enum Rules {
    /// Surge, and how many may be unavailable.
    Rolling(i32, i32),
    Recreate,
}

fn rules() -> impl Strategy<Value = Rules> {
    prop_oneof![
        4 => (0..3i32, 0..3i32).prop_map(|(surge, down)| Rules::Rolling(surge, down)),
        1 => Just(Rules::Recreate),
    ]
}

impl Rules {
    fn surge(self) -> i32 {
        if let Self::Rolling(surge, _) = self { surge } else { 0 }
    }

    /// The pods that are always available, of this many; none is promised by Recreate.
    fn least(self, replicas: i32) -> i32 {
        match self {
            // With both 0 nothing could be done.
            Self::Rolling(0, 0) => replicas - 1,
            Self::Rolling(_, down) => replicas - down,
            Self::Recreate => 0,
        }
    }
}

fn deployment(replicas: i32, rules: Rules, min_ready_seconds: i32) -> Deployment {
    let mut made = Deployment::default();
    made.metadata.name = "web".into();
    made.metadata.namespace = "ns".into();
    made.metadata.generation = 1;
    let labels = BTreeMap::from([(LABEL.to_owned(), "web".to_owned())]);
    made.spec.selector = Some(LabelSelector { match_labels: labels.clone(), ..Default::default() });
    made.spec.template.metadata.labels = labels;
    made.spec.replicas = Some(replicas);
    made.spec.min_ready_seconds = min_ready_seconds;
    made.spec.revision_history_limit = Some(1);
    made.spec.progress_deadline_seconds = Some(600);
    match rules {
        Rules::Recreate => made.spec.strategy.type_ = "Recreate".into(),
        Rules::Rolling(surge, down) => {
            made.spec.strategy.type_ = "RollingUpdate".into();
            let rolling = made.spec.strategy.rolling_update.get_or_insert_default();
            rolling.max_surge = Some(IntOrString::Int(surge));
            rolling.max_unavailable = Some(IntOrString::Int(down));
        }
    }
    made
}

/// The uid of the controller of an object.
fn owner(pod: &Pod) -> &str {
    owners::controller(&pod.metadata, "ReplicaSet").map_or("", |owner| &owner.uid)
}

fn is_active(pod: &Pod) -> bool {
    !has_ended(pod) && !is_terminating(pod)
}

fn size(set: &ReplicaSet) -> i32 {
    set.spec.replicas.expect("a size")
}

struct History {
    world: World,
    /// What the caches of deployments, replica sets and pods show. Each only moves forward, and the controllers share them.
    caches: [World; 3],
    /// The version that the caches have to show before the next plan of a key, that of its own last write.
    own: BTreeMap<String, u64>,
    rules: Rules,
    /// Without other changes: the number of pods that are always available.
    least: Option<i32>,
    /// What the server refuses now.
    refuses: Option<Refusal>,
}

impl History {
    /// A deployment all of whose pods are available.
    fn new(replicas: i32, rules: Rules, min_ready_seconds: i32) -> Self {
        let mut world = World::at(1000);
        world.put(deployment(replicas, rules, min_ready_seconds));
        let caches = [world.clone(), world.clone(), world.clone()];
        let mut history =
            Self { world, caches, own: BTreeMap::new(), rules, least: None, refuses: None };
        history.settle();
        history.check_end();
        history
    }

    fn get_deployment(&self, of: &World) -> Deployment {
        of.get(ObjectKind::Deployment, "web").expect("the deployment")
    }

    fn sets(&self) -> Vec<Arc<ReplicaSet>> {
        self.world.list(ObjectKind::ReplicaSet)
    }

    fn edit(&mut self, change: impl FnOnce(&mut Deployment)) {
        self.world.edit::<Deployment>(ObjectKind::Deployment, "web", |deployment| {
            change(deployment);
            deployment.metadata.generation += 1;
        });
    }

    fn apply_step(&mut self, step: Step) {
        let pods = self.world.pods();
        let nth = |at: usize| pods.get(at % pods.len().max(1)).map(|pod| &**pod);
        match step {
            Step::CatchUp(cache) => self.caches[usize::from(cache)] = self.world.clone(),
            Step::Deployment => self.reconcile_deployment(usize::MAX),
            Step::ReplicaSet(at) => self.reconcile_set(at, usize::MAX),
            Step::Crash(set, limit) => {
                match set {
                    Some(at) => self.reconcile_set(at, limit),
                    None => self.reconcile_deployment(limit),
                }
                self.own.clear();
                self.caches = [(); 3].map(|()| self.world.clone());
            }
            Step::Kubelet(at) => nth(at).into_iter().for_each(|pod| self.run_kubelet(pod)),
            Step::Template(to) => self.edit(|deployment| {
                deployment.spec.template.spec.hostname = format!("h{to}");
            }),
            Step::Later(seconds) => self.world.now += i64::from(seconds),
            Step::Refuse(refusal) => self.refuses = refusal,
            Step::Unready(at) => {
                if let Some(pod) = nth(at).filter(|pod| is_ready(pod) && is_active(pod)) {
                    self.world.set_state(&pod.metadata.name, "Running", false);
                }
            }
            Step::Fail(at) => {
                if let Some(pod) = nth(at) {
                    self.world.set_state(&pod.metadata.name, "Failed", false);
                }
            }
            Step::DeletePod(at) => {
                if let Some(pod) = nth(at) {
                    self.world.delete_pod(&pod.metadata.name);
                }
            }
            Step::Scale(to) => self.edit(|deployment| deployment.spec.replicas = Some(to)),
            Step::Pause(is) => self.edit(|deployment| deployment.spec.paused = is),
        }
        self.check_available();
    }

    fn run_kubelet(&mut self, pod: &Pod) {
        let name = &pod.metadata.name;
        if is_terminating(pod) {
            return self.world.remove(ObjectKind::Pod, name);
        }
        if !has_ended(pod) {
            self.world.edit::<Pod>(ObjectKind::Pod, name, |pod| pod.spec.node_name = "node".into());
            self.world.set_state(name, "Running", true);
        }
    }

    /// Lets the caches of these kinds show what the key has written.
    fn observe(&mut self, key: &str, caches: &[usize]) {
        let own = self.own.get(key).copied().unwrap_or(0);
        for cache in caches {
            if self.caches[*cache].version < own {
                self.caches[*cache] = self.world.clone();
            }
        }
    }

    /// Executes the writes without those that depend on one that is refused, at most `limit` of them, and looks at the world after each.
    fn execute(
        &mut self,
        key: String,
        plan: &Plan,
        limit: usize,
        check: impl Fn(&Self, &ApiWrite),
    ) {
        let (mut from, mut failed, mut done, mut status) = (0, None, 0, None);
        while let Some(nth) = plan.next_write(from, failed).filter(|_| done < limit) {
            let write = &plan.writes[nth];
            from = nth + 1;
            if self.refuses.is_some_and(|refusal| refusal.concerns(write)) {
                let now = self.world.time();
                status = status.or_else(|| plan.status_of_failure(nth, "refused".into(), now));
                failed = Some(nth);
                continue;
            }
            if self.world.execute(write).is_err() {
                failed = Some(nth);
                continue;
            }
            done += 1;
            self.own.insert(key.clone(), self.world.version);
            check(self, write);
            self.check_available();
        }
        if let Some(status) = status.filter(|_| done < limit)
            && self.world.execute(&status).is_ok()
        {
            self.own.insert(key, self.world.version);
        }
    }

    fn reconcile_deployment(&mut self, limit: usize) {
        self.observe("web", &[0, 1]);
        let [deployments, sets, pods] = &self.caches;
        let seen = self.get_deployment(deployments);
        let (sets, pods) = (sets.list::<ReplicaSet>(ObjectKind::ReplicaSet), pods.pods());
        let has_pods = |uid: &str| pods.iter().any(|pod| !has_ended(pod) && owner(pod) == uid);
        let plan = deployment::plan(names(), &seen, &sets, &has_pods, self.world.time());
        let before: BTreeMap<String, ReplicaSet> =
            sets.iter().map(|set| (set.metadata.name.clone(), (**set).clone())).collect();
        let most = seen.spec.replicas.unwrap_or(1) + self.rules.surge();
        self.execute("web".into(), &plan, limit, |history, write| match write {
            ApiWrite::Patch { kind: ObjectKind::ReplicaSet, key, patch, .. } => {
                let to = patch.pointer("/spec/replicas").and_then(serde_json::Value::as_i64);
                let from = i64::from(size(&before[&key.name]));
                if to.is_some_and(|to| to > from) {
                    history.check_total(most);
                }
            }
            ApiWrite::Create(WrittenObject::ReplicaSet(_)) => history.check_total(most),
            ApiWrite::Delete { kind: ObjectKind::ReplicaSet, uid, .. } => {
                let pods = history.world.pods();
                let left = pods.iter().any(|pod| is_active(pod) && owner(pod) == uid);
                assert!(!left, "a set goes that has pods");
            }
            _ => {}
        });
    }

    fn reconcile_set(&mut self, at: usize, limit: usize) {
        let shown = self.caches[1].list::<ReplicaSet>(ObjectKind::ReplicaSet);
        let Some(set) = shown.get(at % shown.len().max(1)) else { return };
        let name = set.metadata.name.clone();
        self.observe(&name, &[1, 2]);
        let Some(seen) = self.caches[1].get::<ReplicaSet>(ObjectKind::ReplicaSet, &name) else {
            return;
        };
        let pods = self.caches[2].pods();
        let plan = replica_set::plan(names(), &seen, &pods, self.world.time());
        check_deletions(&seen, &pods, &plan);
        let uid = seen.metadata.uid.clone();
        self.execute(name, &plan, limit, |history, write| {
            if !matches!(write, ApiWrite::Create(_)) {
                return;
            }
            let pods = history.world.pods();
            let mine = pods.iter().filter(|pod| is_active(pod) && owner(pod) == uid).count();
            assert!(mine <= usize::try_from(size(&seen)).expect("a size"), "{mine} of {seen:?}");
            if matches!(history.rules, Rules::Recreate) {
                let others = pods.iter().find(|pod| !has_ended(pod) && owner(pod) != uid);
                assert_eq!(others, None, "old and new pods run together");
            }
        });
    }

    fn check_total(&self, most: i32) {
        let total: i32 = self.sets().iter().map(|set| size(set)).sum();
        assert!(total <= most, "{total} pods are asked for of {most}: {}", self.describe_sets());
    }

    /// Size and status of each set.
    fn describe_sets(&self) -> String {
        let describe = |set: &Arc<ReplicaSet>| {
            let (name, status) = (&set.metadata.name, &set.status);
            format!("{name} {} {status:?}", size(set))
        };
        self.sets().iter().map(describe).collect::<Vec<_>>().join(", ")
    }

    fn available(&self) -> usize {
        let min_ready = self.get_deployment(&self.world).spec.min_ready_seconds;
        let (pods, now) = (self.world.pods(), self.world.time());
        let available = |pod: &&Arc<Pod>| is_active(pod) && is_available(pod, min_ready, now);
        pods.iter().filter(available).count()
    }

    fn check_available(&self) {
        if let Some(least) = self.least {
            let available = i32::try_from(self.available()).expect("a number");
            let sets = self.describe_sets();
            assert!(available >= least, "{available} of {least} pods are available: {sets}");
        }
    }

    /// All controllers and kubelets work until nothing happens for some time.
    fn settle(&mut self) {
        let mut quiet = 0;
        for _ in 0..200 {
            let before = self.world.version;
            self.caches = [(); 3].map(|()| self.world.clone());
            self.reconcile_deployment(usize::MAX);
            for at in 0..self.sets().len() {
                self.caches = [(); 3].map(|()| self.world.clone());
                self.reconcile_set(at, usize::MAX);
            }
            let pods = self.world.pods();
            let waits = |pod: &&Arc<Pod>| is_terminating(pod) || !is_ready(pod) && !has_ended(pod);
            pods.iter().filter(waits).for_each(|pod| self.run_kubelet(pod));
            self.world.now += 5;
            quiet = if self.world.version == before { quiet + 1 } else { 0 };
            if quiet == 4 {
                return;
            }
        }
        panic!("the plans do not end");
    }

    /// While the server goes on to refuse, the status says why there is no progress, and of a plan that it executes also what there is.
    fn settle_refused(&mut self, refusal: Refusal) {
        self.refuses = Some(refusal);
        self.settle();
        let (deployment, sets) = (self.get_deployment(&self.world), self.sets());
        let status = &deployment.status;
        let condition = |kind: &str| {
            let found = status.conditions.iter().find(|condition| condition.type_ == kind);
            found.map(|found| (found.status.as_str(), found.reason.as_str()))
        };
        let template = &deployment.spec.template.spec.hostname;
        let newest = sets.iter().find(|set| set.spec.template.spec.hostname == *template);
        let waits = refusal == Refusal::Sizes || matches!(self.rules, Rules::Recreate);
        if newest.is_none() && (refusal == Refusal::NewSets || !waits) {
            let expected = Some(("False", "ReplicaSetCreateError"));
            assert_eq!(condition("Progressing"), expected);
        }
        let pods = self.world.pods();
        for set in &sets {
            let mine = pods.iter().filter(|pod| is_active(pod) && owner(pod) == set.metadata.uid);
            let mine = i32::try_from(mine.count()).expect("a number");
            assert_eq!(set.status.replicas, mine, "the status of a set is frozen");
            let fails = !set.status.conditions.is_empty();
            assert_eq!(fails, mine != size(set), "{}: {:?}", size(set), set.status);
        }
        if matches!(refusal, Refusal::NewPods | Refusal::DeletionsOfPods | Refusal::DeletionsOfSets)
        {
            let all: i32 = sets.iter().map(|set| set.status.replicas).sum();
            assert_eq!(status.replicas, all, "the status is frozen");
            assert_eq!(status.observed_generation, deployment.metadata.generation);
            let of_newest = newest.is_some_and(|set| !set.status.conditions.is_empty());
            assert!(!of_newest || condition("ReplicaFailure").is_some(), "{status:?}");
        }
        self.refuses = None;
    }

    /// All pods are of the newest template and available, and the history is bounded.
    fn check_end(&self) {
        let (deployment, sets) = (self.get_deployment(&self.world), self.sets());
        let wanted = deployment.spec.replicas.expect("a number");
        let active: Vec<Arc<Pod>> =
            self.world.pods().into_iter().filter(|pod| is_active(pod)).collect();
        assert_eq!(active.len(), usize::try_from(wanted).expect("a number"));
        assert_eq!(self.available(), active.len());
        for pod in &active {
            assert_eq!(pod.spec.hostname, deployment.spec.template.spec.hostname);
        }
        let status = &deployment.status;
        assert_eq!([status.replicas, status.updated_replicas], [wanted; 2]);
        assert_eq!([status.available_replicas, status.unavailable_replicas], [wanted, 0]);
        assert_eq!(status.observed_generation, deployment.metadata.generation);
        let revision = names().sub_label("deployment", "revision");
        let of =
            |set: &ReplicaSet| set.metadata.annotations[&revision].parse::<u32>().expect("one");
        let revisions: BTreeSet<u32> = sets.iter().map(|set| of(set)).collect();
        assert_eq!(revisions.len(), sets.len(), "two sets have one revision");
        let newest = sets.iter().max_by_key(|set| of(set)).expect("a set");
        assert_eq!(size(newest), wanted);
        assert!(sets.len() <= 2, "the history has a limit");
    }
}

/// A set deletes no more pods than it has too many, none of others, and none that is ready while it keeps one that is not.
fn check_deletions(set: &ReplicaSet, seen: &[Arc<Pod>], plan: &Plan) {
    let uids = plan.writes.iter().filter_map(|write| match write {
        ApiWrite::Delete { kind: ObjectKind::Pod, uid, .. } => Some(uid.as_str()),
        _ => None,
    });
    let deleted: BTreeSet<&str> = uids.collect();
    let mine = seen.iter().filter(|pod| is_active(pod) && owner(pod) == set.metadata.uid);
    let (gone, kept): (Vec<_>, Vec<_>) =
        mine.partition(|pod| deleted.contains(pod.metadata.uid.as_str()));
    assert_eq!(gone.len(), deleted.len(), "{} deletes what it does not own", set.metadata.name);
    if !gone.is_empty() {
        assert_eq!(kept.len(), usize::try_from(size(set)).expect("a size"));
    }
    let ready = |pods: &[&Arc<Pod>]| pods.iter().filter(|pod| is_ready(pod)).count();
    assert!(ready(&gone) == 0 || ready(&kept) == kept.len(), "a ready pod goes first: {gone:?}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    #[test]
    fn rollouts_keep_their_promises_whatever_the_caches_show(
        replicas in 1..6i32,
        rules in rules(),
        min_ready_seconds in prop_oneof![Just(0), Just(10)],
        refusal in refusal(),
        steps in proptest::collection::vec(undisturbed(), 1..80),
    ) {
        let mut history = History::new(replicas, rules, min_ready_seconds);
        history.least = Some(rules.least(replicas));
        for step in steps {
            history.apply_step(step);
        }
        history.settle_refused(refusal);
        history.settle();
        history.check_end();
    }

    #[test]
    fn disturbed_rollouts_keep_their_limits_and_end(
        replicas in 1..6i32,
        rules in rules(),
        min_ready_seconds in prop_oneof![Just(0), Just(10)],
        refusal in refusal(),
        steps in proptest::collection::vec(disturbed(), 1..80),
    ) {
        let mut history = History::new(replicas, rules, min_ready_seconds);
        for step in steps {
            history.apply_step(step);
        }
        history.edit(|deployment| deployment.spec.paused = false);
        history.settle_refused(refusal);
        history.settle();
        history.check_end();
    }
}

/// A template comes, goes and comes back: its set has just deleted its pod when it grows again, and its status still counts that pod.
#[test]
fn a_set_that_grows_again_has_none_of_the_pods_that_it_deleted() {
    let mut history = History::new(2, Rules::Rolling(0, 0), 0);
    history.least = Some(1);
    let (deploy, restart) = (Step::Deployment, Step::Crash(None, 0));
    for step in [
        [Step::Template(0), restart, deploy, deploy, deploy].as_slice(),
        &[restart, Step::ReplicaSet(1), Step::Template(2), restart, deploy, restart, deploy],
        &[Step::Template(0), Step::Kubelet(2), restart, Step::ReplicaSet(1), restart, deploy],
    ]
    .concat()
    {
        history.apply_step(step);
    }
    let sets = history.sets();
    let grown = sets.iter().find(|set| set.spec.template.spec.hostname == "h0").expect("a set");
    assert_eq!((size(grown), grown.status.available_replicas), (1, 1));
    let pods = history.world.pods();
    let mut mine = pods.iter().filter(|pod| owner(pod) == grown.metadata.uid);
    assert!(mine.all(|pod| is_terminating(pod)));
    history.settle();
    history.check_end();
}
