//! io: what a pod gets of its node besides images and volumes: processors, memory and devices of its
//! own, a cgroup, names, a resolver, a runtime class; and what it takes of the node's disk.

pub mod allocator;
pub mod cgroups_in_memory;
pub mod pod_cgroups;
pub mod pod_disk_usage;
pub mod pod_environment;
mod resolver;
