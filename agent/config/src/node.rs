//! Settings of the node, converted for their users: images, eviction, shutdown, the Node object.
//! Pure.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use agent_images::{PullBounds, STANDSTILL};
use agent_node::eviction::Signal;
use agent_node::eviction::thresholds::{
    Amount, Threshold, ThresholdError, ThresholdTexts, thresholds,
};
use agent_node::image_gc::ImageGcLimits;
use agent_node::shutdown::{PriorityGrace, ShutdownGroups};
use agent_node::status::CloudProvider;
use clap::{Args, ValueEnum};
use proto_daemon::rate::Rate;

use super::file::FileConfig;

/// Flags of the node without a field in the file.
#[derive(Clone, Debug, Args)]
pub struct NodeFlags {
    /// Configuration of credential provider plugins.
    #[arg(long, value_name = "FILE", requires = "image_credential_provider_bin_dir")]
    pub image_credential_provider_config: Option<PathBuf>,
    /// Directory of these plugins.
    #[arg(long, value_name = "DIR", requires = "image_credential_provider_config")]
    pub image_credential_provider_bin_dir: Option<PathBuf>,
    /// Directory whose image archives (`*.tar`) are imported, for nodes that reach no registry.
    #[arg(long, value_name = "DIR")]
    pub image_import_dir: Option<PathBuf>,
    /// Dead instances kept per container.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub maximum_dead_containers_per_container: u32,
    /// `external` where a cloud controller manager completes the Node: it starts with that manager's taint, and addresses that the manager has written stay.
    #[arg(long, value_name = "PROVIDER", value_parser = cloud_provider)]
    pub cloud_provider: Option<CloudProviderFlag>,
    /// `remote`, as Kubernetes before 1.27 has it: without effect, since there is no other.
    #[arg(long, value_name = "KIND", value_parser = ["remote"])]
    pub container_runtime: Option<String>,
    /// The container runtime: `cri`, or `memory` for hollow nodes, which run nothing.
    #[arg(long, value_name = "RUNTIME", value_enum, default_value_t = RuntimeKind::Cri)]
    pub runtime: RuntimeKind,
    /// Hollow nodes of this process, with --runtime=memory: --hostname-override is what their names begin with, and a directory given as --kubeconfig has a
    /// file <name>.conf for each of them.
    #[arg(long, value_name = "N", default_value_t = 1, requires = "runtime", value_parser = clap::value_parser!(u16).range(1..))]
    pub hollow_nodes: u16,
}

/// Who completes the Node object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloudProviderFlag {
    /// The agent.
    None,
    /// A cloud controller manager.
    External,
}

fn cloud_provider(text: &str) -> Result<CloudProviderFlag, UnknownCloudProvider> {
    match text {
        "" => Ok(CloudProviderFlag::None),
        "external" => Ok(CloudProviderFlag::External),
        _ => Err(UnknownCloudProvider),
    }
}

/// A cloud provider of the kubelet's own; there are none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("is not `external`: no cloud is built in; run the cloud's controller manager")]
struct UnknownCloudProvider;

impl NodeFlags {
    /// What completes the Node object; `node_ips` are those of `--node-ip`.
    #[must_use]
    pub fn cloud(&self, node_ips: &[IpAddr]) -> CloudProvider {
        match self.cloud_provider {
            Some(CloudProviderFlag::External) => CloudProvider::External {
                provided_ip: node_ips.first().map(ToString::to_string).unwrap_or_default(),
            },
            Some(CloudProviderFlag::None) | None => CloudProvider::None,
        }
    }
}

/// The container runtime: a CRI endpoint, or in memory for hollow nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum RuntimeKind {
    /// A runtime with the Container Runtime Interface.
    Cri,
    /// Nothing does: a runtime in memory says that they run.
    Memory,
}

/// Default of concurrent pulls: one large image must not delay all other pods.
const PARALLEL_PULLS: i32 = 5;

/// Limits of image pulls.
pub fn pull_bounds(file: &FileConfig) -> PullBounds {
    let parallel = match file.max_parallel_image_pulls {
        _ if file.serialize_image_pulls => 1,
        Some(parallel) => parallel,
        None => PARALLEL_PULLS,
    };
    PullBounds {
        parallel: usize::try_from(parallel).unwrap_or(1).max(1),
        qps: u32::try_from(file.registry_pull_qps).unwrap_or(0),
        burst: u32::try_from(file.registry_burst).unwrap_or(1),
        standstill: STANDSTILL,
    }
}

/// Rate limit of events.
pub fn event_rate(file: &FileConfig) -> Rate {
    let number = |number: i32| u32::try_from(number).unwrap_or(0);
    Rate::new(number(file.event_record_qps), number(file.event_burst))
}

/// Limits of image garbage collection.
pub fn image_limits(file: &FileConfig) -> ImageGcLimits {
    let percent = |value: i32| u8::try_from(value).unwrap_or(100);
    ImageGcLimits {
        high_percent: percent(file.image_gc_high_threshold_percent),
        low_percent: percent(file.image_gc_low_threshold_percent),
        min_age: file.image_minimum_gc_age,
    }
}

/// Eviction thresholds.
///
/// # Errors
/// All validation errors.
pub fn eviction_thresholds(file: &FileConfig) -> Result<Vec<Threshold>, Vec<ThresholdError>> {
    thresholds(&ThresholdTexts {
        hard: &file.eviction_hard,
        soft: &file.eviction_soft,
        soft_grace: &file.eviction_soft_grace_period,
        min_reclaim: &file.eviction_minimum_reclaim,
    })
}

/// Bytes of memory and of the root disk kept free by hard thresholds, which reduce allocatable.
pub fn kept_by_eviction(file: &FileConfig, memory: u64, disk: u64) -> (u64, u64) {
    let all = eviction_thresholds(file).unwrap_or_default();
    let of = |signal: Signal, capacity: u64| {
        let hard = all.iter().find(|t| t.signal == signal && t.grace.is_none());
        hard.map_or(0, |threshold: &Threshold| Amount::resolve(threshold.below, capacity))
    };
    (of(Signal::MemoryAvailable, memory), of(Signal::NodefsAvailable, disk))
}

/// Grace period under soft thresholds.
pub fn soft_grace(file: &FileConfig) -> Duration {
    Duration::from_secs(u64::try_from(file.eviction_max_pod_grace_period).unwrap_or(0))
}

/// Priority groups of a node shutdown.
pub fn shutdown_groups(file: &FileConfig) -> ShutdownGroups {
    let by_priority: Vec<PriorityGrace> = file
        .shutdown_grace_period_by_pod_priority
        .iter()
        .map(|group| PriorityGrace {
            priority: group.priority,
            shutdown_grace_period_seconds: u32::try_from(group.shutdown_grace_period_seconds)
                .unwrap_or(0),
        })
        .collect();
    ShutdownGroups::new(
        &by_priority,
        file.shutdown_grace_period,
        file.shutdown_grace_period_critical_pods,
    )
}

/// Most images listed in the Node object.
pub fn images_listed_max(file: &FileConfig) -> usize {
    usize::try_from(file.node_status_max_images).unwrap_or(usize::MAX)
}

/// Duration of the node's Lease, in seconds.
pub fn lease_secs(file: &FileConfig) -> u16 {
    u16::try_from(file.node_lease_duration_seconds).unwrap_or(u16::MAX)
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[test]
    fn flags_of_earlier_kubelets_are_read() {
        let flags = |args: &[&str]| {
            crate::Flags::try_parse_from([&["orchlet"], args].concat()).map(|flags| flags.node)
        };
        let ip: [IpAddr; 1] = ["10.0.0.5".parse().expect("an address")];
        let external = flags(&["--container-runtime=remote", "--cloud-provider=external"]);
        let provided = CloudProvider::External { provided_ip: "10.0.0.5".into() };
        assert_eq!(external.expect("flags").cloud(&ip), provided);
        for args in [&["--cloud-provider="][..], &[]] {
            assert_eq!(flags(args).expect("flags").cloud(&ip), CloudProvider::None);
        }
        let refused = flags(&["--cloud-provider=aws"]).expect_err("not built in").to_string();
        assert!(refused.contains("run the cloud's controller manager"), "{refused}");
        assert!(flags(&["--container-runtime=docker"]).is_err());
    }

    #[test]
    fn kubernetes_defaults_hold() {
        let file = FileConfig::default();
        assert_eq!(eviction_thresholds(&file).expect("valid").len(), 5);
        assert_eq!(image_limits(&file), ImageGcLimits::default());
        assert_eq!(kept_by_eviction(&file, 1 << 30, 1000), (100 << 20, 100));
        assert!(shutdown_groups(&file).is_empty());
        assert_eq!((images_listed_max(&file), lease_secs(&file)), (50, 40));
        let logs = (file.container_log_max_size.as_str(), file.container_log_max_files);
        assert_eq!(logs, ("10Mi", 5));
    }
}
