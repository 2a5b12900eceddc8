//! Which processors, memory nodes and devices a container has for itself. Pure deciders over one value, [`Allocations`], which is
//! what a restart must not forget.
//!
//! ```text
//!   pod ──► for each container (or the pod as a whole)
//!             hints:   cpus   memory   devices      each: on which NUMA nodes could it be had
//!                         └──────┼────────┘
//!             topology:  merge by policy ──► affinity, or refusal
//!             grants:   cpus   memory   devices     taken with that affinity
//! ```

pub mod cpus;
pub mod devices;
pub mod grant;
pub mod memory;
pub mod set;
pub mod topology;

pub use grant::{Allocations, Grant, Rules, grant};
pub use set::IdSet;
