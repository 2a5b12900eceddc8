//! io: the machine below the pods.
//!
//! - [`machine`]: what it is and has: processors, memory, disk, names and versions.
//! - [`cgroups`]: the pods' places in the cgroup tree, on version 1 and 2.
//! - [`cgroup_stats`], [`net_counters`], [`process`]: what is used, read when somebody asks.
//! - [`address`]: the node's own addresses.
//! - [`systemd`]: bounds of slices where systemd manages the cgroups.
//! - [`topology`]: where its processors and memory lie.
//! - [`bridge`]: what the pods of the node are plugged into.
//! - [`dbus`], [`logind`]: the word that the machine shuts down.
//! - [`disk_usage`]: what a directory takes.
//! - [`stall`]: the kernel's word that memory is short; [`kernel_log`]: whom it killed for it.

pub mod address;
pub mod bridge;
pub mod cgroup_stats;
pub mod cgroups;
pub mod dbus;
pub mod disk_usage;
pub mod kernel_log;
pub mod logind;
pub mod machine;
pub mod net_counters;
pub mod process;
pub mod stall;
mod sys;
pub mod systemd;
pub mod topology;
