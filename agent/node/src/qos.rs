//! QoS class of a pod, and the OOM score that follows from it.

#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

use std::collections::BTreeMap;

use proto_api::Quantity;
use proto_api::core::v1::{Container, Pod};

use crate::resources::{CPU, MEMORY};

/// `status.qosClass`, derived from requests and limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum QosClass {
    /// Every container has limits on CPU and memory and requests equal to them.
    Guaranteed,
    /// At least one request or limit.
    Burstable,
    /// No request or limit.
    BestEffort,
}

impl QosClass {
    /// The API's name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Guaranteed => "Guaranteed",
            Self::Burstable => "Burstable",
            Self::BestEffort => "BestEffort",
        }
    }
}

/// QoS class of a pod, from CPU and memory of all its containers.
pub fn qos_class(pod: &Pod) -> QosClass {
    let mut requests = BTreeMap::new();
    let mut limits = BTreeMap::new();
    let mut all_limited = true;
    for container in pod.spec.init_containers.iter().chain(&pod.spec.containers) {
        add_cpu_and_memory(&mut requests, &container.resources.requests);
        all_limited &= add_cpu_and_memory(&mut limits, &container.resources.limits) == 2;
    }
    if requests.is_empty() && limits.is_empty() {
        QosClass::BestEffort
    } else if all_limited && (requests.is_empty() || requests == limits) {
        QosClass::Guaranteed
    } else {
        QosClass::Burstable
    }
}

/// The class that the API shows, which never changes in a pod's life; else the computed one.
#[must_use]
pub fn assigned_qos_class(pod: &Pod) -> QosClass {
    match pod.status.qos_class.as_str() {
        "Guaranteed" => QosClass::Guaranteed,
        "Burstable" => QosClass::Burstable,
        "BestEffort" => QosClass::BestEffort,
        _ => qos_class(pod),
    }
}

/// Adds CPU and memory to `sum` and returns how many of the two were present.
fn add_cpu_and_memory(
    sum: &mut BTreeMap<&'static str, Quantity>,
    amounts: &BTreeMap<String, Quantity>,
) -> usize {
    let mut found: usize = 0;
    for name in [CPU, MEMORY] {
        if let Some(amount) = amounts.get(name).filter(|q| !q.is_zero()) {
            let known = sum.entry(name).or_default();
            *known = *known + *amount;
            found = found.saturating_add(1);
        }
    }
    found
}

/// Score of sandboxes and guaranteed containers: killed last.
pub const OOM_SCORE_GUARANTEED: i64 = -997;
/// Score of best-effort containers: killed first.
pub const OOM_SCORE_BEST_EFFORT: i64 = 1000;

/// `oom_score_adj` of a container. A burstable container is killed sooner the less memory it requests.
pub fn oom_score_adj(class: QosClass, container: &Container, node_memory_bytes: u64) -> i64 {
    match class {
        QosClass::Guaranteed => OOM_SCORE_GUARANTEED,
        QosClass::BestEffort => OOM_SCORE_BEST_EFFORT,
        QosClass::Burstable => {
            let asked = container.resources.requests.get(MEMORY).map_or(0, |q| q.as_bytes());
            let thousandths = u128::from(asked).saturating_mul(1000);
            let share =
                thousandths.checked_div(u128::from(node_memory_bytes.max(1))).unwrap_or_default();
            let score = 1000_i64.saturating_sub(i64::try_from(share).unwrap_or(1000));
            // Between the scores of guaranteed and best-effort containers.
            score.clamp(1000 + OOM_SCORE_GUARANTEED - 1, OOM_SCORE_BEST_EFFORT - 1)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::container;

    #[test]
    fn classes() {
        let both = [("cpu", "1"), ("memory", "1Gi")];
        let cases = [
            (vec![container(&[], &[])], QosClass::BestEffort),
            (vec![container(&both, &both)], QosClass::Guaranteed),
            (vec![container(&[], &both)], QosClass::Guaranteed),
            (vec![container(&both, &[])], QosClass::Burstable),
            (vec![container(&[("cpu", "1")], &[("cpu", "1")])], QosClass::Burstable),
            (vec![container(&both, &both), container(&[], &[])], QosClass::Burstable),
            (vec![container(&[("cpu", "500m"), ("memory", "1Gi")], &both)], QosClass::Burstable),
            (vec![container(&[("nvidia.com/gpu", "1")], &[])], QosClass::BestEffort),
        ];
        for (containers, expect) in cases {
            let mut pod = Pod::default();
            pod.spec.containers = containers;
            assert_eq!(qos_class(&pod), expect, "{:?}", pod.spec.containers);
        }
    }

    #[test]
    fn oom_scores() {
        let gib = 1 << 30;
        let asks = |memory| container(&[("memory", memory)], &[]);
        let score = |c: &Container| oom_score_adj(QosClass::Burstable, c, 8 * gib);
        assert_eq!(score(&asks("4Gi")), 500);
        assert_eq!(score(&asks("1")), 999);
        assert_eq!(score(&asks("8Gi")), 2);
        assert_eq!(score(&asks("64Gi")), 2);
        assert_eq!(oom_score_adj(QosClass::BestEffort, &asks("1"), gib), 1000);
        assert_eq!(oom_score_adj(QosClass::Guaranteed, &asks("1"), gib), -997);
    }
}
