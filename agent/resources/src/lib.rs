//! io: what a pod gets of its node besides images and volumes: processors, memory and devices of its
//! own, a cgroup, names, a resolver, a runtime class.

pub mod allocator;
pub mod cgroups_in_memory;
pub mod pod_cgroups;
pub mod pod_environment;
mod resolver;
