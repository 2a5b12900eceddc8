//! The filters NodeVolumeLimits, EBSLimits, GCEPDLimits, AzureDiskLimits and CinderLimits: how many volumes a node can have.
//!
//! ```text
//!   volume of a CSI driver ───────────────────────────────▶ NodeVolumeLimits: the driver's limit in CSINode, or in the Node
//!   in-tree disk ── the node's plugin is migrated ────────▶ the same, beside the driver's own volumes
//!                ── it is not ────────────────────────────▶ the filter of its cloud: the Node's limit, or the default
//! ```

use std::borrow::Borrow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use proto_api::ObjectKey;
use proto_api::migration::{self, DRIVERS};
use proto_api::names::Names;
use proto_api::storage::v1::CSINode;

use super::{BindingAnnotations, StorageSnapshot};
use crate::nodes::NodeLoad;
use crate::pod_info::PodInfo;
use crate::profile::{Filter, Profile};

/// The prefix of the resource by which a Node limits a CSI driver. A kubelet shortens names of more than 40 bytes with the driver, which is not done here:
/// kubelets have written CSINodes instead since 1.17.
const OF_CSI_DRIVER: &str = "attachable-volumes-csi-";

/// A filter of the disks of a cloud that no CSI driver attaches.
struct CloudLimit {
    filter: Filter,
    /// The driver that replaces the source.
    driver: &'static str,
    /// The resource by which a Node says its limit.
    resource: &'static str,
    /// The limit where nothing says one.
    most: usize,
}

/// All of them. Resources and limits are those of kube-scheduler 1.25.
const CLOUDS: [CloudLimit; 4] = [
    CloudLimit {
        filter: Filter::EbsLimits,
        driver: migration::AWS,
        resource: "attachable-volumes-aws-ebs",
        most: 39,
    },
    CloudLimit {
        filter: Filter::GcePdLimits,
        driver: migration::GCE,
        resource: "attachable-volumes-gce-pd",
        most: 16,
    },
    CloudLimit {
        filter: Filter::AzureDiskLimits,
        driver: migration::AZURE_DISK,
        resource: "attachable-volumes-azure-disk",
        most: 16,
    },
    CloudLimit {
        filter: Filter::CinderLimits,
        driver: migration::CINDER,
        resource: "attachable-volumes-cinder",
        most: 256,
    },
];

/// The limit of EBS volumes of instances of the type Nitro.
const NITRO_MOST: usize = 25;

/// Whether an instance of AWS has the lower limit, by kube-scheduler's expression `^[cmr]5.*|t3|z1d`.
fn is_nitro(instance_type: &str) -> bool {
    let begins = ["c5", "m5", "r5"].iter().any(|family| instance_type.starts_with(family));
    begins || instance_type.contains("t3") || instance_type.contains("z1d")
}

/// The drivers that replace a plugin whose disks are attached, by the names that provisioners and CSINodes have for the plugin.
pub(super) fn replaced_plugins(names: &Names) -> BTreeMap<String, &'static str> {
    let attached = |driver: &str| ![migration::AZURE_FILE, migration::RBD].contains(&driver);
    let plugins = DRIVERS.iter().filter(|(_, driver)| attached(driver));
    plugins.map(|(plugin, driver)| (names.label(plugin), *driver)).collect()
}

/// What the CSINode of a node says of its limits.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeLimits {
    /// The most volumes by driver; one without an entry has no limit here.
    counts: BTreeMap<String, usize>,
    /// The drivers that attach the disks of the plugins that they replace.
    migrated: BTreeSet<&'static str>,
}

impl NodeLimits {
    /// Those in a CSINode.
    pub fn from_csi_node(names: &Names, node: &CSINode) -> Self {
        let limit = |driver: &proto_api::storage::v1::CSINodeDriver| {
            let count = driver.allocatable.as_ref()?.count?;
            Some((driver.name.clone(), usize::try_from(count).ok()?))
        };
        let key = names.sub_label("storage.alpha", "migrated-plugins");
        let plugins = replaced_plugins(names);
        let listed = node.metadata.annotations.get(&key).map_or("", String::as_str);
        Self {
            counts: node.spec.drivers.iter().filter_map(limit).collect(),
            migrated: listed.split(',').filter_map(|name| plugins.get(name).copied()).collect(),
        }
    }
}

/// The limits of all nodes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Limits {
    /// What CSINodes say, by node.
    nodes: BTreeMap<String, Arc<NodeLimits>>,
    /// The limit of the disks of each cloud, where a Node says none, instead of the cloud's own.
    cloud_disks_max: Option<usize>,
}

impl FromIterator<(String, Arc<NodeLimits>)> for Limits {
    fn from_iter<I: IntoIterator<Item = (String, Arc<NodeLimits>)>>(nodes: I) -> Self {
        Self { nodes: nodes.into_iter().collect(), cloud_disks_max: None }
    }
}

/// A limit that concerns a pod on a node.
struct Bound<'a> {
    driver: &'a str,
    counted: Counted,
    most: usize,
}

impl Limits {
    /// With this limit of the disks of each cloud, for nodes that say none; none for the clouds' own.
    #[must_use]
    pub fn with_cloud_disks_max(self, most: Option<usize>) -> Self {
        Self { cloud_disks_max: most, ..self }
    }

    /// Whether there may be a limit of the node for the volumes that a pod needs.
    pub(super) fn concern(&self, needed: &AttachedVolumes, load: &NodeLoad) -> bool {
        let is_limited = |(driver, volumes): (&String, &DriverVolumes)| {
            !volumes.in_tree.is_empty() || self.of_driver(driver, load).is_some()
        };
        needed.0.iter().any(is_limited)
    }

    /// Whether the volumes that a pod needs would exceed a limit of the node.
    pub(super) fn is_exceeded(
        &self,
        needed: &AttachedVolumes,
        load: &NodeLoad,
        storage: &StorageSnapshot,
        annotations: &BindingAnnotations,
        profile: &Profile,
    ) -> bool {
        let bounds = self.bounds(needed, load, annotations, profile);
        if bounds.is_empty() {
            return false;
        }
        let attached = storage.derived.attached(load, || volumes(&load.pods, storage, annotations));
        let nothing = DriverVolumes::default();
        bounds.into_iter().any(|Bound { driver, counted, most }| {
            let needed = needed.0.get(driver).unwrap_or(&nothing);
            let there = attached.0.get(driver).unwrap_or(&nothing);
            let new = needed.count_beside(there, counted);
            new > 0 && there.count(counted).saturating_add(new) > most
        })
    }

    /// The limits that the volumes which a pod needs have on the node.
    fn bounds<'a>(
        &self,
        needed: &'a AttachedVolumes,
        load: &NodeLoad,
        annotations: &BindingAnnotations,
        profile: &Profile,
    ) -> Vec<Bound<'a>> {
        let mut bounds = Vec::new();
        for (driver, volumes) in &needed.0 {
            let is_migrated = self.is_migrated(driver, load);
            let counted = if is_migrated { Counted::Both } else { Counted::Csi };
            if profile.asks(Filter::NodeVolumeLimits)
                && volumes.count(counted) > 0
                && let Some(most) = self.of_driver(driver, load)
            {
                bounds.push(Bound { driver, counted, most });
            }
            let cloud = CLOUDS.iter().find(|cloud| cloud.driver == driver);
            let asked = cloud.filter(|cloud| !is_migrated && profile.asks(cloud.filter));
            if let Some(cloud) = asked.filter(|_| !volumes.in_tree.is_empty()) {
                let most = self.of_cloud(cloud, load, annotations);
                bounds.push(Bound { driver, counted: Counted::InTree, most });
            }
        }
        bounds
    }

    fn is_migrated(&self, driver: &str, load: &NodeLoad) -> bool {
        self.nodes.get(&load.node.name).is_some_and(|of| of.migrated.contains(driver))
    }

    /// The limit of a CSI driver: that of the CSINode, or of the Node.
    fn of_driver(&self, driver: &str, load: &NodeLoad) -> Option<usize> {
        let in_csi_node = self.nodes.get(&load.node.name).and_then(|of| of.counts.get(driver));
        let in_node = || allocatable(load, &format!("{OF_CSI_DRIVER}{driver}"));
        in_csi_node.copied().or_else(in_node)
    }

    /// The limit of the disks of a cloud: that of the Node, the one that is set, or the cloud's own.
    fn of_cloud(
        &self,
        cloud: &CloudLimit,
        load: &NodeLoad,
        annotations: &BindingAnnotations,
    ) -> usize {
        let own = || {
            let labels = annotations.instance_types.iter();
            let mut types = labels.filter_map(|label| load.node.labels.get(label));
            match types.next() {
                Some(of) if cloud.driver == migration::AWS && is_nitro(of) => NITRO_MOST,
                _ => cloud.most,
            }
        };
        let set = || self.cloud_disks_max;
        allocatable(load, cloud.resource).or_else(set).unwrap_or_else(own)
    }
}

/// What a Node has of a resource that is a number of volumes.
fn allocatable(load: &NodeLoad, resource: &str) -> Option<usize> {
    let amount = load.node.allocatable.get(resource)?;
    usize::try_from(*amount).ok()
}

// === Volumes ===

/// The volumes that pods have attached, by the driver that attaches them, or would.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct AttachedVolumes(BTreeMap<String, DriverVolumes>);

/// The handles of the volumes of a driver.
#[derive(Clone, Debug, Default, PartialEq)]
struct DriverVolumes {
    /// Of volumes that name the driver.
    csi: BTreeSet<String>,
    /// Of disks of the source that it replaces.
    in_tree: BTreeSet<String>,
    /// How many are of both kinds.
    in_both: usize,
}

/// The volumes of a driver that count for a limit.
#[derive(Clone, Copy)]
enum Counted {
    Csi,
    InTree,
    Both,
}

impl AttachedVolumes {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn add(&mut self, Attached { driver, handle, is_in_tree }: Attached) {
        let of_driver = self.0.entry(driver).or_default();
        let (own, other) = match is_in_tree {
            true => (&mut of_driver.in_tree, &of_driver.csi),
            false => (&mut of_driver.csi, &of_driver.in_tree),
        };
        let also = other.contains(&handle);
        if own.insert(handle) && also {
            of_driver.in_both = of_driver.in_both.saturating_add(1);
        }
    }
}

impl DriverVolumes {
    fn count(&self, counted: Counted) -> usize {
        let both = || self.csi.len().saturating_add(self.in_tree.len());
        match counted {
            Counted::Csi => self.csi.len(),
            Counted::InTree => self.in_tree.len(),
            Counted::Both => both().saturating_sub(self.in_both),
        }
    }

    fn contains(&self, handle: &str, counted: Counted) -> bool {
        match counted {
            Counted::Csi => self.csi.contains(handle),
            Counted::InTree => self.in_tree.contains(handle),
            Counted::Both => self.csi.contains(handle) || self.in_tree.contains(handle),
        }
    }

    /// How many of these are not among the others.
    fn count_beside(&self, others: &Self, counted: Counted) -> usize {
        let are_new = |handles: &BTreeSet<String>| {
            handles.iter().filter(|handle| !others.contains(handle, counted)).count()
        };
        match counted {
            Counted::Csi => are_new(&self.csi),
            Counted::InTree => are_new(&self.in_tree),
            Counted::Both => {
                let only_in_tree = self.in_tree.iter().filter(|handle| !self.csi.contains(*handle));
                let new = only_in_tree.filter(|handle| !others.contains(handle, counted)).count();
                are_new(&self.csi).saturating_add(new)
            }
        }
    }
}

/// A volume that is attached.
struct Attached {
    driver: String,
    handle: String,
    is_in_tree: bool,
}

/// The handles of the pods' volumes; an unbound claim counts as one volume.
pub(super) fn volumes<P: Borrow<PodInfo>>(
    pods: &[P],
    storage: &StorageSnapshot,
    annotations: &BindingAnnotations,
) -> AttachedVolumes {
    let mut all = AttachedVolumes::default();
    for pod in pods.iter().map(Borrow::borrow) {
        for used in &pod.claims {
            proto_api::count_steps!(1);
            let key = ObjectKey::new(&pod.key.namespace, &used.name);
            if let Some(found) = volume_of(&key, storage, annotations) {
                all.add(found);
            }
        }
        for disk in &pod.cloud_disks {
            proto_api::count_steps!(1);
            let (driver, handle) = (disk.driver.to_owned(), disk.handle.clone());
            all.add(Attached { driver, handle, is_in_tree: true });
        }
    }
    all
}

/// The volume of a claim; of one that is not bound, the volume that its class will provision.
fn volume_of(
    key: &ObjectKey,
    storage: &StorageSnapshot,
    annotations: &BindingAnnotations,
) -> Option<Attached> {
    let claim = storage.claims.get(key)?;
    let Some(volume) = storage.volumes.get(&claim.spec.volume_name) else {
        let provisioner = &storage.classes.get(annotations.class_of(claim))?.provisioner;
        let replacing = annotations.plugins.get(provisioner);
        let driver = replacing.map_or_else(|| provisioner.clone(), |driver| (*driver).to_owned());
        let handle = format!("claim {}", claim.metadata.uid);
        return Some(Attached { driver, handle, is_in_tree: replacing.is_some() });
    };
    let source = &volume.spec.persistent_volume_source;
    if let Some(csi) = &source.csi {
        let (driver, handle) = (csi.driver.clone(), csi.volume_handle.clone());
        return Some(Attached { driver, handle, is_in_tree: false });
    }
    let (driver, handle) = migration::disk(source)?;
    Some(Attached { driver: driver.to_owned(), handle, is_in_tree: true })
}

#[cfg(test)]
mod tests;
