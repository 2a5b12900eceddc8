//! pure: plans of the controllers that run pods by other rules than a number of replicas: DaemonSets, StatefulSets, Jobs and CronJobs. Each plans writes
//! from objects and the time, in the form of `apiserver-controllers`.

// Numbers come from API objects.
#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

mod claim;
pub mod cron_job;
pub mod daemon_set;
pub mod job;
mod node_fit;
mod pods;
mod revisions;
pub mod stateful_set;

pub use revisions::canonical_revision;

#[cfg(test)]
mod simulation;
