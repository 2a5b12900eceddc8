//! The cgroups of pods.

use std::io;

use agent_host::cgroups::{CgroupError, CgroupUsage};
use agent_host::dbus::BusError;
use futures_util::future::BoxFuture;
use proto_api::core::v1::Pod;

/// Why a cgroup is not as it is wanted. For a pod's cgroup each is worth a retry.
#[derive(Debug, thiserror::Error)]
pub enum PodCgroupError {
    /// The kernel refuses.
    #[error(transparent)]
    Kernel(#[from] CgroupError),
    /// systemd, which manages the cgroups, cannot be reached or refuses.
    #[error(transparent)]
    Systemd(#[from] BusError),
    /// The cgroup of a reservation does not exist: the node's administrator must create it.
    #[error("cgroup {0} of a reservation must exist")]
    NoReservation(String),
    /// Processes were killed and have not ended yet.
    #[error("processes in cgroup {0} do not end")]
    Busy(String),
    /// The removal panicked or was cancelled.
    #[error("removal of cgroup {cgroup} was interrupted")]
    Interrupted {
        /// Path of the cgroup.
        cgroup: String,
        /// Why.
        #[source]
        source: io::Error,
    },
}

/// Creates and removes the cgroups of pods.
pub trait PodCgroups: Send + Sync {
    /// Creates the pod's cgroup or updates its values. Returns the cgroup parent for the runtime.
    fn make_cgroup(&self, pod: &Pod) -> Result<String, PodCgroupError>;
    /// Passes the pod's limits to systemd if it manages the cgroups. Idempotent.
    fn settle_cgroup<'a>(&'a self, _: &'a Pod) -> BoxFuture<'a, Result<(), PodCgroupError>> {
        Box::pin(std::future::ready(Ok(())))
    }
    /// The cgroup parent for the runtime, whether or not it exists.
    fn cgroup_parent(&self, pod: &Pod) -> String;
    /// Adopts the cgroup that an earlier agent created for this uid. Returns whether there is one.
    fn adopt_cgroup(&self, pod: &Pod) -> bool;
    /// Uids of all pods that have a cgroup.
    fn uids(&self) -> Vec<String>;
    /// Resource usage of the pod, where it can be measured.
    fn usage(&self, _pod: &Pod) -> Option<CgroupUsage> {
        None
    }
    /// Memory used by all pods together in bytes, where it can be measured.
    fn pods_memory(&self) -> Option<u64> {
        None
    }
    /// Kills what is left in the pod's cgroup and removes it.
    fn remove_cgroup<'a>(&'a self, pod: &'a Pod) -> BoxFuture<'a, Result<(), PodCgroupError>>;
}
