//! io: routes to other nodes' pods. [`routes`] computes them from Node objects and changes the kernel's; [`router`] watches the Nodes and keeps
//! both equal.

#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

pub mod pod_cidrs;
pub mod router;
pub mod routes;
