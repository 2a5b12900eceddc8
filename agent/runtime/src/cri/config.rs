//! CRI messages from the values of `agent_pod::spec`. Total: every value has exactly one message.

use agent_pod::spec::{
    ContainerConfig, ContainerResources, ContainerSecurity, Mount, NamespaceScope, Namespaces,
    PortMapping, Propagation, Protocol, SandboxConfig, SandboxSecurity, SeLinux, Seccomp,
};
use proto_grpc::cri::v1 as wire;
use wire::security_profile::ProfileType;

use crate::runtime::{RegistryLogin, Streams};

/// Default masked paths of CRI.
const MASKED_PATHS: [&str; 11] = [
    "/proc/asound",
    "/proc/acpi",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/sys/firmware",
    "/sys/devices/virtual/powercap",
];

/// Default read-only paths of CRI.
const READONLY_PATHS: [&str; 5] =
    ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];

pub(super) fn sandbox(config: &SandboxConfig) -> wire::PodSandboxConfig {
    wire::PodSandboxConfig {
        metadata: Some(wire::PodSandboxMetadata {
            name: config.name.clone(),
            uid: config.uid.clone(),
            namespace: config.namespace.clone(),
            attempt: config.attempt,
        }),
        hostname: config.hostname.clone(),
        log_directory: config.log_directory.clone(),
        dns_config: config.dns.as_ref().map(|dns| wire::DnsConfig {
            servers: dns.servers.clone(),
            searches: dns.searches.clone(),
            options: dns.options.clone(),
        }),
        port_mappings: config.port_mappings.iter().map(port_mapping).collect(),
        labels: config.labels.clone().into_iter().collect(),
        annotations: config.annotations.clone().into_iter().collect(),
        linux: Some(wire::LinuxPodSandboxConfig {
            cgroup_parent: config.cgroup_parent.clone(),
            security_context: Some(sandbox_security(&config.security, config.namespaces)),
            sysctls: config.sysctls.clone().into_iter().collect(),
            overhead: None,
            resources: None,
        }),
    }
}

fn port_mapping(mapping: &PortMapping) -> wire::PortMapping {
    let protocol = match mapping.protocol {
        Protocol::Tcp => wire::Protocol::Tcp,
        Protocol::Udp => wire::Protocol::Udp,
        Protocol::Sctp => wire::Protocol::Sctp,
    };
    wire::PortMapping {
        protocol: protocol.into(),
        container_port: mapping.container_port,
        host_port: mapping.host_port,
        host_ip: mapping.host_ip.clone(),
    }
}

fn sandbox_security(
    security: &SandboxSecurity,
    namespaces_of_pod: Namespaces,
) -> wire::LinuxSandboxSecurityContext {
    wire::LinuxSandboxSecurityContext {
        namespace_options: Some(namespaces(namespaces_of_pod)),
        selinux_options: security.selinux.as_ref().map(selinux),
        run_as_user: int(security.run_as_user),
        run_as_group: int(security.run_as_group),
        supplemental_groups: security.supplemental_groups.clone(),
        privileged: security.privileged,
        seccomp: Some(seccomp(&security.seccomp)),
        ..Default::default()
    }
}

pub(super) fn container(config: &ContainerConfig) -> wire::ContainerConfig {
    wire::ContainerConfig {
        metadata: Some(wire::ContainerMetadata {
            name: config.name.clone(),
            attempt: config.attempt,
        }),
        image: Some(image(&config.image)),
        command: config.command.clone(),
        args: config.args.clone(),
        working_dir: config.working_dir.clone(),
        envs: config
            .env
            .iter()
            .map(|(key, value)| wire::KeyValue { key: key.clone(), value: value.clone() })
            .collect(),
        mounts: config.mounts.iter().map(mount).collect(),
        devices: config
            .devices
            .iter()
            .map(|device| wire::Device {
                container_path: device.container_path.clone(),
                host_path: device.host_path.clone(),
                permissions: device.permissions.clone(),
            })
            .collect(),
        labels: config.labels.clone().into_iter().collect(),
        annotations: config.annotations.clone().into_iter().collect(),
        log_path: config.log_path.clone(),
        stdin: config.stdin,
        stdin_once: config.stdin_once,
        tty: config.tty,
        linux: Some(wire::LinuxContainerConfig {
            resources: Some(resources(&config.resources)),
            security_context: Some(container_security(&config.security)),
        }),
    }
}

fn mount(mount: &Mount) -> wire::Mount {
    let propagation = match mount.propagation {
        Propagation::Private => wire::MountPropagation::PropagationPrivate,
        Propagation::HostToContainer => wire::MountPropagation::PropagationHostToContainer,
        Propagation::Bidirectional => wire::MountPropagation::PropagationBidirectional,
    };
    wire::Mount {
        container_path: mount.container_path.clone(),
        host_path: mount.host_path.clone(),
        readonly: mount.read_only,
        selinux_relabel: mount.selinux_relabel,
        propagation: propagation.into(),
    }
}

pub(super) fn resources(resources: &ContainerResources) -> wire::LinuxContainerResources {
    wire::LinuxContainerResources {
        cpu_period: resources.cpu_period_us,
        cpu_quota: resources.cpu_quota_us,
        cpu_shares: resources.cpu_shares,
        memory_limit_in_bytes: resources.memory_limit_bytes,
        oom_score_adj: resources.oom_score_adj,
        cpuset_cpus: resources.cpuset_cpus.clone(),
        cpuset_mems: resources.cpuset_mems.clone(),
        hugepage_limits: resources
            .huge_page_limits
            .iter()
            .map(|(size, limit)| wire::HugepageLimit { page_size: size.clone(), limit: *limit })
            .collect(),
        ..Default::default()
    }
}

fn container_security(security: &ContainerSecurity) -> wire::LinuxContainerSecurityContext {
    let paths = |own: &Option<Vec<String>>, usual: &[&str]| match own {
        _ if security.privileged => Vec::new(),
        Some(paths) => paths.clone(),
        None => usual.iter().map(|path| (*path).to_owned()).collect(),
    };
    wire::LinuxContainerSecurityContext {
        capabilities: Some(wire::Capability {
            add_capabilities: security.add_capabilities.clone(),
            drop_capabilities: security.drop_capabilities.clone(),
        }),
        privileged: security.privileged,
        namespace_options: Some(of_target(namespaces(security.namespaces), &security.pid_of)),
        selinux_options: security.selinux.as_ref().map(selinux),
        run_as_user: int(security.run_as_user),
        run_as_username: security.run_as_username.clone(),
        run_as_group: int(security.run_as_group),
        supplemental_groups: security.supplemental_groups.clone(),
        readonly_rootfs: security.read_only_root,
        no_new_privs: security.no_new_privileges,
        masked_paths: paths(&security.masked_paths, &MASKED_PATHS),
        readonly_paths: paths(&security.readonly_paths, &READONLY_PATHS),
        seccomp: Some(seccomp(&security.seccomp)),
        apparmor: apparmor(&security.apparmor),
        ..Default::default()
    }
}

/// Replaces the PID namespace by that of another container.
fn of_target(options: wire::NamespaceOption, target: &Option<String>) -> wire::NamespaceOption {
    match target {
        Some(id) => wire::NamespaceOption {
            pid: wire::NamespaceMode::Target.into(),
            target_id: id.clone(),
            ..options
        },
        None => options,
    }
}

fn namespaces(namespaces: Namespaces) -> wire::NamespaceOption {
    let mode = |scope| match scope {
        NamespaceScope::Pod => wire::NamespaceMode::Pod,
        NamespaceScope::Container => wire::NamespaceMode::Container,
        NamespaceScope::Node => wire::NamespaceMode::Node,
    };
    wire::NamespaceOption {
        network: mode(namespaces.network).into(),
        pid: mode(namespaces.pid).into(),
        ipc: mode(namespaces.ipc).into(),
        target_id: String::new(),
    }
}

fn seccomp(profile: &Seccomp) -> wire::SecurityProfile {
    match profile {
        Seccomp::Unconfined => security_profile(ProfileType::Unconfined, ""),
        Seccomp::RuntimeDefault => security_profile(ProfileType::RuntimeDefault, ""),
        Seccomp::Localhost(path) => security_profile(ProfileType::Localhost, path),
    }
}

/// An AppArmor profile as in the annotation: `runtime/default`, `unconfined`, `localhost/<profile>`, or a bare profile name.
fn apparmor(profile: &str) -> Option<wire::SecurityProfile> {
    match profile {
        "" => None,
        "runtime/default" => Some(security_profile(ProfileType::RuntimeDefault, "")),
        "unconfined" => Some(security_profile(ProfileType::Unconfined, "")),
        name => {
            let name = name.strip_prefix("localhost/").unwrap_or(name);
            Some(security_profile(ProfileType::Localhost, name))
        }
    }
}

fn security_profile(kind: ProfileType, reference: &str) -> wire::SecurityProfile {
    wire::SecurityProfile { profile_type: kind.into(), localhost_ref: reference.into() }
}

fn selinux(options: &SeLinux) -> wire::SeLinuxOption {
    wire::SeLinuxOption {
        user: options.user.clone(),
        role: options.role.clone(),
        r#type: options.type_.clone(),
        level: options.level.clone(),
    }
}

fn int(value: Option<i64>) -> Option<wire::Int64Value> {
    value.map(|value| wire::Int64Value { value })
}

pub(super) fn image(name: &str) -> wire::ImageSpec {
    wire::ImageSpec { image: name.into(), ..Default::default() }
}

pub(super) fn login(login: &RegistryLogin) -> wire::AuthConfig {
    wire::AuthConfig {
        username: login.username.clone(),
        password: login.password.clone(),
        auth: String::new(),
        server_address: login.server.clone(),
        identity_token: login.identity_token.clone(),
        registry_token: login.registry_token.clone(),
    }
}

pub(super) fn exec(container: &str, command: &[String], streams: Streams) -> wire::ExecRequest {
    wire::ExecRequest {
        container_id: container.into(),
        cmd: command.to_vec(),
        tty: streams.tty,
        stdin: streams.stdin,
        stdout: streams.stdout,
        stderr: streams.stderr,
    }
}

pub(super) fn attach(container: &str, streams: Streams) -> wire::AttachRequest {
    wire::AttachRequest {
        container_id: container.into(),
        tty: streams.tty,
        stdin: streams.stdin,
        stdout: streams.stdout,
        stderr: streams.stderr,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn privileged_containers_see_all_of_proc() {
        let ordinary = container_security(&ContainerSecurity::default());
        assert_eq!(ordinary.masked_paths, MASKED_PATHS);
        assert_eq!(ordinary.readonly_paths, READONLY_PATHS);
        let own = ContainerSecurity { masked_paths: Some(vec![]), ..Default::default() };
        assert_eq!(container_security(&own).masked_paths, Vec::<String>::new());
        let privileged = ContainerSecurity { privileged: true, ..Default::default() };
        assert_eq!(container_security(&privileged).masked_paths, Vec::<String>::new());
        assert_eq!(container_security(&privileged).readonly_paths, Vec::<String>::new());
    }

    #[test]
    fn profiles_never_fall_back_to_unconfined() {
        let cases = [
            ("", None),
            ("unconfined", Some((ProfileType::Unconfined, ""))),
            ("runtime/default", Some((ProfileType::RuntimeDefault, ""))),
            ("localhost/web", Some((ProfileType::Localhost, "web"))),
            ("web", Some((ProfileType::Localhost, "web"))),
        ];
        for (name, expect) in cases {
            let expect = expect.map(|(kind, reference)| security_profile(kind, reference));
            assert_eq!(apparmor(name), expect, "{name}");
        }
        let file = Seccomp::Localhost("/p.json".into());
        assert_eq!(seccomp(&file), security_profile(ProfileType::Localhost, "/p.json"));
    }

    #[test]
    fn the_default_namespaces_are_the_pods_own() {
        let got = namespaces(Namespaces::default());
        assert_eq!((got.network, got.pid, got.ipc), (0, 1, 0));
    }
}
