//! Fields of StatefulSets with feature gates: their defaults if the gate is on; else they are dropped, as in Kubernetes, unless the stored object has
//! them.

use apiserver_schema::{Map, Object, Value};

use crate::config::Config;

const RETENTION: &str = "persistentVolumeClaimRetentionPolicy";
const STRATEGY: &str = "updateStrategy";
const ROLLING: &str = "rollingUpdate";
const MAX_UNAVAILABLE: &str = "maxUnavailable";

/// Drops what is disabled from an object that is written. `before` is the stored version of an update.
pub(super) fn drop_disabled(config: &Config, object: &mut Object, before: Option<&Object>) {
    let gates = config.gated_fields;
    let keeps = gates.claim_retention_policies || before.is_some_and(has_policy);
    if !keeps && has_policy(object) {
        object.fields.map_or_insert("spec").remove(RETENTION);
    }
    let keeps = gates.max_unavailable_of_sets || before.is_some_and(has_max_unavailable);
    if !keeps && has_max_unavailable(object) {
        let spec = object.fields.map_or_insert("spec");
        spec.map_or_insert(STRATEGY).map_or_insert(ROLLING).remove(MAX_UNAVAILABLE);
    }
}

fn has_policy(object: &Object) -> bool {
    object.spec().is_some_and(|spec| spec.contains(RETENTION))
}

fn has_max_unavailable(object: &Object) -> bool {
    rolling_update(object).is_some_and(|rolling| rolling.contains(MAX_UNAVAILABLE))
}

fn rolling_update(object: &Object) -> Option<&Map> {
    object.spec()?.map(STRATEGY)?.map(ROLLING)
}

/// Claims stay, and one pod is updated at a time, where nothing else is said.
pub(super) fn default(config: &Config, object: &mut Object) {
    if config.gated_fields.claim_retention_policies {
        let policy = object.fields.map_or_insert("spec").map_or_insert(RETENTION);
        for field in ["whenDeleted", "whenScaled"] {
            if policy.str(field).is_empty() {
                policy.insert(field, "Retain");
            }
        }
    }
    if config.gated_fields.max_unavailable_of_sets {
        let strategy = object.fields.map_or_insert("spec").map_or_insert(STRATEGY);
        let rolls = strategy.str("type") == "RollingUpdate";
        if rolls && !strategy.map(ROLLING).is_some_and(|rolling| rolling.contains(MAX_UNAVAILABLE))
        {
            strategy.map_or_insert(ROLLING).insert(MAX_UNAVAILABLE, Value::Int(1));
        }
    }
}
