//! Sysctls of pods: only namespaced ones that the node allows.

use proto_api::core::v1::Pod;

/// Safe sysctls: they harm neither the node nor other pods.
const SAFE: [&str; 5] = [
    "kernel.shm_rmid_forced",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.tcp_syncookies",
    "net.ipv4.ping_group_range",
    "net.ipv4.ip_unprivileged_port_start",
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SysctlNamespace {
    Ipc,
    Network,
}

/// Namespaced sysctls, by name or prefix.
const NAMESPACED: [(&str, SysctlNamespace); 5] = [
    ("kernel.sem", SysctlNamespace::Ipc),
    ("kernel.shm*", SysctlNamespace::Ipc),
    ("kernel.msg*", SysctlNamespace::Ipc),
    ("fs.mqueue.*", SysctlNamespace::Ipc),
    ("net.*", SysctlNamespace::Network),
];

/// Name of a sysctl with dots as separators, as in sysctl(8): if a slash comes first, slashes separate and dots are part of
/// names.
pub fn dotted_name(name: &str) -> String {
    match name.find(['.', '/']) {
        Some(at) if name.as_bytes().get(at) == Some(&b'/') => {
            let swap = |c| match c {
                '/' => '.',
                '.' => '/',
                other => other,
            };
            name.chars().map(swap).collect()
        }
        _ => name.to_owned(),
    }
}

/// Whether a pattern of `allowedUnsafeSysctls` matches namespaced sysctls only.
pub fn is_allowable(pattern: &str) -> bool {
    let pattern = dotted_name(pattern);
    kept_apart(pattern.trim_end_matches('*')).is_some()
}

/// Message about the first sysctl that the pod may not set. `allowed` are names, or prefixes ending in `*`.
pub fn forbidden_sysctl(pod: &Pod, allowed: &[String]) -> Option<String> {
    let context = pod.spec.security_context.as_ref()?;
    context.sysctls.iter().find_map(|sysctl| {
        let name = dotted_name(&sysctl.name);
        let why = match kept_apart(&name) {
            Some(SysctlNamespace::Network) if pod.spec.host_network => {
                "not allowed with host net enabled"
            }
            Some(SysctlNamespace::Ipc) if pod.spec.host_ipc => "not allowed with host ipc enabled",
            Some(_) if is_allowed(&name, allowed) => return None,
            _ => "not allowlisted",
        };
        Some(format!("forbidden sysctl: {:?} {why}", sysctl.name))
    })
}

fn is_allowed(name: &str, allowed: &[String]) -> bool {
    SAFE.contains(&name) || allowed.iter().any(|pattern| matches(&dotted_name(pattern), name))
}

fn kept_apart(name: &str) -> Option<SysctlNamespace> {
    NAMESPACED.iter().find(|(pattern, _)| matches(pattern, name)).map(|(_, apart)| *apart)
}

fn matches(pattern: &str, name: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(prefix) => name.starts_with(prefix),
        None => pattern == name,
    }
}

#[cfg(test)]
mod tests {
    use proto_api::core::v1::{PodSecurityContext, Sysctl};

    use super::*;

    fn pod(name: &str) -> Pod {
        let sysctls = vec![Sysctl { name: name.into(), value: "1".into() }];
        let mut pod = Pod::default();
        pod.spec.security_context =
            Some(PodSecurityContext { sysctls, ..PodSecurityContext::default() });
        pod
    }

    #[test]
    fn only_safe_and_allowed_sysctls_may_be_set() {
        let allowed = ["kernel.msg*".to_owned(), "net.core.somaxconn".into()];
        let cases = [
            ("kernel.shm_rmid_forced", true),
            ("net/ipv4/tcp_syncookies", true),
            ("kernel.msgmax", true),
            ("net.core.somaxconn", true),
            ("net.core.rmem_max", false),
            ("kernel.sem", false),
            ("kernel.panic", false),
            ("vm.swappiness", false),
        ];
        for (name, expect) in cases {
            assert_eq!(forbidden_sysctl(&pod(name), &allowed).is_none(), expect, "{name}");
        }
        // A sysctl that is not namespaced would change the whole node, whatever the configuration.
        assert!(forbidden_sysctl(&pod("vm.swappiness"), &["vm.*".into()]).is_some());
    }

    #[test]
    fn shared_namespaces_are_not_the_pods_to_tune() {
        let mut net = pod("net.ipv4.tcp_syncookies");
        net.spec.host_network = true;
        let rejected = forbidden_sysctl(&net, &[]).expect("forbidden");
        assert_eq!(
            rejected,
            "forbidden sysctl: \"net.ipv4.tcp_syncookies\" not allowed with host net enabled"
        );
        let mut ipc = pod("kernel.shm_rmid_forced");
        ipc.spec.host_ipc = true;
        assert!(forbidden_sysctl(&ipc, &[]).expect("forbidden").ends_with("with host ipc enabled"));
    }

    #[test]
    fn spellings() {
        assert_eq!(dotted_name("net/ipv4/conf/eth0.1/rp_filter"), "net.ipv4.conf.eth0/1.rp_filter");
        assert_eq!(dotted_name("net.ipv4.ip_forward"), "net.ipv4.ip_forward");
        assert_eq!(dotted_name("x"), "x");
    }

    #[test]
    fn patterns_that_could_be_allowed() {
        for (pattern, expect) in
            [("net.*", true), ("kernel.msg*", true), ("kernel.panic", false), ("vm.*", false)]
        {
            assert_eq!(is_allowable(pattern), expect, "{pattern}");
        }
    }
}
