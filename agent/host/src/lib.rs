//! io: the machine below the pods.
//!
//! - [`machine`]: what it is and has: processors, memory, disk, names and versions.
//! - [`cgroups`]: the pods' places in the cgroup tree, on version 1 and 2.
//! - [`address`]: the node's own addresses.
//! - [`bridge`]: what the pods of the node are plugged into.

pub mod address;
pub mod bridge;
pub mod cgroups;
pub mod machine;
