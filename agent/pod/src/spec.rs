//! What the container runtime is asked to create: plain values, one per sandbox and one per container.
//!
//! They hold what the runtime interface of this ecosystem can express and nothing else; the runtime crate maps them field by field.

use std::collections::BTreeMap;

/// Labels that runtimes and their tools read; owned by the runtime interface, so the same under every naming profile.
pub mod labels {
    /// Name of the pod.
    pub const POD_NAME: &str = "io.kubernetes.pod.name";
    /// Namespace of the pod.
    pub const POD_NAMESPACE: &str = "io.kubernetes.pod.namespace";
    /// UID of the pod.
    pub const POD_UID: &str = "io.kubernetes.pod.uid";
    /// Name of the container in the pod.
    pub const CONTAINER_NAME: &str = "io.kubernetes.container.name";
    /// Annotation: hash of the whole container as other agents compare it, see [`crate::kubelet_adoption::whole_hash`]; for them only.
    pub const CONTAINER_HASH: &str = "io.kubernetes.container.hash";
    /// Annotation: hash of the part of the container that forces a new instance when it changes. No other agent writes it.
    pub const DEFINITION_HASH: &str = "io.kubernetes.container.definitionHash";
    /// Annotation: how often the container had been restarted when this instance was created; equals its attempt.
    pub const RESTART_COUNT: &str = "io.kubernetes.container.restartCount";
    /// Annotation: path inside the container whose content becomes the termination message.
    pub const TERMINATION_MESSAGE_PATH: &str = "io.kubernetes.container.terminationMessagePath";
    /// Annotation: `File` or `FallbackToLogsOnError`.
    pub const TERMINATION_MESSAGE_POLICY: &str = "io.kubernetes.container.terminationMessagePolicy";
    /// Annotation: grace period of the pod in seconds, for whoever has to stop the container without the pod.
    pub const POD_TERMINATION_GRACE: &str = "io.kubernetes.pod.terminationGracePeriod";
}

/// A pod sandbox to create. The runtime refuses a second one of the same name, namespace, uid and attempt.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SandboxConfig {
    /// Name of the pod.
    pub name: String,
    /// UID of the pod.
    pub uid: String,
    /// Namespace of the pod.
    pub namespace: String,
    /// 0 for the first sandbox of the pod, one more for each replacement.
    pub attempt: u32,
    /// Host name inside; empty when the pod uses the host's network.
    pub hostname: String,
    /// Directory below which the runtime writes container logs, `/var/log/pods/<namespace>_<name>_<uid>`.
    pub log_directory: String,
    /// Resolver configuration; `None` leaves the image's own file.
    pub dns: Option<DnsConfig>,
    /// Host ports.
    pub port_mappings: Vec<PortMapping>,
    /// Queryable labels.
    pub labels: BTreeMap<String, String>,
    /// Opaque annotations.
    pub annotations: BTreeMap<String, String>,
    /// Cgroup directory of the pod, absolute below each hierarchy (`/kubepods/burstable/pod<uid>`), or empty.
    pub cgroup_parent: String,
    /// Sysctls in the sandbox's namespaces.
    pub sysctls: BTreeMap<String, String>,
    /// Namespaces shared with the host or inside the pod.
    pub namespaces: Namespaces,
    /// Users, groups and profiles of the sandbox's own process.
    pub security: SandboxSecurity,
    /// Name of the runtime handler; empty for the runtime's default.
    pub runtime_handler: String,
}

/// `/etc/resolv.conf` of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DnsConfig {
    /// Addresses of name servers.
    pub servers: Vec<String>,
    /// Search domains.
    pub searches: Vec<String>,
    /// Resolver options, `name` or `name:value`.
    pub options: Vec<String>,
}

/// A port of the host that leads into the sandbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortMapping {
    /// Transport protocol.
    pub protocol: Protocol,
    /// Port inside.
    pub container_port: i32,
    /// Port of the host.
    pub host_port: i32,
    /// Address of the host to bind; empty for all.
    pub host_ip: String,
}

/// Transport protocol of a port mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
    /// SCTP.
    Sctp,
}

/// How far a namespace reaches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NamespaceScope {
    /// One for the whole pod.
    #[default]
    Pod,
    /// One for each container.
    Container,
    /// The host's own.
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

/// Security of the sandbox's own process.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SandboxSecurity {
    /// User that runs the sandbox's process.
    pub run_as_user: Option<i64>,
    /// Its primary group.
    pub run_as_group: Option<i64>,
    /// Its further groups.
    pub supplemental_groups: Vec<i64>,
    /// Whether a container of the pod is privileged, so that the sandbox allows it.
    pub privileged: bool,
    /// Seccomp profile.
    pub seccomp: Seccomp,
    /// SELinux label parts.
    pub selinux: Option<SeLinux>,
}

/// A seccomp profile.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Seccomp {
    /// No filter.
    #[default]
    Unconfined,
    /// The runtime's own default.
    RuntimeDefault,
    /// A profile file of the node, by absolute path; never empty.
    Localhost(String),
}

/// Parts of an SELinux label.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SeLinux {
    /// User part.
    pub user: String,
    /// Role part.
    pub role: String,
    /// Type part.
    pub type_: String,
    /// Level part.
    pub level: String,
}

/// A container to create inside a sandbox. The runtime refuses a second one of the same name and attempt in a pod.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ContainerConfig {
    /// Name of the container in the pod.
    pub name: String,
    /// 0 for the first instance, one more for each restart.
    pub attempt: u32,
    /// Image as the runtime knows it: the id it gave when the image was looked up.
    pub image: String,
    /// Replaces the image's entry point when not empty.
    pub command: Vec<String>,
    /// Replaces the image's arguments when not empty.
    pub args: Vec<String>,
    /// Working directory; empty for the image's.
    pub working_dir: String,
    /// Environment in order, names unique.
    pub env: Vec<(String, String)>,
    /// Bind mounts.
    pub mounts: Vec<Mount>,
    /// Device nodes of the host.
    pub devices: Vec<Device>,
    /// Queryable labels.
    pub labels: BTreeMap<String, String>,
    /// Opaque annotations.
    pub annotations: BTreeMap<String, String>,
    /// Log file relative to the sandbox's log directory, `<container>/<attempt>.log`.
    pub log_path: String,
    /// Keep standard input open.
    pub stdin: bool,
    /// Close standard input after the first attach session.
    pub stdin_once: bool,
    /// Allocate a terminal.
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
    /// Mounted read-only.
    pub read_only: bool,
    /// Whether the runtime relabels the host path for SELinux.
    pub selinux_relabel: bool,
    /// How mounts made later travel.
    pub propagation: Propagation,
}

/// Mount propagation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Propagation {
    /// Neither way.
    #[default]
    Private,
    /// From the host into the container.
    HostToContainer,
    /// Both ways.
    Bidirectional,
}

/// A device node of the host given to a container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Device {
    /// Path in the container.
    pub container_path: String,
    /// Path on the host.
    pub host_path: String,
    /// Any of `r`, `w`, `m`.
    pub permissions: String,
}

/// Limits of a container; 0 means that none is set, `oom_score_adj` apart.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContainerResources {
    /// Relative weight of CPU time (cgroup v1 scale, 2 to 262144).
    pub cpu_shares: i64,
    /// Period of the CPU quota in microseconds.
    pub cpu_period_us: i64,
    /// CPU time per period in microseconds.
    pub cpu_quota_us: i64,
    /// Memory limit in bytes.
    pub memory_limit_bytes: i64,
    /// -1000 to 1000.
    pub oom_score_adj: i64,
    /// Processors as a list of ranges; empty for no change.
    pub cpuset_cpus: String,
    /// Memory nodes as a list of ranges; empty for no change.
    pub cpuset_mems: String,
    /// Bytes of huge pages by page size as the kernel writes it (`2MB`).
    pub huge_page_limits: Vec<(String, u64)>,
}

/// Users, capabilities and profiles of a container.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ContainerSecurity {
    /// All capabilities, devices and host paths.
    pub privileged: bool,
    /// Capabilities added to the runtime's default set, without the `CAP_` prefix.
    pub add_capabilities: Vec<String>,
    /// Capabilities taken from it.
    pub drop_capabilities: Vec<String>,
    /// User id; `None` for the image's.
    pub run_as_user: Option<i64>,
    /// User by name, when its number is not known; empty otherwise.
    pub run_as_username: String,
    /// Group id; `None` for the image's.
    pub run_as_group: Option<i64>,
    /// Further groups.
    pub supplemental_groups: Vec<i64>,
    /// Root file system mounted read-only.
    pub read_only_root: bool,
    /// No gain of privilege through exec.
    pub no_new_privileges: bool,
    /// Seccomp profile.
    pub seccomp: Seccomp,
    /// AppArmor profile name; empty for the runtime's default.
    pub apparmor: String,
    /// SELinux label parts.
    pub selinux: Option<SeLinux>,
    /// Paths under /proc hidden from the container; `None` for the runtime interface's usual list.
    pub masked_paths: Option<Vec<String>>,
    /// Paths under /proc that are read-only; `None` for the runtime interface's usual list.
    pub readonly_paths: Option<Vec<String>>,
    /// Same as the sandbox's; the runtime wants it repeated.
    pub namespaces: Namespaces,
    /// Id of the container whose process ids are shared, in place of what `namespaces` says of them.
    pub pid_of: Option<String>,
}
