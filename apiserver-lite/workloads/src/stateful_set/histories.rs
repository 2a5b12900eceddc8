//! Random histories of a stateful set: users, kubelets, a cache of any age, and a controller that is lost between two writes.

use apiserver_controllers::api_writes::WrittenObject;
use proptest::prelude::*;
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
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn random_histories_keep_the_order_and_end_with_the_wanted_pods(
        policy in prop_oneof![3 => Just("OrderedReady"), 1 => Just("Parallel")],
        steps in proptest::collection::vec(step(), 1..80),
    ) {
        let mut world = world(set(3, policy));
        let mut cache = world.clone();
        let mut claims = 0;
        for step in steps {
            apply_step(&mut world, &mut cache, step);
            let now = world.list::<PersistentVolumeClaim>(ObjectKind::PersistentVolumeClaim).len();
            prop_assert!(now >= claims, "a claim was deleted");
            claims = now;
        }
        for _ in 0..25 {
            let plan = planned(&world);
            check(&world, &plan);
            settle(&mut world);
            run_kubelets(&mut world);
        }
        settle(&mut world);
        check_end(&world);
    }
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
