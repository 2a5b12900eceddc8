//! Single plans of daemon sets.

use std::time::Duration;

use apiserver_controllers::api_writes::WrittenObject;
use proto_api::IntOrString;
use proto_api::core::v1::{Taint, Toleration};
use proto_api::names::Profile;

use super::*;
use crate::simulation::{World, enlarge, run_in_bursts};

pub(super) fn names() -> &'static Names {
    Names::new(Profile::Kubernetes)
}

/// A set that the server has stored.
pub(super) fn set(surge: i32, unavailable: i32) -> DaemonSet {
    let mut set = DaemonSet::default();
    set.metadata.name = "web".into();
    set.metadata.namespace = "ns".into();
    set.metadata.generation = 1;
    let labels = BTreeMap::from([("app".to_owned(), "web".to_owned())]);
    set.spec.selector = Some(LabelSelector { match_labels: labels.clone(), ..Default::default() });
    set.spec.template.metadata.labels = labels;
    set.spec.update_strategy.type_ = "RollingUpdate".into();
    let rolling = set.spec.update_strategy.rolling_update.get_or_insert_default();
    rolling.max_surge = Some(IntOrString::Int(surge));
    rolling.max_unavailable = Some(IntOrString::Int(unavailable));
    set
}

pub(super) fn node(nth: u8) -> Node {
    let mut node = Node::default();
    node.metadata.name = format!("node-{nth}");
    node
}

/// A world with a set and nodes.
pub(super) fn world(set: DaemonSet, nodes: u8) -> World {
    let mut world = World::at(1000);
    world.put(set);
    for nth in 0..nodes {
        add_node(&mut world, node(nth));
    }
    world
}

/// Nodes have no namespace: the world stores them in that of the set, which no rule looks at.
pub(super) fn add_node(world: &mut World, mut node: Node) {
    node.metadata.namespace = "ns".into();
    world.put(node);
}

pub(super) fn planned(seen: &World, failed: &mut FailedPods) -> Plan {
    let Some(set) = seen.get::<DaemonSet>(ObjectKind::DaemonSet, "web") else {
        return Plan::default();
    };
    let observed = ObservedDaemonSet {
        set: &set,
        pods: &seen.pods(),
        revisions: &seen.list(ObjectKind::ControllerRevision),
        nodes: &seen.list(ObjectKind::Node),
    };
    plan(names(), &observed, failed, seen.time())
}

/// Plans and executes until nothing is planned.
pub(super) fn settle(world: &mut World, failed: &mut FailedPods) {
    for _ in 0..20 {
        let plan = planned(world, failed);
        if plan.writes.is_empty() {
            return;
        }
        world.run(&plan, usize::MAX);
    }
    panic!("the plans do not end");
}

/// Schedules and starts every pod, and ends those that are deleted.
pub(super) fn run_kubelets(world: &mut World) {
    for pod in world.pods() {
        let name = &pod.metadata.name;
        if pod.metadata.deletion_timestamp.is_some() {
            world.remove(ObjectKind::Pod, name);
            continue;
        }
        let node = template::node_of(&pod).unwrap_or_default().to_owned();
        world.edit::<Pod>(ObjectKind::Pod, name, |pod| pod.spec.node_name = node);
        world.set_state(name, "Running", true);
    }
}

fn status(world: &World) -> proto_api::apps::v1::DaemonSetStatus {
    world.get::<DaemonSet>(ObjectKind::DaemonSet, "web").expect("the set").status
}

#[test]
fn each_node_gets_one_pod_that_only_it_takes() {
    let (mut world, mut failed) = (world(set(0, 1), 2), FailedPods::default());
    settle(&mut world, &mut failed);
    let pods = world.pods();
    let nodes: Vec<_> = pods.iter().filter_map(|pod| template::node_of(pod)).collect();
    assert_eq!(nodes.len(), 2);
    assert_eq!(BTreeSet::from_iter(nodes), BTreeSet::from(["node-0", "node-1"]));
    let pod = &pods[0];
    assert!(pod.metadata.name.starts_with("web-"));
    let owner = &pod.metadata.owner_references[0];
    assert_eq!((&*owner.kind, &*owner.api_version), ("DaemonSet", "apps/v1"));
    let tolerated: Vec<String> = pod
        .spec
        .tolerations
        .iter()
        .map(|t| format!("{} {} {}", t.key, t.operator, t.effect))
        .collect();
    assert_eq!(
        tolerated,
        [
            "node.kubernetes.io/not-ready Exists NoExecute",
            "node.kubernetes.io/unreachable Exists NoExecute",
            "node.kubernetes.io/disk-pressure Exists NoSchedule",
            "node.kubernetes.io/memory-pressure Exists NoSchedule",
            "node.kubernetes.io/pid-pressure Exists NoSchedule",
            "node.kubernetes.io/unschedulable Exists NoSchedule",
        ]
    );
    let revisions = world.list::<ControllerRevision>(ObjectKind::ControllerRevision);
    let [revision] = &revisions[..] else { panic!("one revision") };
    let hash = &revision.metadata.labels[REVISION_LABEL];
    assert_eq!(revision.metadata.name, format!("web-{hash}"));
    assert_eq!((revision.revision, &pod.metadata.labels[REVISION_LABEL]), (1, hash));
    let restored = revisions::template_of(revision).expect("a template");
    assert_eq!(restored.metadata.labels, set(0, 1).spec.template.metadata.labels);
    run_kubelets(&mut world);
    settle(&mut world, &mut failed);
    let status = status(&world);
    assert_eq!((status.desired_number_scheduled, status.current_number_scheduled), (2, 2));
    assert_eq!((status.number_ready, status.number_available), (2, 2));
    assert_eq!((status.updated_number_scheduled, status.number_unavailable), (2, 0));
    assert_eq!((status.observed_generation, status.number_misscheduled), (1, 0));
}

#[test]
fn host_network_tolerates_a_missing_network_and_limits_of_tolerations_go() {
    let mut spec = proto_api::core::v1::PodSpec { host_network: true, ..Default::default() };
    spec.tolerations.push(Toleration {
        key: "node.kubernetes.io/not-ready".into(),
        operator: "Exists".into(),
        effect: "NoExecute".into(),
        toleration_seconds: Some(5),
        ..Toleration::default()
    });
    template::add_tolerations(names(), &mut spec);
    assert_eq!(spec.tolerations.len(), 7);
    assert_eq!(spec.tolerations[0].toleration_seconds, None);
    assert_eq!(spec.tolerations[6].key, "node.kubernetes.io/network-unavailable");
}

#[test]
fn taints_and_selectors_decide() {
    let mut set = set(0, 1);
    let mut there = node(1);
    assert_eq!(runs_on(names(), &set, &there), Fit::Runs);
    let taint = |key: &str, effect: &str| Taint {
        key: key.into(),
        effect: effect.into(),
        ..Taint::default()
    };
    there.spec.taints = vec![taint("node.kubernetes.io/unschedulable", "NoSchedule")];
    assert_eq!(runs_on(names(), &set, &there), Fit::Runs, "it is tolerated");
    there.spec.taints = vec![taint("mine", "NoSchedule")];
    assert_eq!(runs_on(names(), &set, &there), Fit::Stays);
    there.spec.taints = vec![taint("mine", "NoExecute")];
    assert_eq!(runs_on(names(), &set, &there), Fit::No);
    there.spec.taints = vec![taint("mine", "PreferNoSchedule")];
    assert_eq!(runs_on(names(), &set, &there), Fit::Runs);
    set.spec.template.spec.node_selector.insert("disk".into(), "ssd".into());
    assert_eq!(runs_on(names(), &set, &there), Fit::No);
    there.metadata.labels.insert("disk".into(), "ssd".into());
    assert_eq!(runs_on(names(), &set, &there), Fit::Runs);
    set.spec.template.spec.node_name = "other".into();
    assert_eq!(runs_on(names(), &set, &there), Fit::No);
}

#[test]
fn failed_pods_are_replaced_after_longer_and_longer_waits() {
    let (mut world, mut failed) = (world(set(0, 1), 1), FailedPods::default());
    settle(&mut world, &mut failed);
    let mut waits = Vec::new();
    for _ in 0..4 {
        let name = world.pods()[0].metadata.name.clone();
        run_kubelets(&mut world);
        settle(&mut world, &mut failed);
        world.set_state(&name, "Failed", false);
        let mut waited = 0;
        loop {
            let plan = planned(&world, &mut failed);
            world.run(&plan, usize::MAX);
            if let Some(report) = plan.reports.first() {
                assert_eq!(report.reason, "FailedDaemonPod");
                let message = format!(
                    "Found failed daemon pod ns/{name} on node node-0, will try to kill it"
                );
                assert_eq!(report.message, message);
                break;
            }
            let wait = plan.requeue_after.expect("a wait").as_secs();
            waited += wait;
            world.now += i64::try_from(wait).expect("a time");
        }
        waits.push(waited);
        settle(&mut world, &mut failed);
    }
    assert_eq!(waits, [0, 1, 2, 4]);
}

/// A kubelet that rejects each pod at once, and a user who deletes each before its predecessor has ended.
#[test]
fn a_set_with_surge_has_a_bounded_number_of_pods_on_a_node() {
    let (mut world, mut failed) = (world(set(1, 0), 1), FailedPods::default());
    settle(&mut world, &mut failed);
    for second in 0..100 {
        world.now += 1;
        for pod in world.pods() {
            world.set_state(&pod.metadata.name, "Failed", false);
        }
        settle(&mut world, &mut failed);
        assert!(world.pods().len() <= 1, "{second}: {} pods", world.pods().len());
    }
    world.now += 1000;
    settle(&mut world, &mut failed);
    for deletions in 0..5 {
        start_pods(&mut world);
        for pod in world.pods() {
            world.delete_pod(&pod.metadata.name);
        }
        settle(&mut world, &mut failed);
        assert_eq!(world.pods().len(), 2, "after {deletions} more");
    }
}

/// Starts the pods of the first node. Those that are deleted do not end.
fn start_pods(world: &mut World) {
    for pod in world.pods().iter().filter(|pod| pod.metadata.deletion_timestamp.is_none()) {
        let name = &pod.metadata.name;
        world.edit::<Pod>(ObjectKind::Pod, name, |pod| pod.spec.node_name = "node-0".into());
        world.set_state(name, "Running", true);
    }
}

/// A node that does not end its pods, and template after template.
#[test]
fn an_update_with_surge_waits_where_several_pods_are_terminating() {
    let (mut world, mut failed) = (world(set(1, 0), 1), FailedPods::default());
    for (image, pods) in [("a", 1), ("b", 2), ("c", 3), ("d", 3), ("e", 3)] {
        world.edit::<DaemonSet>(ObjectKind::DaemonSet, "web", |set| {
            set.spec.template.spec.hostname = image.into();
            set.metadata.generation += 1;
        });
        for _ in 0..3 {
            settle(&mut world, &mut failed);
            start_pods(&mut world);
        }
        assert_eq!(world.pods().len(), pods, "{image}");
    }
    let is_leaving = |pod: &Arc<Pod>| pod.metadata.deletion_timestamp.is_some();
    let ended = world.pods().into_iter().find(is_leaving).expect("one that is terminating");
    world.remove(ObjectKind::Pod, &ended.metadata.name);
    settle(&mut world, &mut failed);
    let newest = world.pods().into_iter().find(|pod| pod.spec.hostname == "e");
    assert!(newest.is_some(), "the update goes on");
}

#[test]
fn a_rollback_renumbers_its_revision() {
    let (mut world, mut failed) = (world(set(0, 1), 1), FailedPods::default());
    let edit = |world: &mut World, image: &str| {
        world.edit::<DaemonSet>(ObjectKind::DaemonSet, "web", |set| {
            set.spec.template.spec.hostname = image.into();
            set.metadata.generation += 1;
        });
    };
    for image in ["a", "b", "a"] {
        edit(&mut world, image);
        settle(&mut world, &mut failed);
    }
    let revisions = world.list::<ControllerRevision>(ObjectKind::ControllerRevision);
    let mut numbers: Vec<(i64, String)> = revisions
        .iter()
        .map(|r| (r.revision, revisions::template_of(r).expect("a template").spec.hostname))
        .collect();
    numbers.sort();
    assert_eq!(numbers, [(2, "b".to_owned()), (3, "a".to_owned())]);
}

#[test]
fn old_revisions_go_beyond_the_limit_unless_pods_have_them() {
    let mut limited = set(0, 1);
    limited.spec.revision_history_limit = Some(1);
    limited.spec.update_strategy.type_ = "OnDelete".into();
    let (mut world, mut failed) = (world(limited, 1), FailedPods::default());
    for image in ["a", "b", "c", "d"] {
        world.edit::<DaemonSet>(ObjectKind::DaemonSet, "web", |set| {
            set.spec.template.spec.hostname = image.into();
        });
        settle(&mut world, &mut failed);
    }
    let revisions = world.list::<ControllerRevision>(ObjectKind::ControllerRevision);
    let mut kept: Vec<String> = revisions
        .iter()
        .map(|r| revisions::template_of(r).expect("a template").spec.hostname)
        .collect();
    kept.sort();
    assert_eq!(kept, ["a", "d"], "the pod has the first one: it is deleted by nobody");
    assert_eq!(world.pods().len(), 1);
    assert_eq!(world.pods()[0].spec.hostname, "a");
}

#[test]
fn the_status_says_what_there_is_whatever_the_server_refuses() {
    fn deletes(write: &ApiWrite, of: ObjectKind) -> bool {
        matches!(write, ApiWrite::Delete { kind, .. } if *kind == of)
    }
    type Refuses = fn(&ApiWrite) -> bool;
    let table: [(&str, Refuses); 3] = [
        ("new pods", |write| matches!(write, ApiWrite::Create(WrittenObject::Pod(_)))),
        ("deletions of pods", |write| deletes(write, ObjectKind::Pod)),
        ("deletions of revisions", |write| deletes(write, ObjectKind::ControllerRevision)),
    ];
    for (name, refuses) in table {
        let mut limited = set(0, 1);
        limited.spec.revision_history_limit = Some(0);
        let (mut world, mut failed) = (world(limited, 2), FailedPods::default());
        let mut run = |world: &mut World, refuses: &dyn Fn(&ApiWrite) -> bool| {
            for _ in 0..8 {
                let plan = planned(world, &mut failed);
                world.run_refused(&plan, usize::MAX, refuses);
                run_kubelets(world);
            }
        };
        run(&mut world, &|_| false);
        world.edit::<DaemonSet>(ObjectKind::DaemonSet, "web", |set| {
            set.spec.template.spec.hostname = "new".into();
            set.metadata.generation += 1;
        });
        run(&mut world, &refuses);
        let status = status(&world);
        assert_eq!(status.observed_generation, 2, "{name}");
        assert_eq!(usize::try_from(status.number_available), Ok(world.pods().len()), "{name}");
    }
}

#[test]
fn a_node_whose_pod_is_refused_does_not_hold_up_the_others() {
    let (mut world, mut failed) = (world(set(0, 1), 3), FailedPods::default());
    for _ in 0..9 {
        let plan = planned(&world, &mut failed);
        world.run_refused(&plan, usize::MAX, |write| match write {
            ApiWrite::Create(WrittenObject::Pod(pod)) => template::node_of(pod) == Some("node-0"),
            _ => false,
        });
        world.now += 1;
    }
    let pods = world.pods();
    let nodes: BTreeSet<_> = pods.iter().filter_map(|pod| template::node_of(pod)).collect();
    assert_eq!(nodes, ["node-1", "node-2"].into());
}

#[test]
fn an_orphan_is_adopted_and_a_stray_is_released() {
    let (mut world, mut failed) = (world(set(0, 1), 1), FailedPods::default());
    settle(&mut world, &mut failed);
    let name = world.pods()[0].metadata.name.clone();
    world.edit::<Pod>(ObjectKind::Pod, &name, |pod| pod.metadata.owner_references.clear());
    let plan = planned(&world, &mut failed);
    assert_eq!(plan.writes.len(), 1, "ownership first");
    assert!(plan.adopter.is_some(), "the server is asked whether the set stays");
    world.run(&plan, usize::MAX);
    assert_eq!(world.pods()[0].metadata.owner_references[0].name, "web");
    world.edit::<Pod>(ObjectKind::Pod, &name, |pod| pod.metadata.labels.clear());
    settle(&mut world, &mut failed);
    assert!(world.get::<Pod>(ObjectKind::Pod, &name).is_some_and(|stray| {
        stray.metadata.owner_references.is_empty() && stray.metadata.deletion_timestamp.is_none()
    }));
    assert_eq!(world.pods().len(), 2, "the node has a pod of the set again");
}

#[test]
fn a_set_that_selects_all_says_so_and_one_that_is_deleted_plans_nothing() {
    let mut all = set(0, 1);
    all.spec.selector = Some(LabelSelector::default());
    let plan = planned(&world(all, 1), &mut FailedPods::default());
    assert!(plan.writes.is_empty() && plan.reports[0].reason == "SelectingAll");
    let mut gone = set(0, 1);
    gone.metadata.deletion_timestamp = Some(Time::from_unix(1));
    assert_eq!(planned(&world(gone, 1), &mut FailedPods::default()), Plan::default());
}

#[test]
fn a_name_that_is_taken_makes_another_hash() {
    let (mut world, mut failed) = (world(set(0, 1), 1), FailedPods::default());
    let plan = planned(&world, &mut failed);
    let [ApiWrite::Create(WrittenObject::ControllerRevision(new))] = &plan.writes[..] else {
        panic!("a revision: {plan:?}")
    };
    let mut other = (**new).clone();
    other.metadata.owner_references[0].uid = "another".into();
    other.data = proto_api::RawJson { raw: b"{}".to_vec() };
    world.put(other);
    settle(&mut world, &mut failed);
    assert_eq!(status(&world).collision_count, Some(1));
    assert_eq!(world.pods().len(), 1);
}

#[test]
fn availability_waits_for_min_ready_seconds() {
    let mut slow = set(0, 1);
    slow.spec.min_ready_seconds = 30;
    let (mut world, mut failed) = (world(slow, 1), FailedPods::default());
    settle(&mut world, &mut failed);
    run_kubelets(&mut world);
    world.now += 10;
    let plan = planned(&world, &mut failed);
    assert_eq!(plan.requeue_after, Some(Duration::from_secs(20)));
    world.run(&plan, usize::MAX);
    assert_eq!((status(&world).number_ready, status(&world).number_available), (1, 0));
    world.now += 20;
    settle(&mut world, &mut failed);
    assert_eq!(status(&world).number_available, 1);
}

#[test]
fn large_pods_are_created_by_several_plans() {
    let mut large = set(0, 1);
    enlarge(&mut large.spec.template.metadata);
    let (mut world, mut failed) = (world(large, 7), FailedPods::default());
    let bursts = run_in_bursts(&mut world, |world| planned(world, &mut failed));
    assert_eq!(bursts.into_iter().filter(|pods| *pods > 0).collect::<Vec<_>>(), [3, 3, 1]);
    assert_eq!(world.pods().len(), 7);
}
