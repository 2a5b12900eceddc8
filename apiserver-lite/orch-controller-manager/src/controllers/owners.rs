//! Owner references: made, taken over, taken off. What follows from them when an owner goes is the garbage collector's.

use proto_api::meta::v1::{ObjectMeta, OwnerReference};
use proto_client::ObjectKey;
use serde_json::json;

use crate::api_writes::{ObjectKind, Part, Write};

/// The owner that controls the object, if it is of this kind.
pub fn controller<'a>(metadata: &'a ObjectMeta, kind: &str) -> Option<&'a OwnerReference> {
    let controls = |owner: &&OwnerReference| owner.controller == Some(true) && owner.kind == kind;
    metadata.owner_references.iter().find(controls)
}

/// A reference to the controller of a new object.
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

/// Makes an object that nobody controls one of this owner's; conditional on nobody having changed it.
pub fn adopt(kind: ObjectKind, metadata: &ObjectMeta, owner: OwnerReference) -> Write {
    let mut owners = metadata.owner_references.clone();
    owners.push(owner);
    set_owners(kind, metadata, owners)
}

/// Takes the owner of this uid off an object; conditional on nobody having changed it.
pub fn release(kind: ObjectKind, metadata: &ObjectMeta, owner_uid: &str) -> Write {
    let mut owners = metadata.owner_references.clone();
    owners.retain(|owner| owner.uid != owner_uid);
    set_owners(kind, metadata, owners)
}

fn set_owners(kind: ObjectKind, metadata: &ObjectMeta, owners: Vec<OwnerReference>) -> Write {
    let metadata_patch = json!({
        "uid": metadata.uid,
        "resourceVersion": metadata.resource_version,
        "ownerReferences": owners,
    });
    let patch = json!({ "metadata": metadata_patch });
    Write::Patch { kind, key: ObjectKey::of(metadata), part: Part::Main, patch }
}
