//! Command line flags, with kube-proxy's names.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgAction, Args, Parser, Subcommand};
use proto_daemon::flags::{BindAddress, CommonFlags};
use proto_daemon::go_duration;
use proxy_rules::model::{AddressRange, Cidr};

use crate::dns_settings::DnsFlags;
use crate::mode::ModeFlags;
mod node;
pub use node::NodeFlags;

/// The network proxy of a node: forwards Services to their endpoints with nf_tables.
#[derive(Parser, Clone, Debug)]
#[command(name = "orch-proxy", version, about)]
pub struct Flags {
    /// Flags of all programs.
    #[command(flatten)]
    pub common: CommonFlags,
    /// Flags of the proxy.
    #[command(flatten)]
    pub proxy: ProxyFlags,
    /// Flags of the mode.
    #[command(flatten)]
    pub mode: ModeFlags,
    /// Flags of the DNS server.
    #[command(flatten)]
    pub dns: DnsFlags,
    /// Flags of the node and the process.
    #[command(flatten)]
    pub node: NodeFlags,
    /// A subcommand instead of forwarding.
    #[command(subcommand)]
    pub command: Option<ProxyCommand>,
}

/// Flags of the proxy. Each overrides the configuration file.
#[derive(Args, Clone, Debug)]
pub struct ProxyFlags {
    /// Path of the kubeconfig.
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// URL of the API server; overrides the kubeconfig.
    #[arg(long, value_name = "URL")]
    pub master: Option<String>,
    /// Name of the Node object; the hostname by default.
    #[arg(long, value_name = "NAME")]
    pub hostname_override: Option<String>,
    /// CIDRs of pods, at most one per family, separated by a comma.
    #[arg(long, value_name = "CIDR", value_delimiter = ',')]
    pub cluster_cidr: Option<Vec<Cidr>>,
    /// Default IP address of the health and metrics servers.
    #[arg(long, value_name = "IP")]
    pub bind_address: Option<IpAddr>,
    /// Address of the metrics server, as IP or IP:port.
    #[arg(long, value_name = "ADDRESS")]
    pub metrics_bind_address: Option<BindAddress>,
    /// CIDRs of node addresses that serve node ports; all but loopback by default.
    #[arg(long, visible_alias = "nodeport-addresses", value_name = "CIDR", value_delimiter = ',')]
    pub node_port_addresses: Option<Vec<Cidr>>,
    /// Masquerade all traffic to cluster IPs.
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub masquerade_all: Option<bool>,
    /// Maximum of tracked connections per core; 0 leaves nf_conntrack_max unchanged.
    #[arg(long, value_name = "COUNT")]
    pub conntrack_max_per_core: Option<u32>,
    /// Minimum for nf_conntrack_max.
    #[arg(long, value_name = "COUNT")]
    pub conntrack_min: Option<u32>,
    /// conntrack timeout of idle TCP connections; 0 leaves it unchanged.
    #[arg(long, value_name = "DURATION", value_parser = go_duration::parse)]
    pub conntrack_tcp_timeout_established: Option<Duration>,
    /// conntrack timeout of TCP connections in CLOSE_WAIT; 0 leaves it unchanged.
    #[arg(long, value_name = "DURATION", value_parser = go_duration::parse)]
    pub conntrack_tcp_timeout_close_wait: Option<Duration>,
    /// Interval at which the kernel's tables are read back and compared.
    #[arg(long, value_name = "DURATION", value_parser = go_duration::parse)]
    pub config_sync_period: Option<Duration>,
    /// Name of the nf_tables tables; the program's name by default.
    #[arg(long, value_name = "NAME")]
    pub nft_table: Option<String>,
    /// Maintain routes to other nodes' pods through those nodes' addresses, and masquerade what pods send outside
    /// --cluster-cidr. For nodes on one network, if no other component does this.
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub pod_routes: Option<bool>,
    /// Count connections to each address and node port of each Service, in the metric service_connections_total.
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub service_counters: Option<bool>,
    /// Ranges of addresses of load balancers, as CIDRs or FIRST-LAST: those of the controller manager's --service-load-balancer-addresses. What it has given to
    /// this node is announced, by ARP and neighbour discovery on the interface of the node's address. Other addresses never are.
    #[arg(long, value_name = "RANGES", value_delimiter = ',')]
    pub announce_load_balancer_addresses: Option<Vec<AddressRange>>,
    /// Delete the proxy's tables and exit.
    #[arg(long, action = ArgAction::Set, num_args = 0..=1, require_equals = true,
          default_value_t = false, default_missing_value = "true")]
    pub cleanup: bool,
}

/// Subcommands.
#[derive(Subcommand, Clone, Debug)]
pub enum ProxyCommand {
    /// Delete the proxy's tables and exit.
    Cleanup(CleanupFlags),
    /// Explain what should happen to a connection and what the kernel's tables do to it. Settings come from the
    /// running proxy; flags override them.
    Trace(Question),
    /// Compare the kernel's tables with the desired ones; exit with 1 if they differ. Settings come from the running
    /// proxy; flags override them.
    Diff,
}

/// What is deleted besides the tables.
#[derive(Args, Clone, Copy, Debug)]
pub struct CleanupFlags {
    /// Remove the routes to other nodes' pods too.
    #[arg(long)]
    pub routes: bool,
}

/// A connection to explain.
#[derive(Args, Clone, Debug)]
pub struct Question {
    /// tcp, udp or sctp.
    pub protocol: String,
    /// Destination address.
    pub address: IpAddr,
    /// Destination port.
    pub port: u16,
    /// Source address; this node by default.
    #[arg(long, value_name = "IP")]
    pub from: Option<IpAddr>,
}

/// What the process does.
#[derive(Clone, Debug)]
pub enum Operation {
    /// Forward until stopped.
    Forward,
    /// Set the sysctls.
    Prepare,
    /// Write the configuration to a file.
    WriteConfig(PathBuf),
    /// Delete the tables, and the routes if that is asked for.
    CleanUp(CleanupFlags),
    /// Explain a connection.
    Trace(Question),
    /// Compare the tables.
    Diff,
}

impl Flags {
    /// What the flags select.
    pub fn operation(&self) -> Operation {
        if let Some(path) = &self.node.write_config_to {
            return Operation::WriteConfig(path.clone());
        }
        match (&self.command, self.proxy.cleanup) {
            (Some(ProxyCommand::Cleanup(flags)), _) => Operation::CleanUp(*flags),
            (None, true) => Operation::CleanUp(CleanupFlags { routes: false }),
            (Some(ProxyCommand::Trace(question)), _) => Operation::Trace(question.clone()),
            (Some(ProxyCommand::Diff), _) => Operation::Diff,
            (None, false) if self.node.init_only => Operation::Prepare,
            (None, false) => Operation::Forward,
        }
    }
}
