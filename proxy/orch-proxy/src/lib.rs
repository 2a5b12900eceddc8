//! Bin: the network proxy of a node. Follows Services and EndpointSlices and keeps the kernel's nf_tables
//! forwarding accordingly.
//!
//! [`app::build`] makes everything that can fail at the start, [`app::Bound::run`] runs until it is asked to
//! stop. Between them: [`sources`] hears of changes and marks them in the shared [`proxy_rules::Dataplane`];
//! [`driver`] commits what is marked, as soon as there is something; [`conntrack_cleanup`] deletes stale flows,
//! away from the path of updates. [`router`], where asked for, keeps routes to the pods of other nodes, and [`dns`]
//! answers their questions for names.

pub mod addresses;

pub mod app;

pub mod cleanup;

pub mod config;

pub mod counters;

pub mod dns;

pub mod desired;

pub mod driver;

pub mod explain;

pub mod flags;

pub mod health_check;

pub mod health_page;

pub mod host;

pub mod loopback;

pub mod metrics;

pub mod metrics_page;

pub mod mode;

pub mod local_node;

pub mod router;

pub mod routes;

pub mod configz_client;

pub mod sources;

pub mod conntrack_cleanup;

pub mod userspace;

pub mod table_swap;

#[cfg(test)]
mod extremes;
