//! Owner references: create, adopt and release. The garbage collector acts on them.

use proto_api::ObjectKey;
use proto_api::meta::v1::{ObjectMeta, OwnerReference};
use serde_json::json;

use crate::api_writes::{ApiWrite, ObjectKind, Part};

/// The controller of the object, if it is of this kind.
pub fn controller<'a>(metadata: &'a ObjectMeta, kind: &str) -> Option<&'a OwnerReference> {
    let controls = |owner: &&OwnerReference| owner.controller == Some(true) && owner.kind == kind;
    metadata.owner_references.iter().find(controls)
}

/// A controller reference for a new object.
pub fn controlled_by(api_version: String, kind: &str, owner: &ObjectMeta) -> OwnerReference {
    OwnerReference {
        api_version,
        kind: kind.to_owned(),
        name: owner.name.clone(),
        uid: owner.uid.clone(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    }
}

/// A reference to an owner that does not control the object: the object goes with it.
pub fn owned_by(api_version: String, kind: &str, owner: &ObjectMeta) -> OwnerReference {
    OwnerReference {
        controller: None,
        block_owner_deletion: None,
        ..controlled_by(api_version, kind, owner)
    }
}

/// Adopts an orphan; conditional on its version.
pub fn adopt(kind: ObjectKind, metadata: &ObjectMeta, owner: OwnerReference) -> ApiWrite {
    let mut owners = metadata.owner_references.clone();
    owners.push(owner);
    set_owners(kind, metadata, owners)
}

/// Removes the owner with this uid from an object; conditional on its version.
pub fn release(kind: ObjectKind, metadata: &ObjectMeta, owner_uid: &str) -> ApiWrite {
    let mut owners = metadata.owner_references.clone();
    owners.retain(|owner| owner.uid != owner_uid);
    set_owners(kind, metadata, owners)
}

/// Replaces the owners of an object; conditional on its version.
pub fn set_owners(
    kind: ObjectKind,
    metadata: &ObjectMeta,
    owners: Vec<OwnerReference>,
) -> ApiWrite {
    let metadata_patch = json!({
        "uid": metadata.uid,
        "resourceVersion": metadata.resource_version,
        "ownerReferences": owners,
    });
    let patch = json!({ "metadata": metadata_patch });
    ApiWrite::Patch { kind, key: ObjectKey::from_metadata(metadata), part: Part::Main, patch }
}
