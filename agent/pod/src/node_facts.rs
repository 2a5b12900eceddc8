//! What translation knows of the node.

use agent_node::cgroup::CpuBound;
use proto_api::names::Names;

use crate::spec::DnsConfig;

/// What the node adds to every pod.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeFacts {
    /// Names of the naming profile.
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
    /// Whether a container that names no seccomp profile runs under the runtime's.
    pub seccomp_default: bool,
    /// Sizes in bytes of the node's huge pages.
    pub huge_page_sizes: Vec<u64>,
    /// How CPU limits are enforced.
    pub cpu_bound: CpuBound,
}
