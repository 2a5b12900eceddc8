//! io: the controllers that decide who may join the cluster. [`certificates`] approves, signs and deletes certificate requests; [`bootstrap`]
//! deletes expired bootstrap tokens and signs the ConfigMap `cluster-info` with the others.

// Numbers come from API objects.
#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

pub mod bootstrap;
pub mod certificates;
