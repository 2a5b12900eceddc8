//! Defaults of fields with feature gates.

use super::set_default;
use crate::field_gates::{FieldGate, FieldGates};
use crate::object::Object;
use crate::value::Map;

/// Sets the defaults of fields whose gate is on.
pub(crate) fn apply_gated(gates: FieldGates, object: &mut Object) {
    match (object.kind.short_group, object.kind.kind()) {
        ("apps", "StatefulSet") => {
            default_stateful_set(gates, object.fields.map_or_insert("spec"));
        }
        ("storage", "CSIDriver") if gates.has(FieldGate::SeLinuxMountReadWriteOncePod) => {
            set_default(object.fields.map_or_insert("spec"), "seLinuxMount", false);
        }
        _ => {}
    }
}

/// Claims stay, and one pod is updated at a time, where nothing else is said.
fn default_stateful_set(gates: FieldGates, spec: &mut Map) {
    if gates.has(FieldGate::StatefulSetAutoDeletePvc) {
        let policy = spec.map_or_insert("persistentVolumeClaimRetentionPolicy");
        for field in ["whenDeleted", "whenScaled"] {
            if policy.str(field).is_empty() {
                policy.insert(field, "Retain");
            }
        }
    }
    let strategy = spec.map_or_insert("updateStrategy");
    if gates.has(FieldGate::MaxUnavailableStatefulSet) && strategy.str("type") == "RollingUpdate" {
        set_default(strategy.map_or_insert("rollingUpdate"), "maxUnavailable", 1);
    }
}
