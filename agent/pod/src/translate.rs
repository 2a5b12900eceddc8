//! From a pod to what the runtime is asked to create. Pure and total: the same pod gives the same sandbox and containers on the
//! first start, on every restart and after a restart of the agent.

use std::collections::BTreeMap;

use agent_node::cgroup::{QUOTA_PERIOD_US, container_limits};
use agent_node::qos::{QosClass, oom_score_adj, qos_class};
use proto_api::core::v1::{
    Container, Pod, PodSecurityContext, SELinuxOptions, SeccompProfile, SecurityContext,
};

use crate::expand::expand;
use crate::spec::{
    ContainerConfig, ContainerResources, ContainerSecurity, DnsConfig, Mount, NamespaceScope,
    Namespaces, PortMapping, Protocol, SandboxConfig, SandboxSecurity, SeLinux, Seccomp, labels,
};
use crate::volume_mounts::{self, VolumeOnHost};
use crate::want::instance_hash;

/// What the node adds to every pod.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeFacts {
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
}

/// Why a pod cannot be translated. The texts are shown to users as they are.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TranslateError {
    /// A `Localhost` seccomp profile without a name; nothing is assumed in its place.
    #[error("localhostProfile must be set if seccompProfile type is Localhost")]
    NoSeccompProfile,
    /// A seccomp type that is none.
    #[error("unknown seccompProfile type {0:?}")]
    UnknownSeccomp(String),
    /// A part of a volume whose path cannot be made, or leads upwards.
    #[error("failed to expand subPath for volumeMount {mount:?} of container {container:?}")]
    SubPath {
        /// Name of the volume.
        mount: String,
        /// Name of the container.
        container: String,
    },
    /// A mount of a volume that the pod does not have, or that is not set up.
    #[error("no volume {0:?} to mount")]
    NoVolume(String),
}

/// Directory of a pod's logs below `pod_logs_dir`.
pub fn log_directory(pod_logs_dir: &str, pod: &Pod) -> String {
    let meta = &pod.metadata;
    format!("{pod_logs_dir}/{}_{}_{}", meta.namespace, meta.name, meta.uid)
}

/// The sandbox of a pod.
///
/// # Errors
/// The pod's seccomp profile cannot be understood.
pub fn sandbox(
    pod: &Pod,
    node: &NodeFacts,
    cgroup_parent: &str,
    attempt: u32,
) -> Result<SandboxConfig, TranslateError> {
    let (meta, spec) = (&pod.metadata, &pod.spec);
    let context = spec.security_context.clone().unwrap_or_default();
    Ok(SandboxConfig {
        name: meta.name.clone(),
        uid: meta.uid.clone(),
        namespace: meta.namespace.clone(),
        attempt,
        hostname: if spec.host_network { String::new() } else { hostname(pod) },
        log_directory: log_directory(&node.pod_logs_dir, pod),
        dns: dns(pod, node),
        port_mappings: port_mappings(pod),
        labels: sandbox_labels(pod),
        annotations: meta.annotations.clone(),
        cgroup_parent: cgroup_parent.to_owned(),
        sysctls: context.sysctls.iter().map(|s| (s.name.clone(), s.value.clone())).collect(),
        namespaces: namespaces(pod),
        security: SandboxSecurity {
            run_as_user: context.run_as_user,
            run_as_group: context.run_as_group,
            supplemental_groups: supplemental_groups(&context),
            privileged: spec.init_containers.iter().chain(&spec.containers).any(is_privileged),
            // The sandbox's own process is ours: it runs under the runtime's filter unless the pod says otherwise.
            seccomp: seccomp(context.seccomp_profile.as_ref(), node)?
                .unwrap_or(Seccomp::RuntimeDefault),
            selinux: context.se_linux_options.as_ref().map(selinux),
        },
        runtime_handler: String::new(),
    })
}

/// Host name of a pod: at most 63 characters, as the kernel takes it.
pub fn hostname(pod: &Pod) -> String {
    let name = if pod.spec.hostname.is_empty() { &pod.metadata.name } else { &pod.spec.hostname };
    let short: String = name.chars().take(63).collect();
    short.trim_end_matches(['-', '.']).to_owned()
}

fn sandbox_labels(pod: &Pod) -> BTreeMap<String, String> {
    let mut all = pod.metadata.labels.clone();
    all.insert(labels::POD_NAME.to_owned(), pod.metadata.name.clone());
    all.insert(labels::POD_NAMESPACE.to_owned(), pod.metadata.namespace.clone());
    all.insert(labels::POD_UID.to_owned(), pod.metadata.uid.clone());
    all
}

fn namespaces(pod: &Pod) -> Namespaces {
    let spec = &pod.spec;
    let host = |wanted| if wanted { NamespaceScope::Node } else { NamespaceScope::Pod };
    let pid = if spec.host_pid {
        NamespaceScope::Node
    } else if spec.share_process_namespace == Some(true) {
        NamespaceScope::Pod
    } else {
        NamespaceScope::Container
    };
    Namespaces { network: host(spec.host_network), pid, ipc: host(spec.host_ipc) }
}

fn port_mappings(pod: &Pod) -> Vec<PortMapping> {
    if pod.spec.host_network {
        return Vec::new();
    }
    let ports = pod.spec.containers.iter().flat_map(|c| &c.ports).filter(|p| p.host_port > 0);
    ports
        .map(|p| PortMapping {
            protocol: match p.protocol.as_str() {
                "UDP" => Protocol::Udp,
                "SCTP" => Protocol::Sctp,
                _ => Protocol::Tcp,
            },
            container_port: p.container_port,
            host_port: p.host_port,
            host_ip: p.host_ip.clone(),
        })
        .collect()
}

// === names ===

/// Resolver configuration by the pod's policy, with its own additions.
fn dns(pod: &Pod, node: &NodeFacts) -> Option<DnsConfig> {
    let spec = &pod.spec;
    let cluster = match spec.dns_policy.as_str() {
        "None" => return Some(with_pod_dns(DnsConfig::default(), pod)),
        "Default" => false,
        "ClusterFirstWithHostNet" => true,
        _ => !spec.host_network,
    };
    if !cluster || node.cluster_dns.is_empty() {
        return Some(with_pod_dns(node.resolver.clone(), pod));
    }
    let domain = &node.cluster_domain;
    let own = [
        format!("{}.svc.{domain}", pod.metadata.namespace),
        format!("svc.{domain}"),
        domain.clone(),
    ];
    let dns = DnsConfig {
        servers: node.cluster_dns.clone(),
        searches: own.into_iter().chain(node.resolver.searches.iter().cloned()).collect(),
        options: vec!["ndots:5".to_owned()],
    };
    Some(with_pod_dns(dns, pod))
}

fn with_pod_dns(mut dns: DnsConfig, pod: &Pod) -> DnsConfig {
    let Some(own) = &pod.spec.dns_config else { return dns };
    let append = |list: &mut Vec<String>, more: &[String]| {
        for item in more {
            if !list.contains(item) {
                list.push(item.clone());
            }
        }
    };
    append(&mut dns.servers, &own.nameservers);
    append(&mut dns.searches, &own.searches);
    for option in &own.options {
        dns.options.retain(|known| known.split(':').next() != Some(option.name.as_str()));
        dns.options.push(match &option.value {
            Some(value) if !value.is_empty() => format!("{}:{value}", option.name),
            _ => option.name.clone(),
        });
    }
    dns
}

// === containers ===

/// What a container is made of beside its pod.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ContainerInputs {
    /// Attempt of the instance.
    pub attempt: u32,
    /// The runtime's id of its image.
    pub image_id: String,
    /// Its environment.
    pub env: Vec<(String, String)>,
    /// The pod's volumes on the host, by name.
    pub volumes: BTreeMap<String, VolumeOnHost>,
    /// Where parts of volumes are bound, by the number of their mount; see [`crate::volume_mounts::sub_paths`].
    pub sub_paths: BTreeMap<usize, String>,
    /// Mounts that the node adds, such as the file for the termination message.
    pub extra_mounts: Vec<Mount>,
}

/// One instance of a container.
///
/// # Errors
/// A volume is not there, or the seccomp profile cannot be understood.
pub fn container(
    pod: &Pod,
    container: &Container,
    node: &NodeFacts,
    inputs: ContainerInputs,
) -> Result<ContainerConfig, TranslateError> {
    let lookup = |name: &str| {
        inputs.env.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    };
    let expand_all = |list: &[String]| list.iter().map(|text| expand(text, lookup)).collect();
    let mut mounts = volume_mounts::mounts(container, &inputs.volumes, &inputs.sub_paths)?;
    mounts.extend(inputs.extra_mounts);
    Ok(ContainerConfig {
        name: container.name.clone(),
        attempt: inputs.attempt,
        image: inputs.image_id,
        command: expand_all(&container.command),
        args: expand_all(&container.args),
        working_dir: container.working_dir.clone(),
        mounts,
        devices: volume_mounts::devices(container, &inputs.volumes)?,
        labels: container_labels(pod, container),
        annotations: container_annotations(pod, container, inputs.attempt),
        log_path: format!("{}/{}.log", container.name, inputs.attempt),
        stdin: container.stdin,
        stdin_once: container.stdin_once,
        tty: container.tty,
        resources: resources(qos_class(pod), container, node),
        security: security(pod, container, node)?,
        env: inputs.env,
    })
}

fn container_labels(pod: &Pod, container: &Container) -> BTreeMap<String, String> {
    let meta = &pod.metadata;
    [
        (labels::POD_NAME, &meta.name),
        (labels::POD_NAMESPACE, &meta.namespace),
        (labels::POD_UID, &meta.uid),
        (labels::CONTAINER_NAME, &container.name),
    ]
    .into_iter()
    .map(|(key, value)| (key.to_owned(), value.clone()))
    .collect()
}

fn container_annotations(
    pod: &Pod,
    container: &Container,
    attempt: u32,
) -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    let mut set = |key: &str, value: String| all.insert(key.to_owned(), value);
    set(labels::CONTAINER_HASH, instance_hash(container));
    set(labels::RESTART_COUNT, attempt.to_string());
    set(labels::TERMINATION_MESSAGE_PATH, container.termination_message_path.clone());
    set(labels::TERMINATION_MESSAGE_POLICY, container.termination_message_policy.clone());
    if let Some(grace) = pod.spec.termination_grace_period_seconds {
        set(labels::POD_TERMINATION_GRACE, grace.to_string());
    }
    all
}

fn resources(class: QosClass, container: &Container, node: &NodeFacts) -> ContainerResources {
    let limits = container_limits(container);
    let signed = |value: Option<u64>| value.map_or(0, |v| i64::try_from(v).unwrap_or(i64::MAX));
    ContainerResources {
        cpu_shares: signed(limits.cpu_shares),
        cpu_period_us: signed(limits.cpu_quota_us.map(|_| QUOTA_PERIOD_US)),
        cpu_quota_us: signed(limits.cpu_quota_us),
        memory_limit_bytes: signed(limits.memory_bytes),
        oom_score_adj: oom_score_adj(class, container, node.memory_bytes),
    }
}

/// Security of a container: its own context, and the pod's where it says nothing.
fn security(
    pod: &Pod,
    container: &Container,
    node: &NodeFacts,
) -> Result<ContainerSecurity, TranslateError> {
    let of_pod = pod.spec.security_context.clone().unwrap_or_default();
    let own = container.security_context.clone().unwrap_or_default();
    let privileged = own.privileged == Some(true);
    let profile = own.seccomp_profile.as_ref().or(of_pod.seccomp_profile.as_ref());
    let seccomp = seccomp(profile, node)?.unwrap_or(Seccomp::Unconfined);
    let selinux_options = own.se_linux_options.as_ref().or(of_pod.se_linux_options.as_ref());
    let unmasked = privileged || own.proc_mount.as_deref() == Some("Unmasked");
    let capabilities = own.capabilities.clone().unwrap_or_default();
    Ok(ContainerSecurity {
        privileged,
        add_capabilities: capabilities.add,
        drop_capabilities: capabilities.drop,
        run_as_user: own.run_as_user.or(of_pod.run_as_user),
        run_as_group: own.run_as_group.or(of_pod.run_as_group),
        supplemental_groups: supplemental_groups(&of_pod),
        read_only_root: own.read_only_root_filesystem == Some(true),
        no_new_privileges: no_new_privileges(&own),
        seccomp: if privileged { Seccomp::Unconfined } else { seccomp },
        apparmor: String::new(),
        selinux: selinux_options.map(selinux),
        masked_paths: unmasked.then(Vec::new),
        readonly_paths: unmasked.then(Vec::new),
        namespaces: namespaces(pod),
    })
}

/// Set only when escalation is forbidden in so many words; a privileged container escalates by being one.
fn no_new_privileges(context: &SecurityContext) -> bool {
    context.allow_privilege_escalation == Some(false)
}

fn is_privileged(container: &Container) -> bool {
    container.security_context.as_ref().is_some_and(|c| c.privileged == Some(true))
}

fn supplemental_groups(context: &PodSecurityContext) -> Vec<i64> {
    context.fs_group.iter().chain(&context.supplemental_groups).copied().collect()
}

fn seccomp(
    profile: Option<&SeccompProfile>,
    node: &NodeFacts,
) -> Result<Option<Seccomp>, TranslateError> {
    let Some(profile) = profile else { return Ok(None) };
    match profile.type_.as_str() {
        "Unconfined" => Ok(Some(Seccomp::Unconfined)),
        "RuntimeDefault" => Ok(Some(Seccomp::RuntimeDefault)),
        "Localhost" => {
            let name = profile.localhost_profile.as_deref().unwrap_or_default();
            if name.is_empty() {
                return Err(TranslateError::NoSeccompProfile);
            }
            Ok(Some(Seccomp::Localhost(format!("{}/{name}", node.seccomp_dir))))
        }
        other => Err(TranslateError::UnknownSeccomp(other.to_owned())),
    }
}

fn selinux(options: &SELinuxOptions) -> SeLinux {
    SeLinux {
        user: options.user.clone(),
        role: options.role.clone(),
        type_: options.type_.clone(),
        level: options.level.clone(),
    }
}

#[cfg(test)]
mod tests;
