//! The configuration file with kube-proxy's fields. Fields that this proxy does not use are accepted, so that existing
//! files work.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use proto_daemon::config::{Configuration, FieldError};
use proto_daemon::flags::BindAddress;
use proto_daemon::go_duration;
use proxy_rules::model::{AddressRange, AddressRanges, Cidr, InterfaceName, LocalTraffic};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Conntrack;
use crate::dns_settings::DnsFile;
use crate::mode::Mode;

/// Fields that this proxy accepts and does not use, because those of other modes, platforms and requests mean nothing to it.
pub(crate) const WITHOUT_EFFECT: &[&str] = &[
    "clientConnection.acceptContentTypes",
    "clientConnection.burst",
    "clientConnection.contentType",
    "clientConnection.qps",
    "enableProfiling",
    "iptables.masqueradeBit",
    "iptables.syncPeriod",
    "ipvs",
    "logging",
    "nftables.masqueradeBit",
    "nftables.syncPeriod",
    "portRange",
    "showHiddenMetricsForVersion",
    "windowsRunAsService",
    "winkernel",
];

/// KubeProxyConfiguration.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ProxyConfiguration {
    pub bind_address: String,
    #[serde(rename = "clusterCIDR")]
    pub cluster_cidr: String,
    pub hostname_override: String,
    pub healthz_bind_address: String,
    pub metrics_bind_address: String,
    pub node_port_addresses: Option<Vec<String>>,
    #[serde(with = "go_duration::text")]
    pub config_sync_period: Duration,
    pub conntrack: ConntrackFile,
    pub client_connection: ClientConnection,
    pub iptables: MasqueradeFile,
    pub nftables: MasqueradeFile,
    pub dns: DnsFile,
    pub mode: String,
    pub feature_gates: Option<BTreeMap<String, bool>>,
    pub bind_address_hard_fail: bool,
    pub detect_local: DetectLocalFile,
    pub detect_local_mode: String,
    pub oom_score_adj: Option<i32>,
    pub show_hidden_metrics_for_version: String,
    pub dataplane: DataplaneFile,
    pub udp_idle_timeout: Option<GoDuration>,
    enable_profiling: bool,
    ipvs: Value,
    logging: Value,
    port_range: String,
    winkernel: Value,
    windows_run_as_service: bool,
}

/// Interfaces on which traffic of pods arrives.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DetectLocalFile {
    pub bridge_interface: String,
    pub interface_name_prefix: String,
}

/// Fields that kube-proxy does not have.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DataplaneFile {
    /// Name of the nf_tables tables; the program's name if empty.
    pub table: String,
    pub pod_routes: bool,
    pub service_counters: bool,
    /// Ranges of addresses of load balancers that are announced.
    pub announce_load_balancer_addresses: Vec<String>,
    pub reset_removed_endpoints: bool,
}

/// conntrack sysctls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ConntrackFile {
    pub max_per_core: Option<u32>,
    pub min: Option<u32>,
    pub tcp_established_timeout: Option<GoDuration>,
    pub tcp_close_wait_timeout: Option<GoDuration>,
    pub tcp_be_liberal: Option<bool>,
    pub udp_timeout: Option<GoDuration>,
    pub udp_stream_timeout: Option<GoDuration>,
}

/// Connection to the API server.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClientConnection {
    pub kubeconfig: Option<PathBuf>,
    /// URL of the API server, overriding the kubeconfig.
    pub server: Option<String>,
    accept_content_types: String,
    content_type: String,
    burst: Option<i32>,
    qps: Option<f32>,
}

/// Masquerading, from the section of a mode.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct MasqueradeFile {
    pub masquerade_all: bool,
    pub localhost_node_ports: Option<bool>,
    pub min_sync_period: Option<GoDuration>,
    masquerade_bit: Option<i32>,
    sync_period: Value,
}

/// A duration such as `1h0m0s`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct GoDuration(#[serde(with = "go_duration::text")] pub Duration);

impl Default for ProxyConfiguration {
    fn default() -> Self {
        Self {
            bind_address: "0.0.0.0".into(),
            cluster_cidr: String::new(),
            hostname_override: String::new(),
            healthz_bind_address: String::new(),
            metrics_bind_address: String::new(),
            node_port_addresses: None,
            config_sync_period: Duration::from_secs(15 * 60),
            conntrack: ConntrackFile::default(),
            client_connection: ClientConnection::default(),
            iptables: MasqueradeFile::default(),
            nftables: MasqueradeFile::default(),
            dns: DnsFile::default(),
            mode: String::new(),
            feature_gates: None,
            bind_address_hard_fail: false,
            detect_local: DetectLocalFile::default(),
            detect_local_mode: String::new(),
            oom_score_adj: None,
            show_hidden_metrics_for_version: String::new(),
            dataplane: DataplaneFile::default(),
            udp_idle_timeout: None,
            enable_profiling: false,
            ipvs: Value::Null,
            logging: Value::Null,
            port_range: String::new(),
            winkernel: Value::Null,
            windows_run_as_service: false,
        }
    }
}

impl ProxyConfiguration {
    /// How traffic of pods is detected, as far as it does not depend on the Node object.
    pub fn local_traffic(&self) -> LocalTraffic {
        let DetectLocalFile { bridge_interface, interface_name_prefix } = &self.detect_local;
        let configured = match self.detect_local_mode.as_str() {
            "BridgeInterface" => InterfaceName::new(bridge_interface).map(LocalTraffic::Interface),
            "InterfaceNamePrefix" => {
                InterfaceName::new(interface_name_prefix).map(LocalTraffic::InterfacePrefix)
            }
            _ => None,
        };
        configured.unwrap_or_default()
    }
}

impl ConntrackFile {
    /// Applies the defaults.
    pub fn effective(self) -> Conntrack {
        let default = Conntrack::default();
        let timeout =
            |configured: Option<GoDuration>, or| configured.map_or(or, |configured| configured.0);
        Conntrack {
            max_per_core: self.max_per_core.unwrap_or(default.max_per_core),
            min: self.min.unwrap_or(default.min),
            tcp_established: timeout(self.tcp_established_timeout, default.tcp_established),
            tcp_close_wait: timeout(self.tcp_close_wait_timeout, default.tcp_close_wait),
            tcp_be_liberal: self.tcp_be_liberal.unwrap_or(default.tcp_be_liberal),
            udp: timeout(self.udp_timeout, default.udp),
            udp_stream: timeout(self.udp_stream_timeout, default.udp_stream),
        }
    }
}

impl DataplaneFile {
    /// The ranges of addresses that are announced; `None` without any.
    ///
    /// # Errors
    /// One is not understood, or there are too many.
    pub fn announced_ranges(&self) -> Result<Option<AddressRanges>, FieldError> {
        let wrong = |why| FieldError::new("dataplane.announceLoadBalancerAddresses", why);
        let ranges = self.announce_load_balancer_addresses.iter().map(|text| text.parse());
        let ranges = ranges.collect::<Result<Vec<AddressRange>, _>>();
        let ranges = ranges.map_err(|error| wrong(error.to_string()))?;
        AddressRanges::new(&ranges).map_err(|error| wrong(error.to_string()))
    }
}

impl Configuration for ProxyConfiguration {
    fn validate(&self) -> Vec<FieldError> {
        let mut faults = Vec::new();
        let mut check = |right: bool, path: &str, message: &str| {
            if !right {
                faults.push(FieldError::new(path, message));
            }
        };
        check(!self.config_sync_period.is_zero(), "configSyncPeriod", "must be greater than 0");
        let bind = self.bind_address.parse::<IpAddr>();
        check(bind.is_ok(), "bindAddress", "must be an IP address");
        let address = |text: &str| text.is_empty() || text.parse::<BindAddress>().is_ok();
        let address_rule = "must be an IP address, or IP:port";
        check(address(&self.healthz_bind_address), "healthzBindAddress", address_rule);
        check(address(&self.metrics_bind_address), "metricsBindAddress", address_rule);
        let block_rule = "must be an address with a prefix length, such as 10.0.0.0/8";
        let blocks: Vec<Option<Cidr>> = self
            .cluster_cidr
            .split(',')
            .filter(|text| !text.is_empty())
            .map(|text| text.parse().ok())
            .collect();
        check(blocks.iter().all(Option::is_some), "clusterCIDR", block_rule);
        let families: Vec<_> = blocks.iter().flatten().map(Cidr::is_ipv4).collect();
        let twice = families.len() > 2 || matches!(*families, [a, b] if a == b);
        check(!twice, "clusterCIDR", "must have at most one block per family");
        for (n, text) in self.node_port_addresses.iter().flatten().enumerate() {
            let path = format!("nodePortAddresses[{n}]");
            check(text.parse::<Cidr>().is_ok(), &path, block_rule);
        }
        let rule = "must be ClusterCIDR, NodeCIDR, BridgeInterface or InterfaceNamePrefix";
        let mode = self.detect_local_mode.as_str();
        let known = ["", "ClusterCIDR", "NodeCIDR", "BridgeInterface", "InterfaceNamePrefix"];
        check(known.contains(&mode), "detectLocalMode", rule);
        let DetectLocalFile { bridge_interface, interface_name_prefix } = &self.detect_local;
        // Interface names have at most 15 bytes (IFNAMSIZ).
        let name = |text: &str, wanted: bool| text.len() < 16 && (!wanted || !text.is_empty());
        let name_rule = "must be the name of an interface, of at most 15 bytes";
        let path = "detectLocal.bridgeInterface";
        check(name(bridge_interface, mode == "BridgeInterface"), path, name_rule);
        let path = "detectLocal.interfaceNamePrefix";
        check(name(interface_name_prefix, mode == "InterfaceNamePrefix"), path, name_rule);
        let score = self.oom_score_adj.is_none_or(|score| (-1000..=1000).contains(&score));
        check(score, "oomScoreAdj", "must be within the range [-1000, 1000]");
        let version = self.show_hidden_metrics_for_version.as_str();
        let is_version = version.split_once('.').is_some_and(|(major, minor)| {
            [major, minor].iter().all(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
        });
        let rule = "must be a version as 1.24";
        check(version.is_empty() || is_version, "showHiddenMetricsForVersion", rule);
        let known = Mode::from_name(&self.mode).is_some();
        check(known, "mode", "must be nftables, userspace, iptables, ipvs or empty");
        faults.extend(self.dataplane.announced_ranges().err());
        faults.extend(self.dns.validate());
        faults
    }
}
