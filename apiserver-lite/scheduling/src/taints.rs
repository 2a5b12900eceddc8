//! Taints and tolerations.

use proto_api::core::v1::{Taint, Toleration};

/// Whether the toleration matches the taint.
pub fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    let exists = toleration.operator == "Exists";
    let effect = toleration.effect.is_empty() || toleration.effect == taint.effect;
    let key = toleration.key == taint.key || toleration.key.is_empty() && exists;
    effect && key && (exists || toleration.value == taint.value)
}
