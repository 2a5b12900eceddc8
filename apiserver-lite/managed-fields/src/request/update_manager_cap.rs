//! The bound on owners by updates: the oldest are merged.

use std::collections::BTreeMap;

use crate::entries::{ManagedFields, ManagedFieldsOperation, Owned, Owner};

/// Owners by updates that are kept apart.
const MAX_UPDATE_OWNERS: usize = 10;

/// The manager of merged owners, one a version.
const ANCIENT: &str = "ancient-changes";

/// Merges the oldest owners by updates, those of a version with each other, until few enough are left. The first of a version stays as it
/// is until a second one joins it.
pub(super) fn merge_oldest(managed: &mut ManagedFields) {
    let updates = managed
        .owners
        .iter()
        .filter(|(owner, _)| owner.operation == ManagedFieldsOperation::Update);
    let mut oldest: Vec<(i64, Vec<u8>, Owner)> = updates
        .map(|(owner, owned)| (owned.time.unix().unwrap_or(0), owner.identifier(), owner.clone()))
        .collect();
    let mut excess = oldest.len().saturating_sub(MAX_UPDATE_OWNERS);
    if excess == 0 {
        return;
    }
    oldest.sort();
    let mut first_of: BTreeMap<String, Owner> = BTreeMap::new();
    for (_, _, owner) in oldest {
        if excess == 0 {
            return;
        }
        let Some(owned) = managed.owners.get(&owner) else { continue };
        let version = owned.api_version.clone();
        let Some(first) = first_of.get(&version) else {
            first_of.insert(version, owner);
            continue;
        };
        let bucket = Owner::new(ANCIENT, ManagedFieldsOperation::Update, &version, "");
        let Some(Owned { mut fields, api_version, time }) = managed.owners.remove(&owner) else {
            continue;
        };
        let joined = match managed.owners.remove(&bucket) {
            Some(joined) => Some(joined),
            None => managed.owners.remove(first),
        };
        if let Some(joined) = joined {
            fields.extend(joined.fields);
        }
        managed.owners.insert(bucket, Owned { fields, api_version, time });
        excess = excess.saturating_sub(1);
    }
}
