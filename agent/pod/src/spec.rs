//! Configuration of sandboxes and containers for the container runtime, as plain values.
//!
//! They hold what CRI can express; the runtime crate maps them to CRI field by field.

use std::collections::BTreeMap;

/// Labels and annotations that runtimes and their tools read. CRI defines them, so they are the same under every naming profile.
pub mod labels {
    pub const POD_NAME: &str = "io.kubernetes.pod.name";
    pub const POD_NAMESPACE: &str = "io.kubernetes.pod.namespace";
    pub const POD_UID: &str = "io.kubernetes.pod.uid";
    /// Name of the container in the pod.
    pub const CONTAINER_NAME: &str = "io.kubernetes.container.name";
    /// Annotation: hash of the whole container as kubelets compare it, see [`crate::kubelet_adoption::whole_hash`]; written for
    /// them only.
    pub const CONTAINER_HASH: &str = "io.kubernetes.container.hash";
    /// Annotation: hash of the fields whose change replaces the instance. Kubelets do not write it.
    pub const DEFINITION_HASH: &str = "io.kubernetes.container.definitionHash";
    /// Annotation: restart count when this instance was created; equals its attempt.
    pub const RESTART_COUNT: &str = "io.kubernetes.container.restartCount";
    /// Annotation: path in the container of its termination message.
    pub const TERMINATION_MESSAGE_PATH: &str = "io.kubernetes.container.terminationMessagePath";
    /// Annotation: `File` or `FallbackToLogsOnError`.
    pub const TERMINATION_MESSAGE_POLICY: &str = "io.kubernetes.container.terminationMessagePolicy";
    /// Annotation: grace period of the pod in seconds, used when the container is stopped without its pod.
    pub const POD_TERMINATION_GRACE: &str = "io.kubernetes.pod.terminationGracePeriod";
}

/// A pod sandbox to create. The runtime rejects a second one with the same name, namespace, uid and attempt.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SandboxConfig {
    /// Name of the pod.
    pub name: String,
    /// UID of the pod.
    pub uid: String,
    /// Namespace of the pod.
    pub namespace: String,
    /// 0 for the pod's first sandbox, increased by one for each replacement.
    pub attempt: u32,
    /// Host name in the sandbox; empty on the host network.
    pub hostname: String,
    /// Parent directory of container logs, `/var/log/pods/<namespace>_<name>_<uid>`.
    pub log_directory: String,
    /// Resolver configuration; `None` keeps the image's file.
    pub dns: Option<DnsConfig>,
    /// Host ports.
    pub port_mappings: Vec<PortMapping>,
    /// Labels, usable in queries.
    pub labels: BTreeMap<String, String>,
    /// Annotations, not interpreted by CRI.
    pub annotations: BTreeMap<String, String>,
    /// Cgroup directory of the pod, absolute below each hierarchy (`/kubepods/burstable/pod<uid>`), or empty.
    pub cgroup_parent: String,
    /// Sysctls in the sandbox's namespaces.
    pub sysctls: BTreeMap<String, String>,
    /// Namespaces shared with the host or within the pod.
    pub namespaces: Namespaces,
    /// Users, groups and profiles of the sandbox process.
    pub security: SandboxSecurity,
    /// Runtime handler; empty for the default.
    pub runtime_handler: String,
}

/// Content of a pod's `/etc/resolv.conf`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DnsConfig {
    /// Addresses of name servers.
    pub servers: Vec<String>,
    /// Search domains.
    pub searches: Vec<String>,
    /// Resolver options, `name` or `name:value`.
    pub options: Vec<String>,
}

/// A host port forwarded to the sandbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortMapping {
    /// Transport protocol.
    pub protocol: Protocol,
    /// Port in the sandbox.
    pub container_port: i32,
    pub host_port: i32,
    /// Host address to bind; empty for all.
    pub host_ip: String,
}

/// Transport protocol of a port mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    Tcp,
    Udp,
    Sctp,
}

/// Who shares a Linux namespace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NamespaceScope {
    /// Shared by the pod.
    #[default]
    Pod,
    /// One per container.
    Container,
    /// The host's.
    Node,
}

/// Namespaces of a sandbox and of its containers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Namespaces {
    /// Network: `Pod` or `Node`.
    pub network: NamespaceScope,
    /// Process ids: `Pod`, `Container` or `Node`.
    pub pid: NamespaceScope,
    /// System V IPC and POSIX queues: `Pod` or `Node`.
    pub ipc: NamespaceScope,
}

impl Default for Namespaces {
    fn default() -> Self {
        Self {
            network: NamespaceScope::Pod,
            pid: NamespaceScope::Container,
            ipc: NamespaceScope::Pod,
        }
    }
}

/// Security of the sandbox process.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SandboxSecurity {
    /// User of the sandbox process.
    pub run_as_user: Option<i64>,
    /// Primary group.
    pub run_as_group: Option<i64>,
    pub supplemental_groups: Vec<i64>,
    /// Whether any container of the pod is privileged; CRI requires it of the sandbox too.
    pub privileged: bool,
    /// Seccomp profile.
    pub seccomp: Seccomp,
    /// SELinux options.
    pub selinux: Option<SeLinux>,
}

/// A seccomp profile.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Seccomp {
    /// No filter.
    #[default]
    Unconfined,
    /// The runtime's default profile.
    RuntimeDefault,
    /// Absolute path of a profile on the node; never empty.
    Localhost(String),
}

/// Parts of an SELinux context.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SeLinux {
    pub user: String,
    pub role: String,
    pub type_: String,
    pub level: String,
}

/// A container to create in a sandbox. The runtime rejects a second one with the same name and attempt in a pod.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ContainerConfig {
    /// Name of the container in the pod.
    pub name: String,
    /// 0 for the first instance, increased by one for each restart.
    pub attempt: u32,
    /// Runtime id of the image.
    pub image: String,
    /// Replaces the image's entry point unless empty.
    pub command: Vec<String>,
    /// Replaces the image's arguments unless empty.
    pub args: Vec<String>,
    /// Working directory; empty for the image's.
    pub working_dir: String,
    /// Environment in order, with unique names.
    pub env: Vec<(String, String)>,
    /// Bind mounts.
    pub mounts: Vec<Mount>,
    /// Device nodes of the host.
    pub devices: Vec<DeviceNode>,
    /// Labels, usable in queries.
    pub labels: BTreeMap<String, String>,
    /// Annotations, not interpreted by CRI.
    pub annotations: BTreeMap<String, String>,
    /// Log file relative to the sandbox's log directory, `<container>/<attempt>.log`.
    pub log_path: String,
    /// Whether standard input is kept open.
    pub stdin: bool,
    /// Whether standard input is closed after the first attach session.
    pub stdin_once: bool,
    /// Whether a terminal is allocated.
    pub tty: bool,
    /// Limits.
    pub resources: ContainerResources,
    /// Users, capabilities and profiles.
    pub security: ContainerSecurity,
}

/// A bind mount of a host path into a container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mount {
    /// Absolute path in the container.
    pub container_path: String,
    /// Absolute path on the host.
    pub host_path: String,
    /// Whether it is read-only.
    pub read_only: bool,
    /// Whether the runtime relabels the host path for SELinux.
    pub selinux_relabel: bool,
    /// Propagation of later mounts.
    pub propagation: Propagation,
}

/// Mount propagation, as in `mountPropagation`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Propagation {
    /// `None`: no propagation.
    #[default]
    Private,
    HostToContainer,
    Bidirectional,
}

/// A device node of the host in a container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceNode {
    pub container_path: String,
    pub host_path: String,
    /// Any combination of `r`, `w` and `m`.
    pub permissions: String,
}

/// Resources of a container; 0 means unset, except for `oom_score_adj`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContainerResources {
    /// CPU weight on the scale of cgroup v1, 2 to 262144.
    pub cpu_shares: i64,
    /// Period of the CPU quota in microseconds.
    pub cpu_period_us: i64,
    /// CPU quota per period in microseconds.
    pub cpu_quota_us: i64,
    pub memory_limit_bytes: i64,
    /// -1000 to 1000.
    pub oom_score_adj: i64,
    /// CPUs as a list of ranges; empty for unchanged.
    pub cpuset_cpus: String,
    /// NUMA nodes as a list of ranges; empty for unchanged.
    pub cpuset_mems: String,
    /// Limit in bytes of huge pages, by page size as the kernel writes it (`2MB`).
    pub huge_page_limits: Vec<(String, u64)>,
}

/// Users, capabilities and profiles of a container.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ContainerSecurity {
    /// Whether the container is privileged.
    pub privileged: bool,
    /// Capabilities added to the runtime's default set, without the prefix `CAP_`.
    pub add_capabilities: Vec<String>,
    /// Capabilities removed from the default set.
    pub drop_capabilities: Vec<String>,
    /// Uid; `None` for the image's.
    pub run_as_user: Option<i64>,
    /// User name, if the uid is unknown; otherwise empty.
    pub run_as_username: String,
    /// Gid; `None` for the image's.
    pub run_as_group: Option<i64>,
    pub supplemental_groups: Vec<i64>,
    /// Whether the root file system is mounted read-only.
    pub read_only_root: bool,
    /// Whether `no_new_privs` is set.
    pub no_new_privileges: bool,
    /// Seccomp profile.
    pub seccomp: Seccomp,
    /// AppArmor profile; empty for the runtime's default.
    pub apparmor: String,
    /// SELinux options.
    pub selinux: Option<SeLinux>,
    /// Masked paths below `/proc`; `None` for the default list.
    pub masked_paths: Option<Vec<String>>,
    /// Read-only paths below `/proc`; `None` for the default list.
    pub readonly_paths: Option<Vec<String>>,
    /// Namespaces; CRI requires the values of the sandbox.
    pub namespaces: Namespaces,
    /// Id of the container whose PID namespace is joined; overrides `namespaces.pid`.
    pub pid_of: Option<String>,
}
