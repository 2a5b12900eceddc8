//! Flags about the node and the process, with the names of kube-proxy; and those of its flags that mean
//! nothing here, which are taken and left unused so that existing units and manifests start this program.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgAction, Args};
use proto_daemon::{feature_gates, go_duration};

/// Flags about the node and the process.
#[derive(Args, Clone, Debug, Default)]
pub struct NodeFlags {
    /// End when a server's address cannot be bound, instead of a warning.
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub bind_address_hard_fail: Option<bool>,
    /// How traffic of this node's pods is told: ClusterCIDR, NodeCIDR, BridgeInterface or InterfaceNamePrefix.
    #[arg(long, value_name = "MODE")]
    pub detect_local_mode: Option<String>,
    /// Interface by which pods' traffic arrives, for BridgeInterface.
    #[arg(long, value_name = "NAME")]
    pub pod_bridge_interface: Option<String>,
    /// First letters of the interfaces by which pods' traffic arrives, for InterfaceNamePrefix.
    #[arg(long, value_name = "PREFIX")]
    pub pod_interface_name_prefix: Option<String>,
    /// Serve node ports on loopback addresses too.
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub iptables_localhost_nodeports: Option<bool>,
    /// Shortest time between two changes of the kernel's tables; 0 for none.
    #[arg(long, alias = "iptables-min-sync-period", visible_alias = "nftables-min-sync-period",
          value_name = "DURATION", value_parser = go_duration::parse)]
    pub min_sync_period: Option<Duration>,
    /// Take packets of TCP connections that are out of the window for good ones.
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub conntrack_tcp_be_liberal: Option<bool>,
    /// How long a UDP flow without an answer is known; 0 leaves it as it is.
    #[arg(long, value_name = "DURATION", value_parser = go_duration::parse)]
    pub conntrack_udp_timeout: Option<Duration>,
    /// How long a UDP flow with answers is known; 0 leaves it as it is.
    #[arg(long, value_name = "DURATION", value_parser = go_duration::parse)]
    pub conntrack_udp_timeout_stream: Option<Duration>,
    /// Reset TCP connections to endpoints that are gone, instead of leaving them to their timeouts. Endpoints that
    /// terminate keep theirs until they are gone.
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub reset_removed_endpoints: Option<bool>,
    /// Features by name, as A=true,B=false.
    #[arg(long, value_name = "LIST", value_parser = parse_gates)]
    pub feature_gates: Option<BTreeMap<String, bool>>,
    /// The last minor version whose hidden metrics should show; there are none here.
    #[arg(long, value_name = "VERSION")]
    pub show_hidden_metrics_for_version: Option<String>,
    /// Score by which the kernel chooses what to kill when memory runs out.
    #[arg(long, value_name = "SCORE", allow_hyphen_values = true,
          value_parser = clap::value_parser!(i32).range(-1000..=1000))]
    pub oom_score_adj: Option<i32>,
    /// Write the configuration, as flags and file make it, to this file, and end.
    #[arg(long, value_name = "FILE")]
    pub write_config_to: Option<PathBuf>,
    /// Put the host's settings right, and end; a process that may not do it can forward afterwards.
    #[arg(long, action = ArgAction::Set, num_args = 0..=1, require_equals = true,
          default_value_t = false, default_missing_value = "true")]
    pub init_only: bool,
    /// What is taken and not used.
    #[command(flatten)]
    pub unused: UnusedFlags,
}

fn parse_gates(text: &str) -> Result<BTreeMap<String, bool>, String> {
    feature_gates::parse(text).map_err(|error| error.to_string())
}

/// Declares flags that are taken and not used.
macro_rules! unused {
    ($($name:ident)*) => {
        /// Flags of kube-proxy about what this program does not have: other ways of forwarding,
        /// packet marks, bounds on requests that are never reached.
        #[derive(Args, Clone, Debug, Default)]
        pub struct UnusedFlags {
            $(
                #[arg(long, hide = true, value_name = "UNUSED", num_args = 0..=1, allow_hyphen_values = true,
                      default_missing_value = "")]
                $name: Option<String>,
            )*
        }

        impl UnusedFlags {
            /// Names of those that were given.
            pub fn given(&self) -> Vec<String> {
                let all = [$((stringify!($name), self.$name.is_some()),)*];
                let given = all.iter().filter(|(_, given)| *given);
                given.map(|(name, _)| name.replace('_', "-")).collect()
            }
        }
    };
}

unused! {
    iptables_masquerade_bit iptables_sync_period
    ipvs_sync_period ipvs_min_sync_period ipvs_scheduler ipvs_exclude_cidrs ipvs_strict_arp
    ipvs_tcp_timeout ipvs_tcpfin_timeout ipvs_udp_timeout
    kube_api_burst kube_api_qps kube_api_content_type
    profiling proxy_port_range boot_id_file cleanup_ipvs
    log_flush_frequency logtostderr alsologtostderr stderrthreshold vmodule log_dir log_file
    log_file_max_size skip_headers add_dir_header one_output
}
