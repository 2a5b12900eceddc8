//! Random histories of a stateful set: users, kubelets, the garbage collector, a cache of any age, and a controller that is lost between two writes.

use apiserver_controllers::api_writes::WrittenObject;
use proptest::prelude::*;
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
    /// The garbage collector looks at every claim.
    Collect,
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
        1 => (0..3u8).prop_map(Step::ChangeTemplate),
        1 => (0..4i32).prop_map(Step::Partition),
        1 => (0..6usize).prop_map(Step::Orphan),
        1 => policy().prop_map(Step::Policy),
        3 => Just(Step::Collect),
    ]
}

fn edit(world: &mut World, change: impl FnOnce(&mut StatefulSet)) {
    world.edit::<StatefulSet>(ObjectKind::StatefulSet, "web", |set| {
        change(set);
        set.metadata.generation += 1;
    });
}

fn apply_step(world: &mut World, cache: &mut World, step: Step) {
    let pods = world.pods();
    let nth = |at: usize| pods.get(at % pods.len().max(1)).map(|pod| pod.metadata.name.clone());
    match step {
        Step::CatchUp => *cache = world.clone(),
        Step::Reconcile(limit) => {
            cache.now = world.now;
            let plan = planned(cache);
            check(cache, &plan);
            world.run(&plan, limit);
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
        Step::Partition(to) => edit(world, |set| {
            let rolling = set.spec.update_strategy.rolling_update.get_or_insert_default();
            rolling.partition = Some(to);
        }),
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

/// What no plan may do: in order, a pod comes only after those below it and goes only before them; an update keeps the order from above.
fn check(seen: &World, plan: &Plan) {
    let set: StatefulSet = seen.get(ObjectKind::StatefulSet, "web").expect("the set");
    let pods = seen.pods();
    let own = |pod: &&Arc<Pod>| {
        pod.metadata.owner_references.iter().any(|owner| owner.uid == set.metadata.uid)
    };
    let find = |nth: i32| pods.iter().filter(own).find(|pod| ordinal(pod) == nth);
    let is_healthy = |pod: &Pod| {
        let ready = pod.status.conditions.iter().any(|c| c.type_ == "Ready" && c.status == "True");
        pod.status.phase == "Running" && ready && pod.metadata.deletion_timestamp.is_none()
    };
    let healthy = |nth: i32| find(nth).is_some_and(|pod| is_healthy(pod));
    let (wanted, is_ordered) =
        (set.spec.replicas.unwrap_or(1), set.spec.pod_management_policy == "OrderedReady");
    let mut pod_writes = 0;
    for write in &plan.writes {
        match write {
            ApiWrite::Create(WrittenObject::Pod(pod)) => {
                pod_writes += 1;
                let nth = ordinal(pod);
                assert!(nth < wanted, "{nth} is too many");
                assert!(!is_ordered || (0..nth).all(healthy), "{nth} comes too early: {plan:?}");
            }
            ApiWrite::Delete { kind: ObjectKind::Pod, uid, .. } => {
                pod_writes += 1;
                let pod = pods.iter().find(|pod| pod.metadata.uid == *uid).expect("a pod");
                assert!(own(&pod), "{} is not the set's", pod.metadata.name);
                let nth = ordinal(pod);
                if pod.status.phase == "Failed" && nth < wanted || !is_ordered {
                    continue;
                }
                let above: Vec<_> = pods.iter().filter(own).filter(|p| ordinal(p) > nth).collect();
                assert!((0..nth.min(wanted)).all(healthy), "{nth} goes before those below it");
                if nth >= wanted {
                    assert!(above.is_empty(), "{nth} goes before those above it");
                } else {
                    assert!(((nth + 1)..wanted).all(healthy), "{nth} is updated too early");
                    assert_eq!(above.len(), usize::try_from(wanted - nth - 1).expect("a number"));
                    let rolling = set.spec.update_strategy.rolling_update.clone();
                    assert!(nth >= rolling.and_then(|r| r.partition).unwrap_or(0));
                }
            }
            ApiWrite::Delete { kind, .. } => assert_eq!(*kind, ObjectKind::ControllerRevision),
            _ => {}
        }
    }
    assert!(!is_ordered || pod_writes <= 1, "one after the other: {plan:?}");
    check_owners(seen, &set, plan);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    #[test]
    fn random_histories_keep_the_order_and_end_with_the_wanted_pods(
        order in prop_oneof![3 => Just("OrderedReady"), 1 => Just("Parallel")],
        retention in policy(),
        steps in proptest::collection::vec(step(), 1..80),
    ) {
        let mut first = set(3, order);
        first.spec.persistent_volume_claim_retention_policy = retention.map(policy_of);
        let mut world = world(first);
        let mut cache = world.clone();
        for step in steps {
            let before = claims(&world).len();
            apply_step(&mut world, &mut cache, step);
            let is_collection = matches!(step, Step::Collect);
            prop_assert!(is_collection || claims(&world).len() >= before, "a claim was deleted");
        }
        for _ in 0..25 {
            let plan = planned(&world);
            check(&world, &plan);
            settle(&mut world);
            run_kubelets(&mut world);
            collect(&mut world);
        }
        settle(&mut world);
        check_end(&world);
        check_deletion(world);
    }
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
    let rolling = set.spec.update_strategy.rolling_update.clone();
    let partition = rolling.and_then(|rolling| rolling.partition).unwrap_or(0);
    let selector = set.spec.selector.clone().unwrap_or_default();
    let selector = Selector::from_label_selector(&selector, "selector").expect("a selector");
    for pod in world.pods() {
        assert!(selector.matches(&pod.metadata.labels));
        if ordinal(&pod) >= partition {
            assert_eq!(pod.spec.scheduler_name, set.spec.template.spec.scheduler_name);
            assert_eq!(revision(&pod), set.status.update_revision);
        }
    }
    let status = &set.status;
    assert_eq!((status.replicas, status.ready_replicas), (wanted, wanted));
    assert_eq!(status.observed_generation, set.metadata.generation);
    assert_eq!(planned(world).writes, []);
}
