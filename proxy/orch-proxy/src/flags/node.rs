//! Flags of the node and the process, with kube-proxy's names; and flags of kube-proxy that are accepted without
//! effect, so that existing units and manifests work.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgAction, Args};
use proto_daemon::{define_unused_flags, feature_gates, go_duration};

/// Flags of the node and the process.
#[derive(Args, Clone, Debug, Default)]
pub struct NodeFlags {
    /// Exit if a server's address cannot be bound, instead of logging a warning.
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub bind_address_hard_fail: Option<bool>,
    /// How traffic of this node's pods is detected: ClusterCIDR, NodeCIDR, BridgeInterface or InterfaceNamePrefix.
    #[arg(long, value_name = "MODE")]
    pub detect_local_mode: Option<String>,
    /// Interface on which traffic of pods arrives, for BridgeInterface.
    #[arg(long, value_name = "NAME")]
    pub pod_bridge_interface: Option<String>,
    /// Prefix of the interfaces on which traffic of pods arrives, for InterfaceNamePrefix.
    #[arg(long, value_name = "PREFIX")]
    pub pod_interface_name_prefix: Option<String>,
    /// Serve node ports at loopback addresses too.
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub iptables_localhost_nodeports: Option<bool>,
    /// Minimum time between two syncs; 0 for none.
    #[arg(long, alias = "iptables-min-sync-period", visible_alias = "nftables-min-sync-period",
          value_name = "DURATION", value_parser = go_duration::parse)]
    pub min_sync_period: Option<Duration>,
    /// Accept packets of TCP connections that are outside the window (nf_conntrack_tcp_be_liberal).
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub conntrack_tcp_be_liberal: Option<bool>,
    /// conntrack timeout of unreplied UDP flows; 0 leaves it unchanged.
    #[arg(long, value_name = "DURATION", value_parser = go_duration::parse)]
    pub conntrack_udp_timeout: Option<Duration>,
    /// conntrack timeout of replied UDP flows; 0 leaves it unchanged.
    #[arg(long, value_name = "DURATION", value_parser = go_duration::parse)]
    pub conntrack_udp_timeout_stream: Option<Duration>,
    /// Reset TCP connections to removed endpoints, instead of leaving them to their timeouts. Connections to
    /// terminating endpoints continue.
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub reset_removed_endpoints: Option<bool>,
    /// Feature gates, as A=true,B=false.
    #[arg(long, value_name = "LIST", value_parser = feature_gates::parse)]
    pub feature_gates: Option<BTreeMap<String, bool>>,
    /// Last minor version whose hidden metrics are shown; there are none.
    #[arg(long, value_name = "VERSION")]
    pub show_hidden_metrics_for_version: Option<String>,
    /// oom_score_adj of the process.
    #[arg(long, value_name = "SCORE", allow_hyphen_values = true,
          value_parser = clap::value_parser!(i32).range(-1000..=1000))]
    pub oom_score_adj: Option<i32>,
    /// Write the effective configuration to this file and exit.
    #[arg(long, value_name = "FILE")]
    pub write_config_to: Option<PathBuf>,
    /// Set the sysctls and exit, so that an unprivileged process can forward afterwards.
    #[arg(long, action = ArgAction::Set, num_args = 0..=1, require_equals = true,
          default_value_t = false, default_missing_value = "true")]
    pub init_only: bool,
    /// Flags without effect.
    #[command(flatten)]
    pub unused: UnusedFlags,
}

define_unused_flags! {
    /// Flags of kube-proxy for features that this program does not have: other modes, packet marks, request limits.
    UnusedFlags {
        iptables_masquerade_bit iptables_sync_period
        ipvs_sync_period ipvs_min_sync_period ipvs_scheduler ipvs_exclude_cidrs ipvs_strict_arp
        ipvs_tcp_timeout ipvs_tcpfin_timeout ipvs_udp_timeout
        kube_api_burst kube_api_qps kube_api_content_type
        profiling proxy_port_range boot_id_file cleanup_ipvs
    }
}
