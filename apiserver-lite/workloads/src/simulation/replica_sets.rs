//! Random histories of a replica set among pods of users and of others: it adopts orphans that it selects, releases what it selects no longer, and touches
//! nothing else; caches of pods and sets lag behind, the server refuses writes, and the controller is lost between two of them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use apiserver_controllers::addresses::{has_ended, is_ready, is_terminating};
use apiserver_controllers::api_writes::{ApiWrite, ObjectKind, WrittenObject};
use apiserver_controllers::{owners, replica_set};
use proptest::prelude::*;
use proto_api::apps::v1::ReplicaSet;
use proto_api::core::v1::Pod;
use proto_api::meta::v1::{LabelSelector, ObjectMeta};
use proto_api::names::{Names, Profile};

use super::World;

const LABEL: &str = "app";

#[derive(Clone, Copy, Debug)]
enum Step {
    /// The cache of replica sets or of pods catches up.
    CatchUp(u8),
    Reconcile,
    /// The controller is lost after this many writes, and restarts with fresh caches.
    Crash(usize),
    Kubelet(usize),
    Fail(usize),
    DeletePod(usize),
    Scale(i32),
    /// A user makes a pod without a controller.
    MakePod,
    /// A user sets or removes the label of the nth pod.
    Relabel(usize, bool),
    /// A plan at a server that refuses some of its writes.
    Refused(Refusal),
}

/// What a server refuses: by a quota, a webhook, or missing rights.
#[derive(Clone, Copy, Debug)]
enum Refusal {
    NewPods,
    DeletionsOfPods,
    /// Those of some pods.
    SomeDeletions,
}

impl Refusal {
    fn concerns(self, write: &ApiWrite) -> bool {
        match write {
            ApiWrite::Create(WrittenObject::Pod(_)) => matches!(self, Self::NewPods),
            ApiWrite::Delete { kind: ObjectKind::Pod, key, .. } => match self {
                Self::NewPods => false,
                Self::DeletionsOfPods => true,
                Self::SomeDeletions => is_spared(&key.name),
            },
            _ => false,
        }
    }
}

/// Whether the server refuses to delete the pod, if it refuses some.
fn is_spared(name: &str) -> bool {
    name.bytes().last().is_some_and(|last| last % 2 == 0)
}

fn refusal() -> impl Strategy<Value = Refusal> {
    prop_oneof![
        Just(Refusal::NewPods),
        Just(Refusal::DeletionsOfPods),
        Just(Refusal::SomeDeletions)
    ]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (0..2u8).prop_map(Step::CatchUp),
        6 => Just(Step::Reconcile),
        4 => (0..4usize).prop_map(Step::Crash),
        4 => (0..10usize).prop_map(Step::Kubelet),
        1 => (0..10usize).prop_map(Step::Fail),
        1 => (0..10usize).prop_map(Step::DeletePod),
        1 => (0..5i32).prop_map(Step::Scale),
        2 => Just(Step::MakePod),
        2 => (0..10usize, any::<bool>()).prop_map(|(at, on)| Step::Relabel(at, on)),
        3 => refusal().prop_map(Step::Refused),
    ]
}

fn labels() -> BTreeMap<String, String> {
    [(LABEL.to_owned(), "web".to_owned())].into()
}

fn set(replicas: i32) -> ReplicaSet {
    let mut set = ReplicaSet::default();
    set.metadata.name = "web".into();
    set.metadata.namespace = "ns".into();
    set.metadata.generation = 1;
    set.spec.replicas = Some(replicas);
    set.spec.selector = Some(LabelSelector { match_labels: labels(), ..LabelSelector::default() });
    set.spec.template.metadata.labels = labels();
    set
}

fn pod(name: &str) -> Pod {
    let mut pod = Pod::default();
    pod.metadata.name = name.into();
    pod.metadata.namespace = "ns".into();
    pod.metadata.labels = labels();
    pod.status.phase = "Running".into();
    pod.spec.node_name = "node".into();
    pod
}

/// A pod that the set selects and another object controls.
fn foreign() -> Pod {
    let mut pod = pod("foreign");
    let owner = ObjectMeta { name: "other".into(), uid: "other".into(), ..ObjectMeta::default() };
    pod.metadata.owner_references = vec![owners::controlled_by("v1".into(), "Other", &owner)];
    pod
}

fn owner(pod: &Pod) -> &str {
    owners::controller(&pod.metadata, "ReplicaSet").map_or("", |owner| &owner.uid)
}

fn is_active(pod: &Pod) -> bool {
    !has_ended(pod) && !is_terminating(pod)
}

fn is_selected(pod: &Pod) -> bool {
    pod.metadata.labels.contains_key(LABEL)
}

struct History {
    world: World,
    /// What the caches of replica sets and pods show. Each only moves forward.
    caches: [World; 2],
    /// The version that both have to show before the next plan.
    own: u64,
    made: u32,
}

impl History {
    fn new(replicas: i32) -> Self {
        let mut world = World::at(1000);
        world.put(set(replicas));
        world.put(foreign());
        let caches = [world.clone(), world.clone()];
        Self { world, caches, own: 0, made: 0 }
    }

    fn get_set(&self, of: &World) -> ReplicaSet {
        of.get(ObjectKind::ReplicaSet, "web").expect("the set")
    }

    fn catch_up(&mut self) {
        self.caches = [self.world.clone(), self.world.clone()];
    }

    fn apply_step(&mut self, step: Step) {
        let mut pods = self.world.pods();
        pods.retain(|pod| pod.metadata.name != "foreign");
        let nth = |at: usize| pods.get(at % pods.len().max(1)).map(|pod| &**pod);
        let name = |at: usize| nth(at).map(|pod| pod.metadata.name.as_str());
        match step {
            Step::CatchUp(cache) => self.caches[usize::from(cache)] = self.world.clone(),
            Step::Reconcile => self.reconcile(usize::MAX, None),
            Step::Refused(refusal) => self.reconcile(usize::MAX, Some(refusal)),
            Step::Crash(limit) => {
                self.reconcile(limit, None);
                self.catch_up();
            }
            Step::Kubelet(at) => nth(at).into_iter().for_each(|pod| self.run_kubelet(pod)),
            Step::Fail(at) => {
                name(at).into_iter().for_each(|name| self.world.set_state(name, "Failed", false));
            }
            Step::DeletePod(at) => {
                name(at).into_iter().for_each(|name| self.world.delete_pod(name));
            }
            Step::Scale(to) => {
                self.world.edit::<ReplicaSet>(ObjectKind::ReplicaSet, "web", |set| {
                    set.spec.replicas = Some(to);
                    set.metadata.generation += 1;
                });
            }
            Step::MakePod => {
                self.made += 1;
                self.world.put(pod(&format!("user-{}", self.made)));
            }
            Step::Relabel(at, on) => {
                let Some(name) = name(at) else { return };
                self.world.edit::<Pod>(ObjectKind::Pod, name, |pod| {
                    pod.metadata.labels = if on { labels() } else { BTreeMap::new() };
                });
            }
        }
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

    fn reconcile(&mut self, limit: usize, refusal: Option<Refusal>) {
        for cache in &mut self.caches {
            if cache.version < self.own {
                *cache = self.world.clone();
            }
        }
        let (seen, pods) = (self.get_set(&self.caches[0]), self.caches[1].pods());
        let names = Names::new(Profile::Kubernetes);
        let plan = replica_set::plan(names, &seen, &pods, self.world.time());
        check(&seen, &pods, &plan.writes);
        let before = self.world.version;
        let refuses = |write: &ApiWrite| refusal.is_some_and(|refusal| refusal.concerns(write));
        self.world.run_refused(&plan, limit, refuses);
        if self.world.version != before {
            self.own = self.world.version;
        }
    }

    fn settle(&mut self, refusal: Option<Refusal>) {
        for _ in 0..30 {
            let before = self.world.version;
            self.catch_up();
            self.reconcile(usize::MAX, refusal);
            let pods = self.world.pods();
            let going = pods.iter().filter(|pod| is_terminating(pod));
            going.for_each(|pod| self.run_kubelet(pod));
            if self.world.version == before {
                return;
            }
        }
        panic!("the plans do not end");
    }

    /// At a server that goes on to refuse, the status says all the same what there is, and why it is not as it should be.
    fn check_refusal(&mut self, refusal: Refusal) {
        self.settle(Some(refusal));
        let (set, pods) = (self.get_set(&self.world), self.world.pods());
        let mut active = pods;
        active.retain(|pod| is_active(pod) && owner(pod) == set.metadata.uid);
        let count = |is: &dyn Fn(&Pod) -> bool| {
            i32::try_from(active.iter().filter(|pod| is(pod)).count()).expect("a number")
        };
        let (status, all) = (&set.status, count(&|_| true));
        assert_eq!((status.replicas, status.ready_replicas), (all, count(&is_ready)));
        assert_eq!(status.observed_generation, set.metadata.generation);
        let wanted = set.spec.replicas.expect("a number");
        let plan = replica_set::plan(
            Names::new(Profile::Kubernetes),
            &set,
            &self.world.pods(),
            self.world.time(),
        );
        let is_status = |write: &ApiWrite| matches!(write, ApiWrite::UpdateStatus(_));
        let stays = |write: &&ApiWrite| !is_status(write) && !refusal.concerns(write);
        assert_eq!(plan.writes.iter().find(stays), None, "what is not refused is done");
        let expected = match refusal {
            Refusal::NewPods if all < wanted => Some("FailedCreate"),
            Refusal::DeletionsOfPods | Refusal::SomeDeletions if all > wanted => {
                Some("FailedDelete")
            }
            _ => {
                assert_eq!(all, wanted);
                None
            }
        };
        let failure = status.conditions.iter().find(|known| known.type_ == "ReplicaFailure");
        let failure = failure.filter(|known| known.status == "True");
        let reason = failure.map(|known| known.reason.as_str());
        // The reason of the first failure stays until there is none.
        assert_eq!(reason.is_some(), expected.is_some(), "{status:?}");
    }

    fn check_end(&self) {
        let set = self.get_set(&self.world);
        let pods = self.world.pods();
        let active = || pods.iter().filter(|pod| is_active(pod));
        let mine: Vec<_> = active().filter(|pod| owner(pod) == set.metadata.uid).collect();
        let wanted = set.spec.replicas.expect("a number");
        assert_eq!(i32::try_from(mine.len()), Ok(wanted));
        assert!(mine.iter().all(|pod| is_selected(pod)), "one is kept that it does not select");
        let orphan =
            active().find(|pod| pod.metadata.owner_references.is_empty() && is_selected(pod));
        assert_eq!(orphan, None, "it is left alone");
        let status = &set.status;
        assert_eq!((status.replicas, status.fully_labeled_replicas), (wanted, wanted));
        assert_eq!(status.observed_generation, set.metadata.generation);
        assert_eq!(status.conditions, [], "nothing is refused");
        let theirs: Pod = self.world.get(ObjectKind::Pod, "foreign").expect("it is there");
        assert_eq!(theirs.metadata.owner_references, foreign().metadata.owner_references);
    }
}

/// What no plan may do.
fn check(set: &ReplicaSet, seen: &[Arc<Pod>], writes: &[ApiWrite]) {
    let find = |name: &str| seen.iter().find(|pod| pod.metadata.name == name).expect("a pod");
    let uid = set.metadata.uid.as_str();
    let (mut adopted, mut created, mut deleted) = (BTreeSet::new(), 0_usize, 0_usize);
    let mut released = 0_usize;
    for write in writes {
        match write {
            ApiWrite::Patch { kind: ObjectKind::Pod, key, patch, .. } => {
                let pod = find(&key.name);
                let owners = patch["metadata"]["ownerReferences"].as_array().expect("owners");
                match owners.iter().any(|owner| owner["uid"] == uid) {
                    true => {
                        assert!(pod.metadata.owner_references.is_empty() && is_selected(pod));
                        adopted.insert(key.name.clone());
                    }
                    false => {
                        assert!(owner(pod) == uid && !is_selected(pod));
                        released += 1;
                    }
                }
            }
            ApiWrite::Delete { kind: ObjectKind::Pod, key, .. } => {
                let pod = find(&key.name);
                assert!(owner(pod) == uid || adopted.contains(&key.name), "{} goes", key.name);
                assert!(is_selected(pod) && is_active(pod));
                deleted += 1;
            }
            ApiWrite::Create(_) => created += 1,
            _ => {}
        }
    }
    let mine = seen.iter().filter(|pod| is_active(pod) && owner(pod) == uid).count();
    let after = mine + adopted.len() + created - deleted - released;
    let wanted = usize::try_from(set.spec.replicas.unwrap_or(1)).expect("a number");
    assert_eq!(after, wanted, "{writes:?}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn a_set_has_as_many_pods_as_it_wants_and_leaves_others_alone(
        replicas in 0..5i32,
        refusal in refusal(),
        steps in proptest::collection::vec(step(), 1..80),
    ) {
        let mut history = History::new(replicas);
        for step in steps {
            history.apply_step(step);
        }
        history.check_refusal(refusal);
        history.settle(None);
        history.check_end();
    }
}
