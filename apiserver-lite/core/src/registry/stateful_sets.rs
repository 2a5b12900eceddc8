//! The retention policy of a StatefulSet's claims: its defaults if its feature is on; else it is dropped, as in Kubernetes, unless the stored object
//! has it.

use apiserver_schema::Object;

use crate::config::Config;

const RETENTION: &str = "persistentVolumeClaimRetentionPolicy";

/// Drops what is disabled from an object that is written. `before` is the stored version of an update.
pub(super) fn drop_disabled(config: &Config, object: &mut Object, before: Option<&Object>) {
    let keeps = config.gated_fields.claim_retention_policies || before.is_some_and(has_policy);
    if !keeps && has_policy(object) {
        object.fields.map_or_insert("spec").remove(RETENTION);
    }
}

fn has_policy(object: &Object) -> bool {
    object.spec().is_some_and(|spec| spec.contains(RETENTION))
}

/// Claims stay where nothing else is said.
pub(super) fn default(config: &Config, object: &mut Object) {
    if !config.gated_fields.claim_retention_policies {
        return;
    }
    let policy = object.fields.map_or_insert("spec").map_or_insert(RETENTION);
    for field in ["whenDeleted", "whenScaled"] {
        if policy.str(field).is_empty() {
            policy.insert(field, "Retain");
        }
    }
}
