//! Pure: what a node decides about pods and says about itself: who may run here, how the cgroup tree looks, what the Node
//! object shows.
//!
//! Capacity, pods and time come in as values; nothing here reads a file or a clock.

#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

pub mod adaptive_limit;
pub mod admission;
pub mod cgroup;
pub mod eviction;
pub mod image_gc;
pub mod image_name;
pub mod keyring;
pub mod managers;
pub mod node_labels;
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
