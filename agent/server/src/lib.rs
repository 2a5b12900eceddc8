//! io: the node's HTTPS endpoint, port 10250: logs, exec, attach and port-forward for the API server;
//! pods, usage and metrics for monitoring.
//!
//! A request is authenticated and authorized ([`access`]), routed ([`routes`]), and answered from
//! the agent's state ([`view::NodeView`]). The endpoint has no state of its own and decides nothing
//! about pods.

#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

mod access;
pub mod agent;
mod cadvisor;
mod endpoint;
mod exposition;
mod frames;
pub mod measure;
mod mount_queries;
pub mod open;
mod pages;
mod query;
mod reference;
mod request_permits;
mod resource_metrics;
mod routes;
mod service;
mod stats;
mod stream;
mod view;

pub use endpoint::Server;
pub use proto_client::serving::tls;
pub use reference::example_pages;
pub use service::{Service, Switches};
