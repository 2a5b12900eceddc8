//! Single plans of stateful sets.

use std::collections::BTreeMap;

use apiserver_controllers::api_writes::WrittenObject;
use proto_api::ObjectKey;
use proto_api::core::v1::Volume;
use proto_api::meta::v1::{LabelSelector, OwnerReference};
use proto_api::names::Profile;

use super::*;
use crate::pods::REVISION_LABEL;
use crate::simulation::{World, enlarge, run_in_bursts};

pub(super) fn names() -> &'static Names {
    Names::new(Profile::Kubernetes)
}

/// A set with a claim template, as the server stores it.
pub(super) fn set(replicas: i32, policy: &str) -> StatefulSet {
    let mut set = StatefulSet::default();
    set.metadata.name = "web".into();
    set.metadata.namespace = "ns".into();
    set.metadata.generation = 1;
    let labels = BTreeMap::from([("app".to_owned(), "web".to_owned())]);
    set.spec.replicas = Some(replicas);
    set.spec.service_name = "service".into();
    set.spec.pod_management_policy = policy.into();
    set.spec.selector = Some(LabelSelector { match_labels: labels.clone(), ..Default::default() });
    set.spec.template.metadata.labels = labels;
    set.spec.update_strategy.type_ = "RollingUpdate".into();
    set.spec.update_strategy.rolling_update.get_or_insert_default().partition = Some(0);
    let mut claim = PersistentVolumeClaim::default();
    claim.metadata.name = "data".into();
    set.spec.volume_claim_templates = vec![claim];
    set
}

pub(super) fn world(set: StatefulSet) -> World {
    let mut world = World::at(1000);
    world.put(set);
    world
}

/// The plan of a set, which does not depend on pods that are neither its own nor to be adopted.
pub(super) fn planned(seen: &World) -> Plan {
    observe(seen, ClaimRetention::Counts, |observed| {
        let planned = plan(names(), observed, seen.time());
        let uid = &observed.set.metadata.uid;
        let is_own = |pod: &&Arc<Pod>| {
            let mut owners = pod.metadata.owner_references.iter();
            owners.any(|owner| owner.controller == Some(true) && owner.uid == *uid)
                || pod.metadata.labels.get("app").is_some_and(|app| app == "web")
        };
        let pods: Vec<Arc<Pod>> = observed.pods.iter().filter(is_own).cloned().collect();
        let has_pod = |name: &str| observed.pods.iter().any(|pod| pod.metadata.name == name);
        let observed = ObservedStatefulSet { pods: &pods, ..*observed };
        assert_eq!(plan_own(names(), &observed, &has_pod, seen.time()), planned);
        planned
    })
}

fn planned_by(seen: &World, claim_retention: ClaimRetention) -> Plan {
    observe(seen, claim_retention, |observed| plan(names(), observed, seen.time()))
}

fn observe(
    seen: &World,
    claim_retention: ClaimRetention,
    plan: impl FnOnce(&ObservedStatefulSet<'_>) -> Plan,
) -> Plan {
    let Some(set) = seen.get::<StatefulSet>(ObjectKind::StatefulSet, "web") else {
        return Plan::default();
    };
    plan(&ObservedStatefulSet {
        set: &set,
        pods: &seen.pods(),
        revisions: &seen.list(ObjectKind::ControllerRevision),
        claim: &|name| seen.get(ObjectKind::PersistentVolumeClaim, name).map(Arc::new),
        features: StatefulSetFeatures { max_unavailable: MaxUnavailable::Counts, claim_retention },
    })
}

/// Plans and executes until nothing is planned.
pub(super) fn settle(world: &mut World) {
    for _ in 0..50 {
        let plan = planned(world);
        if plan.writes.is_empty() {
            return;
        }
        world.run(&plan, usize::MAX);
    }
    panic!("the plans do not end");
}

/// Starts every pod, and ends those that are deleted.
pub(super) fn run_kubelets(world: &mut World) {
    for pod in world.pods() {
        let name = &pod.metadata.name;
        if pod.metadata.deletion_timestamp.is_some() {
            world.remove(ObjectKind::Pod, name);
            continue;
        }
        world.edit::<Pod>(ObjectKind::Pod, name, |pod| pod.spec.node_name = "node".into());
        world.set_state(name, "Running", true);
    }
}

pub(super) fn pod_names(world: &World) -> Vec<String> {
    world.pods().iter().map(|pod| pod.metadata.name.clone()).collect()
}

/// Plans, kubelets and users in turn until nothing changes.
fn run_all(world: &mut World) {
    for _ in 0..20 {
        settle(world);
        run_kubelets(world);
    }
    settle(world);
}

fn status(world: &World) -> StatefulSetStatus {
    world.get::<StatefulSet>(ObjectKind::StatefulSet, "web").expect("the set").status
}

fn change_template(world: &mut World, to: &str) {
    world.edit::<StatefulSet>(ObjectKind::StatefulSet, "web", |set| {
        set.spec.template.spec.scheduler_name = to.into();
        set.metadata.generation += 1;
    });
}

fn scale(world: &mut World, to: i32) {
    world.edit::<StatefulSet>(ObjectKind::StatefulSet, "web", |set| set.spec.replicas = Some(to));
}

#[test]
fn a_pod_has_its_name_host_and_claim() {
    let mut one = set(1, "OrderedReady");
    let own = |name: &str| Volume { name: name.into(), ..Volume::default() };
    one.spec.template.spec.volumes = vec![own("data"), own("other")];
    one.spec.volume_claim_templates[0].metadata.labels.insert("tier".into(), "db".into());
    let mut world = world(one);
    settle(&mut world);
    let pods = world.pods();
    let [pod] = &pods[..] else { panic!("one pod") };
    assert_eq!((&*pod.metadata.name, &*pod.metadata.generate_name), ("web-0", "web-"));
    assert_eq!((&*pod.spec.hostname, &*pod.spec.subdomain), ("web-0", "service"));
    assert_eq!(pod.metadata.labels["statefulset.kubernetes.io/pod-name"], "web-0");
    let revisions = world.list::<ControllerRevision>(ObjectKind::ControllerRevision);
    assert_eq!(pod.metadata.labels[REVISION_LABEL], revisions[0].metadata.name);
    let hash = &revisions[0].metadata.labels["controller.kubernetes.io/hash"];
    assert_eq!(revisions[0].metadata.name, format!("web-{hash}"));
    let volumes: Vec<&str> = pod.spec.volumes.iter().map(|volume| &*volume.name).collect();
    assert_eq!(volumes, ["data", "other"], "the claim replaces the volume of its name");
    let source = pod.spec.volumes[0].volume_source.persistent_volume_claim.as_ref();
    assert_eq!(source.map(|source| &*source.claim_name), Some("data-web-0"));
    let claims = world.list::<PersistentVolumeClaim>(ObjectKind::PersistentVolumeClaim);
    let [claim] = &claims[..] else { panic!("one claim") };
    assert_eq!(claim.metadata.name, "data-web-0");
    assert_eq!((&*claim.metadata.labels["app"], &*claim.metadata.labels["tier"]), ("web", "db"));
    assert!(claim.metadata.owner_references.is_empty(), "it outlives the set");
}

#[test]
fn events_are_those_of_kubernetes() {
    let mut world = world(set(1, "OrderedReady"));
    world.run(&planned(&world), usize::MAX);
    let plan = planned(&world);
    let said: Vec<String> = plan
        .writes
        .iter()
        .enumerate()
        .filter_map(|(nth, _)| Some(plan.events.get(&nth)?.success(&ObjectKey::new("ns", "x"))))
        .map(|event| format!("{} {}", event.reason, event.message))
        .collect();
    assert_eq!(
        said,
        [
            "SuccessfulCreate create Claim data-web-0 Pod web-0 in StatefulSet web success",
            "SuccessfulCreate create Pod web-0 in StatefulSet web successful",
        ]
    );
    let failed = plan.events[&1].failure("no").expect("an event");
    assert_eq!(
        (&*failed.reason, &*failed.message),
        ("FailedCreate", "create Pod web-0 in StatefulSet web failed error: no")
    );
}

#[test]
fn pods_are_created_in_order_or_in_parallel_by_policy() {
    let mut ordered = world(set(3, "OrderedReady"));
    settle(&mut ordered);
    assert_eq!(pod_names(&ordered), ["web-0"]);
    run_kubelets(&mut ordered);
    ordered.set_state("web-0", "Running", false);
    settle(&mut ordered);
    assert_eq!(pod_names(&ordered), ["web-0"], "it is not ready");
    run_kubelets(&mut ordered);
    settle(&mut ordered);
    assert_eq!(pod_names(&ordered), ["web-0", "web-1"]);
    run_all(&mut ordered);
    let done = status(&ordered);
    assert_eq!((done.replicas, done.ready_replicas, done.available_replicas), (3, 3, 3));
    assert_eq!((done.current_replicas, done.updated_replicas), (3, 3));
    assert_eq!(done.current_revision, done.update_revision);
    let mut parallel = world(set(3, "Parallel"));
    settle(&mut parallel);
    assert_eq!(pod_names(&parallel), ["web-0", "web-1", "web-2"]);
}

#[test]
fn scaling_down_takes_the_highest_ordinal_first_and_keeps_claims() {
    let mut world = world(set(3, "OrderedReady"));
    run_all(&mut world);
    scale(&mut world, 1);
    settle(&mut world);
    let going = |world: &World| -> Vec<String> {
        let pods = world.pods();
        let going = pods.iter().filter(|pod| pod.metadata.deletion_timestamp.is_some());
        going.map(|pod| pod.metadata.name.clone()).collect()
    };
    assert_eq!(going(&world), ["web-2"]);
    run_kubelets(&mut world);
    settle(&mut world);
    assert_eq!(going(&world), ["web-1"]);
    run_all(&mut world);
    assert_eq!(pod_names(&world), ["web-0"]);
    let claims = world.list::<PersistentVolumeClaim>(ObjectKind::PersistentVolumeClaim);
    assert_eq!(claims.len(), 3);
}

#[test]
fn updates_go_down_to_the_partition_and_new_pods_below_it_are_old() {
    let mut world = world(set(3, "OrderedReady"));
    run_all(&mut world);
    world.edit::<StatefulSet>(ObjectKind::StatefulSet, "web", |set| {
        let rolling = set.spec.update_strategy.rolling_update.get_or_insert_default();
        rolling.partition = Some(1);
    });
    change_template(&mut world, "new");
    settle(&mut world);
    let going: Vec<String> = world
        .pods()
        .iter()
        .filter(|pod| pod.metadata.deletion_timestamp.is_some())
        .map(|pod| pod.metadata.name.clone())
        .collect();
    assert_eq!(going, ["web-2"]);
    run_all(&mut world);
    let versions = |world: &World| -> Vec<String> {
        world.pods().iter().map(|pod| pod.spec.scheduler_name.clone()).collect()
    };
    assert_eq!(versions(&world), ["", "new", "new"]);
    let half = status(&world);
    assert_ne!(half.current_revision, half.update_revision);
    assert_eq!((half.current_replicas, half.updated_replicas), (1, 2));
    world.delete_pod("web-0");
    run_all(&mut world);
    assert_eq!(versions(&world), ["", "new", "new"], "it comes back as it was");
    world.edit::<StatefulSet>(ObjectKind::StatefulSet, "web", |set| {
        set.spec.update_strategy.rolling_update = None;
    });
    run_all(&mut world);
    assert_eq!(versions(&world), ["new", "new", "new"]);
    let done = status(&world);
    assert_eq!(done.current_revision, done.update_revision);
    assert_eq!((done.current_replicas, done.updated_replicas), (3, 3));
}

/// The pods that an update deletes at first, of ten with this `maxUnavailable` and partition, of which some are not ready.
fn updated_at_once(most: &str, partition: i32, unready: &[&str]) -> Vec<String> {
    let mut set = set(10, "Parallel");
    let rolling = set.spec.update_strategy.rolling_update.get_or_insert_default();
    let number = most.parse().map(proto_api::IntOrString::Int);
    rolling.max_unavailable = Some(number.unwrap_or_else(|_| most.into()));
    rolling.partition = Some(partition);
    let mut world = world(set);
    run_all(&mut world);
    unready.iter().for_each(|pod| world.set_state(pod, "Running", false));
    change_template(&mut world, "new");
    settle(&mut world);
    let pods = world.pods();
    let going = pods.iter().filter(|pod| pod.metadata.deletion_timestamp.is_some());
    let mut going: Vec<_> = going.map(|pod| pod.metadata.name.replace("web-", "")).collect();
    going.reverse();
    if unready.is_empty() {
        run_all(&mut world);
        let new = world.pods().iter().filter(|pod| pod.spec.scheduler_name == "new").count();
        assert_eq!(i32::try_from(new), Ok(10 - partition));
    }
    going
}

#[test]
fn max_unavailable_pods_are_updated_at_a_time() {
    assert_eq!(updated_at_once("1", 0, &[]), ["9"]);
    assert_eq!(updated_at_once("3", 0, &[]), ["9", "8", "7"]);
    assert_eq!(updated_at_once("25%", 0, &[]), ["9", "8"]);
    assert_eq!(updated_at_once("1%", 0, &[]), ["9"], "at least one");
    assert_eq!(updated_at_once("100%", 8, &[]), ["9", "8"]);
    assert_eq!(
        updated_at_once("3", 0, &["web-0", "web-9"]),
        ["9", "8", "0"],
        "two are unavailable already"
    );
    assert_eq!(updated_at_once("2", 0, &["web-0", "web-9"]), ["9", "0"]);
    assert_eq!(updated_at_once("1", 0, &["web-0", "web-3"]), ["3"], "one at a time");
    assert_eq!(updated_at_once("2", 1, &["web-0", "web-3"]), ["3"], "0 stays old");
    assert_eq!(updated_at_once("2", 4, &["web-0", "web-3"]), [""; 0]);
    assert_eq!(updated_at_once("-5", 0, &[]), ["9"]);
    assert_eq!(updated_at_once("x", 0, &[]), ["9"]);
}

#[test]
fn pods_that_an_update_mends_are_replaced_first() {
    for most in [1, 2, 20] {
        let mut set = set(4, "Parallel");
        let rolling = set.spec.update_strategy.rolling_update.get_or_insert_default();
        rolling.max_unavailable = Some(proto_api::IntOrString::Int(most));
        let mut world = world(set);
        run_all(&mut world);
        let break_old = |world: &mut World| {
            for pod in world.pods().iter().filter(|pod| pod.spec.scheduler_name != "new") {
                world.set_state(&pod.metadata.name, "Running", false);
            }
        };
        break_old(&mut world);
        change_template(&mut world, "new");
        for _ in 0..20 {
            settle(&mut world);
            let pods = world.pods();
            let going = pods.iter().filter(|pod| pod.metadata.deletion_timestamp.is_some());
            assert!(going.count() <= usize::try_from(most).unwrap_or_default());
            run_kubelets(&mut world);
            break_old(&mut world);
        }
        assert!(world.pods().iter().all(|pod| pod.spec.scheduler_name == "new"), "{most}");
    }
    // A failed pod is deleted once.
    let mut set = set(4, "Parallel");
    let rolling = set.spec.update_strategy.rolling_update.get_or_insert_default();
    rolling.max_unavailable = Some(proto_api::IntOrString::Int(4));
    let mut world = world(set);
    run_all(&mut world);
    world.set_state("web-1", "Failed", false);
    change_template(&mut world, "new");
    let made = planned(&world);
    world.run(&made, usize::MAX);
    let plan = planned(&world);
    let deletes = plan.writes.iter().filter(|write| matches!(write, ApiWrite::Delete { .. }));
    assert_eq!(deletes.count(), 4, "{plan:?}");
}

#[test]
fn on_delete_waits_for_the_user() {
    let mut lazy = set(2, "OrderedReady");
    lazy.spec.update_strategy.type_ = "OnDelete".into();
    lazy.spec.update_strategy.rolling_update = None;
    let mut world = world(lazy);
    run_all(&mut world);
    change_template(&mut world, "new");
    run_all(&mut world);
    assert!(world.pods().iter().all(|pod| pod.spec.scheduler_name.is_empty()));
    world.delete_pod("web-0");
    run_all(&mut world);
    assert_eq!(world.pods()[0].spec.scheduler_name, "new");
    assert_eq!(world.pods()[1].spec.scheduler_name, "");
}

#[test]
fn a_pod_below_the_partition_comes_back_as_it_was_after_a_refusal() {
    let mut world = world(set(2, "OrderedReady"));
    run_all(&mut world);
    change_template(&mut world, "new");
    world.edit::<StatefulSet>(ObjectKind::StatefulSet, "web", |set| {
        set.spec.update_strategy.rolling_update.get_or_insert_default().partition = Some(1);
    });
    run_all(&mut world);
    world.remove(ObjectKind::Pod, "web-0");
    for _ in 0..3 {
        let is_pod = |write: &ApiWrite| matches!(write, ApiWrite::Create(WrittenObject::Pod(_)));
        world.run_refused(&planned(&world), usize::MAX, is_pod);
    }
    let StatefulSetStatus { replicas, ready_replicas, updated_replicas, .. } = status(&world);
    assert_eq!((replicas, ready_replicas, updated_replicas), (1, 1, 1));
    run_all(&mut world);
    let templates: Vec<String> =
        world.pods().iter().map(|pod| pod.spec.scheduler_name.clone()).collect();
    assert_eq!(templates, ["", "new"]);
}

#[test]
fn a_failed_pod_is_recreated() {
    let mut world = world(set(1, "OrderedReady"));
    run_all(&mut world);
    let before = world.pods()[0].metadata.uid.clone();
    world.set_state("web-0", "Failed", false);
    let plan = planned(&world);
    assert_eq!(plan.reports[0].reason, "RecreatingFailedPod");
    assert_eq!(plan.reports[0].message, "StatefulSet ns/web is recreating failed Pod web-0");
    run_all(&mut world);
    assert_ne!(world.pods()[0].metadata.uid, before);
}

#[test]
fn another_owners_pod_of_the_name_stays_and_the_set_tries_again() {
    let mut world = world(set(1, "OrderedReady"));
    let mut stranger = Pod::default();
    stranger.metadata.name = "web-0".into();
    stranger.metadata.namespace = "ns".into();
    world.put(stranger);
    settle(&mut world);
    let plan = planned(&world);
    assert!(plan.requeue_after.is_some() && plan.writes.is_empty(), "{plan:?}");
    assert_eq!(pod_names(&world), ["web-0"]);
    assert_eq!(status(&world).replicas, 0);
}

#[test]
fn a_claim_that_is_being_deleted_is_waited_for() {
    let mut world = world(set(1, "OrderedReady"));
    let mut claim = PersistentVolumeClaim::default();
    claim.metadata.name = "data-web-0".into();
    claim.metadata.namespace = "ns".into();
    claim.metadata.deletion_timestamp = Some(Time::from_unix(1));
    world.put(claim);
    settle(&mut world);
    let plan = planned(&world);
    let message =
        "create Pod web-0 in StatefulSet web failed error: pvc data-web-0 is being deleted";
    assert_eq!((&*plan.reports[0].reason, &*plan.reports[0].message), ("FailedCreate", message));
    assert!(world.pods().is_empty() && plan.requeue_after.is_some());
}

fn set_policy(world: &mut World, [when_deleted, when_scaled]: [&str; 2]) {
    world.edit::<StatefulSet>(ObjectKind::StatefulSet, "web", |set| {
        let policy = set.spec.persistent_volume_claim_retention_policy.get_or_insert_default();
        policy.when_deleted = when_deleted.into();
        policy.when_scaled = when_scaled.into();
    });
}

/// A set of two pods with this policy.
fn world_with(policy: [&str; 2], order: &str) -> World {
    let mut world = world(set(2, order));
    set_policy(&mut world, policy);
    run_all(&mut world);
    world
}

/// The owners of the claims of web-0 and web-1, as kind and name.
fn owners(world: &World) -> [String; 2] {
    ["data-web-0", "data-web-1"].map(|name| {
        let kind = ObjectKind::PersistentVolumeClaim;
        let claim = world.get::<PersistentVolumeClaim>(kind, name).expect("the claim");
        let owners = claim.metadata.owner_references.iter();
        let named = owners.map(|owner| {
            assert_eq!((owner.controller, owner.block_owner_deletion), (None, None));
            format!("{} {} {}", owner.api_version, owner.kind, owner.name)
        });
        named.collect::<Vec<_>>().join(", ")
    })
}

#[test]
fn claims_have_the_owners_that_the_policy_says() {
    let (set, pod) = ("apps/v1 StatefulSet web", "v1 Pod web-1");
    for (policy, wanted, condemned) in [
        (["Retain", "Retain"], "", ""),
        (["Delete", "Retain"], set, set),
        (["Retain", "Delete"], "", pod),
        (["Delete", "Delete"], set, pod),
        (["Delete", "Keep"], "", ""),
    ] {
        for order in ["OrderedReady", "Parallel"] {
            let mut world = world_with(policy, order);
            assert_eq!(owners(&world), [wanted, wanted], "{policy:?}");
            scale(&mut world, 1);
            settle(&mut world);
            assert!(world.pods()[1].metadata.deletion_timestamp.is_some());
            assert_eq!(owners(&world), [wanted, condemned], "{policy:?}");
            scale(&mut world, 2);
            settle(&mut world);
            assert_eq!(owners(&world), [wanted, wanted], "{policy:?}: it is wanted again");
            set_policy(&mut world, ["Retain", "Retain"]);
            run_all(&mut world);
            assert_eq!(owners(&world), ["", ""], "{policy:?}");
        }
    }
}

#[test]
fn a_new_policy_counts_for_pods_that_are_not_ready_and_keeps_other_owners() {
    let mut world = world_with(["Retain", "Retain"], "OrderedReady");
    world.edit::<PersistentVolumeClaim>(ObjectKind::PersistentVolumeClaim, "data-web-1", |claim| {
        let owner = OwnerReference {
            kind: "Backup".into(),
            name: "b".into(),
            uid: "b".into(),
            ..Default::default()
        };
        claim.metadata.owner_references = vec![owner];
    });
    world.set_state("web-0", "Running", false);
    set_policy(&mut world, ["Delete", "Delete"]);
    let ignored = planned_by(&world, ClaimRetention::Ignored);
    assert!(!ignored.writes.iter().any(|write| matches!(write, ApiWrite::Patch { .. })));
    let plan = planned(&world);
    let said = plan.events[&0].success(&ObjectKey::new("ns", "x"));
    let message = "update Pod web-0 in StatefulSet web successful";
    assert_eq!((&*said.reason, &*said.message), ("SuccessfulUpdate", message));
    settle(&mut world);
    let set = "apps/v1 StatefulSet web";
    assert_eq!(owners(&world), [set, &format!(" Backup b, {set}")]);
}

#[test]
fn a_claim_that_goes_with_an_earlier_pod_is_waited_for() {
    for order in ["OrderedReady", "Parallel"] {
        let scaled_down = || {
            let mut world = world_with(["Delete", "Delete"], order);
            scale(&mut world, 1);
            run_all(&mut world);
            assert_eq!(pod_names(&world), ["web-0"]);
            scale(&mut world, 2);
            world
        };
        let mut world = scaled_down();
        settle(&mut world);
        assert_eq!(pod_names(&world), ["web-0"], "the claim is still there");
        assert!(planned(&world).requeue_after.is_some());
        world.remove(ObjectKind::PersistentVolumeClaim, "data-web-1");
        run_all(&mut world);
        assert_eq!(owners(&world), ["apps/v1 StatefulSet web", "apps/v1 StatefulSet web"]);
        assert_eq!(pod_names(&world), ["web-0", "web-1"]);
        // By a policy that retains them claims are used again, and no longer go with the pod.
        let mut world = scaled_down();
        set_policy(&mut world, ["Retain", "Retain"]);
        run_all(&mut world);
        assert_eq!((owners(&world), pod_names(&world).len()), ([String::new(), String::new()], 2));
    }
}

#[test]
fn a_deleted_set_changes_no_owners() {
    let mut world = world_with(["Retain", "Retain"], "OrderedReady");
    set_policy(&mut world, ["Delete", "Delete"]);
    world.edit::<StatefulSet>(ObjectKind::StatefulSet, "web", |set| {
        set.metadata.deletion_timestamp = Some(Time::from_unix(1));
    });
    settle(&mut world);
    assert_eq!(owners(&world), ["", ""]);
}

#[test]
fn only_pods_with_an_ordinal_of_the_set_are_adopted() {
    let mut world = world(set(1, "OrderedReady"));
    for name in ["web-0", "web-x", "other-0"] {
        let mut orphan = Pod::default();
        orphan.metadata.name = name.into();
        orphan.metadata.namespace = "ns".into();
        orphan.metadata.labels.insert("app".into(), "web".into());
        world.put(orphan);
    }
    run_all(&mut world);
    let owned = |name: &str| {
        let pod = world.get::<Pod>(ObjectKind::Pod, name).expect("the pod");
        !pod.metadata.owner_references.is_empty()
    };
    assert_eq!(["web-0", "web-x", "other-0"].map(owned), [true, false, false]);
    let adopted = world.get::<Pod>(ObjectKind::Pod, "web-0").expect("the pod");
    assert_eq!(adopted.metadata.labels["statefulset.kubernetes.io/pod-name"], "web-0");
}

#[test]
fn ordinals_are_read_as_they_are_written() {
    let parsed = ["web-0", "a-b-12", "web", "web-", "web-01", "web-99999999999", "web-x"];
    assert_eq!(
        parsed.map(parent_and_ordinal),
        [
            Some(("web", 0)),
            Some(("a-b", 12)),
            None,
            None,
            Some(("web", -1)),
            Some(("web", -1)),
            None
        ]
    );
}

#[test]
fn a_deleted_set_makes_nothing() {
    let mut gone = set(3, "Parallel");
    gone.metadata.deletion_timestamp = Some(Time::from_unix(1));
    let mut world = world(gone);
    settle(&mut world);
    assert!(world.pods().is_empty());
}

#[test]
fn unused_revisions_go_beyond_the_limit() {
    let mut limited = set(1, "OrderedReady");
    limited.spec.revision_history_limit = Some(1);
    let mut world = world(limited);
    for version in ["a", "b", "c", "d"] {
        change_template(&mut world, version);
        run_all(&mut world);
    }
    let kept = world.list::<ControllerRevision>(ObjectKind::ControllerRevision);
    let mut kept: Vec<i64> = kept.iter().map(|revision| revision.revision).collect();
    kept.sort_unstable();
    assert_eq!(kept, [3, 4]);
    let created = |write: &ApiWrite| matches!(write, ApiWrite::Create(WrittenObject::Pod(_)));
    assert!(!planned(&world).writes.iter().any(created));
}

#[test]
fn large_pods_are_created_by_several_plans() {
    let mut large = set(7, "Parallel");
    enlarge(&mut large.spec.template.metadata);
    let mut world = world(large);
    let bursts = run_in_bursts(&mut world, planned);
    assert_eq!(bursts.into_iter().filter(|pods| *pods > 0).collect::<Vec<_>>(), [3, 3, 1]);
    assert_eq!(world.pods().len(), 7);
}

#[test]
fn large_claims_are_created_by_several_plans_and_the_pod_after_them() {
    let mut large = set(1, "OrderedReady");
    let claim = |nth: usize| {
        let mut claim = large.spec.volume_claim_templates[0].clone();
        claim.metadata.name = format!("data{nth}");
        enlarge(&mut claim.metadata);
        claim
    };
    large.spec.volume_claim_templates = (0..8).map(claim).collect();
    let mut world = world(large);
    let mut claims = Vec::new();
    let bursts = run_in_bursts(&mut world, |world| {
        let shown = world.list::<PersistentVolumeClaim>(ObjectKind::PersistentVolumeClaim);
        claims.push(shown.len());
        let plan = planned(world);
        assert!(shown.len() > 5 || plan.requeue_after.is_some() || claims.len() == 1);
        plan
    });
    assert_eq!(bursts.iter().sum::<usize>(), 1);
    claims.dedup();
    assert_eq!((claims, world.pods().len()), (vec![0, 3, 6, 8], 1));
}

#[test]
fn a_plan_parses_the_current_revision_only() {
    let mut many = set(1, "OrderedReady");
    many.spec.revision_history_limit = Some(100);
    let mut world = world(many);
    for nth in 0..20 {
        change_template(&mut world, &format!("{nth}"));
        run_all(&mut world);
    }
    world.set_state("web-0", "Running", false);
    change_template(&mut world, "last");
    let made = planned(&world);
    world.run(&made, usize::MAX);
    let revisions = world.list::<ControllerRevision>(ObjectKind::ControllerRevision);
    let largest = revisions.iter().map(|revision| revision.data.raw.len()).max();
    let plan = || drop(planned_by(&world, ClaimRetention::Counts));
    let steps = proto_api::steps::count_during(plan);
    assert_eq!(revisions.len(), 21);
    assert!(steps > 0 && usize::try_from(steps).ok() <= largest, "{steps} bytes parsed");
}
