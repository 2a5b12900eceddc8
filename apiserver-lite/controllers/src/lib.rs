//! pure: plans of the controllers. Each file plans the writes of one controller from objects and the time. Writes are values ([`api_writes`]);
//! orch-controller-manager executes them.

// Numbers come from API objects.
#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

pub mod account_token;
pub mod addresses;
pub mod api_writes;
pub mod burst;
pub mod cluster_role_aggregation;
pub mod custom_resources;
pub mod deployment;
pub mod disruption;
pub mod disruption_target;
pub mod endpoint_slices;
pub mod endpoints;
pub mod load_balancer_addresses;
pub mod mirror;
pub mod name_hash;
pub mod namespace;
pub mod node_cidr;
pub mod node_lifecycle;
pub mod other_servers;
pub mod owners;
mod plan;
pub mod pod_gc;
pub mod replica_failure;
pub mod replica_set;
pub mod replicas;
pub mod replication_controller;
pub mod root_ca;
pub mod service_account;
pub mod taint_manager;
mod target_ports;
pub mod volumes;
pub mod write_events;

pub use plan::{Adopter, Plan};

#[cfg(test)]
mod extremes;
