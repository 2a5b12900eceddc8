//! io: interfaces through which a pod's task acts, except the container runtime
//! (`agent_runtime::Runtime`), with their values. What implements them depends on this crate, and so
//! does the task; neither depends on the other.

mod cgroups;
pub mod objects;
mod pod_source;
mod reports;
#[cfg(feature = "testing")]
pub mod testing;
mod volumes;

pub use cgroups::{PodCgroupError, PodCgroups};
pub use objects::PodObjects;
pub use pod_source::PodSourceEvent;
pub use reports::{ReportError, Reported, Reports, ServerStatus, StatusChange};
pub use volumes::{
    AttachedVolumes, BindError, MountedVolumes, PodVolumes, UnmountError, VolumeError, VolumeFill,
    VolumeUsage, Volumes, WantedPart,
};
