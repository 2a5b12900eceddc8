//! Tables of claims, volumes and nodes.

use proto_api::Time;
use proto_api::core::v1::{
    CSIPersistentVolumeSource, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm,
    TopologySelectorLabelRequirement, TopologySelectorTerm, VolumeNodeAffinity,
};
use proto_api::meta::v1::LabelSelector;
use proto_api::storage::v1::{CSINode, CSINodeDriver, VolumeNodeResources};

use super::limits::NodeLimits;
use super::*;
use crate::examples::{names, node, pod, profile};

/// A pod that uses claims.
fn user(name: &str, claims: &[&str]) -> PodInfo {
    let mut pod = pod(name, 0, 0);
    let claim = |name: &&str| ClaimUse { name: (*name).to_owned(), ephemeral: false };
    pod.claims = claims.iter().map(claim).collect();
    pod
}

fn claim(name: &str, class: &str) -> PersistentVolumeClaim {
    let mut claim = PersistentVolumeClaim::default();
    claim.metadata.name = name.into();
    claim.metadata.namespace = "ns".into();
    claim.metadata.uid = format!("uid-{name}");
    claim.metadata.resource_version = "7".into();
    claim.spec.access_modes = vec!["ReadWriteOnce".into()];
    claim.spec.storage_class_name = Some(class.into());
    claim.spec.resources.requests.insert("storage".into(), "1Gi".parse().unwrap());
    claim
}

fn bound(name: &str, volume: &str) -> PersistentVolumeClaim {
    let mut claim = claim(name, "late");
    claim.spec.volume_name = volume.into();
    claim.metadata.annotations.insert("pv.kubernetes.io/bind-completed".into(), "yes".into());
    claim
}

/// A volume of the driver that the node `a` reaches.
fn volume(name: &str, size: &str) -> PersistentVolume {
    let mut volume = PersistentVolume::default();
    volume.metadata.name = name.into();
    volume.metadata.uid = format!("uid-{name}");
    volume.spec.access_modes = vec!["ReadWriteOnce".into()];
    volume.spec.storage_class_name = "late".into();
    volume.spec.capacity.insert("storage".into(), size.parse().unwrap());
    volume.spec.persistent_volume_source.csi = Some(CSIPersistentVolumeSource {
        driver: "disk.csi.test".into(),
        volume_handle: name.into(),
        ..Default::default()
    });
    let zone = NodeSelectorRequirement {
        key: "zone".into(),
        operator: "In".into(),
        values: vec!["zone-a".into()],
    };
    let term = NodeSelectorTerm { match_expressions: vec![zone], ..Default::default() };
    let required = Some(NodeSelector { node_selector_terms: vec![term] });
    volume.spec.node_affinity = Some(VolumeNodeAffinity { required });
    volume.status.phase = "Available".into();
    volume
}

fn class(name: &str, provisioner: &str, mode: &str) -> StorageClass {
    let mut class = StorageClass::default();
    class.metadata.name = name.into();
    class.provisioner = provisioner.into();
    class.volume_binding_mode = Some(mode.into());
    class
}

fn storage(claims: Vec<PersistentVolumeClaim>, volumes: Vec<PersistentVolume>) -> StorageSnapshot {
    let classes = [
        class("late", "disk.csi.test", "WaitForFirstConsumer"),
        class("local", "kubernetes.io/no-provisioner", "WaitForFirstConsumer"),
        class("now", "disk.csi.test", "Immediate"),
    ];
    let by_name = |class: StorageClass| (class.metadata.name.clone(), Arc::new(class));
    StorageSnapshot {
        claims: claims
            .into_iter()
            .map(|c| (ObjectKey::from_metadata(&c.metadata), Arc::new(c)))
            .collect(),
        volumes: volumes.into_iter().map(|v| (v.metadata.name.clone(), Arc::new(v))).collect(),
        classes: classes.into_iter().map(by_name).collect(),
        ..StorageSnapshot::default()
    }
}

/// The limit of the driver on a node.
fn limit(node: &str, count: i32) -> Limits {
    let mut driver = CSINodeDriver { name: "disk.csi.test".into(), ..Default::default() };
    driver.allocatable = Some(VolumeNodeResources { count: Some(count) });
    let mut csi_node = CSINode::default();
    csi_node.spec.drivers.push(driver);
    let limits = NodeLimits::from_csi_node(names(), &csi_node);
    [(node.to_owned(), Arc::new(limits))].into_iter().collect()
}

/// The refusal of a node, or the volumes selected on it.
fn at(name: &str, pod: &PodInfo, storage: &StorageSnapshot) -> String {
    // Tests change the objects.
    let storage = &storage.clone();
    let annotations = BindingAnnotations::new(names());
    let load = NodeLoad::empty(Arc::new(node(name)));
    let checked = ClaimRequirements::from_pod(pod, storage, &annotations)
        .and_then(|claims| claims.check(&load, storage, &annotations, &profile()));
    match checked {
        Err(refusal) => refusal.to_string(),
        Ok(choices) => {
            let short = |choice: &VolumeChoice| match choice {
                VolumeChoice::Bind(claim, volume) => {
                    format!("{} binds {}", claim.metadata.name, volume.metadata.name)
                }
                VolumeChoice::Provision(claim) => format!("{} provisions", claim.metadata.name),
            };
            choices.iter().map(short).collect::<Vec<_>>().join(", ")
        }
    }
}

#[test]
fn claims_for_which_no_node_is_feasible() {
    let (mut lost, mut going) = (claim("lost", "late"), claim("going", "late"));
    lost.status.phase = "Lost".into();
    lost.spec.volume_name = "v".into();
    going.metadata.deletion_timestamp = Some(Time::from_unix(1));
    let storage = storage(vec![lost, going, claim("now", "now"), claim("none", "")], vec![]);
    let said = |name: &str| at("a", &user("p", &[name]), &storage);
    assert_eq!(said("absent"), "persistentvolumeclaim \"absent\" not found");
    assert_eq!(
        said("lost"),
        "persistentvolumeclaim \"lost\" bound to non-existent persistentvolume \"v\""
    );
    assert_eq!(said("going"), "persistentvolumeclaim \"going\" is being deleted");
    let unbound = "pod has unbound immediate PersistentVolumeClaims";
    assert_eq!((said("now").as_str(), said("none").as_str()), (unbound, unbound));
    let mut ephemeral = user("p", &["p-v", "now"]);
    ephemeral.claims[0].ephemeral = true;
    assert_eq!(
        at("a", &ephemeral, &storage),
        "waiting for ephemeral volume controller to create the persistentvolumeclaim \"p-v\""
    );
    ephemeral.claims.remove(0);
    ephemeral.claims[0].ephemeral = true;
    assert_eq!(
        at("a", &ephemeral, &storage),
        "PVC ns/now was not created for pod ns/p (pod is not owner)"
    );
}

#[test]
fn a_bound_claim_needs_the_nodes_of_its_volume() {
    let storage = storage(vec![bound("c", "v"), bound("d", "gone")], vec![volume("v", "1Gi")]);
    let pod = user("p", &["c"]);
    assert_eq!(at("a", &pod, &storage), "");
    assert_eq!(at("b", &pod, &storage), "node(s) had volume node affinity conflict");
    assert_eq!(
        at("a", &user("p", &["d"]), &storage),
        "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)"
    );
}

#[test]
fn zones_of_volumes() {
    let key = "topology.kubernetes.io/zone";
    let mut labelled = volume("v", "1Gi");
    labelled.spec.node_affinity = None;
    labelled.metadata.labels.insert(key.into(), "x__y".into());
    let annotations = BindingAnnotations::new(names());
    let reaches = |zone: Option<&str>| {
        let mut node = node("a");
        node.labels.extend(zone.map(|zone| (key.to_owned(), zone.to_owned())));
        is_in_zone(&labelled, &node, &annotations)
    };
    assert!(reaches(Some("x")) && reaches(Some("y")) && !reaches(Some("z")));
    assert!(reaches(None), "a cluster without zones");
}

#[test]
fn delayed_binding_selects_the_smallest_volume_or_provisions() {
    let volumes = || vec![volume("big", "9Gi"), volume("right", "2Gi"), volume("small", "1Mi")];
    let two = user("p", &["c", "d"]);
    let claims = || vec![claim("c", "late"), claim("d", "late")];
    assert_eq!(at("a", &two, &storage(claims(), volumes())), "c binds right, d binds big");
    assert_eq!(at("b", &two, &storage(claims(), volumes())), "c provisions, d provisions");
    let mut taken = storage(claims(), volumes());
    taken.assumed.insert("right".into());
    assert_eq!(at("a", &two, &taken), "c binds big, d provisions");
    let none = "node(s) didn't find available persistent volumes to bind";
    let local = || vec![claim("c", "local")];
    assert_eq!(at("a", &user("p", &["c"]), &storage(local(), vec![])), none);
    let mut disk = volume("disk", "1Gi");
    disk.spec.storage_class_name = "local".into();
    let with_disk = storage(local(), vec![disk]);
    assert_eq!(at("a", &user("p", &["c"]), &with_disk), "c binds disk");
    assert_eq!(at("b", &user("p", &["c"]), &with_disk), none);
}

/// The small claim leaves the large volume to the other one, whatever access modes the volumes have and in whatever order the pod names its claims.
#[test]
fn small_claims_take_small_volumes() {
    let mut small = volume("small", "6Gi");
    small.spec.access_modes.push("ReadOnlyMany".into());
    let mut large = claim("large", "late");
    large.spec.resources.requests.insert("storage".into(), "10Gi".parse().unwrap());
    let mut little = claim("little", "late");
    little.spec.resources.requests.insert("storage".into(), "5Gi".parse().unwrap());
    let storage = storage(vec![large, little], vec![volume("big", "20Gi"), small]);
    for claims in [["little", "large"], ["large", "little"]] {
        let bound = "little binds small, large binds big";
        assert_eq!(at("a", &user("p", &claims), &storage), bound, "{claims:?}");
    }
}

#[test]
fn a_written_selection_is_kept() {
    let mut decided = claim("c", "late");
    decided.metadata.annotations.insert("volume.kubernetes.io/selected-node".into(), "a".into());
    let one = storage(vec![decided.clone()], vec![volume("v", "1Gi")]);
    let pod = user("p", &["c"]);
    assert_eq!(at("a", &pod, &one), "c provisions", "its provisioner is at work");
    assert_eq!(at("b", &pod, &one), "node(s) didn't find available persistent volumes to bind");
    let (annotations, mut promised) = (BindingAnnotations::new(names()), volume("v", "1Gi"));
    let open = claim("c", "late");
    promised.spec.claim_ref = Some(reference(&open, names()));
    let half = storage(vec![open.clone()], vec![promised.clone(), volume("w", "1Gi")]);
    assert_eq!(at("a", &pod, &half), "c binds v");
    let again = VolumeChoice::Bind(Arc::new(open.clone()), Arc::new(promised));
    assert_eq!(again.patch(names(), &annotations, "a"), None, "it is written");
    assert_eq!(VolumeChoice::Provision(Arc::new(decided)).patch(names(), &annotations, "a"), None);
    let Some(VolumePatch::Volume(name, patch)) = VolumeChoice::Bind(
        Arc::new(open.clone()),
        Arc::new(volume("v", "1Gi")),
    )
    .patch(names(), &annotations, "a") else {
        unreachable!("a write of the volume")
    };
    assert_eq!((name.as_str(), &patch["spec"]["claimRef"]["uid"]), ("v", &json!("uid-c")));
    let Some(VolumePatch::Claim(_, patch)) =
        VolumeChoice::Provision(Arc::new(open)).patch(names(), &annotations, "a")
    else {
        unreachable!("a write of the claim")
    };
    assert_eq!(patch["metadata"]["annotations"]["volume.kubernetes.io/selected-node"], "a");
    assert_eq!(patch["metadata"]["resourceVersion"], "7");
}

#[test]
fn provisioning_needs_topology_and_capacity() {
    let pod = user("p", &["c"]);
    let mut storage = storage(vec![claim("c", "late")], vec![]);
    let mut limited = class("late", "disk.csi.test", "WaitForFirstConsumer");
    let requirement =
        TopologySelectorLabelRequirement { key: "zone".into(), values: vec!["zone-b".into()] };
    limited.allowed_topologies =
        vec![TopologySelectorTerm { match_label_expressions: vec![requirement] }];
    storage.classes.insert("late".into(), Arc::new(limited));
    assert_eq!(at("a", &pod, &storage), "node(s) didn't find available persistent volumes to bind");
    assert_eq!(at("b", &pod, &storage), "c provisions");

    let mut driver = CSIDriver::default();
    driver.spec.storage_capacity = Some(true);
    storage.drivers.insert("disk.csi.test".into(), Arc::new(driver));
    let full = "node(s) did not have enough free storage";
    assert_eq!(at("b", &pod, &storage), full);
    let room = |size: &str| {
        let capacity = CSIStorageCapacity {
            storage_class_name: "late".into(),
            node_topology: Some(LabelSelector::default()),
            capacity: Some(size.parse().unwrap()),
            ..CSIStorageCapacity::default()
        };
        vec![Arc::new(capacity)]
    };
    storage.capacities = room("1Mi");
    assert_eq!(at("b", &pod, &storage), full);
    storage.capacities = room("1Gi");
    assert_eq!(at("b", &pod, &storage), "c provisions");
}

#[test]
fn a_volume_has_room_by_the_largest_volume_or_else_by_the_capacity() {
    let pod = user("p", &["c"]);
    let mut storage = storage(vec![claim("c", "late")], vec![]);
    let class = class("late", "disk.csi.test", "WaitForFirstConsumer");
    storage.classes.insert("late".into(), Arc::new(class));
    let mut driver = CSIDriver::default();
    driver.spec.storage_capacity = Some(true);
    storage.drivers.insert("disk.csi.test".into(), Arc::new(driver));
    // The claim wants 1Gi.
    for (capacity, largest, fits) in [
        (Some("1Gi"), None, true),
        (Some("1Mi"), None, false),
        (None, None, false),
        (Some("10Gi"), Some("1Mi"), false),
        (Some("10Gi"), Some("1Gi"), true),
        (Some("1Mi"), Some("1Gi"), true),
        (None, Some("1Gi"), true),
    ] {
        let quantity = |text: &str| text.parse().unwrap();
        storage.capacities = vec![Arc::new(CSIStorageCapacity {
            storage_class_name: "late".into(),
            node_topology: Some(LabelSelector::default()),
            capacity: capacity.map(quantity),
            maximum_volume_size: largest.map(quantity),
            ..CSIStorageCapacity::default()
        })];
        let expected =
            if fits { "c provisions" } else { "node(s) did not have enough free storage" };
        assert_eq!(at("b", &pod, &storage), expected, "{capacity:?} {largest:?}");
    }
}

#[test]
fn volume_limits_of_a_driver() {
    let claims = vec![bound("c", "v"), bound("d", "w"), claim("e", "late")];
    let mut storage = storage(claims, vec![volume("v", "1Gi"), volume("w", "1Gi")]);
    storage.limits = limit("a", 1);
    let annotations = BindingAnnotations::new(names());
    let mut load = NodeLoad::empty(Arc::new(node("a")));
    load.add(user("first", &["c"]));
    let said = |pod: PodInfo| {
        let needs = ClaimRequirements::from_pod(&pod, &storage, &annotations).unwrap();
        needs
            .check(&load, &storage, &annotations, &profile())
            .err()
            .map(|refusal| refusal.to_string())
    };
    let full = Some("node(s) exceed max volume count".to_owned());
    assert_eq!(said(user("p", &["d"])), full);
    assert_eq!(said(user("p", &["e"])), full, "one that is yet to be made");
    assert_eq!(said(user("p", &["c"])), None, "it is there already");
}

#[test]
fn a_read_write_once_pod_claim_has_one_pod() {
    let mut alone = bound("c", "v");
    alone.spec.access_modes = vec!["ReadWriteOncePod".into()];
    let storage = storage(vec![alone], vec![volume("v", "1Gi")]);
    let pod = user("p", &["c"]);
    let needs =
        ClaimRequirements::from_pod(&pod, &storage, &BindingAnnotations::new(names())).unwrap();
    let mut loads = [NodeLoad::empty(Arc::new(node("a")))];
    assert!(!needs.is_used_by_another(&pod, &loads));
    loads[0].add(user("other", &["c"]));
    assert!(needs.is_used_by_another(&pod, &loads));
    loads[0] = loads[0].without(|_| true);
    loads[0].add(PodInfo { claim_count: 257, ..user("large", &["d"]) });
    assert!(needs.is_used_by_another(&pod, &loads), "not all of its claims are known");
}

/// The steps of a pod with this many unbound claims on this many nodes, of which the first reaches the volumes.
fn steps_of_binding(claims: usize, volumes: usize, nodes: usize) -> u64 {
    let named = |kind: &str, count: usize| (0..count).map(move |n| format!("{kind}{n}")).collect();
    let (claim_names, volume_names): (Vec<String>, Vec<String>) =
        (named("c", claims), named("v", volumes));
    let all = claim_names.iter().map(|name| claim(name, "late")).collect();
    let storage = storage(all, volume_names.iter().map(|name| volume(name, "1Gi")).collect());
    let annotations = BindingAnnotations::new(names());
    let pod = user("p", &claim_names.iter().map(String::as_str).collect::<Vec<_>>());
    let loads = ["a", "b"].map(|name| NodeLoad::empty(Arc::new(node(name))));
    proto_api::steps::count_during(|| {
        let needs = ClaimRequirements::from_pod(&pod, &storage, &annotations).expect("claims");
        for nth in 0..nodes {
            let load = &loads[nth.min(1)];
            let found = needs.check(load, &storage, &annotations, &profile());
            assert_eq!(found.expect("feasible").len(), claims);
        }
    })
}

#[test]
fn a_claim_is_compared_with_each_volume_once() {
    let few = steps_of_binding(20, 100, 10);
    assert!(few <= 20 * 100 + 10 * 20 * 4 + 20 * 20, "{few}");
    let more_nodes = steps_of_binding(20, 100, 100);
    assert!(
        more_nodes - few <= 90 * 20 * 4,
        "no walk over the volumes for each node: {more_nodes}"
    );
}

#[test]
fn volumes_of_other_claims_and_classes_are_not_looked_at() {
    let mut volumes: Vec<_> = (0..500).map(|n| volume(&format!("v{n}"), "1Gi")).collect();
    for (nth, volume) in volumes.iter_mut().enumerate() {
        match nth % 2 {
            0 => volume.spec.storage_class_name = "other".into(),
            _ => volume.spec.claim_ref = Some(reference(&claim("else", "late"), names())),
        }
    }
    let storage = storage(vec![claim("c", "late")], volumes);
    let mut said = String::new();
    let steps = proto_api::steps::count_during(|| said = at("a", &user("p", &["c"]), &storage));
    assert_eq!(said, "c provisions");
    assert!(steps < 10, "{steps}");
}

#[test]
fn the_volumes_of_a_node_are_counted_once() {
    let mut storage = storage(vec![bound("c", "v"), bound("d", "w")], vec![]);
    storage.volumes = ["v", "w"].map(|name| (name.into(), Arc::new(volume(name, "1Gi")))).into();
    storage.limits = limit("a", 1);
    let annotations = BindingAnnotations::new(names());
    let mut load = NodeLoad::empty(Arc::new(node("a")));
    (0..100).for_each(|nth| load.add(user(&format!("u{nth}"), &["c"])));
    let check = |pod: PodInfo, load: &NodeLoad| {
        let needs = ClaimRequirements::from_pod(&pod, &storage, &annotations).expect("claims");
        needs.check(load, &storage, &annotations, &profile()).is_ok()
    };
    let steps = proto_api::steps::count_during(|| {
        for nth in 0..50 {
            assert!(check(user(&format!("p{nth}"), &["c"]), &load));
            assert!(!check(user(&format!("q{nth}"), &["d"]), &load));
        }
    });
    assert!(steps <= 100 + 2 * 50 * 2, "{steps}");
    // Another state of the node.
    let empty = load.without(|_| true);
    assert!(check(user("p", &["d"]), &empty) && !check(user("p", &["d"]), &load));
}

#[test]
fn claims_and_limits_count_in_a_dry_run() {
    let mut alone = bound("c", "v");
    alone.spec.access_modes = vec!["ReadWriteOncePod".into()];
    let volumes = vec![volume("v", "1Gi"), volume("w", "1Gi")];
    let mut storage = storage(vec![alone, bound("d", "w"), claim("e", "late")], volumes);
    let mut loads = ["a", "b"].map(|name| NodeLoad::empty(Arc::new(node(name))));
    loads[0].add(user("x", &["d"]));
    loads[1].add(user("y", &["d", "e"]));
    let annotations = BindingAnnotations::new(names());
    let cost = |claims: &[&str], storage: &StorageSnapshot| {
        let needs = ClaimRequirements::from_pod(&user("p", claims), storage, &annotations);
        needs.expect("claims").cost(&loads, storage, &annotations)
    };
    assert_eq!(cost(&[], &storage), 0);
    assert_eq!(cost(&["d"], &storage), 1);
    assert_eq!(cost(&["c"], &storage), 1 + 2 + 3, "the claims of all pods");
    assert_eq!(cost(&["e"], &storage), 1 + 2, "a node affinity, and a claim with that and itself");
    storage.limits = limit("b", 1);
    assert_eq!(cost(&["d"], &storage), 1 + 3, "the claims of the pods of a node");
}

#[test]
fn a_pod_whose_claims_need_very_many_comparisons_is_not_scheduled() {
    let with = |requirements: usize| {
        let mut all = claim("c", "late");
        let label = |nth: usize| (format!("l{nth}"), String::new());
        let match_labels = (0..requirements).map(label).collect();
        all.spec.selector = Some(LabelSelector { match_labels, ..LabelSelector::default() });
        storage(vec![all], (0..99).map(|n| volume(&format!("v{n}"), "1Gi")).collect())
    };
    let pod = user("p", &["c"]);
    assert_eq!(at("a", &pod, &with(49_999)), "c provisions");
    let said = at("a", &pod, &with(50_000));
    assert!(said.contains("more than 5000000 comparisons"), "{said}");
}
