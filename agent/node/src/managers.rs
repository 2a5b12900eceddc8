//! Exclusive CPUs, NUMA memory and devices of containers. Pure functions over one value, [`Allocations`], which is kept in the
//! journal.
//!
//! ```text
//!   pod ──► for each container (or the pod as a whole)
//!             hints:   cpus   memory   devices      each: on which NUMA nodes it is available
//!                         └──────┼────────┘
//!             topology:  merge by policy ──► affinity, or refusal
//!             grants:   cpus   memory   devices     taken with that affinity
//! ```

pub mod container_allocation;
pub mod cpus;
pub mod devices;
pub mod memory;
pub mod set;
pub mod topology;

pub use container_allocation::{Allocations, Grant, ManagerRules, grant};
pub use set::IdSet;
