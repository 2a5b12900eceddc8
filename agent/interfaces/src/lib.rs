//! io: interfaces through which a pod's task acts, except the container runtime
//! (`agent_runtime::Runtime`), with their values. What implements them depends on this crate, and so
//! does the task; neither depends on the other.

mod cgroups;
mod error_text;
pub mod objects;
mod pod_source;
mod reports;
#[cfg(feature = "testing")]
pub mod testing;
mod volumes;

pub use cgroups::PodCgroups;
pub use error_text::ErrorText;
pub use objects::PodObjects;
pub use pod_source::PodSourceEvent;
pub use reports::{ReportError, Reported, Reports, ServerStatus, StatusChange};
pub use volumes::{
    AttachedVolumes, MountedVolumes, PodVolumes, VolumeError, VolumeFill, VolumeUsage, Volumes,
    WantedPart,
};
