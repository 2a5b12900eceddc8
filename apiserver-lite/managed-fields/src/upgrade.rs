//! From client-side to server-side apply: what kubectl updated becomes what it applied.

use crate::element::FieldPath;
use crate::entries::{ManagedFields, ManagedFieldsOperation, Owner};
use crate::set::FieldSet;

/// Makes the fields that `updater` owns by updates through `subresource` fields that `applier` applied, as kubectl does since 1.26 before it
/// first applies by the server. `annotation` is that of client-side apply, which the applier does not own. Other versions' updates of
/// `updater` are forgotten. Returns whether anything changed.
pub fn upgrade_client_side_apply(
    managed: &mut ManagedFields,
    updater: &str,
    applier: &str,
    subresource: &str,
    annotation: &str,
) -> bool {
    let is_update = |owner: &Owner| {
        owner.operation == ManagedFieldsOperation::Update
            && owner.manager == updater
            && owner.subresource == subresource
    };
    let mut updates: Vec<Owner> =
        managed.owners.keys().filter(|owner| is_update(owner)).cloned().collect();
    updates.sort_by_cached_key(|owner| {
        let owned = managed.owners.get(owner);
        (owned.and_then(|owned| owned.time.unix()).unwrap_or(0), owner.api_version.clone())
    });
    let applier = Owner::new(applier, ManagedFieldsOperation::Apply, "", subresource);
    let target = match managed.owners.remove(&applier) {
        Some(owned) => Some(owned),
        None => updates.first().and_then(|first| managed.owners.remove(first)),
    };
    let Some(mut target) = target else { return false };
    let before = target.fields.clone();
    let same_version = updates.iter().find(|owner| owner.api_version == target.api_version);
    if let Some(owned) = same_version.and_then(|owner| managed.owners.remove(owner)) {
        target.fields.extend(owned.fields);
    }
    let annotation: FieldSet =
        [FieldPath::fields(&["metadata", "annotations", annotation])].into_iter().collect();
    target.fields.subtract(&annotation);
    let changed = !updates.is_empty() || target.fields != before;
    managed.owners.insert(applier, target);
    managed.owners.retain(|owner, _| !is_update(owner));
    managed.drop_empty();
    changed
}
