//! Translation of a pod to the configuration of its sandbox and containers. Pure and total: the same pod gives the same result on
//! the first start, on every restart and after a restart of the agent.

use std::collections::BTreeMap;

use agent_node::cgroup::container_limits;
use agent_node::qos::{QosClass, oom_score_adj, qos_class};
use proto_api::core::v1::{Container, Pod};
use proto_api::names;

use crate::desired::instance_hash;
use crate::expand::{expand, variables_of};
use crate::kubelet_adoption::kubelet_hash;
use crate::node_facts::NodeFacts;
use crate::security::ImageUser;
use crate::spec::{
    ContainerConfig, ContainerResources, Mount, NamespaceScope, Namespaces, PortMapping, Protocol,
    SandboxConfig, labels,
};
use crate::translate_error::TranslateError;
use crate::volume_mounts::{self, VolumeOnHost};
use crate::{bandwidth, dns, hosts, security};

/// Log directory of a pod below `pod_logs_dir`.
pub fn log_directory(pod_logs_dir: &str, pod: &Pod) -> String {
    let meta = &pod.metadata;
    log_directory_path(pod_logs_dir, &meta.namespace, &meta.name, &meta.uid)
}

/// Log directory of a pod given by namespace, name and uid.
pub fn log_directory_path(pod_logs_dir: &str, namespace: &str, name: &str, uid: &str) -> String {
    format!("{pod_logs_dir}/{namespace}_{name}_{uid}")
}

/// Configuration of a pod's sandbox.
///
/// # Errors
/// The host name or the traffic limits are invalid.
pub fn sandbox_config(
    pod: &Pod,
    node: &NodeFacts,
    cgroup_parent: &str,
    attempt: u32,
) -> Result<SandboxConfig, TranslateError> {
    let (meta, spec) = (&pod.metadata, &pod.spec);
    let sysctls = spec.security_context.iter().flat_map(|context| &context.sysctls);
    Ok(SandboxConfig {
        name: meta.name.clone(),
        uid: meta.uid.clone(),
        namespace: meta.namespace.clone(),
        attempt,
        hostname: if spec.host_network { String::new() } else { hosts::host_name(pod, node)? },
        log_directory: log_directory(&node.pod_logs_dir, pod),
        dns: Some(dns::resolver(pod, node).config),
        port_mappings: port_mappings(pod),
        labels: sandbox_labels(pod),
        annotations: sandbox_annotations(pod, node)?,
        cgroup_parent: cgroup_parent.to_owned(),
        // sysctl(8) accepts both spellings; the runtime requires dots.
        sysctls: sysctls.map(|s| (dotted_name(&s.name), s.value.clone())).collect(),
        namespaces: namespaces(pod),
        security: security::sandbox_security(pod),
        runtime_handler: String::new(),
    })
}

/// Name of a sysctl with dots as separators, as in sysctl(8): if the first separator is a slash, slashes separate and dots are
/// part of names.
fn dotted_name(name: &str) -> String {
    agent_node::sysctls::dotted_name(name)
}

/// The pod's annotations, with traffic limits under the names that CNI plugins read.
fn sandbox_annotations(
    pod: &Pod,
    node: &NodeFacts,
) -> Result<BTreeMap<String, String>, TranslateError> {
    let mut all = pod.metadata.annotations.clone();
    let limits = bandwidth::bandwidth_limits(pod, node.names)?;
    let limits = [limits.ingress, limits.egress];
    for (name, bits) in names::RUNTIME_BANDWIDTH.into_iter().zip(limits) {
        match bits {
            Some(bits) => all.insert(name.to_owned(), bits.to_string()),
            None => all.remove(name),
        };
    }
    Ok(all)
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

// === containers ===

/// Input for a container besides its pod.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ContainerInputs {
    /// Attempt of the instance.
    pub attempt: u32,
    /// Runtime id of the image.
    pub image_id: String,
    /// User of the image; used only if [`security::asks_for_image_user`].
    pub image_user: ImageUser,
    /// CPUs, NUMA nodes and devices allocated to the container.
    pub granted: GrantedResources,
    /// Its environment.
    pub env: Vec<(String, String)>,
    /// The pod's volumes on the host, by volume name.
    pub volumes: BTreeMap<String, VolumeOnHost>,
    /// Bind mounts of volume parts by mount index; see [`crate::volume_mounts::sub_paths`].
    pub sub_paths: BTreeMap<usize, String>,
    /// Mounts added by the node, such as the termination message file.
    pub extra_mounts: Vec<Mount>,
}

/// Resources of the node allocated to one container.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GrantedResources {
    /// Exclusive CPUs as a list of ranges (`0-2,7`); empty for all.
    pub cpus: String,
    /// NUMA nodes as a list of ranges; empty for all.
    pub mems: String,
    /// Environment variables from device plugins.
    pub env: Vec<(String, String)>,
    /// Mounts from device plugins.
    pub mounts: Vec<Mount>,
    /// Device nodes.
    pub devices: Vec<crate::spec::DeviceNode>,
    /// Annotations from device plugins, for the runtime.
    pub annotations: BTreeMap<String, String>,
}

/// Configuration of one instance of a container.
///
/// # Errors
/// A volume is missing, or the security context cannot be honoured.
pub fn container_config(
    pod: &Pod,
    container: &Container,
    node: &NodeFacts,
    inputs: ContainerInputs,
) -> Result<ContainerConfig, TranslateError> {
    let mut inputs = inputs;
    let granted = inputs.granted.clone();
    add_granted(&mut inputs.env, &granted.env);
    let Expanded { command, args } = expand_all(container, &inputs.env)?;
    let mut mounts = volume_mounts::mounts(container, &inputs.volumes, &inputs.sub_paths)?;
    mounts.extend(inputs.extra_mounts);
    mounts.extend(granted.mounts.iter().cloned());
    let mut devices = volume_mounts::devices(container, &inputs.volumes)?;
    devices.extend(granted.devices.iter().cloned());
    let mut annotations = container_annotations(pod, container, inputs.attempt);
    annotations.extend(granted.annotations.clone());
    Ok(ContainerConfig {
        name: container.name.clone(),
        attempt: inputs.attempt,
        image: inputs.image_id,
        command,
        args,
        working_dir: container.working_dir.clone(),
        mounts,
        devices,
        labels: container_labels(pod, container),
        annotations,
        log_path: format!("{}/{}.log", container.name, inputs.attempt),
        stdin: container.stdin,
        stdin_once: container.stdin_once,
        tty: container.tty,
        resources: resources(qos_class(pod), container, node, &granted),
        security: security::container_security(
            pod,
            container,
            node,
            &inputs.image_user,
            namespaces(pod),
        )?,
        env: inputs.env,
    })
}

/// Adds variables of device plugins; variables of the pod win.
fn add_granted(env: &mut Vec<(String, String)>, granted: &[(String, String)]) {
    for (name, value) in granted {
        if !env.iter().any(|(known, _)| known == name) {
            env.push((name.clone(), value.clone()));
        }
    }
}

/// Most bytes of command and arguments together after expansion; see [`crate::env::POD_BYTES_MAX`].
pub const ARGUMENT_BYTES_MAX: usize = 1 << 20;

struct Expanded {
    command: Vec<String>,
    args: Vec<String>,
}

fn expand_all(container: &Container, env: &[(String, String)]) -> Result<Expanded, TranslateError> {
    let known = variables_of(container.command.iter().chain(&container.args), env);
    let mut left = ARGUMENT_BYTES_MAX;
    let mut all = |field: &'static str, list: &[String]| {
        let one = |text: &String| {
            // Each argument also has a terminating NUL.
            let room = left.checked_sub(1)?;
            let text = expand(text, room, |name| known.get(name).copied())?;
            left = room.saturating_sub(text.len());
            Some(text)
        };
        let expanded: Option<Vec<String>> = list.iter().map(one).collect();
        expanded.ok_or_else(|| TranslateError::TooLarge {
            field,
            container: container.name.clone(),
            limit: ARGUMENT_BYTES_MAX,
        })
    };
    Ok(Expanded {
        command: all("command", &container.command)?,
        args: all("args", &container.args)?,
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
    set(labels::DEFINITION_HASH, instance_hash(container));
    set(labels::CONTAINER_HASH, kubelet_hash(container));
    set(labels::RESTART_COUNT, attempt.to_string());
    set(labels::TERMINATION_MESSAGE_PATH, container.termination_message_path.clone());
    set(labels::TERMINATION_MESSAGE_POLICY, container.termination_message_policy.clone());
    if let Some(grace) = pod.spec.termination_grace_period_seconds {
        set(labels::POD_TERMINATION_GRACE, grace.to_string());
    }
    all
}

fn resources(
    class: QosClass,
    container: &Container,
    node: &NodeFacts,
    granted: &GrantedResources,
) -> ContainerResources {
    let limits = container_limits(container).with_cpu_bound(node.cpu_bound);
    let signed = |value: Option<u64>| value.map_or(0, |v| i64::try_from(v).unwrap_or(i64::MAX));
    ContainerResources {
        cpu_shares: signed(limits.cpu_shares),
        cpu_period_us: signed(limits.cpu_period_us),
        cpu_quota_us: signed(limits.cpu_quota_us),
        memory_limit_bytes: signed(limits.memory_bytes),
        oom_score_adj: oom_score_adj(class, container, node.memory_bytes),
        cpuset_cpus: granted.cpus.clone(),
        cpuset_mems: granted.mems.clone(),
        huge_page_limits: huge_pages(container, node),
    }
}

/// Limits of all huge page sizes of the node; 0 for sizes that the container does not request.
fn huge_pages(container: &Container, node: &NodeFacts) -> Vec<(String, u64)> {
    let limit = |size: &u64| {
        let name = agent_node::resources::huge_page_resource(*size);
        let bytes = container.resources.limits.get(&name).map_or(0, |q| q.as_bytes());
        (agent_node::cgroup::huge_page_file_size(*size), bytes)
    };
    node.huge_page_sizes.iter().map(limit).collect()
}

#[cfg(test)]
mod tests;
