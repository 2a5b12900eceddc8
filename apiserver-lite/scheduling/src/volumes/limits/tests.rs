//! Tables of pods, disks and nodes.

use proptest::prelude::*;
use proto_api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use proto_api::storage::v1::StorageClass;
use serde_json::{Value, json};

use super::*;
use crate::examples::{names, node, profile};

const ALL_MIGRATED: &str =
    "kubernetes.io/aws-ebs,kubernetes.io/gce-pd,kubernetes.io/azure-disk,kubernetes.io/cinder";

/// A pod with these volumes.
fn pod(name: &str, volumes: &[Value]) -> PodInfo {
    let named = volumes.iter().enumerate().map(|(nth, volume)| {
        let mut volume = volume.clone();
        volume["name"] = json!(format!("v{nth}"));
        volume
    });
    let pod = json!({ "metadata": { "name": name, "namespace": "ns", "uid": name },
        "spec": { "containers": [], "volumes": Vec::from_iter(named) } });
    let pod: Pod = serde_json::from_value(pod).expect("a pod");
    PodInfo::from_pod(names(), &pod)
}

fn ebs(id: &str) -> Value {
    json!({ "awsElasticBlockStore": { "volumeID": id } })
}

fn claim(name: &str) -> Value {
    json!({ "persistentVolumeClaim": { "claimName": name } })
}

/// A cloud's disk in a pod, its volume in a PersistentVolume, and its provisioner.
fn disk(driver: &str, name: &str) -> (Value, &'static str) {
    match driver {
        migration::AWS => (ebs(name), "kubernetes.io/aws-ebs"),
        migration::GCE => {
            (json!({ "gcePersistentDisk": { "pdName": name } }), "kubernetes.io/gce-pd")
        }
        migration::AZURE_DISK => (
            json!({ "azureDisk": { "diskName": name, "diskURI": name } }),
            "kubernetes.io/azure-disk",
        ),
        _ => (json!({ "cinder": { "volumeID": name } }), "kubernetes.io/cinder"),
    }
}

/// A CSINode with limits of drivers, and the annotation of migrated plugins.
fn csi_node(counts: &[(&str, i32)], migrated: &str) -> NodeLimits {
    let drivers = counts.iter().map(
        |(name, count)| json!({ "name": name, "nodeID": "n", "allocatable": { "count": count } }),
    );
    let key = "storage.alpha.kubernetes.io/migrated-plugins";
    let node = json!({ "metadata": { "name": "a", "annotations": { key: migrated } },
        "spec": { "drivers": Vec::from_iter(drivers) } });
    let node: CSINode = serde_json::from_value(node).expect("a CSINode");
    NodeLimits::from_csi_node(names(), &node)
}

/// The filters of one node.
struct Filters {
    storage: StorageSnapshot,
    load: NodeLoad,
    profile: Profile,
}

impl Filters {
    /// Of a node with this CSINode, if it has one.
    fn new(csi_node: Option<NodeLimits>) -> Self {
        let limits: Limits =
            csi_node.map(|of| ("a".to_owned(), Arc::new(of))).into_iter().collect();
        let storage = StorageSnapshot { limits, ..StorageSnapshot::default() };
        let mut profile = profile();
        // All five filters.
        profile.left_out.clear();
        Self { storage, load: NodeLoad::empty(Arc::new(node("a"))), profile }
    }

    /// The Node says so many volumes of a resource.
    fn set_allocatable(&mut self, resource: &str, most: i64) {
        let mut node = (*self.load.node).clone();
        node.allocatable.insert(resource.to_owned(), most);
        self.load.node = Arc::new(node);
    }

    fn set_label(&mut self, label: &str, value: &str) {
        let mut node = (*self.load.node).clone();
        node.labels.insert(label.to_owned(), value.to_owned());
        self.load.node = Arc::new(node);
    }

    /// A bound claim and its volume with this source.
    fn add_volume(&mut self, claim: &str, source: &Value) {
        let volume = json!({ "metadata": { "name": format!("pv-{claim}") }, "spec": source });
        let volume: PersistentVolume = serde_json::from_value(volume).expect("a volume");
        self.storage.volumes.insert(volume.metadata.name.clone(), Arc::new(volume));
        self.add_claim(claim, json!({ "volumeName": format!("pv-{claim}") }));
    }

    /// A claim without a volume, and its class.
    fn add_unbound(&mut self, claim: &str, provisioner: &str) {
        let class = json!({ "metadata": { "name": provisioner }, "provisioner": provisioner });
        let class: StorageClass = serde_json::from_value(class).expect("a class");
        self.storage.classes.insert(provisioner.to_owned(), Arc::new(class));
        self.add_claim(claim, json!({ "storageClassName": provisioner }));
    }

    fn add_claim(&mut self, name: &str, spec: Value) {
        let claim =
            json!({ "metadata": { "name": name, "namespace": "ns", "uid": name }, "spec": spec });
        let claim: PersistentVolumeClaim = serde_json::from_value(claim).expect("a claim");
        self.storage.claims.insert(ObjectKey::new("ns", name), Arc::new(claim));
    }

    fn refuse(&self, pod: &PodInfo) -> bool {
        let annotations = BindingAnnotations::new(names());
        let needed = volumes(&[pod], &self.storage, &annotations);
        let Self { storage, load, profile } = self;
        storage.limits.is_exceeded(&needed, load, storage, &annotations, profile)
    }

    /// How many pods with a disk each the node takes, up to 400.
    fn count_fitting(&mut self, of: impl Fn(usize) -> Value) -> usize {
        let fitting = (0..400).take_while(|nth| {
            let pod = pod(&format!("p{nth}"), &[of(*nth)]);
            let fits = !self.refuse(&pod);
            if fits {
                self.load.add(pod);
            }
            fits
        });
        fitting.count()
    }
}

#[test]
fn clouds_have_their_default_limits() {
    for cloud in &CLOUDS {
        let (driver, most) = (cloud.driver, cloud.most);
        let of = |nth: usize| disk(driver, &format!("d{nth}")).0;
        // A node that says nothing, a limit of the environment, and one of the Node.
        assert_eq!(Filters::new(None).count_fitting(of), most, "{driver}");
        let mut set = Filters::new(Some(csi_node(&[], "")));
        set.storage.limits = set.storage.limits.clone().with_cloud_disks_max(Some(7));
        assert_eq!(set.count_fitting(of), 7, "{driver}");
        let mut said = Filters::new(None);
        said.storage.limits = set.storage.limits.clone();
        said.set_allocatable(cloud.resource, 3);
        assert_eq!(said.count_fitting(of), 3, "{driver}");
        let mut others = Filters::new(None);
        others.profile.left_out = [cloud.filter].into();
        assert_eq!(others.count_fitting(of), 400, "{driver} is left out");
    }
}

#[test]
fn instances_of_aws_have_the_limit_of_their_type() {
    for (label, instance, most) in [
        ("node.kubernetes.io/instance-type", "m5.large", 25),
        ("node.kubernetes.io/instance-type", "c5", 25),
        ("node.kubernetes.io/instance-type", "r5d.metal", 25),
        ("beta.kubernetes.io/instance-type", "t3.nano", 25),
        ("node.kubernetes.io/instance-type", "xt3x", 25),
        ("node.kubernetes.io/instance-type", "z1d.large", 25),
        ("node.kubernetes.io/instance-type", "xm5", 39),
        ("node.kubernetes.io/instance-type", "m4.large", 39),
        ("node.kubernetes.io/instance-type", "", 39),
        ("example.com/instance-type", "m5.large", 39),
    ] {
        let mut filters = Filters::new(None);
        filters.set_label(label, instance);
        let found = filters.count_fitting(|nth| ebs(&format!("vol-{nth}")));
        assert_eq!(found, most, "{label} {instance}");
    }
    let mut of_google = Filters::new(None);
    let label = "node.kubernetes.io/instance-type";
    of_google.set_label(label, "t3");
    assert_eq!(of_google.count_fitting(|nth| disk(migration::GCE, &format!("d{nth}")).0), 16);
}

/// Where the driver attaches the disks its limit counts, for both kinds of volumes, and no other does.
#[test]
fn disks_of_migrated_plugins_count_for_the_driver() {
    for cloud in &CLOUDS {
        let driver = cloud.driver;
        let (_, provisioner) = disk(driver, "");
        let disk = |name: &str| disk(driver, name).0;
        let mut filters = Filters::new(Some(csi_node(&[(driver, 4)], ALL_MIGRATED)));
        filters.set_allocatable(cloud.resource, 1);
        let own = json!({ "csi": { "driver": driver, "volumeHandle": "h" } });
        filters.add_volume("own", &own);
        filters.add_volume("in-tree", &disk("d1"));
        filters.add_volume("same", &disk("d0"));
        filters.add_unbound("later", provisioner);
        filters.add_unbound("own-later", driver);
        for (name, volume) in [("own", claim("own")), ("b", claim("in-tree")), ("c", disk("d0"))] {
            assert!(!filters.refuse(&pod(name, std::slice::from_ref(&volume))), "{driver} {name}");
            filters.load.add(pod(name, &[volume]));
        }
        // Three of four: one more of whatever kind fits, two do not.
        let more = [claim("later"), claim("own-later"), disk("d2")];
        for one in &more {
            assert!(!filters.refuse(&pod("p", std::slice::from_ref(one))), "{driver} {one}");
        }
        for two in [[0, 1], [0, 2], [1, 2]] {
            let two = two.map(|nth| more[nth].clone());
            assert!(filters.refuse(&pod("p", &two)), "{driver} {two:?}");
        }
        let known = [claim("same"), claim("own"), disk("d1"), more[0].clone()];
        assert!(!filters.refuse(&pod("p", &known)), "{driver}: three of them are there");
        filters.profile.left_out = [Filter::NodeVolumeLimits].into();
        assert!(!filters.refuse(&pod("p", &more)), "{driver}: no other filter counts them");
    }
}

#[test]
fn disks_of_plugins_that_are_not_migrated_count_for_their_own_limit() {
    for migrated in ["", "kubernetes.io/gce-pd", "aws-ebs", "kubernetes.io/aws-ebs-2"] {
        let mut filters = Filters::new(Some(csi_node(&[(migration::AWS, 1)], migrated)));
        let own = json!({ "csi": { "driver": migration::AWS, "volumeHandle": "h" } });
        filters.add_volume("own", &own);
        filters.load.add(pod("own", &[claim("own")]));
        filters.add_unbound("later", "kubernetes.io/aws-ebs");
        assert!(!filters.refuse(&pod("p", &[claim("later")])), "{migrated}");
        filters.load.add(pod("p", &[claim("later")]));
        assert_eq!(filters.count_fitting(|nth| ebs(&format!("vol-{nth}"))), 38, "{migrated}");
        filters.add_unbound("own-later", migration::AWS);
        assert!(filters.refuse(&pod("q", &[claim("own-later")])), "{migrated}: two of the driver");
    }
}

#[test]
fn a_node_limits_a_driver_where_its_csi_node_does_not() {
    let said = |csi_node: Option<NodeLimits>| {
        let mut filters = Filters::new(csi_node);
        filters.set_allocatable("attachable-volumes-csi-disk.csi.test", 2);
        (0..9).for_each(|nth| filters.add_unbound(&format!("c{nth}"), "disk.csi.test"));
        filters.count_fitting(|nth| claim(&format!("c{}", nth.min(8))))
    };
    assert_eq!(said(None), 2);
    assert_eq!(said(Some(csi_node(&[("other", 1)], ""))), 2);
    assert_eq!(said(Some(csi_node(&[("disk.csi.test", 3)], ""))), 3);
    assert_eq!(said(Some(csi_node(&[("disk.csi.test", 0)], ""))), 0);
    // No limit: all are the same claim in the end.
    assert_eq!(said(Some(csi_node(&[("disk.csi.test", 9)], ""))), 400);
}

#[test]
fn a_disk_is_counted_once() {
    let mut filters = Filters::new(None);
    filters.set_allocatable("attachable-volumes-aws-ebs", 1);
    filters.add_volume("c", &ebs("aws://zone/vol-1"));
    let both = pod("both", &[ebs("vol-1"), claim("c")]);
    assert!(!filters.refuse(&both));
    filters.load.add(both);
    assert!(!filters.refuse(&pod("p", &[claim("c")])));
    assert!(filters.refuse(&pod("p", &[ebs("vol-2")])));
    assert!(filters.refuse(&pod("p", &[claim("c"), ebs("vol-2")])));
    assert!(!filters.refuse(&pod("p", &[])), "it needs none");
    assert!(!filters.refuse(&pod("p", &[claim("gone"), json!({ "emptyDir": {} })])));
}

#[test]
fn very_many_claims_and_disks_cost_what_they_are() {
    let mut filters = Filters::new(None);
    filters.load.add(pod("x", &[ebs("a"), ebs("b"), claim("c")]));
    let annotations = BindingAnnotations::new(names());
    let cost = |filters: &Filters, wanted: &PodInfo| {
        let storage = &filters.storage;
        let needs = super::super::ClaimRequirements::from_pod(wanted, storage, &annotations);
        needs.expect("no claims").cost(std::slice::from_ref(&filters.load), storage, &annotations)
    };
    assert_eq!(cost(&filters, &pod("p", &[ebs("c")])), 3 + 1);
    assert_eq!(cost(&filters, &pod("p", &[])), 0);
}

/// Two kinds of volumes of one driver, by small numbers.
fn attached(csi: &[u8], in_tree: &[u8]) -> AttachedVolumes {
    let mut all = AttachedVolumes::default();
    let of = |numbers: &[u8], is_in_tree| {
        let one =
            |number: &u8| Attached { driver: "d".into(), handle: number.to_string(), is_in_tree };
        numbers.iter().map(one).collect::<Vec<_>>()
    };
    of(csi, false).into_iter().chain(of(in_tree, true)).for_each(|one| all.add(one));
    all
}

proptest! {
    /// The counts are those of sets.
    #[test]
    fn volumes_are_counted_as_sets(
        there in (prop::collection::vec(0..9_u8, 0..9), prop::collection::vec(0..9_u8, 0..9)),
        needed in (prop::collection::vec(0..9_u8, 0..9), prop::collection::vec(0..9_u8, 0..9)),
    ) {
        let nothing = DriverVolumes::default();
        let (all, wanted) = (attached(&there.0, &there.1), attached(&needed.0, &needed.1));
        let of_driver = |all: &AttachedVolumes| all.0.get("d").unwrap_or(&nothing).clone();
        let (all, wanted) = (of_driver(&all), of_driver(&wanted));
        let set = |of: &(Vec<u8>, Vec<u8>), counted: Counted| -> BTreeSet<u8> {
            let csi = of.0.iter().filter(|_| !matches!(counted, Counted::InTree));
            csi.chain(of.1.iter().filter(|_| !matches!(counted, Counted::Csi))).copied().collect()
        };
        for counted in [Counted::Csi, Counted::InTree, Counted::Both] {
            let (there, needed) = (set(&there, counted), set(&needed, counted));
            prop_assert_eq!(all.count(counted), there.len());
            prop_assert_eq!(wanted.count_beside(&all, counted), needed.difference(&there).count());
        }
    }
}
