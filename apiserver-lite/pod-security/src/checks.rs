//! The single checks, one function each, with the reasons and details of Kubernetes.

pub(crate) mod baseline;
pub(crate) mod capabilities;
pub(crate) mod restricted;
pub(crate) mod seccomp;

/// Why a check refuses a pod.
pub(crate) struct Finding {
    pub(crate) reason: &'static str,
    pub(crate) detail: String,
}
