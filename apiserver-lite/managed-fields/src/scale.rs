//! Owners of `spec.replicas` of a Scale: those of the field that it shows of another object.

use std::collections::BTreeMap;

use crate::element::FieldPath;
use crate::entries::{ManagedFields, ManagedFieldsOperation, Owned};
use crate::set::FieldSet;

const SCALE_VERSION: &str = "autoscaling/v1";

/// Paths of the number of replicas in the scaled kind, by `apiVersion`: `.spec.replicas` of built-in kinds.
pub type ReplicasPaths = BTreeMap<String, FieldPath>;

/// The owners of a Scale, from those of the object that it scales.
pub fn owners_of_scale(parent: &ManagedFields, paths: &ReplicasPaths) -> ManagedFields {
    let replicas: FieldSet = [FieldPath::fields(&["spec", "replicas"])].into_iter().collect();
    let owners = parent.owners.iter().filter_map(|(owner, owned)| {
        let path = paths.get(&owned.api_version)?;
        owned.fields.contains(path).then(|| {
            let api_version = SCALE_VERSION.to_owned();
            (owner.clone(), Owned { fields: replicas.clone(), api_version, time: owned.time })
        })
    });
    ManagedFields { owners: owners.collect() }
}

/// The owners of the scaled object, after those of its Scale became `scale`. `api_version` is that of the object. New owners write through
/// the subresource `scale`.
pub fn owners_of_scaled(
    parent: &ManagedFields,
    mut scale: ManagedFields,
    api_version: &str,
    paths: &ReplicasPaths,
) -> ManagedFields {
    let mut owners = BTreeMap::new();
    for (owner, owned) in &parent.owners {
        let Some(path) = paths.get(&owned.api_version) else { continue }; // a version that is not served any more
        let mut owned = owned.clone();
        if owned.fields.contains(path) && scale.owners.remove(owner).is_none() {
            let lost: FieldSet = [path.clone()].into_iter().collect();
            owned.fields.subtract(&lost);
        }
        if !owned.fields.is_empty() {
            owners.insert(owner.clone(), owned);
        }
    }
    let path = paths.get(api_version).cloned();
    for (mut owner, owned) in scale.owners {
        let Some(path) = path.clone() else { continue };
        if !owned.fields.contains(&FieldPath::fields(&["spec", "replicas"])) {
            continue;
        }
        if owner.operation == ManagedFieldsOperation::Update {
            owner.api_version = api_version.to_owned();
        }
        let added: FieldSet = [path].into_iter().collect();
        let entry = owners.entry(owner).or_insert_with(|| Owned {
            fields: FieldSet::new(),
            api_version: api_version.to_owned(),
            time: owned.time,
        });
        entry.fields.extend(added);
    }
    ManagedFields { owners }
}
