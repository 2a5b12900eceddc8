//! io: the machine below the pods.
//!
//! - [`machine`]: CPUs, memory, disk, names and versions.
//! - [`cgroups`]: the pods' cgroups, version 1 and 2.
//! - [`cgroup_stats`], [`net_counters`], [`process`]: usage, read on demand.
//! - [`address`]: the node's addresses.
//! - [`systemd`]: limits of slices where systemd manages cgroups.
//! - [`topology`]: CPUs and memory by NUMA node.
//! - [`bridge`]: the bridge of the node's pods.
//! - [`dbus`], [`logind`]: shutdown of the machine.
//! - [`disk_usage`]: disk usage of directories; [`directory_watch`]: changes in them.
//! - [`offload`](mod@offload): blocking work, on threads that may block.
//! - [`stall`]: memory pressure; [`kernel_log`]: out-of-memory kills.

pub mod address;
pub mod bridge;
pub mod cgroup_stats;
pub mod cgroups;
pub mod dbus;
pub mod directory_watch;
pub mod disk_usage;
pub mod kernel_log;
pub mod logind;
pub mod machine;
pub mod net_counters;
pub mod offload;
pub mod process;
pub mod stall;
mod sys;
pub mod systemd;
pub mod topology;

pub use offload::{PodWork, offload, offload_for_pod};
