//! Random histories of a stateful set: users, kubelets, the garbage collector, a cache of any age, and a controller that is lost between two writes.

use apiserver_controllers::addresses::is_terminating;
use apiserver_controllers::api_writes::WrittenObject;
use proptest::prelude::*;
use proto_api::IntOrString;
use proto_api::apps::v1::RollingUpdateStatefulSetStrategy as RollingUpdate;
use proto_api::apps::v1::StatefulSetPersistentVolumeClaimRetentionPolicy as RetentionPolicy;
use proto_api::meta::v1::OwnerReference;
use proto_api::selectors::Selector;

use super::identity::ordinal;
use super::tests::{planned, pod_names, run_kubelets, set, settle, world};
use super::*;
use crate::simulation::World;

#[derive(Clone, Copy, Debug)]
enum Step {
    CatchUp,
    /// A plan, of which this many writes are executed.
    Reconcile(usize),
    Kubelet(usize),
    Unready(usize),
    Fail(usize),
    DeletePod(usize),
    Scale(i32),
    ChangeTemplate(u8),
    Partition(i32),
    Orphan(usize),
    Policy(Option<[&'static str; 2]>),
    MaxUnavailable(Option<i32>),
    MinReady(i32),
    /// Whether updates wait for users, who delete pods.
    OnDelete(bool),
    Later(u8),
    /// A plan at a server that refuses some of its writes.
    Refused(Refusal),
    /// The garbage collector looks at every claim.
    Collect,
}

/// What a server refuses: by a quota, a webhook, or missing rights.
#[derive(Clone, Copy, Debug)]
enum Refusal {
    NewPods,
    NewClaims,
    DeletionsOfPods,
    Patches,
}

impl Refusal {
    fn concerns(self, write: &ApiWrite) -> bool {
        match write {
            ApiWrite::Create(WrittenObject::Pod(_)) => matches!(self, Self::NewPods),
            ApiWrite::Create(WrittenObject::PersistentVolumeClaim(_)) => {
                matches!(self, Self::NewClaims)
            }
            ApiWrite::Delete { kind: ObjectKind::Pod, .. } => {
                matches!(self, Self::DeletionsOfPods)
            }
            ApiWrite::Patch { kind: ObjectKind::PersistentVolumeClaim, .. } => {
                matches!(self, Self::Patches)
            }
            _ => false,
        }
    }
}

fn refusal() -> impl Strategy<Value = Refusal> {
    prop_oneof![
        3 => Just(Refusal::NewPods),
        1 => Just(Refusal::NewClaims),
        3 => Just(Refusal::DeletionsOfPods),
        1 => Just(Refusal::Patches),
    ]
}

/// What is to become of claims when the set is deleted and when it is scaled down.
fn policy() -> impl Strategy<Value = Option<[&'static str; 2]>> {
    let word = || prop_oneof![Just("Retain"), Just("Delete")];
    prop_oneof![1 => Just(None), 4 => [word(), word()].prop_map(Some)]
}

fn policy_of(words: [&str; 2]) -> RetentionPolicy {
    let [when_deleted, when_scaled] = words.map(str::to_owned);
    RetentionPolicy { when_deleted, when_scaled }
}

/// Whether claims of the set are deleted with it, and with their pods when it is scaled down.
fn deletes(set: &StatefulSet) -> [bool; 2] {
    let policy = set.spec.persistent_volume_claim_retention_policy.clone().unwrap_or_default();
    [policy.when_deleted, policy.when_scaled].map(|word| word == "Delete")
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => Just(Step::CatchUp),
        6 => (0..5usize).prop_map(Step::Reconcile),
        6 => Just(Step::Reconcile(usize::MAX)),
        10 => (0..6usize).prop_map(Step::Kubelet),
        1 => (0..6usize).prop_map(Step::Unready),
        1 => (0..6usize).prop_map(Step::Fail),
        1 => (0..6usize).prop_map(Step::DeletePod),
        1 => (0..5i32).prop_map(Step::Scale),
        2 => (0..3u8).prop_map(Step::ChangeTemplate),
        1 => (0..4i32).prop_map(Step::Partition),
        1 => (0..6usize).prop_map(Step::Orphan),
        1 => policy().prop_map(Step::Policy),
        1 => proptest::option::of(1..4i32).prop_map(Step::MaxUnavailable),
        1 => prop_oneof![Just(0), Just(30)].prop_map(Step::MinReady),
        1 => any::<bool>().prop_map(Step::OnDelete),
        2 => (0..40u8).prop_map(Step::Later),
        3 => refusal().prop_map(Step::Refused),
        3 => Just(Step::Collect),
    ]
}

/// Steps of an update of pods that are ready or not.
fn update_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => Just(Step::CatchUp),
        4 => Just(Step::Reconcile(usize::MAX)),
        4 => (0..6usize).prop_map(Step::Kubelet),
        2 => (0..6usize).prop_map(Step::Unready),
        2 => (0..3u8).prop_map(Step::ChangeTemplate),
        1 => (0..3i32).prop_map(Step::Partition),
        1 => (1..4i32).prop_map(|most| Step::MaxUnavailable(Some(most))),
        1 => prop_oneof![Just(0), Just(30)].prop_map(Step::MinReady),
        1 => (0..40u8).prop_map(Step::Later),
    ]
}

fn edit(world: &mut World, change: impl FnOnce(&mut StatefulSet)) {
    world.edit::<StatefulSet>(ObjectKind::StatefulSet, "web", |set| {
        change(set);
        set.metadata.generation += 1;
    });
}

/// Changes how pods are updated, unless users delete them.
fn edit_rolling(world: &mut World, change: impl FnOnce(&mut RollingUpdate)) {
    edit(world, |set| {
        if let Some(rolling) = &mut set.spec.update_strategy.rolling_update {
            change(rolling);
        }
    });
}

/// The ordinal from which pods are updated.
fn partition(set: &StatefulSet) -> i32 {
    let rolling = set.spec.update_strategy.rolling_update.as_ref();
    rolling.and_then(|rolling| rolling.partition).unwrap_or(0)
}

fn apply_step(world: &mut World, cache: &mut World, step: Step) {
    let pods = world.pods();
    let nth = |at: usize| pods.get(at % pods.len().max(1)).map(|pod| pod.metadata.name.clone());
    match step {
        Step::CatchUp => *cache = world.clone(),
        Step::Reconcile(_) | Step::Refused(_) => {
            cache.now = world.now;
            let plan = planned(cache);
            check(cache, &plan);
            match step {
                Step::Reconcile(limit) => world.run(&plan, limit),
                Step::Refused(refusal) => {
                    world.run_refused(&plan, usize::MAX, |write| refusal.concerns(write))
                }
                _ => unreachable!("{step:?}"),
            };
        }
        Step::Kubelet(at) => {
            let Some(pod) = pods.get(at % pods.len().max(1)) else { return };
            let name = &pod.metadata.name;
            if pod.metadata.deletion_timestamp.is_some() {
                return world.remove(ObjectKind::Pod, name);
            }
            world.edit::<Pod>(ObjectKind::Pod, name, |pod| pod.spec.node_name = "node".into());
            world.set_state(name, "Running", true);
        }
        Step::Unready(at) => {
            nth(at).into_iter().for_each(|name| world.set_state(&name, "Running", false));
        }
        Step::Fail(at) => {
            nth(at).into_iter().for_each(|name| world.set_state(&name, "Failed", false));
        }
        Step::DeletePod(at) => nth(at).into_iter().for_each(|name| world.delete_pod(&name)),
        Step::Scale(to) => edit(world, |set| set.spec.replicas = Some(to)),
        Step::ChangeTemplate(to) => {
            edit(world, |set| set.spec.template.spec.scheduler_name = format!("v{to}"));
        }
        Step::Partition(to) => edit_rolling(world, |rolling| rolling.partition = Some(to)),
        Step::MaxUnavailable(to) => edit_rolling(world, |rolling| {
            rolling.max_unavailable = to.map(IntOrString::Int);
        }),
        Step::OnDelete(is) => edit(world, |set| {
            let strategy = &mut set.spec.update_strategy;
            strategy.type_ = if is { "OnDelete" } else { "RollingUpdate" }.into();
            strategy.rolling_update = (!is).then(RollingUpdate::default);
        }),
        Step::MinReady(to) => edit(world, |set| set.spec.min_ready_seconds = to),
        Step::Later(seconds) => world.now += i64::from(seconds),
        Step::Orphan(at) => {
            let Some(name) = nth(at) else { return };
            world.edit::<Pod>(ObjectKind::Pod, &name, |pod| pod.metadata.owner_references.clear());
        }
        Step::Policy(words) => edit(world, |set| {
            set.spec.persistent_volume_claim_retention_policy = words.map(policy_of);
        }),
        Step::Collect => collect(world),
    }
}

fn claims(world: &World) -> Vec<Arc<PersistentVolumeClaim>> {
    world.list(ObjectKind::PersistentVolumeClaim)
}

/// Deletes the claims all of whose owners are gone. None of them has a pod: it would lose its data.
fn collect(world: &mut World) {
    let pods = world.pods();
    let set = world.get::<StatefulSet>(ObjectKind::StatefulSet, "web");
    let alive = |owner: &OwnerReference| {
        set.as_ref().is_some_and(|set| set.metadata.uid == owner.uid)
            || pods.iter().any(|pod| pod.metadata.uid == owner.uid)
    };
    for claim in claims(world) {
        let owners = &claim.metadata.owner_references;
        if owners.is_empty() || owners.iter().any(alive) {
            continue;
        }
        let name = &claim.metadata.name;
        let pod = name.trim_start_matches("data-");
        assert!(pods.iter().all(|other| other.metadata.name != pod), "{pod} loses its claim");
        world.remove(ObjectKind::PersistentVolumeClaim, name);
    }
}

/// What no plan may do to the owners of claims: a claim gets none but the set, if the policy says so, and a condemned pod, which is deleted after that.
fn check_owners(seen: &World, set: &StatefulSet, plan: &Plan) {
    let [with_set, with_pod] = deletes(set);
    let mut shown = claims(seen);
    for write in &plan.writes {
        let (name, owners) = match write {
            ApiWrite::Create(WrittenObject::PersistentVolumeClaim(claim)) => {
                (&claim.metadata.name, claim.metadata.owner_references.clone())
            }
            ApiWrite::Patch { kind: ObjectKind::PersistentVolumeClaim, key, patch, .. } => {
                let owners = patch["metadata"]["ownerReferences"].clone();
                (&key.name, serde_json::from_value(owners).expect("owners"))
            }
            ApiWrite::Delete { kind: ObjectKind::Pod, uid, key, .. } => {
                let nth = parent_and_ordinal(&key.name).map_or(-1, |(_, ordinal)| ordinal);
                let claim = shown.iter().find(|c| c.metadata.name == format!("data-{}", key.name));
                let owned = |claim: &Arc<PersistentVolumeClaim>| {
                    claim.metadata.owner_references.iter().any(|owner| owner.uid == *uid)
                };
                let is_condemned = nth >= set.spec.replicas.unwrap_or(1);
                let expected = is_condemned && with_pod;
                assert!(claim.is_none_or(|claim| owned(claim) == expected), "{key}: {plan:?}");
                continue;
            }
            _ => continue,
        };
        let nth = parent_and_ordinal(name).map_or(-1, |(_, ordinal)| ordinal);
        let before = shown.iter().position(|claim| claim.metadata.name == *name);
        let had = before.map_or_else(Vec::new, |at| shown[at].metadata.owner_references.clone());
        for owner in owners.iter().filter(|owner| !had.contains(owner)) {
            assert_eq!((owner.controller, owner.block_owner_deletion), (None, None));
            match owner.kind.as_str() {
                "StatefulSet" => assert!(with_set && owner.uid == set.metadata.uid, "{owner:?}"),
                _ => assert!(with_pod && nth >= set.spec.replicas.unwrap_or(1), "{owner:?}"),
            }
        }
        let mut claim = PersistentVolumeClaim::default();
        claim.metadata.name.clone_from(name);
        claim.metadata.owner_references = owners;
        before.into_iter().for_each(|at| drop(shown.remove(at)));
        shown.push(Arc::new(claim));
    }
}

/// The pods of the set that a plan is made from.
struct SeenPods<'a> {
    set: &'a StatefulSet,
    own: Vec<Arc<Pod>>,
    now: i64,
}

impl<'a> SeenPods<'a> {
    fn new(seen: &World, set: &'a StatefulSet) -> Self {
        let mut own = seen.pods();
        own.retain(|pod| {
            pod.metadata.owner_references.iter().any(|owner| owner.uid == set.metadata.uid)
        });
        Self { set, own, now: seen.now }
    }

    fn wanted(&self) -> i32 {
        self.set.spec.replicas.unwrap_or(1)
    }

    fn find(&self, nth: i32) -> Option<&Arc<Pod>> {
        self.own.iter().find(|pod| ordinal(pod) == nth)
    }

    fn is_ready(pod: &Pod) -> bool {
        let ready = pod.status.conditions.iter().any(|c| c.type_ == "Ready" && c.status == "True");
        pod.status.phase == "Running" && ready
    }

    fn is_available(&self, pod: &Pod) -> bool {
        let since = pod.status.conditions.iter().map(|c| c.last_transition_time.unix()).max();
        let due = since.flatten().unwrap_or(0) + i64::from(self.set.spec.min_ready_seconds);
        Self::is_ready(pod) && (self.set.spec.min_ready_seconds == 0 || due <= self.now)
    }

    /// Whether the pod of an ordinal is available and stays.
    fn stays(&self, nth: i32) -> bool {
        let stays = |pod: &Arc<Pod>| self.is_available(pod) && !is_terminating(pod);
        self.find(nth).is_some_and(stays)
    }

    fn is_updated(&self, pod: &Pod) -> bool {
        pod.spec.scheduler_name == self.set.spec.template.spec.scheduler_name
    }

    /// What no update may do: replace pods before those above them, below the partition, or too many at a time.
    fn check_update(&self, replaced: &[&Arc<Pod>]) {
        let Some(lowest) = replaced.iter().map(|pod| ordinal(pod)).min() else { return };
        let strategy = &self.set.spec.update_strategy;
        assert_eq!(strategy.type_, "RollingUpdate", "users update it");
        assert!(lowest >= partition(self.set), "{lowest} is below the partition");
        assert!(replaced.iter().all(|pod| !self.is_updated(pod)), "it is updated already");
        let most = strategy.rolling_update.as_ref().and_then(|r| r.max_unavailable.clone());
        let Some(IntOrString::Int(most)) = most else {
            assert_eq!(replaced.len(), 1, "one at a time");
            for nth in (lowest + 1)..self.wanted() {
                let is_done = |pod: &Arc<Pod>| {
                    Self::is_ready(pod) && !is_terminating(pod) && self.is_updated(pod)
                };
                assert!(self.find(nth).is_some_and(is_done), "{lowest} goes before {nth}");
            }
            return;
        };
        let len = |len: usize| i32::try_from(len).expect("a number");
        let is_gone = |nth: &i32| self.find(*nth).is_none_or(|pod| is_terminating(pod));
        let gone = (0..self.wanted()).filter(is_gone).count();
        assert!(len(gone + replaced.len()) <= most, "{gone} are being replaced, {replaced:?}");
        let (ready, broken): (Vec<&Arc<Pod>>, Vec<_>) =
            replaced.iter().partition(|pod| Self::is_ready(pod));
        let goes = |nth: i32| replaced.iter().any(|pod| ordinal(pod) == nth);
        let left = (0..self.wanted()).filter(|nth| self.stays(*nth) && !goes(*nth)).count();
        assert!(ready.is_empty() || self.wanted() - len(left) <= most, "{left} are left");
        for (kind, is_ready) in [(ready, true), (broken, false)] {
            let Some(lowest) = kind.iter().map(|pod| ordinal(pod)).min() else { continue };
            let waits = |pod: &&Arc<Pod>| {
                let nth = ordinal(pod);
                (lowest..self.wanted()).contains(&nth)
                    && Self::is_ready(pod) == is_ready
                    && !(self.is_updated(pod) || is_terminating(pod) || goes(nth))
                    && pod.status.phase != "Failed"
            };
            assert_eq!(self.own.iter().find(waits), None, "{lowest} goes before it");
        }
    }
}

/// The template's mark of a revision of this name.
fn mark_of(seen: &World, name: &str) -> Option<String> {
    let revision: ControllerRevision = seen.get(ObjectKind::ControllerRevision, name)?;
    Some(revisions::template_of(&revision)?.spec.scheduler_name)
}

/// A new pod is of the set's template, and below the partition of the one that the set had before the update.
fn check_new(seen: &World, set: &StatefulSet, pod: &Pod) {
    let current = mark_of(seen, &set.status.current_revision);
    let expected = current.filter(|_| ordinal(pod) < partition(set));
    let expected = expected.unwrap_or_else(|| set.spec.template.spec.scheduler_name.clone());
    assert_eq!(pod.spec.scheduler_name, expected, "{}", pod.metadata.name);
    assert_eq!(mark_of(seen, revision(pod)), Some(expected), "the label");
}

/// What no plan may do: in order, a pod comes only after those below it and goes only before them; an update keeps the order from above.
fn check(seen: &World, plan: &Plan) {
    let set: StatefulSet = seen.get(ObjectKind::StatefulSet, "web").expect("the set");
    let pods = SeenPods::new(seen, &set);
    let (wanted, is_ordered) = (pods.wanted(), set.spec.pod_management_policy == "OrderedReady");
    let (mut single, mut replaced) = (0, Vec::new());
    for write in &plan.writes {
        match write {
            ApiWrite::Create(WrittenObject::Pod(pod)) => {
                single += 1;
                let nth = ordinal(pod);
                assert!(nth < wanted, "{nth} is too many");
                let waits = |nth: &i32| !pods.stays(*nth);
                assert!(!is_ordered || !(0..nth).any(|nth| waits(&nth)), "{nth} comes too early");
                check_new(seen, &set, pod);
            }
            ApiWrite::Delete { kind: ObjectKind::Pod, uid, key, .. } => {
                let pod = pods.own.iter().find(|pod| pod.metadata.uid == *uid);
                let Some(pod) = pod else { panic!("{key} is not the set's") };
                let nth = ordinal(pod);
                assert!(nth >= 0, "{key} has no place in the set");
                if nth < wanted && pod.status.phase != "Failed" {
                    replaced.push(pod);
                    let above = pods.own.iter().filter(|pod| ordinal(pod) >= wanted).count();
                    let is_full = (0..wanted).all(|nth| pods.stays(nth)) && above == 0;
                    assert!(!is_ordered || is_full, "{nth} is updated too early");
                    continue;
                }
                single += 1;
                if nth >= wanted && is_ordered {
                    let above = pods.own.iter().filter(|pod| ordinal(pod) > nth).count();
                    assert_eq!(above, 0, "{nth} goes before those above it");
                    assert!((0..wanted).all(|nth| pods.stays(nth)), "{nth} goes too early");
                }
            }
            ApiWrite::Delete { kind, .. } => assert_eq!(*kind, ObjectKind::ControllerRevision),
            _ => {}
        }
    }
    let steps = single + usize::from(!replaced.is_empty());
    assert!(!is_ordered || steps <= 1, "one after the other: {plan:?}");
    pods.check_update(&replaced);
    check_owners(seen, &set, plan);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    #[test]
    fn random_histories_keep_the_order_and_end_with_the_wanted_pods(
        order in prop_oneof![Just("OrderedReady"), Just("Parallel")],
        retention in policy(),
        most in proptest::option::of(1..3i32),
        refusal in refusal(),
        steps in proptest::collection::vec(step(), 1..80),
    ) {
        let mut first = set(3, order);
        first.spec.persistent_volume_claim_retention_policy = retention.map(policy_of);
        let rolling = first.spec.update_strategy.rolling_update.get_or_insert_default();
        rolling.max_unavailable = most.map(IntOrString::Int);
        let mut world = world(first);
        let mut cache = world.clone();
        for step in steps {
            let before = claims(&world).len();
            apply_step(&mut world, &mut cache, step);
            let is_collection = matches!(step, Step::Collect);
            prop_assert!(is_collection || claims(&world).len() >= before, "a claim was deleted");
        }
        check_refusal(world.clone(), refusal);
        let kept = kept_pods(&world);
        for _ in 0..25 {
            let plan = planned(&world);
            check(&world, &plan);
            settle(&mut world);
            run_kubelets(&mut world);
            collect(&mut world);
            world.now += 100;
        }
        settle(&mut world);
        let left = world.pods();
        let is_left = |uid: &String| left.iter().any(|pod| pod.metadata.uid == *uid);
        prop_assert!(kept.iter().all(is_left), "it is below the partition");
        check_end(&world);
        check_deletion(world);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    #[test]
    fn no_update_replaces_more_pods_than_it_may(
        order in prop_oneof![1 => Just("OrderedReady"), 3 => Just("Parallel")],
        most in 1..4i32,
        steps in proptest::collection::vec(update_step(), 1..40),
    ) {
        let mut world = world(set(4, order));
        for _ in 0..5 {
            settle(&mut world);
            run_kubelets(&mut world);
        }
        edit_rolling(&mut world, |rolling| rolling.max_unavailable = Some(IntOrString::Int(most)));
        let mut cache = world.clone();
        steps.into_iter().for_each(|step| apply_step(&mut world, &mut cache, step));
    }
}

/// Pods that no update may replace: below the partition, or those of a set that users update.
fn kept_pods(world: &World) -> Vec<String> {
    let set: StatefulSet = world.get(ObjectKind::StatefulSet, "web").expect("the set");
    let on_delete = set.spec.update_strategy.type_ == "OnDelete";
    let until =
        if on_delete { i32::MAX } else { partition(&set) }.min(set.spec.replicas.unwrap_or(1));
    let mut pods = SeenPods::new(world, &set).own;
    pods.retain(|pod| {
        let stays = pod.status.phase != "Failed" && !is_terminating(pod);
        stays && (0..until).contains(&ordinal(pod))
    });
    pods.iter().map(|pod| pod.metadata.uid.clone()).collect()
}

/// At a server that goes on to refuse, the status says all the same what there is.
fn check_refusal(mut world: World, refusal: Refusal) {
    let refuses = |write: &ApiWrite| refusal.concerns(write);
    for _ in 0..25 {
        let plan = planned(&world);
        check(&world, &plan);
        world.run_refused(&plan, usize::MAX, refuses);
        run_kubelets(&mut world);
        world.now += 100;
    }
    for _ in 0..25 {
        let before = world.version;
        world.run_refused(&planned(&world), usize::MAX, refuses);
        if world.version == before {
            return check_counts(&world);
        }
    }
    panic!("the writes do not end");
}

/// The status says what there is.
fn check_counts(world: &World) {
    let set: StatefulSet = world.get(ObjectKind::StatefulSet, "web").expect("the set");
    let (status, pods) = (&set.status, SeenPods::new(world, &set));
    let count = |is: &dyn Fn(&Pod) -> bool| {
        i32::try_from(pods.own.iter().filter(|pod| is(pod)).count()).expect("a number")
    };
    let counts = [
        status.replicas,
        status.ready_replicas,
        status.available_replicas,
        status.updated_replicas,
    ];
    let expected = [
        count(&|_| true),
        count(&|pod| SeenPods::is_ready(pod)),
        count(&|pod| pods.is_available(pod)),
        count(&|pod| pods.is_updated(pod) && !is_terminating(pod)),
    ];
    assert_eq!(counts, expected);
    assert_eq!(status.observed_generation, set.metadata.generation);
    let newest = mark_of(world, &status.update_revision);
    assert_eq!(newest, Some(set.spec.template.spec.scheduler_name.clone()));
}

/// The set and its pods go, and with them the claims that are to go: no claim outlives its owner.
fn check_deletion(mut world: World) {
    let set: StatefulSet = world.get(ObjectKind::StatefulSet, "web").expect("the set");
    let [with_set, _] = deletes(&set);
    world.remove(ObjectKind::StatefulSet, &set.metadata.name);
    pod_names(&world).iter().for_each(|name| world.remove(ObjectKind::Pod, name));
    collect(&mut world);
    let left = claims(&world);
    let wanted = set.spec.replicas.unwrap_or(1);
    let of_wanted = |claim: &&Arc<PersistentVolumeClaim>| {
        parent_and_ordinal(&claim.metadata.name).is_some_and(|(_, nth)| nth < wanted)
    };
    let expected = if with_set { 0 } else { usize::try_from(wanted).expect("a number") };
    assert_eq!(left.iter().filter(of_wanted).count(), expected);
    assert!(left.iter().all(|claim| claim.metadata.owner_references.is_empty()));
}

fn check_end(world: &World) {
    let set: StatefulSet = world.get(ObjectKind::StatefulSet, "web").expect("the set");
    let wanted = set.spec.replicas.unwrap_or(1);
    let expected: Vec<String> = (0..wanted).map(|nth| format!("web-{nth}")).collect();
    assert_eq!(pod_names(world), expected);
    let is_rolling = set.spec.update_strategy.type_ == "RollingUpdate";
    let selector = set.spec.selector.clone().unwrap_or_default();
    let selector = Selector::from_label_selector(&selector, "selector").expect("a selector");
    for pod in world.pods() {
        assert!(selector.matches(&pod.metadata.labels));
        assert_eq!(mark_of(world, revision(&pod)).as_ref(), Some(&pod.spec.scheduler_name));
        if ordinal(&pod) >= partition(&set) && is_rolling {
            assert_eq!(pod.spec.scheduler_name, set.spec.template.spec.scheduler_name);
            assert_eq!(revision(&pod), set.status.update_revision);
        }
    }
    let status = &set.status;
    assert_eq!((status.replicas, status.ready_replicas), (wanted, wanted));
    check_counts(world);
    assert_eq!(planned(world).writes, []);
}
