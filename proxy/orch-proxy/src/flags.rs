//! The command line, with the flag names of kube-proxy.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgAction, Args, Parser, Subcommand};
use proto_daemon::flags::{BindAddress, CommonFlags};
use proto_daemon::go_duration;
use proxy_rules::model::Cidr;

use crate::dns::DnsFlags;
use crate::mode::ModeFlags;
mod node;
pub use node::NodeFlags;

/// The network proxy of a node: forwards services to their endpoints by nf_tables.
#[derive(Parser, Clone, Debug)]
#[command(name = "orch-proxy", version, about)]
pub struct Flags {
    /// What all programs have.
    #[command(flatten)]
    pub common: CommonFlags,
    /// What this program has.
    #[command(flatten)]
    pub proxy: ProxyFlags,
    /// How to forward.
    #[command(flatten)]
    pub mode: ModeFlags,
    /// What its resolver has.
    #[command(flatten)]
    pub dns: DnsFlags,
    /// What it has about the node and the process.
    #[command(flatten)]
    pub node: NodeFlags,
    /// Something else to do than to forward.
    #[command(subcommand)]
    pub command: Option<Command>,
}

/// Flags of the proxy. Each overrides the configuration file.
#[derive(Args, Clone, Debug)]
pub struct ProxyFlags {
    /// Client configuration file.
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Address of the API server; overrides the client configuration.
    #[arg(long, value_name = "URL")]
    pub master: Option<String>,
    /// Name of this node; the host's name when not given.
    #[arg(long, value_name = "NAME")]
    pub hostname_override: Option<String>,
    /// Addresses of pods, at most one block per family, separated by a comma.
    #[arg(long, value_name = "CIDR", value_delimiter = ',')]
    pub cluster_cidr: Option<Vec<Cidr>>,
    /// Address that servers of this program listen at unless told otherwise.
    #[arg(long, value_name = "IP")]
    pub bind_address: Option<IpAddr>,
    /// Address of the metrics server, as IP or IP:port.
    #[arg(long, value_name = "ADDRESS")]
    pub metrics_bind_address: Option<BindAddress>,
    /// Blocks of node addresses that serve node ports; all but loopback when not given.
    #[arg(long, visible_alias = "nodeport-addresses", value_name = "CIDR", value_delimiter = ',')]
    pub node_port_addresses: Option<Vec<Cidr>>,
    /// Masquerade all traffic to cluster addresses.
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub masquerade_all: Option<bool>,
    /// Connections to track per core; 0 leaves the limit as it is.
    #[arg(long, value_name = "COUNT")]
    pub conntrack_max_per_core: Option<u32>,
    /// Connections to track at least.
    #[arg(long, value_name = "COUNT")]
    pub conntrack_min: Option<u32>,
    /// How long an idle TCP connection is known; 0 leaves it as it is.
    #[arg(long, value_name = "DURATION", value_parser = go_duration::parse)]
    pub conntrack_tcp_timeout_established: Option<Duration>,
    /// How long a TCP connection in CLOSE_WAIT is known; 0 leaves it as it is.
    #[arg(long, value_name = "DURATION", value_parser = go_duration::parse)]
    pub conntrack_tcp_timeout_close_wait: Option<Duration>,
    /// How often the kernel's tables are read back and compared.
    #[arg(long, value_name = "DURATION", value_parser = go_duration::parse)]
    pub config_sync_period: Option<Duration>,
    /// Name of the nf_tables tables; the program's name when not given.
    #[arg(long, value_name = "NAME")]
    pub nft_table: Option<String>,
    /// Keep routes to the pods of other nodes, by way of those nodes' addresses, and give what pods send to
    /// beyond --cluster-cidr the node's address. For networks on which the nodes are neighbours and nothing
    /// else does this.
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub pod_routes: Option<bool>,
    /// Count the connections to each address and node port of each service; see the metric
    /// service_connections_total.
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub service_counters: Option<bool>,
    /// Remove all that this program made, and end.
    #[arg(long, action = ArgAction::Set, num_args = 0..=1, require_equals = true,
          default_value_t = false, default_missing_value = "true")]
    pub cleanup: bool,
}

/// Something else to do than to forward.
#[derive(Subcommand, Clone, Debug)]
pub enum Command {
    /// Remove all that this program made in the kernel, and end.
    Cleanup,
    /// Tell what should happen to a connection and what the kernel's tables do to it. Asks the proxy that runs here how
    /// it is configured; flags go before its answer.
    Trace(Question),
    /// Tell what the kernel has that it should not have, and the reverse; ends with 1 if there is anything. Asks the
    /// proxy that runs here how it is configured; flags go before its answer.
    Diff,
}

/// A connection to explain.
#[derive(Args, Clone, Debug)]
pub struct Question {
    /// tcp, udp or sctp.
    pub protocol: String,
    /// Address that it goes to.
    pub address: IpAddr,
    /// Port that it goes to.
    pub port: u16,
    /// Address that it comes from; this machine when not given.
    #[arg(long, value_name = "IP")]
    pub from: Option<IpAddr>,
}

/// What the process is to do.
#[derive(Clone, Debug)]
pub enum Act {
    /// Forward until asked to stop.
    Forward,
    /// Put the host's settings right.
    Prepare,
    /// Write the configuration to a file.
    WriteConfig(PathBuf),
    /// Remove what is ours.
    CleanUp,
    /// Explain a connection.
    Trace(Question),
    /// Compare the tables with what they should be.
    Diff,
}

impl Flags {
    /// What the process is to do.
    pub fn act(&self) -> Act {
        if let Some(path) = &self.node.write_config_to {
            return Act::WriteConfig(path.clone());
        }
        match (&self.command, self.proxy.cleanup) {
            (Some(Command::Cleanup), _) | (None, true) => Act::CleanUp,
            (Some(Command::Trace(question)), _) => Act::Trace(question.clone()),
            (Some(Command::Diff), _) => Act::Diff,
            (None, false) if self.node.init_only => Act::Prepare,
            (None, false) => Act::Forward,
        }
    }
}
