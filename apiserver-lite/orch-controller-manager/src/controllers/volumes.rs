//! Volumes as the cluster sees them: claims find volumes, volumes outlive their claims as they are told to, nodes get
//! what their pods use.
//!
//! ```text
//!   pod ──ephemeral──▶ claim ◀──claim──▶ volume ──volume──▶ Available, Bound, Released, Failed
//!                        │  ▲                │
//!                  expand│  │protection      └──attach──▶ VolumeAttachment, node.status.volumesAttached
//!                        ▼  │
//!                     pods that use it
//! ```
//!
//! Binding is two writes: first the volume's `claimRef`, then the claim's `volumeName`. A crash between them leaves a
//! volume that only this claim may have, and the next look at the claim finds it. Every write is conditional on the
//! version that was looked at, so that two claims never get one volume.

pub mod attach;
pub mod claim;
pub mod ephemeral;
pub mod expand;
pub mod fit;
#[cfg(test)]
mod histories;
pub mod protection;
pub mod volume;

use proto_api::core::v1::{ObjectReference, PersistentVolume, PersistentVolumeClaim, Pod};
use proto_api::meta::v1::ObjectMeta;
use proto_api::names::Names;
use proto_api::storage::v1::StorageClass;
use proto_api::{Quantity, Resource};
use proto_client::ObjectKey;
use proto_client::events::{EventKind, correlate::EventReport, reference};
use serde_json::{Value, json};

use crate::api_writes::{ObjectKind, Part, Write};

/// The binding mode of a class that waits for the first pod.
pub const WAIT: &str = "WaitForFirstConsumer";

/// Annotations and finalizers of claims and volumes, as the ecosystem's provisioners read them.
#[derive(Clone, Debug)]
pub struct Marks {
    /// On a claim: it was bound once; what is missing since then is lost.
    pub bind_completed: String,
    /// On claim and volume: the other was chosen by this program, not by a user.
    pub bound_by_controller: String,
    /// On a volume: the provisioner that made it.
    pub provisioned_by: String,
    /// On a volume: the driver that has taken the place of an in-tree plugin.
    pub migrated_to: String,
    /// On a claim: the node that the scheduler has chosen for its first pod.
    pub selected_node: String,
    /// On a claim: the provisioner that is to make a volume; by both of its names.
    pub provisioners: [String; 2],
    /// On claim and volume: the class, as it was named before it had a field.
    pub class: String,
    /// On a class: it is the default; by both of its names.
    pub default_class: [String; 2],
    /// Finalizer of claims.
    pub claim_protection: String,
    /// Finalizer of volumes.
    pub volume_protection: String,
}

impl Marks {
    /// As the naming profile has them.
    pub fn new(names: &Names) -> Self {
        Self {
            bind_completed: names.sub_label("pv", "bind-completed"),
            bound_by_controller: names.sub_label("pv", "bound-by-controller"),
            provisioned_by: names.sub_label("pv", "provisioned-by"),
            migrated_to: names.sub_label("pv", "migrated-to"),
            selected_node: names.sub_label("volume", "selected-node"),
            provisioners: [
                names.sub_label("volume", "storage-provisioner"),
                names.sub_label("volume.beta", "storage-provisioner"),
            ],
            class: names.sub_label("volume.beta", "storage-class"),
            default_class: [
                names.sub_label("storageclass", "is-default-class"),
                names.sub_label("storageclass.beta", "is-default-class"),
            ],
            claim_protection: names.label("pvc-protection"),
            volume_protection: names.label("pv-protection"),
        }
    }

    /// The class that a claim asks for; `None` when it leaves the choice to the cluster.
    pub fn class_of_claim<'a>(&self, claim: &'a PersistentVolumeClaim) -> Option<&'a str> {
        let annotated = claim.metadata.annotations.get(&self.class);
        annotated.or(claim.spec.storage_class_name.as_ref()).map(String::as_str)
    }

    /// The class that a volume belongs to; empty for none.
    pub fn class_of_volume<'a>(&self, volume: &'a PersistentVolume) -> &'a str {
        volume.metadata.annotations.get(&self.class).unwrap_or(&volume.spec.storage_class_name)
    }

    /// The default class: of several, the newest.
    pub fn default_of<'a>(
        &self,
        classes: impl IntoIterator<Item = &'a StorageClass>,
    ) -> Option<&'a str> {
        let is_default = |class: &&StorageClass| {
            let said = |key: &String| class.metadata.annotations.get(key);
            self.default_class.iter().any(|key| said(key).is_some_and(|value| value == "true"))
        };
        let newest = classes.into_iter().filter(is_default).max_by(|a, b| {
            let age = |class: &StorageClass| class.metadata.creation_timestamp.unix();
            age(a).cmp(&age(b)).then_with(|| b.metadata.name.cmp(&a.metadata.name))
        });
        newest.map(|class| class.metadata.name.as_str())
    }
}

/// Whether an object carries an annotation, whatever it says.
pub fn has(metadata: &ObjectMeta, annotation: &str) -> bool {
    metadata.annotations.contains_key(annotation)
}

/// Whether a volume is promised to a claim: to this very object, or to whatever bears its name.
pub fn is_promised(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
    volume.spec.claim_ref.as_ref().is_some_and(|of| {
        of.name == claim.metadata.name
            && of.namespace == claim.metadata.namespace
            && (of.uid.is_empty() || of.uid == claim.metadata.uid)
    })
}

/// The claim that a volume refers to.
pub fn claim_of(volume: &PersistentVolume) -> Option<ObjectKey> {
    volume.spec.claim_ref.as_ref().map(|of| ObjectKey::new(&of.namespace, &of.name))
}

/// The names of the claims that a pod uses, its own included, in the pod's order.
pub fn claims_of(pod: &Pod) -> impl Iterator<Item = String> + '_ {
    pod.spec.volumes.iter().filter_map(|volume| {
        let source = &volume.volume_source;
        match (&source.persistent_volume_claim, &source.ephemeral) {
            (Some(claim), _) => Some(claim.claim_name.clone()),
            (None, Some(_)) => Some(own_claim(pod, &volume.name)),
            (None, None) => None,
        }
    })
}

/// The name of the claim that a pod brings along for one of its volumes.
pub fn own_claim(pod: &Pod, volume: &str) -> String {
    format!("{}-{volume}", pod.metadata.name)
}

/// Whether a claim is the pod's own: made for it, and not for an earlier pod of its name.
pub fn is_own(pod: &Pod, claim: &PersistentVolumeClaim) -> bool {
    let owns = |owner: &proto_api::meta::v1::OwnerReference| {
        owner.controller == Some(true) && owner.uid == pod.metadata.uid
    };
    claim.metadata.owner_references.iter().any(owns)
}

/// The size in a map of resources; nothing when it is not there.
pub fn storage(resources: &std::collections::BTreeMap<String, Quantity>) -> Quantity {
    resources.get("storage").copied().unwrap_or(Quantity::ZERO)
}

/// The mode of a volume or claim; a file system unless it says otherwise.
pub fn mode(said: Option<&String>) -> &str {
    said.map_or("Filesystem", String::as_str)
}

/// A reference to an object, as volumes refer to claims.
pub fn refer<T: Resource>(names: &Names, object: &T) -> ObjectReference {
    reference(object, names)
}

/// A word about an object.
pub fn say<T: Resource>(
    names: &Names,
    object: &T,
    kind: EventKind,
    reason: &'static str,
    message: impl Into<String>,
) -> EventReport {
    EventReport {
        about: reference(object, names),
        kind,
        reason: reason.into(),
        message: message.into(),
    }
}

/// A change of an object that holds only while it is as it was looked at. `fields` may hold more metadata.
pub fn change(kind: ObjectKind, metadata: &ObjectMeta, part: Part, fields: Value) -> Write {
    let mut patch = fields;
    if let Some(fields) = patch.as_object_mut() {
        let of = fields.entry("metadata").or_insert_with(|| json!({}));
        if let Some(of) = of.as_object_mut() {
            of.insert("uid".to_owned(), json!(metadata.uid));
            of.insert("resourceVersion".to_owned(), json!(metadata.resource_version));
        }
    }
    Write::Patch { kind, key: ObjectKey::of(metadata), part, patch }
}

#[cfg(test)]
pub mod examples {
    //! Claims, volumes and classes for tests.

    use proto_api::names::Profile;

    use super::*;

    /// The names of the ecosystem.
    pub fn names() -> &'static Names {
        Names::new(Profile::Kubernetes)
    }

    /// A claim of 1 GiB for one node, without a class.
    pub fn claim(name: &str) -> PersistentVolumeClaim {
        let mut claim = PersistentVolumeClaim::default();
        claim.metadata.name = name.into();
        claim.metadata.namespace = "ns".into();
        claim.metadata.uid = format!("uid-{name}");
        claim.metadata.resource_version = "7".into();
        claim.spec.access_modes = vec!["ReadWriteOnce".into()];
        claim.spec.storage_class_name = Some(String::new());
        claim.spec.resources.requests.insert("storage".into(), "1Gi".parse().unwrap());
        claim.status.phase = "Pending".into();
        claim
    }

    /// An available volume of that size, for one node, without a class, kept when it is released.
    pub fn volume(name: &str, size: &str) -> PersistentVolume {
        let mut volume = PersistentVolume::default();
        volume.metadata.name = name.into();
        volume.metadata.uid = format!("uid-{name}");
        volume.metadata.resource_version = "5".into();
        volume.spec.access_modes = vec!["ReadWriteOnce".into()];
        volume.spec.capacity.insert("storage".into(), size.parse().unwrap());
        volume.spec.persistent_volume_reclaim_policy = "Retain".into();
        volume.status.phase = "Available".into();
        volume
    }

    /// A class.
    pub fn class(name: &str, provisioner: &str, mode: &str) -> StorageClass {
        let mut class = StorageClass::default();
        class.metadata.name = name.into();
        class.provisioner = provisioner.into();
        class.volume_binding_mode = Some(mode.into());
        class
    }

    /// A volume that refers to a claim, with its uid or without.
    pub fn promised(name: &str, claim: &PersistentVolumeClaim, with_uid: bool) -> PersistentVolume {
        let mut volume = volume(name, "1Gi");
        let mut of = refer(names(), claim);
        if !with_uid {
            of.uid.clear();
        }
        volume.spec.claim_ref = Some(of);
        volume
    }

    /// A pod that uses a claim on a node.
    pub fn user(name: &str, claim: &str, node: &str) -> Pod {
        let mut pod = Pod::default();
        pod.metadata.name = name.into();
        pod.metadata.namespace = "ns".into();
        pod.metadata.uid = format!("uid-{name}");
        pod.spec.node_name = node.into();
        let mut volume = proto_api::core::v1::Volume { name: "v".into(), ..Default::default() };
        volume.volume_source.persistent_volume_claim =
            Some(proto_api::core::v1::PersistentVolumeClaimVolumeSource {
                claim_name: claim.into(),
                ..Default::default()
            });
        pod.spec.volumes.push(volume);
        pod
    }
}

#[cfg(test)]
mod tests {
    use proto_api::Time;

    use super::examples::*;
    use super::*;

    #[test]
    fn marks_are_named_as_provisioners_read_them() {
        let marks = Marks::new(names());
        assert_eq!(marks.bind_completed, "pv.kubernetes.io/bind-completed");
        assert_eq!(marks.selected_node, "volume.kubernetes.io/selected-node");
        assert_eq!(marks.provisioners[1], "volume.beta.kubernetes.io/storage-provisioner");
        assert_eq!(marks.claim_protection, "kubernetes.io/pvc-protection");
    }

    #[test]
    fn of_several_default_classes_the_newest_counts() {
        let marks = Marks::new(names());
        let made = |name: &str, at: i64, default: &str| {
            let mut class = class(name, "p", "Immediate");
            class.metadata.creation_timestamp = Time::from_unix(at);
            class.metadata.annotations.insert(marks.default_class[0].clone(), default.into());
            class
        };
        let all = [made("a", 1, "true"), made("c", 2, "true"), made("b", 2, "true")];
        assert_eq!(marks.default_of(&all), Some("b"));
        assert_eq!(marks.default_of(&[made("a", 1, "false")]), None);
    }
}
