//! Why the proxy cannot start.

use std::net::SocketAddr;

use proxy_dns::ZoneError;
use proxy_kernel::{CommitError, OpenError};

/// The proxy cannot start.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// Neither a kubeconfig nor an in-cluster configuration exists.
    #[error("no client configuration found: set --kubeconfig")]
    NoClientConfig,
    /// The kubeconfig is invalid.
    #[error("cannot load the client configuration")]
    ClientConfig(#[source] proto_client::config::ClientConfigError),
    /// `--master` is not a URL.
    #[error("--master {0:?} is not a URL")]
    Master(String),
    /// The TLS configuration is invalid.
    #[error("cannot create the API client")]
    Client(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The netlink socket cannot be opened.
    #[error("cannot open a netlink socket to netfilter")]
    Kernel(#[from] OpenError),
    /// The kernel refused the probe transactions.
    #[error("cannot probe the kernel's nf_tables features")]
    KernelFeatures(#[source] CommitError),
    /// Two metrics have the same name.
    #[error("cannot register metrics")]
    Metrics(#[from] prometheus::Error),
    /// The cluster domain is not a DNS name.
    #[error("cannot prepare the DNS zone")]
    Names(#[from] ZoneError),
    /// The address is in use and `bindAddressHardFail` is set.
    #[error("cannot listen at {0}")]
    Bind(SocketAddr, #[source] std::io::Error),
    /// `--detect-local-mode=NodeCIDR` is set and the Node object has no pod CIDRs.
    #[error("node {0} has no spec.podCIDRs")]
    NodeBlocks(String),
    /// `--announce-load-balancer-addresses` is set, and nothing guards the addresses.
    #[error(
        "--announce-load-balancer-addresses needs nf_tables: without its rules the node's own servers would be reachable at the addresses"
    )]
    AnnouncingInUserSpace,
    /// The thread cannot be created.
    #[error("cannot start the conntrack cleanup thread")]
    ConntrackCleanup(#[source] std::io::Error),
}
