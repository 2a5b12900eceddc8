//! io: volumes of pods on the node's disk.
//!
//! ```text
//! Pod ──► sources::volumes ──► Volume ──► payload ──► Payload ──► tree ──► files in the container
//!              (pure)            │          (pure)                 (one atomic switch)
//!                                └──► empty_dir, host_path
//! ```
//!
//! Pure functions ([`sources`]) determine the content of a volume; [`tree`], [`mount`], [`empty_dir`] and [`host_path`] set it
//! up; [`VolumesOnDisk`] combines both for one node. Paths are opened from directory descriptors with `openat2(RESOLVE_BENEATH |
//! RESOLVE_NO_SYMLINKS)`, so that nothing a container can write leads elsewhere. All functions block and must be called on a
//! thread that may.

pub mod budget;
pub mod devices;
pub mod disk;
pub mod payload;
pub mod persistent;
pub mod sources;
pub mod token;

pub mod tree;

pub mod empty_dir;
pub mod fs_group;
pub mod host_path;
pub mod mount;
pub mod open_volume;
pub mod pod_volumes;
pub mod private_dirs;
pub mod renewals;
pub mod shared_mounts;
pub mod sub_path;

mod beneath;

pub use budget::Budget;
pub use payload::{Payload, PayloadFile};
pub use pod_volumes::{SetUpError, TearDownError, VolumesOnDisk};
pub use sources::{PayloadInputs, SourceError, Volume, VolumeRequirements, volumes};
