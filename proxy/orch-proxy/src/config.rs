//! Configuration: defaults, overridden by the configuration file, overridden by flags.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use proto_api::names::{Names, Profile};
use proto_daemon::config::{ConfigError, Configuration, FieldError, FileType};
use proto_daemon::feature_gates::{Gate, GateError, resolve_gates};
use proto_daemon::flags::BindAddress;
use proxy_rules::model::{
    AddressRange, Announcing, Cidr, ConnectionCounting, EgressMasquerade, Masquerade,
    RemovedEndpointPolicy, Settings,
};

use crate::dns_settings::DnsSettings;
use crate::flags::Flags;
use crate::mode::Mode;

pub(crate) mod file;
use file::ProxyConfiguration;

/// Feature gates of this program alone.
const GATES: &[Gate] = &[];
/// Feature gates that this program implements; setting another one is a warning.
const CONSULTED: &[&str] = &[];
/// kube-proxy's default: among the last processes to be killed.
const OOM_SCORE_ADJ: i32 = -999;
const HEALTH_PORT: u16 = 10256;
const METRICS_PORT: u16 = 10249;

/// The validated configuration.
#[derive(Clone, Debug)]
pub struct Config {
    /// Names of the selected profile.
    pub names: &'static Names,
    /// Path of the kubeconfig.
    pub kubeconfig: Option<PathBuf>,
    /// URL of the API server, overriding the kubeconfig.
    pub master: Option<String>,
    /// Name of the Node object.
    pub node_name: String,
    /// Settings that the rules depend on.
    pub settings: Settings,
    /// Address of the health server.
    pub health_address: SocketAddr,
    /// Address of the metrics server.
    pub metrics_address: SocketAddr,
    /// conntrack sysctls.
    pub conntrack: Conntrack,
    /// Interval at which the kernel's tables are read back and compared.
    pub sync_period: Duration,
    /// Name of the nf_tables tables.
    pub table: String,
    /// Whether to maintain routes to other nodes' pods.
    pub pod_routes: PodRoutes,
    /// Proxy mode.
    pub mode: Mode,
    /// Idle timeout of UDP sessions in userspace mode, if configured.
    pub udp_timeout: Option<Duration>,
    /// The DNS server, if enabled.
    pub dns: Option<DnsSettings>,
    /// How traffic of this node's pods is detected, if that needs the Node object.
    pub detect_local: DetectLocal,
    /// Whether node ports are served at loopback addresses.
    pub loopback_node_ports: LoopbackNodePorts,
    /// What a failure to bind a server's address means.
    pub bind_failure: BindFailure,
    /// Minimum time between two syncs.
    pub min_sync_period: Duration,
    /// `oom_score_adj` of the process.
    pub oom_score_adj: i32,
    /// The configuration as `/configz` serves it.
    pub configz: String,
    /// Warnings for the user.
    pub warnings: Vec<String>,
}

/// Whether to maintain routes to other nodes' pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PodRoutes {
    /// Another component does, or none is needed.
    Leave,
    /// Add and remove routes.
    Keep,
}

/// How traffic of this node's pods is detected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DetectLocal {
    /// By the static settings.
    Static,
    /// By the pod CIDRs of the Node object.
    NodeBlocks,
}

/// Whether node ports are served at loopback addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoopbackNodePorts {
    /// Yes, if `--nodeport-addresses` includes them.
    Serve,
    /// No.
    Leave,
}

/// What a failure to bind a server's address means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BindFailure {
    /// A warning; the proxy forwards without that server.
    Warn,
    /// An error that ends the process.
    End,
}

/// conntrack sysctls; 0 leaves a value unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conntrack {
    /// Tracked connections per core.
    pub max_per_core: u32,
    /// Minimum of tracked connections.
    pub min: u32,
    /// Timeout of idle TCP connections.
    pub tcp_established: Duration,
    /// Timeout of TCP connections in CLOSE_WAIT.
    pub tcp_close_wait: Duration,
    /// Sets `nf_conntrack_tcp_be_liberal`; false leaves it unchanged.
    pub tcp_be_liberal: bool,
    /// Timeout of unreplied UDP flows.
    pub udp: Duration,
    /// Timeout of replied UDP flows.
    pub udp_stream: Duration,
}

impl Default for Conntrack {
    fn default() -> Self {
        Self {
            max_per_core: 32_768,
            min: 131_072,
            tcp_established: Duration::from_secs(24 * 3600),
            tcp_close_wait: Duration::from_secs(3600),
            tcp_be_liberal: false,
            udp: Duration::ZERO,
            udp_stream: Duration::ZERO,
        }
    }
}

/// The configuration is invalid.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The file cannot be read or parsed.
    #[error("cannot load the configuration file")]
    File(#[from] ConfigError),
    /// Fields have invalid values.
    #[error("invalid configuration: {}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Invalid(Vec<FieldError>),
}

/// Reads the file, if there is one, and applies the flags.
pub fn load(flags: &Flags, names: &'static Names) -> Result<Config, LoadError> {
    build_config(load_file(flags, names)?, flags, names)
}

/// Applies the flags to the configuration of a running proxy ([`crate::configz_client`]).
pub fn load_running(flags: &Flags, given: &str) -> Result<Config, LoadError> {
    let names = names_of(given).unwrap_or_else(|| flags.common.names());
    let given = proto_daemon::config::parse(Path::new("/configz"), given, &[file_type(names)])?;
    build_config(checked(overridden(given, flags))?, flags, names)
}

/// The naming profile of a configuration document.
fn names_of(given: &str) -> Option<&'static Names> {
    let given = serde_json::from_str::<serde_json::Value>(given).ok()?;
    let version = given.get("apiVersion")?.as_str()?;
    let domain = version.split_once(".config.")?.1.split_once('/')?.0.to_owned();
    let profiles = [Profile::Kubernetes, Profile::Orch { domain }];
    profiles.into_iter().map(Names::new).find(|names| file_type(names).api_version == version)
}

/// The configuration as `/configz` serves it: under its group, with defaults and detected values.
fn configz(file: &ProxyConfiguration, node_name: &str, names: &Names) -> String {
    let mut file = file.clone();
    node_name.clone_into(&mut file.hostname_override);
    let absolute = |path: PathBuf| std::path::absolute(&path).unwrap_or(path);
    file.client_connection.kubeconfig = file.client_connection.kubeconfig.map(absolute);
    let version = file_type(names).api_version;
    let group = version.split('/').next().unwrap_or_default().to_owned();
    let inner = document(&file, names);
    format!("{}\n", serde_json::Value::Object([(group, inner)].into_iter().collect()))
}

/// Validates flags and file, and derives the rest.
fn build_config(
    file: ProxyConfiguration,
    flags: &Flags,
    names: &'static Names,
) -> Result<Config, LoadError> {
    let node_name = node_name(&file.hostname_override);
    let configz = configz(&file, &node_name, names);
    let settled = resolve_gates(GATES, CONSULTED, &file.feature_gates.clone().unwrap_or_default());
    let settled = settled.map_err(|faults| {
        let fault = |fault: &GateError| FieldError::new("featureGates", fault.to_string());
        LoadError::Invalid(faults.0.iter().map(fault).collect())
    })?;
    let mut warnings = settled.warnings;
    warnings.extend(flags.node.unused.list_warnings());
    // They were checked when the file was read.
    let ranges = file.dataplane.announced_ranges().ok().flatten();
    let announcing = ranges.map(|ranges| Announcing { node: node_name.as_str().into(), ranges });
    let settings = Settings { announcing, ..settings(&file) };
    let bind = file.bind_address.parse().unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
    let health = file.healthz_bind_address.parse::<BindAddress>();
    let metrics = file.metrics_bind_address.parse::<BindAddress>();
    let loopback = file.nftables.localhost_node_ports.or(file.iptables.localhost_node_ports);
    let min_sync = file.nftables.min_sync_period.or(file.iptables.min_sync_period);
    let (mode, about_mode) = Mode::from_name(&file.mode).unwrap_or_default();
    warnings.extend(about_mode);
    Ok(Config {
        names,
        kubeconfig: file.client_connection.kubeconfig.filter(|path| !path.as_os_str().is_empty()),
        master: file.client_connection.server.filter(|server| !server.is_empty()),
        node_name,
        configz,
        settings,
        health_address: health
            .map_or(SocketAddr::new(bind, HEALTH_PORT), |address| address.socket(HEALTH_PORT)),
        metrics_address: metrics
            .map_or(SocketAddr::new(Ipv4Addr::LOCALHOST.into(), METRICS_PORT), |address| {
                address.socket(METRICS_PORT)
            }),
        conntrack: file.conntrack.effective(),
        sync_period: file.config_sync_period,
        mode,
        udp_timeout: file.udp_idle_timeout.map(|time| time.0).filter(|time| !time.is_zero()),
        dns: file.dns.settings(),
        pod_routes: if file.dataplane.pod_routes { PodRoutes::Keep } else { PodRoutes::Leave },
        detect_local: match file.detect_local_mode.as_str() {
            "NodeCIDR" => DetectLocal::NodeBlocks,
            _ => DetectLocal::Static,
        },
        loopback_node_ports: match loopback {
            Some(false) => LoopbackNodePorts::Leave,
            Some(true) | None => LoopbackNodePorts::Serve,
        },
        bind_failure: if file.bind_address_hard_fail {
            BindFailure::End
        } else {
            BindFailure::Warn
        },
        min_sync_period: min_sync.map_or(Duration::ZERO, |period| period.0),
        oom_score_adj: file.oom_score_adj.unwrap_or(OOM_SCORE_ADJ),
        warnings,
        table: match file.dataplane.table.as_str() {
            "" => names.component("proxy"),
            given => given.to_owned(),
        },
    })
}

/// The settings that the rules depend on.
fn settings(file: &ProxyConfiguration) -> Settings {
    let block = |text: &str| text.parse::<Cidr>().ok();
    let masquerade_all = file.iptables.masquerade_all || file.nftables.masquerade_all;
    let node_ports = file.node_port_addresses.iter().flatten();
    let dataplane = &file.dataplane;
    Settings {
        cluster_cidrs: file.cluster_cidr.split(',').filter_map(block).collect(),
        local_traffic: file.local_traffic(),
        masquerade: if masquerade_all { Masquerade::All } else { Masquerade::FromOutside },
        node_port_cidrs: node_ports.filter_map(|text| block(text)).collect(),
        removed: match dataplane.reset_removed_endpoints {
            true => RemovedEndpointPolicy::Reset,
            false => RemovedEndpointPolicy::Left,
        },
        counting: if dataplane.service_counters {
            ConnectionCounting::On
        } else {
            ConnectionCounting::Off
        },
        // Set when the addresses of the node and of the API server are known.
        protected: BTreeSet::new(),
        kept_ports: BTreeSet::new(),
        announcing: None,
        // With pod routes no host outside the cluster has a route to pods.
        leaving: if dataplane.pod_routes {
            EgressMasquerade::Masqueraded
        } else {
            EgressMasquerade::AsIs
        },
    }
}

/// Reads the file, if there is one, applies the flags, and validates all of it.
fn load_file(flags: &Flags, names: &Names) -> Result<ProxyConfiguration, LoadError> {
    let file = match &flags.common.config {
        Some(path) => proto_daemon::config::load(path, &[file_type(names)])?,
        None => ProxyConfiguration::default(),
    };
    checked(overridden(file, flags))
}

fn checked(file: ProxyConfiguration) -> Result<ProxyConfiguration, LoadError> {
    match file.validate() {
        faults if faults.is_empty() => Ok(file),
        faults => Err(LoadError::Invalid(faults)),
    }
}

/// The effective configuration as a file: JSON, which is YAML.
pub fn write_config(flags: &Flags, names: &Names) -> Result<String, LoadError> {
    Ok(format!("{:#}\n", document(&load_file(flags, names)?, names)))
}

/// The file with `apiVersion` and `kind`, without unset fields.
fn document(file: &ProxyConfiguration, names: &Names) -> serde_json::Value {
    let FileType { api_version, kind } = file_type(names);
    let mut fields = serde_json::Map::new();
    fields.insert("apiVersion".into(), api_version.into());
    fields.insert("kind".into(), kind.into());
    if let Ok(serde_json::Value::Object(object)) = serde_json::to_value(file) {
        fields.extend(object.into_iter().filter(|(_, value)| !value.is_null()));
    }
    serde_json::Value::Object(fields)
}

/// `apiVersion` and `kind` of the profile.
pub(crate) fn file_type(names: &Names) -> FileType {
    let capital = |word: &str| {
        let mut letters = word.chars();
        letters.next().map(|first| first.to_uppercase().chain(letters).collect::<String>())
    };
    let component = names.component("proxy");
    let camel: String = component.split('-').filter_map(capital).collect();
    let group = format!("{}.config.{}", names.metric_prefix("proxy"), names.group_domain());
    FileType { api_version: format!("{group}/v1alpha1"), kind: format!("{camel}Configuration") }
}

/// The file with the flags applied.
pub(crate) fn overridden(mut file: ProxyConfiguration, flags: &Flags) -> ProxyConfiguration {
    fn over<T, F: Into<T>>(field: &mut T, flag: Option<F>) {
        if let Some(flag) = flag {
            *field = flag.into();
        }
    }
    let texts = |blocks: Vec<Cidr>| blocks.iter().map(Cidr::to_string).collect::<Vec<_>>();
    let address = |address: BindAddress| match address.port {
        Some(port) => SocketAddr::new(address.ip, port).to_string(),
        None => address.ip.to_string(),
    };
    let proxy = flags.proxy.clone();
    over(&mut file.client_connection.kubeconfig, proxy.kubeconfig.map(Some));
    over(&mut file.hostname_override, proxy.hostname_override);
    over(&mut file.cluster_cidr, proxy.cluster_cidr.map(|blocks| texts(blocks).join(",")));
    over(&mut file.bind_address, proxy.bind_address.map(|ip| ip.to_string()));
    over(&mut file.metrics_bind_address, proxy.metrics_bind_address.map(address));
    over(&mut file.healthz_bind_address, flags.common.healthz_bind_address.map(address));
    over(&mut file.node_port_addresses, proxy.node_port_addresses.map(|b| Some(texts(b))));
    over(&mut file.nftables.masquerade_all, proxy.masquerade_all);
    over(&mut file.conntrack.max_per_core, proxy.conntrack_max_per_core.map(Some));
    over(&mut file.conntrack.min, proxy.conntrack_min.map(Some));
    let timeout = |duration: Option<Duration>| duration.map(|d| Some(file::GoDuration(d)));
    let established = timeout(proxy.conntrack_tcp_timeout_established);
    over(&mut file.conntrack.tcp_established_timeout, established);
    let close_wait = timeout(proxy.conntrack_tcp_timeout_close_wait);
    over(&mut file.conntrack.tcp_close_wait_timeout, close_wait);
    over(&mut file.config_sync_period, proxy.config_sync_period);
    over(&mut file.mode, flags.mode.proxy_mode.clone());
    over(&mut file.udp_idle_timeout, timeout(flags.mode.udp_timeout));
    over(&mut file.client_connection.server, proxy.master.map(Some));
    over(&mut file.dataplane.table, proxy.nft_table);
    over(&mut file.dataplane.pod_routes, proxy.pod_routes);
    over(&mut file.dataplane.service_counters, proxy.service_counters);
    let ranges = proxy.announce_load_balancer_addresses;
    let ranges = ranges.map(|r| r.iter().map(AddressRange::to_string).collect::<Vec<_>>());
    over(&mut file.dataplane.announce_load_balancer_addresses, ranges);
    file.dns = file.dns.overridden(&flags.dns);
    let node = flags.node.clone();
    over(&mut file.dataplane.reset_removed_endpoints, node.reset_removed_endpoints);
    let conntrack = &mut file.conntrack;
    over(&mut conntrack.tcp_be_liberal, node.conntrack_tcp_be_liberal.map(Some));
    over(&mut conntrack.udp_timeout, timeout(node.conntrack_udp_timeout));
    over(&mut conntrack.udp_stream_timeout, timeout(node.conntrack_udp_timeout_stream));
    over(&mut file.bind_address_hard_fail, node.bind_address_hard_fail);
    over(&mut file.detect_local_mode, node.detect_local_mode);
    over(&mut file.detect_local.bridge_interface, node.pod_bridge_interface);
    over(&mut file.detect_local.interface_name_prefix, node.pod_interface_name_prefix);
    let localhost = node.iptables_localhost_nodeports.map(Some);
    over(&mut file.nftables.localhost_node_ports, localhost);
    over(&mut file.nftables.min_sync_period, timeout(node.min_sync_period));
    over(&mut file.oom_score_adj, node.oom_score_adj.map(Some));
    over(&mut file.show_hidden_metrics_for_version, node.show_hidden_metrics_for_version);
    for (name, on) in node.feature_gates.into_iter().flatten() {
        file.feature_gates.get_or_insert_default().insert(name, on);
    }
    file
}

/// The name of the Node object: as configured, else the hostname in lower case.
fn node_name(given: &str) -> String {
    let given = given.trim();
    if !given.is_empty() {
        return given.to_lowercase();
    }
    let host = nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok());
    host.unwrap_or_default().trim().to_lowercase()
}

#[cfg(test)]
mod tests;
