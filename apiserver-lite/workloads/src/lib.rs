//! io: plans of the controllers that run pods by other rules than a number of replicas: DaemonSets, StatefulSets, Jobs and CronJobs. Each plans writes from
//! objects and the time and does no IO itself; the crate is io because it imports `apiserver-controllers`, whose plans are values.

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

#[cfg(test)]
mod simulation;
