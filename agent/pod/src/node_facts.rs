//! Settings and facts of the node that the translation needs.

use agent_node::cgroup::CpuBound;
use proto_api::names::Names;

use crate::spec::DnsConfig;

/// Settings and facts of the node used for every pod.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeFacts {
    /// Names under the naming profile.
    pub names: &'static Names,
    /// Directory of pod logs, `/var/log/pods`.
    pub pod_logs_dir: String,
    /// Directory of seccomp profiles for `Localhost`.
    pub seccomp_dir: String,
    /// Cluster name servers.
    pub cluster_dns: Vec<String>,
    /// DNS domain of the cluster.
    pub cluster_domain: String,
    /// The node's own resolver configuration.
    pub resolver: DnsConfig,
    /// Memory of the node in bytes.
    pub memory_bytes: u64,
    /// `seccompDefault`: whether a container without a seccomp profile gets the runtime's default.
    pub seccomp_default: bool,
    /// Sizes in bytes of the node's huge pages.
    pub huge_page_sizes: Vec<u64>,
    /// Whether CPU limits are enforced by a quota.
    pub cpu_bound: CpuBound,
}
