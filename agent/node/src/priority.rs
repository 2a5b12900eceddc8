//! Priority of pods.

use proto_api::core::v1::Pod;

/// Lowest priority of critical pods: the node preempts others for them and evicts them last.
pub const SYSTEM_CRITICAL: i32 = 2_000_000_000;

/// Priority of a pod; 0 if it has none.
pub fn priority(pod: &Pod) -> i32 {
    pod.spec.priority.unwrap_or(0)
}

/// Whether the pod is critical: a static pod, or one of system priority.
pub fn is_critical(pod: &Pod, is_static: bool) -> bool {
    is_static || priority(pod) >= SYSTEM_CRITICAL
}
