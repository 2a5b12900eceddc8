//! Validates a configuration by KubeletConfiguration's rules, and lists settings without effect.
//! Pure.

use std::time::Duration;

use agent_pod::backoff::CRASH_DELAY_MAX;
use proto_api::Quantity;
use proto_daemon::config::{Configuration, FieldError};
use proto_daemon::exit::chain;
use proto_daemon::feature_gates::FeatureGates;
use serde_json::Value;

use super::file::FileConfig;
use super::node::eviction_thresholds;
use proto_client::serving::tls;

impl Configuration for FileConfig {
    /// The file alone may be incomplete: it is validated together with the flags.
    fn validate(&self) -> Vec<FieldError> {
        Vec::new()
    }
}

/// Collects validation errors.
#[derive(Default)]
struct Faults(Vec<FieldError>);

impl Faults {
    fn check(&mut self, holds: bool, path: &str, message: impl Into<String>) {
        if !holds {
            self.0.push(FieldError::new(path, message));
        }
    }

    fn one_of(&mut self, value: &str, allowed: &[&str], path: &str) {
        self.check(
            allowed.contains(&value),
            path,
            format!("{value:?} is not one of {}", allowed.join(", ")),
        );
    }

    fn between(&mut self, value: i64, range: std::ops::RangeInclusive<i64>, path: &str) {
        let message = format!("must be between {} and {}, inclusive", range.start(), range.end());
        self.check(range.contains(&value), path, message);
    }
}

/// All validation errors of a configuration.
pub fn faults(file: &FileConfig) -> Vec<FieldError> {
    let mut faults = Faults::default();
    endpoint(file, &mut faults);
    node(file, &mut faults);
    resources(file, &mut faults);
    images_and_logs(file, &mut faults);
    eviction(file, &mut faults);
    faults.0
}

/// Validation errors that depend on feature gates.
pub fn gated(file: &FileConfig, gates: &FeatureGates) -> Vec<FieldError> {
    let mut faults = Faults::default();
    let needs = |gate: &str| format!("needs the feature gate {gate}");
    let rotation = "RotateKubeletServerCertificate";
    faults.check(
        !file.server_tls_bootstrap || gates.is_on(rotation),
        "serverTLSBootstrap",
        needs(rotation),
    );
    let graceful = "GracefulNodeShutdown";
    let is_set = !file.shutdown_grace_period.is_zero();
    faults.check(!is_set || gates.is_on(graceful), "shutdownGracePeriod", needs(graceful));
    faults.0
}

fn endpoint(file: &FileConfig, faults: &mut Faults) {
    faults.check(file.port > 0, "port", "must be between 1 and 65535, inclusive");
    faults.check(
        file.read_only_port == 0,
        "readOnlyPort",
        "must be 0: nothing is served without authentication",
    );
    faults.check(
        file.tls_cert_file.is_some() == file.tls_private_key_file.is_some(),
        "tlsPrivateKeyFile",
        "must be set together with tlsCertFile",
    );
    if let Err(why) = tls::versions(&file.tls_min_version) {
        faults.check(false, "tlsMinVersion", why.to_string());
    }
    if let Err(why) = tls::suites(&file.tls_cipher_suites) {
        faults.check(false, "tlsCipherSuites", why.to_string());
    }
    faults.one_of(&file.logging.format, &["text", "json"], "logging.format");
}

fn node(file: &FileConfig, faults: &mut Faults) {
    let positive = "must be greater than 0";
    faults.check(file.max_pods > 0, "maxPods", positive);
    faults.check(file.pods_per_core >= 0, "podsPerCore", "must not be negative");
    faults.check(!file.file_check_frequency.is_zero(), "fileCheckFrequency", positive);
    faults.check(!file.http_check_frequency.is_zero(), "httpCheckFrequency", positive);
    if let Some(Err(why)) = file.static_pods_page() {
        faults.check(false, "staticPodURL", chain(&why));
    }
    // With this setting the agent would be expected to exit.
    faults.check(!file.run_once, "runOnce", "must be false: the agent keeps running");
    faults.check(
        !file.node_status_update_frequency.is_zero(),
        "nodeStatusUpdateFrequency",
        positive,
    );
    faults.check(file.node_lease_duration_seconds > 0, "nodeLeaseDurationSeconds", positive);
    faults.check(file.node_status_max_images >= -1, "nodeStatusMaxImages", "must be -1 or greater");
    faults.check(file.max_open_files >= 0, "maxOpenFiles", "must not be negative");
    faults.between(file.oom_score_adj.into(), -1000..=1000, "oomScoreAdj");
    for (value, path) in [
        (file.event_record_qps, "eventRecordQPS"),
        (file.event_burst, "eventBurst"),
        (file.kube_api_qps, "kubeAPIQPS"),
        (file.kube_api_burst, "kubeAPIBurst"),
        (file.registry_pull_qps, "registryPullQPS"),
        (file.registry_burst, "registryBurst"),
    ] {
        faults.check(value >= 0, path, "must not be negative");
    }
    faults.between(file.iptables_masquerade_bit.into(), 0..=31, "iptablesMasqueradeBit");
    faults.between(file.iptables_drop_bit.into(), 0..=31, "iptablesDropBit");
    faults.one_of(
        &file.hairpin_mode,
        &["promiscuous-bridge", "hairpin-veth", "none"],
        "hairpinMode",
    );
    let strategy = &file.config_map_and_secret_change_detection_strategy;
    faults.one_of(
        strategy,
        &["Watch", "Cache", "Get"],
        "configMapAndSecretChangeDetectionStrategy",
    );
    faults.check(
        file.shutdown_grace_period >= file.shutdown_grace_period_critical_pods,
        "shutdownGracePeriodCriticalPods",
        "must be <= shutdownGracePeriod",
    );
    let both = !file.shutdown_grace_period.is_zero()
        && !file.shutdown_grace_period_by_pod_priority.is_empty();
    faults.check(
        !both,
        "shutdownGracePeriodByPodPriority",
        "cannot be set together with shutdownGracePeriod",
    );
}

fn resources(file: &FileConfig, faults: &mut Faults) {
    faults.check(
        file.cgroup_root.starts_with('/') || file.cgroup_root.is_empty(),
        "cgroupRoot",
        "must be an absolute path",
    );
    faults.check(
        file.system_cgroups.is_empty() || !file.cgroup_root.is_empty(),
        "systemCgroups",
        "needs cgroupRoot",
    );
    for (path, reserved) in
        [("systemReserved", &file.system_reserved), ("kubeReserved", &file.kube_reserved)]
    {
        for (name, amount) in reserved {
            faults.check(!amount.is_negative(), &format!("{path}.{name}"), "must not be negative");
            let known = matches!(name.as_str(), "cpu" | "memory" | "ephemeral-storage" | "pid")
                || name.starts_with("hugepages-");
            faults.check(
                known,
                &format!("{path}.{name}"),
                "must be cpu, memory, ephemeral-storage, pid or hugepages-<size>",
            );
        }
    }
    enforced(file, faults);
    faults.between(
        i64::try_from(file.cpu_cfs_quota_period.as_micros()).unwrap_or(i64::MAX),
        1_000..=1_000_000,
        "cpuCFSQuotaPeriod (in microseconds)",
    );
    faults.one_of(&file.cpu_manager_policy, &["none", "static"], "cpuManagerPolicy");
    faults.one_of(&file.memory_manager_policy, &["None", "Static"], "memoryManagerPolicy");
    let policies = ["none", "best-effort", "restricted", "single-numa-node"];
    faults.one_of(&file.topology_manager_policy, &policies, "topologyManagerPolicy");
    faults.one_of(&file.topology_manager_scope, &["container", "pod"], "topologyManagerScope");
    let factor = file.memory_throttling_factor;
    faults.check(
        factor > 0.0 && factor <= 1.0,
        "memoryThrottlingFactor",
        "must be greater than 0 and not greater than 1.0",
    );
    faults.one_of(
        &file.memory_swap.swap_behavior,
        &["", "LimitedSwap", "UnlimitedSwap"],
        "memorySwap.swapBehavior",
    );
}

/// Validates `enforceNodeAllocatable`.
fn enforced(file: &FileConfig, faults: &mut Faults) {
    let path = "enforceNodeAllocatable";
    for what in &file.enforce_node_allocatable {
        match what.as_str() {
            "none" => faults.check(
                file.enforce_node_allocatable.len() == 1,
                path,
                "cannot contain other values when none is specified",
            ),
            "pods" => faults.check(file.cgroups_per_qos, path, "pods needs cgroupsPerQOS"),
            "system-reserved" => faults.check(
                !file.system_reserved_cgroup.is_empty(),
                path,
                "system-reserved needs systemReservedCgroup",
            ),
            "kube-reserved" => faults.check(
                !file.kube_reserved_cgroup.is_empty(),
                path,
                "kube-reserved needs kubeReservedCgroup",
            ),
            "" => {}
            other => faults.check(
                false,
                path,
                format!("{other:?} is not one of none, pods, system-reserved, kube-reserved"),
            ),
        }
    }
}

fn images_and_logs(file: &FileConfig, faults: &mut Faults) {
    faults.check(
        (Duration::from_secs(1)..=CRASH_DELAY_MAX)
            .contains(&file.crash_loop_back_off.max_container_restart_period),
        "crashLoopBackOff.maxContainerRestartPeriod",
        "must be between 1s and 300s, inclusive",
    );
    let (high, low) = (file.image_gc_high_threshold_percent, file.image_gc_low_threshold_percent);
    faults.between(high.into(), 0..=100, "imageGCHighThresholdPercent");
    faults.between(low.into(), 0..=100, "imageGCLowThresholdPercent");
    faults.check(
        low < high || high == 100,
        "imageGCLowThresholdPercent",
        "must be less than imageGCHighThresholdPercent",
    );
    if let Some(parallel) = file.max_parallel_image_pulls {
        faults.check(parallel > 0, "maxParallelImagePulls", "must be a positive number");
        faults.check(
            parallel == 1 || !file.serialize_image_pulls,
            "maxParallelImagePulls",
            "cannot be larger than 1 unless serializeImagePulls is false",
        );
    }
    faults.check(
        file.container_log_max_files > 1,
        "containerLogMaxFiles",
        "must be greater than 1",
    );
    faults.check(log_size(file).is_some(), "containerLogMaxSize", "must be a positive quantity");
}

/// Size at which logs are rotated, in bytes.
pub fn log_size(file: &FileConfig) -> Option<u64> {
    let size: Quantity = file.container_log_max_size.parse().ok()?;
    Some(size.as_bytes()).filter(|bytes| *bytes > 0 && !size.is_negative())
}

fn eviction(file: &FileConfig, faults: &mut Faults) {
    for fault in eviction_thresholds(file).err().unwrap_or_default() {
        faults.check(false, &fault.path, fault.message);
    }
    faults.check(
        file.eviction_max_pod_grace_period >= 0,
        "evictionMaxPodGracePeriod",
        "must not be negative",
    );
}

/// Fields without effect, each with the reason.
pub(crate) const WITHOUT_EFFECT: &[(&str, &str)] = &[
    ("syncFrequency", "pods are looked at when something happens"),
    ("enableContentionProfiling", "there is no such profile"),
    ("showHiddenMetricsForVersion", "no metric is hidden"),
    ("kubeAPIQPS", "requests are bounded by concurrency"),
    ("kubeAPIBurst", "requests are bounded by concurrency"),
    ("contentType", "Protobuf is used where the server speaks it"),
    ("configMapAndSecretChangeDetectionStrategy", "objects are always watched"),
    ("runtimeRequestTimeout", "each call of the runtime has its own bound"),
    ("volumePluginDir", "there are no such plugins"),
    ("makeIPTablesUtilChains", "no such chains are made"),
    ("iptablesMasqueradeBit", "no mark is used"),
    ("iptablesDropBit", "no mark is used"),
    ("hairpinMode", "the network configuration says"),
    ("kubeletCgroups", "the agent stays in the cgroup it was started in"),
    ("systemCgroups", "processes are not moved"),
    ("tracing", "no traces are sent"),
    ("memorySwap", "with failSwapOn off, pods swap as the kernel sees fit"),
    ("memoryThrottlingFactor", "memory.high is not set"),
    ("kernelMemcgNotification", "pressure is read from the kernel without it"),
    ("enableControllerAttachDetach", "volumes are always attached by the controller manager"),
    ("imageServiceEndpoint", "images are asked of containerRuntimeEndpoint"),
    ("protectKernelDefaults", "no kernel setting of the node is changed or checked"),
    ("qosReserved", "no memory is kept for guaranteed pods"),
    ("streamingConnectionIdleTimeout", "a session ends with its client or container"),
    ("maxOpenFiles", "the limit is that of what starts the agent"),
    ("oomScoreAdj", "the score is that of what starts the agent"),
    ("podsPerCore", "maxPods is the only bound"),
    ("cgroupsPerQOS", "pods always have cgroups by class"),
];

/// A warning for each field without effect that is set.
pub fn without_effect(file: &FileConfig) -> Vec<String> {
    let fields = |file: &FileConfig| serde_json::to_value(file).unwrap_or_default();
    let (set, usual) = (fields(file), fields(&FileConfig::default()));
    let differs = |name: &str| {
        set.get(name).unwrap_or(&Value::Null) != usual.get(name).unwrap_or(&Value::Null)
    };
    let set = WITHOUT_EFFECT.iter().filter(|(name, _)| differs(name));
    set.map(|(name, why)| format!("{name} has no effect: {why}")).collect()
}
