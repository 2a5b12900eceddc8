//! io: what controllers read and write: caches of the objects with the fields that controllers read, the execution of their writes, and whether the
//! caches show the effect of a write; the deletion of a namespace's content; and their queues.

// Numbers come from API objects.
#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

pub mod accounts;
pub mod controller_queues;
pub mod eviction_flags;
pub mod execute_plan;
pub mod execute_write;
pub mod expiring_map;
pub mod fetch_scale;
pub mod informers;
pub mod kubernetes_flags;
pub mod lost_races;
pub mod namespace_content;
pub mod observe_write;
pub mod pods_by_claim;
pub mod pods_by_label;
pub mod pods_by_node;
pub mod projections;
pub mod sync_flags;
pub mod volume_counts;
