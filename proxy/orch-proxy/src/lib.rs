//! Bin: kube-proxy for nf_tables. Watches Services and EndpointSlices and keeps the kernel's nf_tables in sync.
//!
//! [`app::build`] does everything that can fail at the start, [`app::NftablesProxy::run`] runs until stopped.
//! [`sources`] watches the API and reports changes to [`proxy_sync::desired`]; [`proxy_sync::driver`], on a thread of its own, compiles and
//! commits them; [`proxy_sync::conntrack_cleanup`] deletes stale flows. Optional: [`proxy_pod_routes`] maintains routes to other nodes'
//! pods, [`proxy_node_addresses`] announces load balancers' addresses, [`dns`] serves the cluster's names to this node's pods.

pub mod app;
pub mod build_error;
pub mod cleanup;
pub mod config;
pub mod configz_client;
pub mod dns;
pub mod dns_settings;
pub mod explain;
pub mod flags;
pub mod forwarding_path;
pub mod health_check;
pub mod health_metrics;
pub mod health_page;
pub mod host;
pub mod local_node;
pub mod loopback;
pub mod metrics_page;
pub mod mode;
pub mod reference;
pub mod sources;
pub mod startup;
pub mod tables;
pub mod userspace;

pub use proxy_sync::conntrack_cleanup;
