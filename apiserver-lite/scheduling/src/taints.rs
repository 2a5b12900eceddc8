//! Taints and tolerations.

use proto_api::core::v1::{Taint, Toleration};

/// Whether the toleration matches the taint.
pub fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    let exists = toleration.operator == "Exists";
    let effect = toleration.effect.is_empty() || toleration.effect == taint.effect;
    let key = toleration.key == taint.key || toleration.key.is_empty() && exists;
    effect && key && (exists || toleration.value == taint.value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_toleration_matches_by_key_value_and_effect() {
        let taint = Taint {
            key: "k".into(),
            value: "v".into(),
            effect: "NoExecute".into(),
            ..Taint::default()
        };
        for ([key, operator, value, effect], expect) in [
            (["k", "", "v", ""], true),
            (["k", "Equal", "v", "NoExecute"], true),
            (["k", "Equal", "w", ""], false),
            (["k", "Exists", "", ""], true),
            (["k", "Exists", "", "NoSchedule"], false),
            (["l", "Exists", "", ""], false),
            (["", "Exists", "", ""], true),
            (["", "Equal", "v", ""], false),
        ] {
            let toleration = Toleration {
                key: key.into(),
                operator: operator.into(),
                value: value.into(),
                effect: effect.into(),
                ..Toleration::default()
            };
            assert_eq!(tolerates(&toleration, &taint), expect, "{toleration:?}");
        }
    }
}
