//! Pure decisions about the node and its pods: admission, resources, cgroup tree, eviction, and the Node object.
//!
//! Capacity, pods and time are arguments; nothing here reads a file or a clock.

#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

pub mod adaptive_limit;
pub mod admission;
pub mod cgroup;
pub mod eviction;
pub mod image_gc;
pub mod image_name;
pub mod keyring;
pub mod managers;
pub mod oom;
pub mod preempt;
pub mod pressure;
pub mod priority;
pub mod qos;
pub mod resources;
pub mod shutdown;
pub mod status;
pub mod sysctls;
pub mod unsupported_fields;

#[cfg(test)]
mod testing;
