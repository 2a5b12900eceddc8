//! The volume controllers: bind claims to volumes, reclaim volumes, attach volumes to the nodes of their pods.
//!
//! ```text
//!   pod ──ephemeral──▶ claim ◀──claim──▶ volume ──volume──▶ Available, Bound, Released, Failed
//!                        │  ▲                │
//!                  expand│  │protection      └──attach──▶ VolumeAttachment, node.status.volumesAttached
//!                        ▼  │
//!                     pods that use it
//! ```
//!
//! Binding is two writes: first the volume's `claimRef`, then the claim's `volumeName`. A crash between them leaves a volume that is reserved for
//! the claim, and the next reconcile of the claim completes the binding. Every write is conditional on the resource version, so that two claims
//! never get one volume.

pub mod attach;
pub mod claim;
pub mod ephemeral;
pub mod expand;
pub mod fit;
#[cfg(test)]
mod histories;
pub mod protection;
pub mod volume;

use std::collections::BTreeSet;

pub use apiserver_scheduling::volumes::access_modes;
use proto_api::core::v1::{ObjectReference, PersistentVolume, PersistentVolumeClaim, Pod};
use proto_api::event_report::{EventKind, EventReport, reference};
use proto_api::meta::v1::ObjectMeta;
use proto_api::names::Names;
use proto_api::storage::v1::StorageClass;
use proto_api::{ObjectKey, Quantity, Resource};
use serde_json::{Value, json};

use crate::api_writes::{ApiWrite, ObjectKind, Part};

/// The binding mode of a class whose claims are bound after a pod is scheduled.
pub const WAIT: &str = "WaitForFirstConsumer";

/// The annotations and finalizers of claims, volumes and classes, named by the naming profile.
#[derive(Clone, Debug)]
pub struct VolumeAnnotations {
    /// On a claim: the binding was completed.
    pub bind_completed: String,
    /// On a claim or volume: the other was selected by the controller, not by a user.
    pub bound_by_controller: String,
    /// On a volume: its provisioner.
    pub provisioned_by: String,
    /// On a volume: the CSI driver that replaces an in-tree plugin.
    pub migrated_to: String,
    /// On a claim: the node that the scheduler selected for its first pod.
    pub selected_node: String,
    /// On a claim: the provisioner of its volume; current and beta name.
    pub provisioners: [String; 2],
    /// On a claim or volume: the storage class, which precedes the field.
    pub class: String,
    /// On a class: whether it is the default; current and beta name.
    pub default_class: [String; 2],
    /// Finalizer of claims.
    pub claim_protection: String,
    /// Finalizer of volumes.
    pub volume_protection: String,
}

impl VolumeAnnotations {
    /// The names of a naming profile.
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

    /// The class of a claim; `None` for the default class.
    pub fn class_of_claim<'a>(&self, claim: &'a PersistentVolumeClaim) -> Option<&'a str> {
        let annotated = claim.metadata.annotations.get(&self.class);
        annotated.or(claim.spec.storage_class_name.as_ref()).map(String::as_str)
    }

    /// The class of a volume; empty for none.
    pub fn class_of_volume<'a>(&self, volume: &'a PersistentVolume) -> &'a str {
        volume.metadata.annotations.get(&self.class).unwrap_or(&volume.spec.storage_class_name)
    }

    /// The default class, the newest if there are several.
    pub fn default_of<'a>(
        &self,
        classes: impl IntoIterator<Item = &'a StorageClass>,
    ) -> Option<&'a str> {
        let is_default = |class: &&StorageClass| {
            let value = |key: &String| class.metadata.annotations.get(key);
            self.default_class.iter().any(|key| value(key).is_some_and(|value| value == "true"))
        };
        let newest = classes.into_iter().filter(is_default).max_by(|a, b| {
            let age = |class: &StorageClass| class.metadata.creation_timestamp.unix();
            age(a).cmp(&age(b)).then_with(|| b.metadata.name.cmp(&a.metadata.name))
        });
        newest.map(|class| class.metadata.name.as_str())
    }
}

/// Whether an object has an annotation, with any value.
pub fn has_annotation(metadata: &ObjectMeta, annotation: &str) -> bool {
    metadata.annotations.contains_key(annotation)
}

/// Whether a volume's claimRef names the claim, with its uid or without one.
pub fn is_reserved_for(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
    volume.spec.claim_ref.as_ref().is_some_and(|of| {
        of.name == claim.metadata.name
            && of.namespace == claim.metadata.namespace
            && (of.uid.is_empty() || of.uid == claim.metadata.uid)
    })
}

/// The claim in a volume's claimRef.
pub fn claim_of(volume: &PersistentVolume) -> Option<ObjectKey> {
    volume.spec.claim_ref.as_ref().map(|of| ObjectKey::new(&of.namespace, &of.name))
}

/// Most volumes of a pod whose claims are made and whose volumes are attached: a node of this project sets up no more (`VOLUMES_MAX` of
/// `agent-interfaces`).
pub const POD_VOLUMES_MAX: usize = 1024;

/// Whether a pod has more volumes than [`POD_VOLUMES_MAX`]: no node runs it. Those of a cached pod are its claims.
pub fn has_excess_volumes(pod: &Pod) -> bool {
    pod.spec.volumes.len() > POD_VOLUMES_MAX
}

/// The names of a pod's claims in order, each once, including those of ephemeral volumes.
pub fn claims_of(pod: &Pod) -> impl Iterator<Item = String> + '_ {
    let names = pod.spec.volumes.iter().filter_map(|volume| {
        let source = &volume.volume_source;
        match (&source.persistent_volume_claim, &source.ephemeral) {
            (Some(claim), _) => Some(claim.claim_name.clone()),
            (None, Some(_)) => Some(ephemeral_claim_name(pod, &volume.name)),
            (None, None) => None,
        }
    });
    let mut known = BTreeSet::new();
    names.filter(move |name| known.insert(name.clone()))
}

/// The name of the claim of a pod's ephemeral volume.
pub fn ephemeral_claim_name(pod: &Pod, volume: &str) -> String {
    format!("{}-{volume}", pod.metadata.name)
}

/// Whether the pod controls the claim.
pub fn is_ephemeral_claim_of(pod: &Pod, claim: &PersistentVolumeClaim) -> bool {
    let owns = |owner: &proto_api::meta::v1::OwnerReference| {
        owner.controller == Some(true) && owner.uid == pod.metadata.uid
    };
    claim.metadata.owner_references.iter().any(owns)
}

/// The resource `storage`; zero if not set.
pub fn storage(resources: &std::collections::BTreeMap<String, Quantity>) -> Quantity {
    resources.get("storage").copied().unwrap_or(Quantity::ZERO)
}

/// The volume mode; Filesystem if not set.
pub fn mode(mode: Option<&String>) -> &str {
    mode.map_or("Filesystem", String::as_str)
}

/// A reference to an object, as in a claimRef.
pub fn reference_to<T: Resource>(names: &Names, object: &T) -> ObjectReference {
    reference(object, names)
}

/// An event about an object.
pub fn event_report<T: Resource>(
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

/// A patch that is conditional on the object's uid and version. `fields` may contain more metadata.
pub fn conditional_patch(
    kind: ObjectKind,
    metadata: &ObjectMeta,
    part: Part,
    fields: Value,
) -> ApiWrite {
    let mut patch = fields;
    if let Some(fields) = patch.as_object_mut() {
        let of = fields.entry("metadata").or_insert_with(|| json!({}));
        if let Some(of) = of.as_object_mut() {
            of.insert("uid".to_owned(), json!(metadata.uid));
            of.insert("resourceVersion".to_owned(), json!(metadata.resource_version));
        }
    }
    ApiWrite::Patch { kind, key: ObjectKey::from_metadata(metadata), part, patch }
}

#[cfg(test)]
pub mod examples {
    //! Claims, volumes and classes for tests.

    use proto_api::names::Profile;

    use super::*;

    /// The names of the profile `kubernetes`.
    pub fn names() -> &'static Names {
        Names::new(Profile::Kubernetes)
    }

    /// A ReadWriteOnce claim of 1 GiB without a class.
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

    /// An available ReadWriteOnce volume without a class that is retained.
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

    /// A storage class.
    pub fn class(name: &str, provisioner: &str, mode: &str) -> StorageClass {
        let mut class = StorageClass::default();
        class.metadata.name = name.into();
        class.provisioner = provisioner.into();
        class.volume_binding_mode = Some(mode.into());
        class
    }

    /// A volume with a claimRef, with or without the claim's uid.
    pub fn promised(name: &str, claim: &PersistentVolumeClaim, with_uid: bool) -> PersistentVolume {
        let mut volume = volume(name, "1Gi");
        let mut of = reference_to(names(), claim);
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
        let annotations = VolumeAnnotations::new(names());
        assert_eq!(annotations.bind_completed, "pv.kubernetes.io/bind-completed");
        assert_eq!(annotations.selected_node, "volume.kubernetes.io/selected-node");
        assert_eq!(annotations.provisioners[1], "volume.beta.kubernetes.io/storage-provisioner");
        assert_eq!(annotations.claim_protection, "kubernetes.io/pvc-protection");
    }

    #[test]
    fn of_several_default_classes_the_newest_counts() {
        let annotations = VolumeAnnotations::new(names());
        let made = |name: &str, at: i64, default: &str| {
            let mut class = class(name, "p", "Immediate");
            class.metadata.creation_timestamp = Time::from_unix(at);
            class.metadata.annotations.insert(annotations.default_class[0].clone(), default.into());
            class
        };
        let all = [made("a", 1, "true"), made("c", 2, "true"), made("b", 2, "true")];
        assert_eq!(annotations.default_of(&all), Some("b"));
        assert_eq!(annotations.default_of(&[made("a", 1, "false")]), None);
    }
}
