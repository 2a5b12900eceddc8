//! pure: where pods are placed. [`filter`], [`pod_affinity`] and [`volumes`] find the nodes that a pod fits on, [`score`] ranks them, and [`preemption`]
//! finds the pods of lower priority that may end for it. [`select_node`] gets all state as arguments.
//!
//! Names, weights and messages are those of kube-scheduler 1.25.

// Numbers come from API objects.
#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

pub mod claim_use;
pub mod cloud_disks;
pub mod default_spread;
#[cfg(any(test, feature = "testing"))]
pub mod examples;
pub mod excess_terms;
pub mod extenders;
#[cfg(test)]
mod extremes;
pub mod features;
pub mod filter;
pub mod host_ports;
pub mod node_info;
pub mod node_selector;
pub mod nodes;
pub mod nominations;
pub mod placement;
pub mod pod_affinity;
pub mod pod_controller;
pub mod pod_info;
pub mod preemption;
pub mod profile;
pub mod refusal;
pub mod reservations;
pub mod resource_amounts;
pub mod score;
pub mod select_node;
pub mod selected_counts;
pub mod taints;
pub mod ties;
pub mod volume_restrictions;
pub mod volumes;
