//! The checks of the level baseline, without those of capabilities and seccomp profiles.

use std::collections::BTreeSet;

use proto_api::core::v1::{SELinuxOptions, WindowsSecurityContextOptions};

use super::Finding;
use crate::pod_view::{FieldSetters, PodView};
use crate::text::{join_quoted, name_containers, pluralize, quote};

/// Types of SELinux that containers may have.
const SELINUX_TYPES: [&str; 4] = ["", "container_t", "container_init_t", "container_kvm_t"];

/// Sysctls that belong to a pod's own namespaces and do not reach other pods.
const SAFE_SYSCTLS: [&str; 5] = [
    "kernel.shm_rmid_forced",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.tcp_syncookies",
    "net.ipv4.ping_group_range",
    "net.ipv4.ip_unprivileged_port_start",
];

pub(crate) fn check_app_armor_profile(pod: PodView<'_>) -> Option<Finding> {
    let prefix = pod.names.apparmor_annotation("");
    let is_allowed = |profile: &str| {
        profile.is_empty() || profile == "runtime/default" || profile.starts_with("localhost/")
    };
    let forbidden: BTreeSet<String> = pod
        .annotations
        .iter()
        .filter(|(key, profile)| key.starts_with(&prefix) && !is_allowed(profile))
        .map(|(key, profile)| format!("{key}={}", quote(profile)))
        .collect();
    (!forbidden.is_empty()).then(|| Finding {
        reason: pluralize(
            forbidden.len(),
            "forbidden AppArmor profile",
            "forbidden AppArmor profiles",
        ),
        detail: Vec::from_iter(forbidden).join(", "),
    })
}

pub(crate) fn check_host_namespaces(pod: PodView<'_>) -> Option<Finding> {
    let fields = [
        ("hostNetwork=true", pod.spec.host_network),
        ("hostPID=true", pod.spec.host_pid),
        ("hostIPC=true", pod.spec.host_ipc),
    ];
    let shared = fields.into_iter().filter(|(_, is_shared)| *is_shared).map(|(field, _)| field);
    let shared: Vec<&str> = shared.collect();
    (!shared.is_empty()).then(|| Finding { reason: "host namespaces", detail: shared.join(", ") })
}

pub(crate) fn check_host_path_volumes(pod: PodView<'_>) -> Option<Finding> {
    let volumes = pod.spec.volumes.iter().filter(|v| v.volume_source.host_path.is_some());
    let volumes: Vec<&str> = volumes.map(|volume| volume.name.as_str()).collect();
    (!volumes.is_empty()).then(|| {
        let word = pluralize(volumes.len(), "volume", "volumes");
        Finding { reason: "hostPath volumes", detail: format!("{word} {}", join_quoted(volumes)) }
    })
}

pub(crate) fn check_host_ports(pod: PodView<'_>) -> Option<Finding> {
    // Sorted as texts, as Kubernetes does.
    let mut ports: BTreeSet<String> = BTreeSet::new();
    let containers = pod.names_where(|container| {
        let used = container.ports.iter().map(|port| port.host_port).filter(|port| *port != 0);
        let used: Vec<String> = used.map(|port| port.to_string()).collect();
        let is_bad = !used.is_empty();
        ports.extend(used);
        is_bad
    });
    (!containers.is_empty()).then(|| {
        let uses = pluralize(containers.len(), "uses", "use");
        let host_ports = pluralize(ports.len(), "hostPort", "hostPorts");
        let (containers, ports) = (name_containers(&containers), Vec::from_iter(ports).join(", "));
        Finding { reason: "hostPort", detail: format!("{containers} {uses} {host_ports} {ports}") }
    })
}

pub(crate) fn check_privileged(pod: PodView<'_>) -> Option<Finding> {
    let containers = pod.names_where(|container| {
        container.context.is_some_and(|context| context.privileged == Some(true))
    });
    (!containers.is_empty()).then(|| Finding {
        reason: "privileged",
        detail: format!(
            "{} must not set securityContext.privileged=true",
            name_containers(&containers)
        ),
    })
}

pub(crate) fn check_proc_mount(pod: PodView<'_>) -> Option<Finding> {
    let mut types: BTreeSet<&str> = BTreeSet::new();
    let containers = pod.names_where(|container| {
        let proc_mount = container.context.and_then(|context| context.proc_mount.as_deref());
        let forbidden = proc_mount.filter(|proc_mount| *proc_mount != "Default");
        types.extend(forbidden);
        forbidden.is_some()
    });
    (!containers.is_empty()).then(|| Finding {
        reason: "procMount",
        detail: format!(
            "{} must not set securityContext.procMount to {}",
            name_containers(&containers),
            join_quoted(types)
        ),
    })
}

/// What is forbidden in the SELinux options of a pod.
#[derive(Default)]
struct SelinuxProblems<'a> {
    types: BTreeSet<&'a str>,
    user: bool,
    role: bool,
}

impl<'a> SelinuxProblems<'a> {
    /// Adds what is forbidden in `options`, and says whether anything is.
    fn add(&mut self, options: Option<&'a SELinuxOptions>) -> bool {
        let Some(options) = options else { return false };
        let forbidden = Some(options.type_.as_str()).filter(|name| !SELINUX_TYPES.contains(name));
        let (user, role) = (!options.user.is_empty(), !options.role.is_empty());
        self.types.extend(forbidden);
        self.user |= user;
        self.role |= role;
        forbidden.is_some() || user || role
    }

    fn describe(self) -> String {
        let mut texts = Vec::new();
        if !self.types.is_empty() {
            let word = pluralize(self.types.len(), "type", "types");
            texts.push(format!("{word} {}", join_quoted(self.types)));
        }
        texts.extend(self.user.then(|| "user may not be set".to_owned()));
        texts.extend(self.role.then(|| "role may not be set".to_owned()));
        texts.join("; ")
    }
}

pub(crate) fn check_selinux_options(pod: PodView<'_>) -> Option<Finding> {
    let mut problems = SelinuxProblems::default();
    let is_bad_pod =
        problems.add(pod.context().and_then(|context| context.se_linux_options.as_ref()));
    let containers = pod.names_where(|container| {
        problems.add(container.context.and_then(|context| context.se_linux_options.as_ref()))
    });
    let setters = FieldSetters { pod: is_bad_pod, containers };
    (!setters.is_empty()).then(|| Finding {
        reason: "seLinuxOptions",
        detail: format!(
            "{} set forbidden securityContext.seLinuxOptions: {}",
            setters.describe(),
            problems.describe()
        ),
    })
}

pub(crate) fn check_sysctls(pod: PodView<'_>) -> Option<Finding> {
    let sysctls = pod.context().into_iter().flat_map(|context| &context.sysctls);
    let names = sysctls.map(|sysctl| sysctl.name.as_str());
    let forbidden: Vec<&str> = names.filter(|name| !SAFE_SYSCTLS.contains(name)).collect();
    (!forbidden.is_empty())
        .then(|| Finding { reason: "forbidden sysctls", detail: forbidden.join(", ") })
}

pub(crate) fn check_windows_host_process(pod: PodView<'_>) -> Option<Finding> {
    let is_host = |options: Option<&WindowsSecurityContextOptions>| {
        options.is_some_and(|options| options.host_process == Some(true))
    };
    let setters = FieldSetters {
        pod: is_host(pod.context().and_then(|context| context.windows_options.as_ref())),
        containers: pod.names_where(|container| {
            is_host(container.context.and_then(|context| context.windows_options.as_ref()))
        }),
    };
    (!setters.is_empty()).then(|| Finding {
        reason: "hostProcess",
        detail: format!(
            "{} must not set securityContext.windowsOptions.hostProcess=true",
            setters.describe()
        ),
    })
}
