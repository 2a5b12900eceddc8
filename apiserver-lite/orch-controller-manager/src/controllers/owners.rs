//! Objects whose owners are all gone go too.

use proto_api::meta::v1::{ObjectMeta, OwnerReference};
use proto_client::ObjectKey;
use serde_json::json;

use super::Plan;
use crate::write::{ObjectKind, Part, Write};

/// What is known of an owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// An object of that name and uid exists.
    There,
    /// None does.
    Gone,
    /// Its kind is not looked at here.
    Unknown,
}

/// Deletes the object if it has owners and none is left.
pub fn plan(
    kind: ObjectKind,
    metadata: &ObjectMeta,
    presence: impl Fn(&OwnerReference) -> Presence,
) -> Plan {
    let owners = &metadata.owner_references;
    let orphaned =
        !owners.is_empty() && owners.iter().all(|owner| presence(owner) == Presence::Gone);
    if !orphaned || metadata.deletion_timestamp.is_some() {
        return Plan::default();
    }
    let (key, uid) = (ObjectKey::of(metadata), metadata.uid.clone());
    Plan::of([Write::Delete { kind, key, uid, grace_secs: None }])
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_when_every_owner_is_known_to_be_gone() {
        use Presence::{Gone, There, Unknown};
        let check = |owners: &[Presence], expect: usize| {
            let reference =
                |nth: usize| OwnerReference { name: nth.to_string(), ..Default::default() };
            let owner_references = (0..owners.len()).map(reference).collect();
            let metadata = ObjectMeta { owner_references, ..ObjectMeta::default() };
            let presence = |owner: &OwnerReference| owners[owner.name.parse::<usize>().unwrap()];
            let writes = plan(ObjectKind::Pod, &metadata, presence).writes;
            assert_eq!(writes.len(), expect, "{owners:?}");
        };
        check(&[], 0);
        check(&[There], 0);
        check(&[Gone], 1);
        check(&[Unknown], 0);
        check(&[Gone, There], 0);
        check(&[Gone, Unknown], 0);
        check(&[Gone, Gone], 1);
    }
}
