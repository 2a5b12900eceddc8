//! The configuration file, kind `OrchletConfiguration`: every field of KubeletConfiguration with
//! its default. The fields are documented there, their support here in `agent/README.md`.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use agent_node::cgroup::{CgroupManager, CpuBound};
use agent_pod::backoff::CRASH_DELAY_MAX;
use agent_sources::manifests::{Page, PageError};
use proto_api::Quantity;
use proto_api::core::v1::Taint;
use serde::{Deserialize, Deserializer, Serialize};

/// Defines a section of the file: each field with its type and default.
macro_rules! section {
    ($(#[$about:meta])* $name:ident { $($(#[$on:meta])* $field:ident: $kind:ty = $default:expr,)* }) => {
        $(#[$about])*
        #[derive(Clone, Debug, Serialize, Deserialize)]
        #[serde(rename_all = "camelCase", default)]
        pub struct $name { $($(#[$on])* pub $field: $kind,)* }

        impl Default for $name {
            fn default() -> Self {
                Self { $($field: $default,)* }
            }
        }
    };
}

/// Pairs of names and values, such as thresholds by signal.
pub type NamedValues = BTreeMap<String, String>;
/// Amounts by resource.
pub type AmountsByName = BTreeMap<String, Quantity>;

const fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

fn pairs<const N: usize>(pairs: [(&str, &str); N]) -> NamedValues {
    pairs.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

section! {
/// The whole file.
FileConfig {
    // What runs here.
    #[serde(deserialize_with = "empty_is_none")] static_pod_path: Option<PathBuf> = None,
    #[serde(with = "proto_daemon::go_duration::text")] sync_frequency: Duration = secs(60),
    #[serde(with = "proto_daemon::go_duration::text")] file_check_frequency: Duration = secs(20),
    #[serde(with = "proto_daemon::go_duration::text")] http_check_frequency: Duration = secs(20),
    #[serde(rename = "staticPodURL")] static_pod_url: String = String::new(),
    #[serde(rename = "staticPodURLHeader")] static_pod_url_header: BTreeMap<String, Vec<String>> = BTreeMap::new(),
    run_once: bool = false,

    // The HTTPS endpoint.
    enable_server: bool = true,
    #[serde(deserialize_with = "empty_is_none")] address: Option<IpAddr> = None,
    port: u16 = 10250,
    read_only_port: u16 = 0,
    #[serde(deserialize_with = "empty_is_none")] tls_cert_file: Option<PathBuf> = None,
    #[serde(deserialize_with = "empty_is_none")] tls_private_key_file: Option<PathBuf> = None,
    tls_cipher_suites: Vec<String> = Vec::new(),
    tls_min_version: String = String::new(),
    rotate_certificates: bool = false,
    #[serde(rename = "serverTLSBootstrap")] server_tls_bootstrap: bool = false,
    authentication: Authentication = Authentication::default(),
    authorization: Authorization = Authorization::default(),
    #[serde(with = "proto_daemon::go_duration::text")] streaming_connection_idle_timeout: Duration = secs(4 * 3600),
    enable_debugging_handlers: bool = true,
    enable_contention_profiling: bool = false,
    enable_profiling_handler: bool = true,
    enable_debug_flags_handler: bool = true,
    enable_system_log_handler: bool = true,
    healthz_port: u16 = 10248,
    #[serde(deserialize_with = "empty_is_none")] healthz_bind_address: Option<IpAddr> = None,
    show_hidden_metrics_for_version: String = String::new(),

    // The API server.
    #[serde(rename = "registryPullQPS")] registry_pull_qps: i32 = 5,
    registry_burst: i32 = 10,
    #[serde(rename = "eventRecordQPS")] event_record_qps: i32 = 5,
    event_burst: i32 = 10,
    #[serde(rename = "kubeAPIQPS")] kube_api_qps: i32 = 5,
    #[serde(rename = "kubeAPIBurst")] kube_api_burst: i32 = 10,
    content_type: String = String::new(),
    config_map_and_secret_change_detection_strategy: String = "Watch".to_owned(),

    // The node.
    register_node: bool = true,
    register_with_taints: Vec<Taint> = Vec::new(),
    #[serde(rename = "providerID")] provider_id: String = String::new(),
    #[serde(with = "proto_daemon::go_duration::text")] node_status_update_frequency: Duration = secs(10),
    #[serde(with = "proto_daemon::go_duration::text")] node_status_report_frequency: Duration = secs(300),
    node_status_max_images: i32 = 50,
    node_lease_duration_seconds: i32 = 40,
    max_pods: u32 = 110,
    pods_per_core: i32 = 0,
    oom_score_adj: i32 = -999,
    max_open_files: i64 = 1_000_000,
    #[serde(with = "proto_daemon::go_duration::text")] shutdown_grace_period: Duration = secs(0),
    #[serde(with = "proto_daemon::go_duration::text")] shutdown_grace_period_critical_pods: Duration = secs(0),
    shutdown_grace_period_by_pod_priority: Vec<ShutdownGrace> = Vec::new(),

    // The runtime and its images.
    container_runtime_endpoint: String = "unix:///run/containerd/containerd.sock".to_owned(),
    image_service_endpoint: String = String::new(),
    #[serde(with = "proto_daemon::go_duration::text")] runtime_request_timeout: Duration = secs(120),
    // Unlike in Kubernetes' kubelet: one large image must not delay all other pods.
    serialize_image_pulls: bool = false,
    max_parallel_image_pulls: Option<i32> = None,
    #[serde(rename = "imageMinimumGCAge", with = "proto_daemon::go_duration::text")] image_minimum_gc_age: Duration = secs(120),
    #[serde(rename = "imageGCHighThresholdPercent")] image_gc_high_threshold_percent: i32 = 85,
    #[serde(rename = "imageGCLowThresholdPercent")] image_gc_low_threshold_percent: i32 = 80,
    container_log_max_size: String = "10Mi".to_owned(),
    container_log_max_files: i32 = 5,
    // A field of later versions.
    crash_loop_back_off: CrashLoopBackOff = CrashLoopBackOff::default(),
    seccomp_default: bool = false,
    allowed_unsafe_sysctls: Vec<String> = Vec::new(),
    protect_kernel_defaults: bool = false,

    // Volumes.
    #[serde(with = "proto_daemon::go_duration::text")] volume_stats_agg_period: Duration = secs(60),
    volume_plugin_dir: String = String::new(),
    enable_controller_attach_detach: bool = true,
    local_storage_capacity_isolation: bool = true,

    // Network.
    cluster_domain: String = "cluster.local".to_owned(),
    #[serde(rename = "clusterDNS")] cluster_dns: Vec<IpAddr> = Vec::new(),
    resolv_conf: PathBuf = "/etc/resolv.conf".into(),
    #[serde(rename = "podCIDR")] pod_cidr: String = String::new(),
    hairpin_mode: String = "promiscuous-bridge".to_owned(),
    #[serde(rename = "makeIPTablesUtilChains")] make_iptables_util_chains: bool = true,
    iptables_masquerade_bit: i32 = 14,
    iptables_drop_bit: i32 = 15,

    // Resources.
    cgroup_root: String = "/".to_owned(),
    #[serde(rename = "cgroupsPerQOS")] cgroups_per_qos: bool = true,
    cgroup_driver: CgroupDriver = CgroupDriver::default(),
    kubelet_cgroups: String = String::new(),
    system_cgroups: String = String::new(),
    enforce_node_allocatable: Vec<String> = vec!["pods".to_owned()],
    system_reserved: AmountsByName = BTreeMap::new(),
    kube_reserved: AmountsByName = BTreeMap::new(),
    system_reserved_cgroup: String = String::new(),
    kube_reserved_cgroup: String = String::new(),
    #[serde(rename = "reservedSystemCPUs")] reserved_system_cpus: String = String::new(),
    qos_reserved: NamedValues = NamedValues::new(),
    reserved_memory: Vec<ReservedMemory> = Vec::new(),
    cpu_manager_policy: String = "none".to_owned(),
    cpu_manager_policy_options: NamedValues = NamedValues::new(),
    #[serde(with = "proto_daemon::go_duration::text")] cpu_manager_reconcile_period: Duration = secs(10),
    memory_manager_policy: String = "None".to_owned(),
    topology_manager_policy: String = "none".to_owned(),
    topology_manager_scope: String = "container".to_owned(),
    #[serde(rename = "cpuCFSQuota")] cpu_cfs_quota: bool = true,
    #[serde(rename = "cpuCFSQuotaPeriod", with = "proto_daemon::go_duration::text")] cpu_cfs_quota_period: Duration = Duration::from_millis(100),
    pod_pids_limit: i64 = -1,
    fail_swap_on: bool = true,
    memory_swap: MemorySwap = MemorySwap::default(),
    memory_throttling_factor: f64 = 0.8,
    kernel_memcg_notification: bool = false,

    // Eviction.
    eviction_hard: NamedValues = pairs([("memory.available", "100Mi"), ("nodefs.available", "10%"),
        ("nodefs.inodesFree", "5%"), ("imagefs.available", "15%")]),
    eviction_soft: NamedValues = NamedValues::new(),
    eviction_soft_grace_period: NamedValues = NamedValues::new(),
    eviction_minimum_reclaim: NamedValues = NamedValues::new(),
    #[serde(with = "proto_daemon::go_duration::text")] eviction_pressure_transition_period: Duration = secs(300),
    eviction_max_pod_grace_period: i32 = 0,

    // The program.
    feature_gates: BTreeMap<String, bool> = BTreeMap::new(),
    logging: Logging = Logging::default(),
    tracing: Option<Tracing> = None,
}
}

section! {
/// Authentication at the HTTPS endpoint.
Authentication {
    x509: X509 = X509::default(),
    webhook: TokenWebhook = TokenWebhook::default(),
    anonymous: Anonymous = Anonymous::default(),
}
}

section! {
/// Clients with certificates.
X509 {
    #[serde(rename = "clientCAFile", deserialize_with = "empty_is_none")] client_ca_file: Option<PathBuf> = None,
}
}

section! {
/// Clients with bearer tokens.
TokenWebhook {
    enabled: bool = true,
    #[serde(rename = "cacheTTL", with = "proto_daemon::go_duration::text")] cache_ttl: Duration = secs(120),
}
}

section! {
/// Clients without either.
Anonymous { enabled: bool = false, }
}

section! {
/// Authorization at the HTTPS endpoint.
Authorization {
    mode: Mode = Mode::Webhook,
    webhook: AccessWebhook = AccessWebhook::default(),
}
}

section! {
/// How long reviews of the API server are cached.
AccessWebhook {
    #[serde(rename = "cacheAuthorizedTTL", with = "proto_daemon::go_duration::text")] cache_authorized_ttl: Duration = secs(300),
    #[serde(rename = "cacheUnauthorizedTTL", with = "proto_daemon::go_duration::text")] cache_unauthorized_ttl: Duration = secs(30),
}
}

section! {
/// Grace period of pods from a priority on at a node shutdown.
ShutdownGrace { priority: i32 = 0, shutdown_grace_period_seconds: i64 = 0, }
}

section! {
/// Memory reserved on a NUMA node.
ReservedMemory { numa_node: i32 = 0, limits: AmountsByName = BTreeMap::new(), }
}

section! {
/// Swap for pods.
MemorySwap { swap_behavior: String = String::new(), }
}

section! {
/// Form of the log.
Logging {
    format: String = "text".to_owned(),
    // A text, or a number of nanoseconds in older files.
    flush_frequency: serde_json::Value = serde_json::json!("5s"),
    verbosity: u32 = 0,
    vmodule: Vec<serde_json::Value> = Vec::new(),
    options: serde_json::Value = serde_json::Value::Null,
}
}

section! {
/// Back-off of crashing containers.
CrashLoopBackOff {
    #[serde(with = "proto_daemon::go_duration::text")] max_container_restart_period: Duration = CRASH_DELAY_MAX,
}
}

section! {
Tracing { endpoint: Option<String> = None, sampling_rate_per_million: Option<i32> = None, }
}

/// Who creates cgroups: systemd as slices and scopes, or this agent as directories.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CgroupDriver {
    /// Directories in cgroupfs.
    #[default]
    Cgroupfs,
    Systemd,
}

impl From<CgroupDriver> for CgroupManager {
    fn from(driver: CgroupDriver) -> Self {
        match driver {
            CgroupDriver::Cgroupfs => Self::Cgroupfs,
            CgroupDriver::Systemd => Self::Systemd,
        }
    }
}

/// Authorization mode of the HTTPS endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Mode {
    /// Every request is allowed.
    AlwaysAllow,
    /// By SubjectAccessReview.
    Webhook,
}

/// Kubernetes writes an unset field as an empty string.
fn empty_is_none<'de, D: Deserializer<'de>, T>(deserializer: D) -> Result<Option<T>, D::Error>
where
    T: std::str::FromStr,
    T::Err: std::fmt::Display,
{
    let text = Option::<String>::deserialize(deserializer)?.filter(|text| !text.is_empty());
    text.map(|text| text.parse().map_err(serde::de::Error::custom)).transpose()
}

impl FileConfig {
    /// How CPU limits are enforced.
    pub fn cpu_bound(&self) -> CpuBound {
        let period = u64::try_from(self.cpu_cfs_quota_period.as_micros()).unwrap_or(u64::MAX);
        if self.cpu_cfs_quota { CpuBound::Period(period) } else { CpuBound::Off }
    }

    /// The URL of static pod manifests, if configured.
    pub fn static_pods_page(&self) -> Option<Result<Page, PageError>> {
        let url = Some(&self.static_pod_url).filter(|url| !url.is_empty())?;
        Some(Page::new(url, &self.static_pod_url_header, self.http_check_frequency))
    }

    /// The defaults of an agent that is started with flags only, as in Kubernetes' kubelet: the
    /// endpoint is open unless a flag restricts it.
    pub fn of_flags_alone() -> Self {
        let mut file = Self::default();
        file.authentication.anonymous.enabled = true;
        file.authentication.webhook.enabled = false;
        file.authorization.mode = Mode::AlwaysAllow;
        file
    }
}
