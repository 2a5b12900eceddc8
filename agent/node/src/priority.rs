//! How important a pod is to the node.

use proto_api::core::v1::Pod;

/// Pods of this priority and above belong to the system: the node makes room for them and evicts them last.
pub const SYSTEM_CRITICAL: i32 = 2_000_000_000;

/// Priority of a pod; one that names none has the lowest that users may give.
pub fn priority(pod: &Pod) -> i32 {
    pod.spec.priority.unwrap_or(0)
}

/// Whether the node cannot do without the pod: a static pod, or one of system priority.
pub fn is_critical(pod: &Pod, is_static: bool) -> bool {
    is_static || priority(pod) >= SYSTEM_CRITICAL
}
