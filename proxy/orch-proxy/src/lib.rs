//! Bin: kube-proxy for nf_tables. Watches Services and EndpointSlices and keeps the kernel's nf_tables in sync.
//!
//! [`app::build`] does everything that can fail at the start, [`app::NftablesProxy::run`] runs until stopped.
//! [`sources`] watches the API and marks changes in [`desired`]; [`driver`], on a thread of its own, compiles and
//! commits them; [`conntrack_cleanup`] deletes stale flows. Optional: [`router`] maintains routes to other nodes'
//! pods, [`dns`] serves the cluster's names to this node's pods.

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
